// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace/window.hpp"

#include <algorithm>
#include <iterator>

namespace gpubusy::analysis::chrome_trace {

using recording::Call;

TraceWindow::TraceWindow(const recording::Recording& of, const Timeline& with,
                         const recording::Window& in)
    : recording(of), timeline(with), window(in) {
  select();
  prepare_steps();
  select_ranges();
  assign_device_lanes();
}

void TraceWindow::select() {
  const std::vector<Call>& calls = recording.calls;
  const auto from = [&](std::uint64_t time) {
    return static_cast<std::uint32_t>(
        std::partition_point(calls.begin(), calls.end(),
                             [time](const Call& c) { return c.start_ns < time; }) -
        calls.begin());
  };
  first = from(window.begin_ns);
  // A complete window ends where the next may begin; any other keeps its last instant.
  last = from(window.complete ? window.end_ns : window.end_ns + 1);
  for (std::uint32_t i = first; i < last; ++i) {
    ++launches[calls[i].thread_id];
    const auto [begin, end] = timeline.ops_of(i);
    for (std::size_t op = begin; op < end; ++op) ops.push_back(timeline.ops_by_call[op]);
    untimed += begin == end && wants_device_work(calls[i]);
  }
  std::sort(ops.begin(), ops.end());  // by start, as in the timeline
}

void TraceWindow::prepare_steps() {
  steps = steps_of(recording, window);
  if (steps.empty()) return;
  std::map<std::uint32_t, std::size_t> votes;
  for (const recording::StepEdge& edge : recording.steps) {
    if (edge.time_ns > window.begin_ns && edge.time_ns <= window.end_ns) {
      ++votes[edge.thread_id];
    }
  }
  step_thread = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
                  return a.second < b.second;
                })->first;
  std::size_t next = 0;
  for (std::uint32_t i = first; i < last && next < steps.size(); ++i) {
    const Call& call = recording.calls[i];
    while (next < steps.size() && steps[next].end_ns <= call.start_ns) ++next;
    if (next == steps.size()) break;
    if (call.thread_id != step_thread || call.end_ns <= steps[next].end_ns) continue;
    if (next + 1 < steps.size()) {
      if (call.end_ns >= steps[next + 1].end_ns) continue;  // longer than a step: own row
      steps[next + 1].begin_ns = call.end_ns;
    }
    steps[next].end_ns = call.end_ns;
  }
}

void TraceWindow::select_ranges() {
  std::map<std::uint32_t, std::uint64_t> last_call;  // end by thread
  for (std::uint32_t i = first; i < last; ++i) {
    std::uint64_t& end = last_call[recording.calls[i].thread_id];
    end = std::max(end, recording.calls[i].end_ns);
  }
  const std::vector<recording::Range>& all = recording.ranges;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const recording::Range& range = all[i];
    const bool instant = range.kind == recording::RangeKind::kMark;
    if (range.start_ns > window.end_ns) break;
    if (range.end_ns < window.begin_ns || (!instant && range.end_ns == window.begin_ns)) continue;
    if (range.start_ns == window.end_ns && window.complete) continue;  // of the next one
    std::uint64_t end = window.end_ns;
    if (!steps.empty() && range.thread_id == step_thread) end = std::max(end, steps.back().end_ns);
    const auto call = last_call.find(range.thread_id);
    if (call != last_call.end()) end = std::max(end, call->second);
    ranges.push_back({std::max(range.start_ns, window.begin_ns), std::min(range.end_ns, end), i});
    if (range.kind != recording::RangeKind::kStartEnd) launches.try_emplace(range.thread_id, 0);
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const ShownRange& a, const ShownRange& b) {
    return std::pair(a.begin_ns, b.end_ns) < std::pair(b.begin_ns, a.end_ns);
  });
  for (ShownRange& range : ranges) {
    if (all[range.index].kind != recording::RangeKind::kStartEnd) continue;
    range.lane = start_end.place(range.begin_ns, range.end_ns);
  }
}

void TraceWindow::assign_device_lanes() {
  std::uint32_t max_stream = 0;
  for (const std::uint32_t op : ops) {
    const DeviceOp& o = timeline.ops[op];
    max_stream = std::max(max_stream, o.stream);
    const auto [lanes, fresh] = streams.try_emplace({o.device, o.stream}, Lanes::Rule::kDisjoint);
    const std::uint32_t lane = lanes->second.place(o.start_ns, o.end_ns);
    if (lane > 0) op_lanes[op] = lane;
    sources.insert(o.source);
    if (o.device >= 0) devices.insert(o.device);
  }
  for (const auto& [device, properties] : recording.devices) {
    if (device >= 0 && device < static_cast<std::int32_t>(kFirstProcessPid)) {
      devices.insert(device);
    }
  }
  stream_lane_shift = (std::uint64_t{max_stream} / 1000 + 1) * 1000;
}

bool TraceWindow::crosses_step(std::uint32_t thread_id, std::uint64_t begin_ns,
                               std::uint64_t end_ns) const {
  if (thread_id != step_thread || steps.empty()) return false;
  const auto first_step = std::partition_point(steps.begin(), steps.end(),
                                               [&](const Step& s) { return s.end_ns <= begin_ns; });
  if (first_step == steps.end() || first_step->begin_ns >= end_ns) return false;  // outside of all
  if (begin_ns > first_step->begin_ns) return end_ns > first_step->end_ns;
  const auto last_step = std::prev(std::partition_point(
      first_step, steps.end(), [&](const Step& s) { return s.begin_ns < end_ns; }));
  return end_ns < last_step->end_ns &&
         !(first_step == last_step && begin_ns == first_step->begin_ns);
}

}  // namespace gpubusy::analysis::chrome_trace
