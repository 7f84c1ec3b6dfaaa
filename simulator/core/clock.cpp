// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/clock.hpp"

#include <errno.h>

namespace gpubusy::sim {
namespace {

// A sleeping thread wakes up about 55 us late on an idle Linux machine (timer slack 50 us).
constexpr std::uint64_t kWakeUpNs = 60'000;

void sleep_until(std::uint64_t time_ns) noexcept {
  const timespec t{static_cast<time_t>(time_ns / 1'000'000'000u),
                   static_cast<long>(time_ns % 1'000'000'000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == EINTR) {
  }
}

}  // namespace

void wait_until(std::uint64_t time_ns, Waiting how) noexcept {
  const int saved_errno = errno;
  std::uint64_t now = now_ns();
  if (how == Waiting::kYield) {
    if (now < time_ns) sleep_until(time_ns);
  } else {
    if (now + kWakeUpNs < time_ns) sleep_until(time_ns - kWakeUpNs);
    while (now_ns() < time_ns) __builtin_ia32_pause();
  }
  errno = saved_errno;
}

}  // namespace gpubusy::sim
