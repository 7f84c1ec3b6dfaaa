// SPDX-License-Identifier: Apache-2.0
#include "analysis/concurrency.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "analysis/line_vote.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::Recording;

std::uint64_t length_of(const std::vector<Interval>& intervals) {
  std::uint64_t sum = 0;
  for (const Interval& i : intervals) sum += i.end - i.begin;
  return sum;
}

std::uint64_t overlap_of(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::uint64_t sum = 0;
  for (const Interval& i : a) sum += covered(b, i.begin, i.end);
  return sum;
}

std::uint64_t blocks_of(const Recording& recording, const DeviceOp& op) {
  if (op.activity != recording::kNoActivity) {
    const recording::KernelActivityPayload& k = recording.activities[op.activity].kernel;
    return std::uint64_t{k.grid_x} * k.grid_y * k.grid_z;
  }
  const Call& call = recording.calls[op.call];
  if (call.category != recording::Category::kLaunch) return 0;
  return std::uint64_t{call.launch.grid[0]} * call.launch.grid[1] * call.launch.grid[2];
}

// PyTorch's kernel behind .contiguous(), .to(memory_format=…) and copy_ between layouts.
constexpr std::string_view kCopyKernel = "direct_copy_kernel";

class Finder {
 public:
  Finder(const Recording& recording, const Timeline& timeline, const std::vector<Step>& steps,
         std::int16_t device, SourceLines& lines)
      : recording_(recording), timeline_(timeline), steps_(steps), lines_(lines) {
    const auto found = timeline.devices.find(device);
    if (found != timeline.devices.end()) line_ = &found->second;
    const auto properties = recording.devices.find(device);
    if (properties != recording.devices.end()) {
      multiprocessors_ = properties->second.properties.sm_count;
    }
  }

  Concurrency run() {
    if (line_ == nullptr) return {};
    for (const std::uint32_t index : line_->ops) {
      const DeviceOp& op = timeline_.ops[index];
      if (step_at(steps_, recording_.calls[op.call].start_ns) == kNoCall) continue;
      if (op.kind == OpKind::kCopy) copy(op);
      if (op.kind == OpKind::kKernel) kernel(op);
    }
    out_.pinned_copy_ns = length_of(pinned_copies_);
    out_.copy_alone_ns = out_.pinned_copy_ns - overlap_of(pinned_copies_, line_->kernel_busy);
    out_.copy_line = copy_lines_.winner(lines_);
    out_.device_copy_line = device_copy_lines_.winner(lines_);
    const auto inner = lines_.frames(device_copy_lines_.winning_stack(lines_), 1);
    if (!inner.empty() && !inner.front().user) out_.device_copy_inside = inner.front();
    choose_streams();
    return std::move(out_);
  }

 private:
  struct StreamUse {
    std::vector<Interval> kernels;
    LineVote lines;
  };

  void copy(const DeviceOp& op) {
    const recording::CopyPayload c = copy_of(recording_, op);
    const std::uint32_t stack = recording_.calls[op.call].python_stack;
    if (c.direction == CopyDirection::kDeviceToDevice) return device_copy(op);
    if (c.direction != CopyDirection::kHostToDevice || !c.asynchronous ||
        c.source_kind != MemoryKind::kPinned) {
      return;
    }
    append_union(pinned_copies_, {op.start_ns, op.end_ns});
    copy_lines_.add(stack,
                    op.end_ns - op.start_ns - covered(line_->kernel_busy, op.start_ns, op.end_ns));
  }

  void device_copy(const DeviceOp& op) {
    ++out_.device_copies;
    out_.device_copy_ns += op.end_ns - op.start_ns;
    device_copy_lines_.add(recording_.calls[op.call].python_stack, op.end_ns - op.start_ns);
  }

  bool only_copies(std::uint32_t kernel) {
    const auto [it, fresh] = copy_kernels_.try_emplace(kernel, false);
    if (fresh) {
      const auto found = recording_.kernels.find(kernel);
      it->second = found != recording_.kernels.end() &&
                   found->second.name.find(kCopyKernel) != std::string::npos;
    }
    return it->second;
  }

  void kernel(const DeviceOp& op) {
    if (only_copies(kernel_of(recording_, op))) device_copy(op);
    const std::uint64_t blocks = blocks_of(recording_, op);
    if (blocks == 0 || blocks * 2 > multiprocessors_) return;
    StreamUse& use = streams_[op.stream];
    append_union(use.kernels, {op.start_ns, op.end_ns});
    use.lines.add(recording_.calls[op.call].python_stack, op.end_ns - op.start_ns);
  }

  void choose_streams() {
    const StreamUse* best[2] = {};
    for (const auto& [stream, use] : streams_) {
      const std::uint64_t length = length_of(use.kernels);
      if (length > out_.small_kernel_ns[0]) {
        best[1] = best[0];
        out_.small_kernel_ns[1] = out_.small_kernel_ns[0];
        best[0] = &use;
        out_.small_kernel_ns[0] = length;
      } else if (length > out_.small_kernel_ns[1]) {
        best[1] = &use;
        out_.small_kernel_ns[1] = length;
      }
    }
    if (best[1] == nullptr) return;
    out_.small_overlap_ns = overlap_of(best[0]->kernels, best[1]->kernels);
    out_.stream_line = best[1]->lines.winner(lines_);
  }

  const Recording& recording_;
  const Timeline& timeline_;
  const std::vector<Step>& steps_;
  SourceLines& lines_;
  const DeviceLine* line_ = nullptr;
  std::uint64_t multiprocessors_ = 0;  // 0: not known, and then no kernel counts as small
  Concurrency out_;
  std::vector<Interval> pinned_copies_;
  LineVote copy_lines_, device_copy_lines_;
  std::map<std::uint32_t, bool> copy_kernels_;
  std::map<std::uint32_t, StreamUse> streams_;
};

}  // namespace

Concurrency concurrency_of(const Recording& recording, const Timeline& timeline,
                           const std::vector<Step>& steps, std::int16_t device,
                           SourceLines& lines) {
  return Finder(recording, timeline, steps, device, lines).run();
}

}  // namespace gpubusy::analysis
