// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_tracker.hpp"

#include <atomic>

#include "runtime/clock.hpp"
#include "runtime/kernels.hpp"
#include "runtime/pointer_map.hpp"

namespace gpubusy::runtime {
namespace {

// Kernels that are known not to matter for steps, direct-mapped by address: one load and a compare
// on the path of every launch between windows.
constexpr std::size_t kPlainSlots = 4096;
constinit std::atomic<const void*> g_plain[kPlainSlots];

std::atomic<const void*>& plain_slot(const void* function) noexcept {
  const auto k = reinterpret_cast<std::uintptr_t>(function);
  return g_plain[(k * 0x9e3779b97f4a7c15ull) >> 52];
}
static_assert(kPlainSlots == 1u << 12);

constinit config::StepKind g_kind = config::StepKind::kNone;

// kernel:GLOB
constexpr std::uint64_t kNoMatch = 1, kMatch = 2;
constinit PointerMap<14> g_matches;

bool matches_pattern(const void* function, recording::Layer layer) noexcept {
  std::uint64_t known = g_matches.find(function);
  if (known == 0) {
    const char* name = kernel_name(function, layer);
    known = name != nullptr && config::glob_match(configuration().step_pattern, name) ? kMatch
                                                                                      : kNoMatch;
    g_matches.set(function, known);
    if (known == kNoMatch) plain_slot(function).store(function, std::memory_order_relaxed);
  }
  return known == kMatch;
}

}  // namespace

bool launch_is_plain(const void* function) noexcept {
  return plain_slot(function).load(std::memory_order_relaxed) == function;
}

void set_up_steps() noexcept { g_kind = configuration().step_kind; }

void steps_before_call(const void*, recording::Layer) noexcept {}

void steps_after_call(std::uint32_t api, const void* function, recording::Layer layer,
                      std::uint64_t end_ns) noexcept {
  switch (g_kind) {
    case config::StepKind::kKernel:
      if (function != nullptr && matches_pattern(function, layer)) {
        step_edge(end_ns, recording::StepSource::kKernel);
      }
      break;
    case config::StepKind::kCall:
      if (api == g_step_api.load(std::memory_order_relaxed)) {
        step_edge(end_ns, recording::StepSource::kCall);
      }
      break;
    case config::StepKind::kOptimizer:
    case config::StepKind::kNone: break;
  }
}

void forget_steps_after_fork() noexcept { g_matches.clear_after_fork(); }

}  // namespace gpubusy::runtime
