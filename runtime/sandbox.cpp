// SPDX-License-Identifier: Apache-2.0
#include "runtime/sandbox.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/gaps/evidence.hpp"

namespace gpubusy::runtime::sandbox {
namespace {

constexpr int kNotTold = -1, kNone = 0;

struct State {
  int mode = kNotTold;  // of PR_GET_SECCOMP
  std::uint64_t filters = 0;
  bool operator==(const State&) const = default;
};
constinit State g_at_start;

int mode_by_prctl() noexcept {
  return static_cast<int>(syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0));
}

State state_of(std::uint32_t thread_id) noexcept {
  State s;
  std::uint64_t mode = 0;
  if (gaps::status_number(thread_id, "Seccomp:\t", mode)) {
    s.mode = static_cast<int>(mode);
    if (mode != 0) gaps::status_number(thread_id, "Seccomp_filters:\t", s.filters);
  }
  return s;
}

}  // namespace

void remember_start(bool may_ask) noexcept {
  g_at_start = state_of(0);
  if (g_at_start.mode == kNotTold && may_ask) g_at_start.mode = mode_by_prctl();
}

Filters by_status_of(std::uint32_t thread_id) noexcept {
  const State now = state_of(thread_id);
  if (now.mode == kNotTold || g_at_start.mode == kNotTold) return Filters::kUnknown;
  return now == g_at_start ? Filters::kAsAtStart : Filters::kMore;
}

Filters of_this_thread() noexcept {
  if (g_at_start.mode != kNone) return by_status_of(0);
  return mode_by_prctl() == kNone ? Filters::kAsAtStart : Filters::kMore;
}

bool is_none_new() noexcept { return g_at_start.mode != kNone || mode_by_prctl() == kNone; }

}  // namespace gpubusy::runtime::sandbox
