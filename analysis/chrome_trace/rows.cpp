// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace/rows.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "analysis/json_text.hpp"
#include "analysis/names.hpp"
#include "analysis/ranges.hpp"

namespace gpubusy::analysis::chrome_trace {
namespace {

using recording::Call;
using recording::Category;

constexpr std::size_t kMaxFrameRows = 2'000'000;

// Rows that cross others of their thread go to rows of their own, far from any thread id.
constexpr std::uint64_t kThreadLaneShift = 10'000'000;

}  // namespace

Rows::Rows(const TraceWindow& window, std::uint32_t pid, Operators* operators, Texts& texts,
           Sink& sink)
    : window_(window), pid_(pid), texts_(texts), sink_(sink) {
  if (operators != nullptr) select_frames(*operators);
}

bool Rows::write() {
  bool open = true;
  for (std::uint32_t i = window_.first; i < window_.last; ++i) {
    const Call& call = window_.recording.calls[i];
    const auto [from, to] = window_.timeline.ops_of(i);
    const std::uint64_t rows = 1 + (to - from);
    open = frames_before(i, open);
    open = ranges_before(call.start_ns, call.end_ns, open);
    counts_.events += rows;
    if (open) {
      sink_.rows.clear();
      call_rows(i, from, to);
      open = sink_.keep(call.start_ns);
    }
    if (!open) counts_.left_out += rows;
    if (!sink_.good()) break;
  }
  constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();
  return ranges_before(kEver, kEver, open);
}

std::uint64_t Rows::frames_left_out() const {
  return frames_ ? frames_->slices().size() - counts_.frames + frames_->left_out() : 0;
}

void Rows::call_rows(std::uint32_t index, std::size_t from, std::size_t to) {
  const Call& call = window_.recording.calls[index];
  const bool driver = call.api < window_.recording.apis.size() &&
                      window_.recording.apis[call.api].layer == recording::Layer::kDriver;
  Lanes& lanes = thread_lanes_.try_emplace(call.thread_id, Lanes::Rule::kNested).first->second;
  const std::uint32_t lane =
      lanes.place(call.start_ns, call.end_ns,
                  window_.crosses_step(call.thread_id, call.start_ns, call.end_ns) ? 1 : 0);
  const std::uint64_t tid = call.thread_id + lane * kThreadLaneShift;
  sink_.begin_row();
  sink_.add("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": ",
            driver ? "cuda_driver" : "cuda_runtime", texts_.api_name(call.api), pid_, tid);
  sink_.append_ts(sink_.rows, call.start_ns);
  sink_.rows += ", \"dur\": ";
  append_microseconds(sink_.rows, call.end_ns - call.start_ns);
  sink_.add(", \"args\": {{\"correlation\": {}", call.correlation);
  const std::uint32_t external = external_id(call);
  if (external != 0) sink_.add(", \"External id\": {}", external);
  if (call.result != 0) sink_.add(", \"result\": {}", call.result);
  if (call.flags & recording::kCallUnhooked) sink_.rows += ", \"seen by\": \"CUPTI only\"";
  if (call.flags & recording::kCallCaptured) sink_.rows += ", \"captured\": true";
  if (wants_device_work(call) && from == to) sink_.rows += ", \"device time\": \"not measured\"";
  switch (call.category) {
    case Category::kCopy: sink_.add(", \"bytes\": {}", call.copy.bytes); break;
    case Category::kMemset: sink_.add(", \"bytes\": {}", call.memset.bytes); break;
    case Category::kDeviceAlloc:
    case Category::kHostAlloc: sink_.add(", \"bytes\": {}", call.alloc.bytes); break;
    default: break;
  }
  sink_.rows += texts_.python_args(call.python_stack);
  sink_.rows += texts_.native_args(call.native_stack);
  sink_.rows += "}}";
  for (std::size_t i = from; i < to; ++i) {
    const std::uint32_t op = window_.timeline.ops_by_call[i];
    const std::uint64_t stream = device_row(call, op);
    const DeviceOp& o = window_.timeline.ops[op];
    // The nodes of a graph share a correlation, but arrows with one id would be taken for one.
    const std::uint64_t id = call.correlation + (std::uint64_t{i - from} << 32);
    arrow('s', id, pid_, tid, call.start_ns);
    arrow('f', id, static_cast<std::uint64_t>(o.device), stream, o.start_ns);
  }
}

std::uint64_t Rows::device_row(const Call& call, std::uint32_t index) {
  const DeviceOp& op = window_.timeline.ops[index];
  const auto lane = window_.op_lanes.find(index);
  const std::uint64_t tid =
      window_.stream_row(op.stream, lane == window_.op_lanes.end() ? 0 : lane->second);
  sink_.begin_row();
  const char* category = op.kind == OpKind::kCopy     ? "gpu_memcpy"
                         : op.kind == OpKind::kMemset ? "gpu_memset"
                                                      : "kernel";
  sink_.add("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": ", category);
  op_name(call, op);
  sink_.add(", \"pid\": {}, \"tid\": {}, \"ts\": ", op.device, tid);
  sink_.append_ts(sink_.rows, op.start_ns);
  sink_.rows += ", \"dur\": ";
  append_microseconds(sink_.rows, op.end_ns - op.start_ns);
  sink_.rows += ", \"args\": {";
  const std::uint32_t external = external_id(call);
  if (external != 0) sink_.add("\"External id\": {}, ", external);
  const bool kernel = op.kind == OpKind::kKernel;
  if (kernel || op.kind == OpKind::kGraph) sink_.rows += "\"queued\": 0, ";
  const recording::Activity* activity =
      op.activity == recording::kNoActivity ? nullptr : &window_.recording.activities[op.activity];
  sink_.add("\"device\": {}, \"context\": {}, \"stream\": {}, \"correlation\": {}", op.device,
            activity == nullptr ? 1 : activity->context, op.stream, call.correlation);
  if (kernel && activity != nullptr) {
    const recording::KernelActivityPayload& k = activity->kernel;
    sink_.add(", \"registers per thread\": {}", k.registers);
    kernel_args({k.kernel,
                 {k.grid_x, k.grid_y, k.grid_z},
                 {k.block_x, k.block_y, k.block_z},
                 k.dynamic_shared_bytes + k.static_shared_bytes},
                op.device);
  } else if (kernel && call.category == Category::kLaunch) {
    kernel_args(call.launch, op.device);
  } else if (op.kind == OpKind::kGraph) {
    graph_args(call, op);
  } else if (!kernel) {
    const std::uint64_t bytes = op.kind == OpKind::kCopy ? copy_of(window_.recording, op).bytes
                                                         : memset_bytes_of(window_.recording, op);
    const std::uint64_t length = op.end_ns - op.start_ns;
    sink_.add(", \"bytes\": {}, \"memory bandwidth (GB/s)\": ", bytes);
    append_number(sink_.rows,
                  length ? static_cast<double>(bytes) / static_cast<double>(length) : 0);
  }
  if (activity != nullptr && activity->graph != 0) {
    sink_.add(", \"graph id\": {}, \"graph node id\": {}", activity->graph, activity->graph_node);
  }
  sink_.add(", \"time source\": \"{}\"", time_source_name(op.source));
  if (op.uncertainty_ns > 0) {
    sink_.rows += ", \"time uncertainty (us)\": ";
    append_microseconds(sink_.rows, op.uncertainty_ns);
  }
  sink_.rows += "}}";
  return tid;
}

void Rows::op_name(const Call& call, const DeviceOp& op) {
  switch (op.kind) {
    case OpKind::kCopy: {
      const recording::CopyPayload c = copy_of(window_.recording, op);
      sink_.add("\"Memcpy {} ({} -> {})\"", direction_name(c.direction),
                memory_kind_name(c.source_kind), memory_kind_name(c.destination_kind));
      return;
    }
    case OpKind::kMemset: sink_.rows += "\"Memset (Device)\""; return;
    case OpKind::kGraph:
      sink_.add("\"CUDA graph {}", call.graph_launch.graph);
      if (op.graph_node != 0) sink_.add(" node {}", op.graph_node);
      sink_.rows += '"';
      return;
    case OpKind::kKernel: break;
  }
  sink_.rows += texts_.kernel_name(kernel_of(window_.recording, op));
}

void Rows::kernel_args(const recording::Launch& launch, std::int16_t device) {
  const auto found = window_.recording.devices.find(device);
  const std::uint32_t sms =
      found == window_.recording.devices.end() ? 0 : found->second.properties.sm_count;
  const double blocks = static_cast<double>(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  const double threads = static_cast<double>(launch.block[0]) * launch.block[1] * launch.block[2];
  sink_.rows += ", \"shared memory\": ";
  sink_.add("{}, \"blocks per SM\": ", launch.shared_bytes);
  append_number(sink_.rows, sms ? blocks / sms : 0);
  sink_.rows += ", \"warps per SM\": ";
  append_number(sink_.rows, sms ? blocks * threads / 32 / sms : 0);
  sink_.add(", \"grid\": [{}, {}, {}], \"block\": [{}, {}, {}]", launch.grid[0], launch.grid[1],
            launch.grid[2], launch.block[0], launch.block[1], launch.block[2]);
}

void Rows::graph_args(const Call& call, const DeviceOp& op) {
  const auto found = window_.recording.graphs.find(call.graph_launch.graph);
  if (found == window_.recording.graphs.end() || op.graph_node != 0) return;
  sink_.add(", \"graph kernels\": {}, \"graph copies\": {}, \"graph memsets\": {}",
            found->second.kernels, found->second.copies, found->second.memsets);
}

void Rows::arrow(char phase, std::uint64_t id, std::uint64_t pid, std::uint64_t tid,
                 std::uint64_t time_ns) {
  sink_.begin_row();
  sink_.add("{{\"ph\": \"{}\", \"id\": {}, \"pid\": {}, \"tid\": {}, \"ts\": ", phase, id, pid,
            tid);
  sink_.append_ts(sink_.rows, time_ns);
  sink_.rows += ", \"cat\": \"ac2g\", \"name\": \"ac2g\"";
  sink_.rows += phase == 'f' ? ", \"bp\": \"e\"}" : "}";
}

bool Rows::frames_before(std::uint32_t index, bool more) {
  if (!frames_) return more;
  const std::uint32_t thread = window_.recording.calls[index].thread_id;
  std::vector<OpenFrame>& open = open_frames_[thread];
  while (!open.empty() && open.back().last_call < index) open.pop_back();
  const std::vector<FrameSlice>& slices = frames_->slices();
  for (; next_frame_ < slices.size() && slices[next_frame_].first_call == index; ++next_frame_) {
    const FrameSlice& slice = slices[next_frame_];
    // A library's call of the same length is inside of it.
    more = ranges_before(slice.begin_ns, slice.end_ns + 1, more);
    if (!more) continue;
    Lanes& lanes = thread_lanes_.try_emplace(thread, Lanes::Rule::kNested).first->second;
    // Beside its row a frame would stand round nothing.
    if (window_.crosses_step(thread, slice.begin_ns, slice.end_ns) ||
        !lanes.fits(0, slice.begin_ns, slice.end_ns)) {
      continue;
    }
    lanes.place(slice.begin_ns, slice.end_ns);
    sink_.rows.clear();
    frame_row(slice, thread, open);
    more = sink_.keep(slice.begin_ns);
    counts_.frames += more;
  }
  return more;
}

void Rows::frame_row(const FrameSlice& slice, std::uint32_t thread, std::vector<OpenFrame>& open) {
  const bool python = slice.kind == FrameSlice::Kind::kPython;
  const char* category = python                                      ? "python_function"
                         : slice.kind == FrameSlice::Kind::kOperator ? "cpu_op"
                                                                     : "user_annotation";
  sink_.begin_row();
  sink_.add("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": ", category);
  const std::string& name = frames_->name(slice.name);
  append_name(sink_.rows, name);
  sink_.add(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, thread);
  sink_.append_ts(sink_.rows, slice.begin_ns);
  sink_.rows += ", \"dur\": ";
  append_microseconds(sink_.rows, slice.end_ns - slice.begin_ns);
  const std::uint32_t id = ++(python ? last_python_id_ : last_external_id_);
  if (python) {
    const auto parent =
        std::find_if(open.rbegin(), open.rend(), [](const OpenFrame& o) { return o.python; });
    sink_.add(", \"args\": {{\"Python id\": {}, \"Python parent id\": ", id);
    sink_.rows += parent == open.rend() ? "null" : std::to_string(parent->id);
  } else {
    sink_.add(", \"args\": {{\"External id\": {}", id);
  }
  sink_.rows += "}}";
  open.push_back({slice.last_call, id, python, slice.kind == FrameSlice::Kind::kOperator});
}

std::uint32_t Rows::external_id(const Call& call) const {
  const auto found = open_frames_.find(call.thread_id);
  if (found == open_frames_.end()) return 0;
  const auto op = std::find_if(found->second.rbegin(), found->second.rend(),
                               [](const OpenFrame& o) { return o.op; });
  return op == found->second.rend() ? 0 : op->id;
}

bool Rows::ranges_before(std::uint64_t begin_ns, std::uint64_t end_ns, bool open) {
  for (; next_range_ < window_.ranges.size() && sink_.good(); ++next_range_) {
    const ShownRange& range = window_.ranges[next_range_];
    if (range.begin_ns > begin_ns || (range.begin_ns == begin_ns && range.end_ns < end_ns)) break;
    ++counts_.events;
    if (open) {
      sink_.rows.clear();
      range_row(range);
      open = sink_.keep(range.begin_ns);
    }
    if (!open) ++counts_.left_out;
  }
  return open;
}

void Rows::range_row(const ShownRange& shown) {
  const recording::Range& range = window_.recording.ranges[shown.index];
  const bool instant = range.kind == recording::RangeKind::kMark;
  std::uint64_t tid = range.thread_id;
  if (range.kind == recording::RangeKind::kStartEnd) {
    tid = kRangeRow + shown.lane;
  } else if (!instant) {
    Lanes& lanes = thread_lanes_.try_emplace(range.thread_id, Lanes::Rule::kNested).first->second;
    const bool crosses = window_.crosses_step(range.thread_id, shown.begin_ns, shown.end_ns);
    tid += lanes.place(shown.begin_ns, shown.end_ns, crosses ? 1 : 0) * kThreadLaneShift;
  }
  sink_.begin_row();
  sink_.rows += instant ? "{\"ph\": \"i\", \"s\": \"t\"" : "{\"ph\": \"X\"";
  sink_.rows += ", \"cat\": \"user_annotation\", \"name\": ";
  const std::string& name = range_name(window_.recording, range);
  append_name(sink_.rows, name);
  sink_.add(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, tid);
  sink_.append_ts(sink_.rows, shown.begin_ns);
  if (!instant) {
    sink_.rows += ", \"dur\": ";
    append_microseconds(sink_.rows, shown.end_ns - shown.begin_ns);
  }
  sink_.rows += ", \"args\": {";
  range_args(range, shown);
  sink_.rows += "}}";
}

void Rows::range_args(const recording::Range& range, const ShownRange& shown) {
  const char* comma = "";
  const auto key = [&](const char* name) {
    sink_.add("{}\"{}\": ", comma, name);
    comma = ", ";
  };
  if (range.domain != 0) {
    key("domain");
    append_json_string(sink_.rows, range_text(window_.recording, range.domain));
  }
  if (range.category != 0) {
    key("category");
    const std::string& category = range_text(window_.recording, range.category_name);
    if (category.empty()) {
      sink_.add("{}", range.category);
    } else {
      append_json_string(sink_.rows, category);
    }
  }
  if (range.payload_type != recording::RangePayload::kNone) {
    key(range.payload_type == recording::RangePayload::kBytes ? "bytes" : "payload");
    sink_.rows += range_payload(range);
  }
  if ((range.flags & recording::kRangeColour) != 0) {
    key("colour");
    sink_.add("\"#{:08x}\"", range.colour);
  }
  if (range.kind == recording::RangeKind::kStartEnd) {
    key("thread");
    sink_.add("{}", range.thread_id);
  }
  if (range.start_ns < shown.begin_ns) {
    key("began before the window (us)");
    append_microseconds(sink_.rows, shown.begin_ns - range.start_ns);
  }
  if ((range.flags & recording::kRangeOpen) != 0) {
    key("still open");
    sink_.rows += "true";
  } else if (range.end_ns > shown.end_ns) {
    key("ended behind the window (us)");
    append_microseconds(sink_.rows, range.end_ns - shown.end_ns);
  }
  if ((range.flags & recording::kRangeCut) != 0) {
    key("name was cut");
    sink_.rows += "true";
  }
}

void Rows::select_frames(Operators& operators) {
  FrameSlices::ByThread obstacles, library_calls;
  for (const Step& step : window_.steps) {
    obstacles[window_.step_thread].push_back({step.begin_ns, step.end_ns});
  }
  for (const ShownRange& shown : window_.ranges) {
    const recording::Range& range = window_.recording.ranges[shown.index];
    if (range.kind != recording::RangeKind::kPushPop && range.kind != recording::RangeKind::kCall) {
      continue;
    }
    if (window_.crosses_step(range.thread_id, shown.begin_ns, shown.end_ns)) continue;
    obstacles[range.thread_id].push_back({shown.begin_ns, shown.end_ns});
    if (range.kind == recording::RangeKind::kCall) {
      library_calls[range.thread_id].push_back({shown.begin_ns, shown.end_ns});
    }
  }
  frames_.emplace(window_.recording, operators, window_.first, window_.last, std::move(obstacles),
                  std::move(library_calls), kMaxFrameRows);
}

}  // namespace gpubusy::analysis::chrome_trace
