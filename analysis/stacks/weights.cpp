// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/weights.hpp"

#include <utility>

namespace gpubusy::analysis {

using recording::Call;
using recording::Category;
using recording::Recording;

Sums& Sums::operator+=(const Sums& other) {
  calls += other.calls;
  launches += other.launches;
  copies += other.copies;
  syncs += other.syncs;
  allocations += other.allocations;
  allocated_bytes += other.allocated_bytes;
  host_ns += other.host_ns;
  device_ns += other.device_ns;
  idle_ns += other.idle_ns;
  return *this;
}

std::string_view weight_name(Weight weight) {
  switch (weight) {
    case Weight::kHostTime: return "host-time";
    case Weight::kLaunches: return "launches";
    case Weight::kIdle: return "idle";
    case Weight::kDeviceTime: break;
  }
  return "device-time";
}

std::uint64_t value_of(const Sums& sums, Weight weight) {
  switch (weight) {
    case Weight::kHostTime: return sums.host_ns;
    case Weight::kLaunches: return sums.launches;
    case Weight::kIdle: return sums.idle_ns;
    case Weight::kDeviceTime: break;
  }
  return sums.device_ns;
}

void count_call(const Call& call, Sums& sums) {
  ++sums.calls;
  sums.host_ns += call.end_ns - call.start_ns;
  switch (call.category) {
    case Category::kLaunch:
    case Category::kGraphLaunch: ++sums.launches; break;
    case Category::kCopy:
    case Category::kMemset: ++sums.copies; break;
    case Category::kSync: ++sums.syncs; break;
    case Category::kDeviceAlloc:
    case Category::kHostAlloc:
      ++sums.allocations;
      sums.allocated_bytes += call.alloc.bytes;
      break;
    default: break;
  }
}

Judged judge(const Recording& recording) {
  Judged out;
  out.timeline = build_timeline(recording);
  out.selection = select_steps(recording, out.timeline);
  out.device = busiest_device(out.timeline, out.selection.steps);
  out.times = split_time(recording, out.timeline, host_segments(recording), out.selection.steps,
                         out.device);
  return out;
}

StackWeights weigh(const Recording& recording, const Judged& judged, Stacks& stacks) {
  StackWeights out;
  out.by_stack.resize(1);
  const std::vector<Step>& steps = judged.selection.steps;
  const auto sums_of = [&](std::uint32_t call) -> Sums& {
    const StackId stack = call == kNoCall ? 0 : stacks.id_of(recording.calls[call]);
    if (stack >= out.by_stack.size()) out.by_stack.resize(stack + 1);
    return out.by_stack[stack];
  };
  // Calls come by start, so the step moves on with them.
  std::size_t step = 0;
  for (std::uint32_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    while (step < steps.size() && steps[step].end_ns <= call.start_ns) ++step;
    if (step == steps.size()) break;
    if (call.start_ns >= steps[step].begin_ns) count_call(call, sums_of(i));
  }
  for (const DeviceOp& op : judged.timeline.ops) {
    if (step_at(steps, recording.calls[op.call].start_ns) == kNoCall) continue;
    sums_of(op.call).device_ns += op.end_ns - op.start_ns;
  }
  for (const IdlePiece& piece : judged.times.pieces) sums_of(piece.call).idle_ns += piece.ns;
  for (const Sums& sums : out.by_stack) out.total += sums;
  return out;
}

}  // namespace gpubusy::analysis
