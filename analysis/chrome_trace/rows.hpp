// SPDX-License-Identifier: Apache-2.0
//
// The rows of a window in the order of time: calls with their device work and the arrows between
// them, the Python functions and operators round them, and ranges. Thread-safety: one thread per
// object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "analysis/chrome_trace/chrome_trace.hpp"
#include "analysis/chrome_trace/lanes.hpp"
#include "analysis/chrome_trace/sink.hpp"
#include "analysis/chrome_trace/texts.hpp"
#include "analysis/chrome_trace/window.hpp"
#include "analysis/stacks/frame_slices.hpp"

namespace gpubusy::analysis::chrome_trace {

class Rows {
 public:
  // With `operators` there are rows of frames.
  Rows(const TraceWindow& window, std::uint32_t pid, Operators* operators, Texts& texts,
       Sink& sink);

  // False: some were left out at the end, for size.
  bool write();
  const TraceCounts& counts() const { return counts_; }
  std::uint64_t frames_left_out() const;

 private:
  struct OpenFrame {
    std::uint32_t last_call;
    std::uint32_t id;
    bool python, op;
  };

  // A call, its device work, and the arrows between them; always together.
  void call_rows(std::uint32_t index, std::size_t from, std::size_t to);
  std::uint64_t device_row(const recording::Call& call, std::uint32_t index);
  void op_name(const recording::Call& call, const DeviceOp& op);
  void kernel_args(const recording::Launch& launch, std::int16_t device);
  void graph_args(const recording::Call& call, const DeviceOp& op);
  void arrow(char phase, std::uint64_t id, std::uint64_t pid, std::uint64_t tid,
             std::uint64_t time_ns);
  // The frames that begin with a call, outermost first, and the ranges before them.
  bool frames_before(std::uint32_t index, bool more);
  void frame_row(const FrameSlice& slice, std::uint32_t thread, std::vector<OpenFrame>& open);
  // Of the innermost operator round a call; 0: none.
  std::uint32_t external_id(const recording::Call& call) const;
  // The ranges that stand before a slice in the order of slices.
  bool ranges_before(std::uint64_t begin_ns, std::uint64_t end_ns, bool open);
  void range_row(const ShownRange& shown);
  void range_args(const recording::Range& range, const ShownRange& shown);
  // Steps and ranges of a thread are there already: frames keep out of their way.
  void select_frames(Operators& operators);

  const TraceWindow& window_;
  const std::uint32_t pid_;
  Texts& texts_;
  Sink& sink_;
  TraceCounts counts_;
  std::optional<FrameSlices> frames_;
  std::size_t next_frame_ = 0, next_range_ = 0;
  std::map<std::uint32_t, std::vector<OpenFrame>> open_frames_;  // by thread, outermost first
  std::map<std::uint32_t, Lanes> thread_lanes_;
  std::uint32_t last_python_id_ = 0, last_external_id_ = 0;
};

}  // namespace gpubusy::analysis::chrome_trace
