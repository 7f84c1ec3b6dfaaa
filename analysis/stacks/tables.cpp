// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/tables.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "analysis/source_lines.hpp"
#include "analysis/stacks/phases.hpp"

namespace gpubusy::analysis {
namespace {

using recording::FrameKind;
using recording::Recording;

// The frame that stands for a stack: the innermost of the program's own code that has a source,
// else the innermost of Python, else none.
const Frame* own_frame(Stacks& stacks, StackId stack) {
  const Frame* python = nullptr;
  for (const Stacks::Place& place : stacks.places(stack)) {
    const Frame& frame = stacks.frame(place.frame);
    if (frame.user && (!frame.file.empty() || !frame.function.empty())) return &frame;
    if (python == nullptr && frame.kind == FrameKind::kPython && !frame.file.empty()) {
      python = &frame;
    }
  }
  return python;
}

CostRow row_of(Stacks& stacks, Operators& operators, StackId stack, GroupBy by) {
  CostRow row;
  switch (by) {
    case GroupBy::kOperator: {
      const StackFacts& facts = operators.of(stack);
      if (facts.operators.empty()) break;
      row.name = facts.operators.back().name;
      row.guessed = facts.operators_guessed;
      return row;
    }
    case GroupBy::kStack:
      if (stack == 0) break;
      for (NamedFrame& frame : named_frames(stacks, stack)) {
        row.frames.push_back(std::move(frame.name));
        row.name += (row.name.empty() ? "" : ";") + row.frames.back();
      }
      return row;
    default: {
      const Frame* frame = own_frame(stacks, stack);
      if (frame == nullptr) break;
      const std::string function =
          frame->kind == FrameKind::kPython ? frame->function : short_function(frame->function);
      row.function = function;
      row.file = frame->file;
      if (by == GroupBy::kLine) row.line = frame->line;
      row.name = frame->file.empty() ? function
                                     : to_text(SourceLine{frame->file, function, row.line, true});
      return row;
    }
  }
  row.known = false;
  row.name = by == GroupBy::kOperator                        ? "(no operator seen)"
             : operators.of(stack).phase == Phase::kBackward ? "(backward: no Python frame)"
                                                             : "(unknown)";
  return row;
}

std::uint64_t cost(const CostRow& row) { return row.sums.device_ns + row.sums.idle_ns; }

void keep_top(CostTable& table, std::size_t top) {
  std::stable_sort(table.rows.begin(), table.rows.end(), [](const CostRow& a, const CostRow& b) {
    return std::tuple(cost(b), b.sums.host_ns, b.sums.calls) <
           std::tuple(cost(a), a.sums.host_ns, a.sums.calls);
  });
  if (top == 0) return;
  std::vector<CostRow> kept;
  std::size_t known = 0;
  for (CostRow& row : table.rows) {
    if (!row.known || known++ < top) {
      kept.push_back(std::move(row));
    } else {
      ++table.others;
      table.other.sums += row.sums;
      table.other.wall_ns += row.wall_ns;
    }
  }
  table.rows = std::move(kept);
}

}  // namespace

CostTable make_table(const Recording& recording, const Judged& judged, Stacks& stacks,
                     Operators& operators, GroupBy by, std::size_t top) {
  CostTable table;
  table.by = by;
  for (const Step& step : judged.selection.steps) table.wall_ns += step.wall_ns();
  if (by == GroupBy::kPhase) {
    for (const PhaseRow& phase : phase_rows(recording, judged, stacks, operators)) {
      CostRow row;
      row.name = phase_title(phase);
      row.guessed = phase.guessed;
      row.wall_ns = phase.wall_ns;
      row.sums = phase.sums;
      table.total += row.sums;
      table.rows.push_back(std::move(row));
    }
    return table;
  }
  const StackWeights weights = weigh(recording, judged, stacks);
  table.total = weights.total;
  using Key = std::tuple<bool, std::string, std::string, std::string, int>;
  std::map<Key, std::size_t> index;
  for (StackId stack = 0; stack < weights.by_stack.size(); ++stack) {
    if (weights.by_stack[stack] == Sums{}) continue;
    CostRow row = row_of(stacks, operators, stack, by);
    const auto [it, fresh] = index.try_emplace(
        Key{row.guessed, row.name, row.file, row.function, row.line}, table.rows.size());
    if (fresh) table.rows.push_back(std::move(row));
    table.rows[it->second].sums += weights.by_stack[stack];
  }
  keep_top(table, top);
  return table;
}

}  // namespace gpubusy::analysis
