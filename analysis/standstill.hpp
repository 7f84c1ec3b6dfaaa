// SPDX-License-Identifier: Apache-2.0
//
// Processes that have stopped asking for device work without having ended: where each of them is,
// and which rank the others wait for. Thread-safe.
#pragma once

#include "analysis/gaps.hpp"
#include "analysis/source_lines.hpp"

namespace gpubusy::analysis {

struct SessionReport;

struct Standstill {
  std::uint64_t ns = 0;  // from its last call to the last look at it; 0: it does not stand still
  GapKind kind = GapKind::kNotSeen;
  SourceLine line;             // of the program's own code, else of any
  bool in_collective = false;  // of torch.distributed
};

// Of a recording that was not ended in an orderly way, by the last look at its launching threads.
Standstill standstill_of(const recording::Recording& recording, SourceLines& lines);

// A warning for each process that stands still.
void tell_standstills(SessionReport& session);

}  // namespace gpubusy::analysis
