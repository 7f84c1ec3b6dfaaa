// SPDX-License-Identifier: Apache-2.0
//
// torch.profiler.schedule's meaning of a step number, exactly (a property test compares them).
// Pure; shared by the injected library and `gpubusy --explain-schedule`.
#pragma once

#include <cstdint>

namespace gpubusy::config {

struct Schedule {
  std::uint64_t skip_first = 0;
  std::uint64_t skip_first_wait = 0;  // not 0: the first cycle has no wait phase
  std::uint64_t wait = 0;
  std::uint64_t warmup = 0;
  std::uint64_t active = 1;  // at least 1
  std::uint64_t repeat = 0;  // 0: for ever
};

enum class Action : std::uint8_t { kNone, kWarmup, kRecord, kRecordAndSave };

constexpr Action action_at(const Schedule& s, std::uint64_t step) noexcept {
  if (step < s.skip_first) return Action::kNone;
  step -= s.skip_first;
  // As torch: the first cycle is entered behind its wait phase, and that cycle counts for repeat.
  if (s.skip_first_wait != 0) step += s.wait;
  const std::uint64_t cycle = s.wait + s.warmup + s.active;
  // torch tests step / cycle >= repeat in floating point; for integers that is the same.
  if (s.repeat > 0 && step / cycle >= s.repeat) return Action::kNone;
  const std::uint64_t in_cycle = step % cycle;
  if (in_cycle < s.wait) return Action::kNone;
  if (in_cycle < s.wait + s.warmup) return Action::kWarmup;
  return in_cycle < cycle - 1 ? Action::kRecord : Action::kRecordAndSave;
}

constexpr bool records(Action a) noexcept {
  return a == Action::kRecord || a == Action::kRecordAndSave;
}

}  // namespace gpubusy::config
