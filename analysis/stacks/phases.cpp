// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/phases.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Recording;

constexpr std::size_t kNone = kPhases;  // before the first call, behind the last

// Rows by (from, to); equal: the phase itself.
class Rows {
 public:
  explicit Rows(const Judged& judged) : steps_(judged.selection.steps) {
    const auto line = judged.timeline.devices.find(judged.device);
    if (line != judged.timeline.devices.end()) busy_ = &line->second.busy;
  }

  Sums& sums(std::size_t phase) { return rows_[{phase, phase, false}].sums; }

  void guess(std::size_t phase) { rows_[{phase, phase, false}].guessed = true; }

  // The host is in a row during [begin, end). Times must rise from call to call.
  void time(std::size_t from, std::size_t to, bool between, std::uint64_t begin,
            std::uint64_t end) {
    while (step_ < steps_.size() && steps_[step_].end_ns <= begin) ++step_;
    for (std::size_t s = step_; s < steps_.size() && steps_[s].begin_ns < end; ++s) {
      const std::uint64_t b = std::max(begin, steps_[s].begin_ns);
      const std::uint64_t e = std::min(end, steps_[s].end_ns);
      if (b >= e) continue;
      PhaseRow& row = rows_[{from, to, between}];
      row.wall_ns += e - b;
      row.sums.idle_ns += e - b - (busy_ == nullptr ? 0 : covered(*busy_, b, e));
    }
  }

  std::vector<PhaseRow> take() {
    std::vector<PhaseRow> out;
    for (auto& [key, row] : rows_) {
      const auto& [from, to, between] = key;
      row.between = between;
      row.at_begin = from == kNone;
      row.at_end = to == kNone;
      if (from != kNone) row.from = static_cast<Phase>(from);
      if (to != kNone) row.to = static_cast<Phase>(to);
      out.push_back(row);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const PhaseRow& a, const PhaseRow& b) { return a.wall_ns > b.wall_ns; });
    return out;
  }

 private:
  const std::vector<Step>& steps_;
  const std::vector<Interval>* busy_ = nullptr;
  std::size_t step_ = 0;
  std::map<std::tuple<std::size_t, std::size_t, bool>, PhaseRow> rows_;
};

}  // namespace

std::string phase_title(const PhaseRow& row) {
  if (!row.between) {
    return fmt::format("{}{}", phase_name(row.from), row.guessed ? " (a guess)" : "");
  }
  if (row.at_begin && row.at_end) return "no call";
  if (row.at_begin) return fmt::format("before {}", phase_name(row.to));
  if (row.at_end) return fmt::format("after {}", phase_name(row.from));
  return fmt::format("{} -> {}", phase_name(row.from), phase_name(row.to));
}

std::vector<PhaseRow> phase_rows(const Recording& recording, const Judged& judged, Stacks& stacks,
                                 Operators& operators) {
  const std::vector<Step>& steps = judged.selection.steps;
  // The host's way is that of the threads that ask for work; a thread that only pins memory for the
  // next batch would cut it to pieces.
  std::set<std::uint32_t> threads;
  for (const Call& call : recording.calls) {
    if (wants_device_work(call)) threads.insert(call.thread_id);
  }
  Rows rows(judged);
  std::size_t last = kNone;
  std::uint64_t at = 0;
  for (const Call& call : recording.calls) {
    const Phase phase = operators.phase_of(call);
    const auto p = static_cast<std::size_t>(phase);
    if (step_at(steps, call.start_ns) != kNoCall) {
      Sums& sums = rows.sums(p);
      count_call(call, sums);
      if (operators.of(stacks.id_of(call)).phase_guessed) rows.guess(p);
    }
    if (!threads.contains(call.thread_id)) continue;
    if (call.start_ns > at) rows.time(last, p, last != p, at, call.start_ns);
    if (call.end_ns > at) rows.time(p, p, false, std::max(at, call.start_ns), call.end_ns);
    at = std::max(at, call.end_ns);
    last = p;
  }
  if (!steps.empty() && at < steps.back().end_ns) {
    rows.time(last, kNone, true, at, steps.back().end_ns);
  }
  for (const DeviceOp& op : judged.timeline.ops) {
    const Call& call = recording.calls[op.call];
    if (step_at(steps, call.start_ns) == kNoCall) continue;
    rows.sums(static_cast<std::size_t>(operators.phase_of(call))).device_ns +=
        op.end_ns - op.start_ns;
  }
  return rows.take();
}

}  // namespace gpubusy::analysis
