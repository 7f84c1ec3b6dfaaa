// SPDX-License-Identifier: Apache-2.0
//
// `gpubusy report --by`: what the judged steps cost by line, function, operator, stack or phase.
// The rows, with what was left out and what is not known, add up to the total. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/stacks/operators.hpp"
#include "analysis/stacks/stacks.hpp"
#include "analysis/stacks/weights.hpp"

namespace gpubusy::analysis {

enum class GroupBy : std::uint8_t { kLine, kFunction, kOperator, kStack, kPhase };

struct CostRow {
  std::string name;
  bool known = true;  // false: what could not be told
  bool guessed = false;
  std::string file, function;       // lines and functions
  int line = 0;                     // lines
  std::vector<std::string> frames;  // stacks: outermost first
  std::uint64_t wall_ns = 0;        // phases: of the host
  Sums sums;
};

struct CostTable {
  GroupBy by = GroupBy::kLine;
  std::vector<CostRow> rows;  // dearest first: device time and idle time together, then host time
  std::size_t others = 0;     // rows left out …
  CostRow other;              // … summed
  std::uint64_t wall_ns = 0;  // of the steps
  Sums total;
};

// `top`: rows to keep, 0: all. The row of what is not known is always kept.
CostTable make_table(const recording::Recording& recording, const Judged& judged, Stacks& stacks,
                     Operators& operators, GroupBy by, std::size_t top);

}  // namespace gpubusy::analysis
