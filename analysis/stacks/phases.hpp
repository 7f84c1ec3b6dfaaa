// SPDX-License-Identifier: Apache-2.0
//
// What the host was doing over the judged steps, by phase of training: forward, backward, and so
// on. Each instant of a step is in one row: of a phase from its first to its last call, else of the
// way from one phase to the next. Times: ns. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/stacks/operators.hpp"
#include "analysis/stacks/weights.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct PhaseRow {
  bool between = false;  // the host was outside of CUDA, on the way from `from` to `to`
  Phase from = Phase::kOther, to = Phase::kOther;  // equal, unless `between`
  bool at_begin = false, at_end = false;           // between: nothing came before, or nothing after
  bool guessed = false;
  Sums sums;                  // of its calls; idle_ns: of the device while the host was in it
  std::uint64_t wall_ns = 0;  // of the host
};

// "forward", "optimizer -> forward", "before forward", …
std::string phase_title(const PhaseRow& row);

// Dearest wall time first. The rows' wall_ns add up to the steps'; their idle_ns to the device's.
std::vector<PhaseRow> phase_rows(const recording::Recording& recording, const Judged& judged,
                                 Stacks& stacks, Operators& operators);

}  // namespace gpubusy::analysis
