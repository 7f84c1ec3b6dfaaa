// SPDX-License-Identifier: Apache-2.0
#include "analysis/html/payload.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "analysis/intervals.hpp"
#include "analysis/json_text.hpp"
#include "analysis/names.hpp"
#include "analysis/ranges.hpp"
#include "analysis/report.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::Recording;

constexpr std::size_t kMaxName = 4096;  // characters
constexpr std::size_t kMaxFrames = 64;
// A row whose events overlap has lanes; beyond so many nobody could read it.
constexpr std::size_t kMaxLanes = 64;

EventKind kind_of(const Call& call) {
  if (waits_for_device(call) && call.category == Category::kSync) return EventKind::kWaitCall;
  switch (call.category) {
    case Category::kLaunch:
    case Category::kGraphLaunch: return EventKind::kLaunchCall;
    case Category::kCopy:
    case Category::kMemset: return EventKind::kCopyCall;
    case Category::kDeviceAlloc:
    case Category::kDeviceFree:
    case Category::kHostAlloc:
    case Category::kHostFree: return EventKind::kMemoryCall;
    default: return EventKind::kOtherCall;
  }
}

std::uint64_t bytes_of(const Call& call) {
  switch (call.category) {
    case Category::kCopy: return call.copy.bytes;
    case Category::kMemset: return call.memset.bytes;
    case Category::kDeviceAlloc:
    case Category::kHostAlloc: return call.alloc.bytes;
    default: return 0;
  }
}

EventKind idle_kind(IdleClass idle) {
  return static_cast<EventKind>(static_cast<int>(EventKind::kIdle) + static_cast<int>(idle));
}

bool within(const std::vector<recording::Window>& windows, std::uint64_t time_ns) {
  return std::any_of(windows.begin(), windows.end(), [&](const recording::Window& w) {
    // A complete window ends where the next may begin; any other keeps its last instant.
    return time_ns >= w.begin_ns && (w.complete ? time_ns < w.end_ns : time_ns <= w.end_ns);
  });
}

}  // namespace

TimelinePayload::TimelinePayload(const JudgedProcess& process, std::uint64_t max_events)
    : recording_(process.recording),
      timeline_(process.timeline),
      selection_(process.selection),
      times_(process.times),
      lines_(recording_) {
  if (selection_.windows.empty()) return;
  begin_ns_ = selection_.windows.front().begin_ns;
  for (const recording::Window& window : selection_.windows) {
    begin_ns_ = std::min(begin_ns_, window.begin_ns);
    end_ns_ = std::max({end_ns_, window.end_ns, begin_ns_});
  }
  add_steps();
  add_idle();
  add_calls_and_work(max_events);
  add_ranges();
  name_lanes();
}

// ---- events ------------------------------------------------------------------------------------

void TimelinePayload::place(const RowKey& row, const Event& event) {
  std::vector<Lane>& lanes = rows_[row];
  for (std::size_t depth = 0; depth < kMaxLanes; ++depth) {
    if (depth == lanes.size()) {
      lanes.emplace_back();
      lanes.back().depth = static_cast<std::uint32_t>(depth);
    }
    std::vector<Event>& events = lanes[depth].events;
    if (!events.empty() && events.back().end_ns > event.begin_ns) continue;
    events.push_back(event);
    ++events_;
    end_ns_ = std::max(end_ns_, event.end_ns);
    return;
  }
  ++left_out_;
}

void TimelinePayload::add_steps() {
  for (const Step& step : selection_.steps) {
    Event event;
    event.begin_ns = step.begin_ns;
    event.end_ns = step.end_ns;
    event.name = name_of(EventKind::kStep, selection_.mode != StepMode::kWholeSpan
                                               ? fmt::format("step {}", step.number)
                                               : "everything recorded");
    place({LaneKind::kSteps, 0, 0}, event);
  }
}

// One event for each gap between pieces of work; what it was lost to comes with it.
void TimelinePayload::add_idle() {
  const auto line = timeline_.devices.find(times_.device);
  if (line == timeline_.devices.end()) return;
  std::size_t next = 0;
  for (std::size_t s = 0; s < selection_.steps.size(); ++s) {
    const Step& step = selection_.steps[s];
    for (const Interval& gap : uncovered(line->second.busy, step.begin_ns, step.end_ns)) {
      Gap pieces;
      pieces.first_piece = static_cast<std::uint32_t>(next);
      std::uint64_t sum = 0;
      const IdlePiece* longest = nullptr;
      for (; next < times_.pieces.size() && times_.pieces[next].step == s && sum < gap.length();
           ++next) {
        const IdlePiece& piece = times_.pieces[next];
        sum += piece.ns;
        ++pieces.pieces;
        if (longest == nullptr || piece.ns > longest->ns) longest = &piece;
      }
      Event event;
      event.begin_ns = gap.begin;
      event.end_ns = gap.end;
      event.gap = static_cast<std::uint32_t>(gaps_.size());
      const IdleClass idle = longest == nullptr ? IdleClass::kUnknown : longest->idle;
      event.name = name_of(idle_kind(idle), std::string("idle: ") + idle_title(idle));
      if (longest != nullptr && longest->call != kNoCall) {
        event.stack = node_of(recording_.calls[longest->call].python_stack);
      }
      if (longest != nullptr && longest->before_call != kNoCall) {
        event.before_stack = node_of(recording_.calls[longest->before_call].python_stack);
      }
      gaps_.push_back(pieces);
      place({LaneKind::kIdle, times_.device, 0}, event);
    }
  }
}

void TimelinePayload::add_calls_and_work(std::uint64_t max_events) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> work;  // op, number of its call
  std::uint64_t taken = 0;
  for (std::uint32_t i = 0; i < recording_.calls.size(); ++i) {
    const Call& call = recording_.calls[i];
    if (!within(selection_.windows, call.start_ns)) {
      ++outside_;
      continue;
    }
    const auto [from, to] = timeline_.ops_of(i);
    const std::uint64_t rows = 1 + (to - from);
    if (cut_ns_ != 0 || taken + rows > max_events) {
      if (cut_ns_ == 0) cut_ns_ = call.start_ns;
      left_out_ += rows;
      continue;
    }
    taken += rows;
    for (std::size_t op = from; op < to; ++op) {
      work.emplace_back(timeline_.ops_by_call[op], next_call_);
    }
    add_call(i);
  }
  std::sort(work.begin(), work.end());  // by start, as in the timeline
  for (const auto& [index, call] : work) {
    const DeviceOp& op = timeline_.ops[index];
    Event event;
    event.begin_ns = std::max(op.start_ns, begin_ns_);
    event.end_ns = std::max(op.end_ns, event.begin_ns);
    event.name = work_name(op);
    event.call = call;
    if (op.kind == OpKind::kCopy) event.bytes = copy_of(recording_, op).bytes;
    if (op.kind == OpKind::kMemset) event.bytes = memset_bytes_of(recording_, op);
    place({LaneKind::kDevice, op.device, op.stream}, event);
  }
}

void TimelinePayload::add_call(std::uint32_t index) {
  const Call& call = recording_.calls[index];
  Event event;
  event.begin_ns = call.start_ns;
  event.end_ns = call.end_ns;
  event.name = call_name(call);
  event.stack = node_of(call.python_stack);
  event.bytes = bytes_of(call);
  event.call = next_call_++;
  event.result = static_cast<std::uint32_t>(call.result);
  place({LaneKind::kCalls, static_cast<std::int32_t>(call.thread_id), 0}, event);
}

void TimelinePayload::add_ranges() {
  std::vector<std::pair<Event, RowKey>> found;
  const std::uint64_t last = cut_ns_ != 0 ? cut_ns_ : end_ns_;
  for (const recording::Range& range : recording_.ranges) {
    if (range.end_ns < begin_ns_ || range.start_ns > end_ns_) continue;
    if (range.start_ns > last) {
      ++left_out_;
      continue;
    }
    Event event;
    event.begin_ns = std::max(range.start_ns, begin_ns_);
    event.end_ns = std::clamp(range.end_ns, event.begin_ns, std::max(end_ns_, event.begin_ns));
    const std::string& domain = range_text(recording_, range.domain);
    event.name = name_of(EventKind::kRange,
                         (domain.empty() ? "" : domain + ": ") + range_name(recording_, range));
    if (range.payload_type == recording::RangePayload::kBytes) event.bytes = range.payload;
    const bool own_row = range.kind == recording::RangeKind::kStartEnd;
    found.emplace_back(event, RowKey{LaneKind::kRanges,
                                     own_row ? 0 : static_cast<std::int32_t>(range.thread_id), 0});
  }
  // Those round others first: they get the upper lane.
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin_ns, b.first.end_ns) <
           std::pair(b.first.begin_ns, a.first.end_ns);
  });
  for (const auto& [event, row] : found) place(row, event);
}

// ---- words -------------------------------------------------------------------------------------

std::uint32_t TimelinePayload::name_of(EventKind kind, const std::string& text) {
  const auto [it, fresh] =
      name_ids_.try_emplace({kind, text}, static_cast<std::uint32_t>(names_.size()));
  if (fresh) names_.emplace_back(kind, text);
  return it->second;
}

std::uint32_t TimelinePayload::call_name(const Call& call) {
  const EventKind kind = kind_of(call);
  const auto [it, fresh] = call_names_.try_emplace({call.api, kind}, 0);
  if (fresh) {
    const bool known = call.api < recording_.apis.size() && !recording_.apis[call.api].name.empty();
    it->second = name_of(kind, known ? std::string(api_base_name(recording_.apis[call.api].name))
                                     : fmt::format("function {}", call.api));
  }
  return it->second;
}

std::uint32_t TimelinePayload::work_name(const DeviceOp& op) {
  switch (op.kind) {
    case OpKind::kCopy: {
      const recording::CopyPayload copy = copy_of(recording_, op);
      const EventKind kind =
          copy.direction == CopyDirection::kHostToDevice   ? EventKind::kCopyToDevice
          : copy.direction == CopyDirection::kDeviceToHost ? EventKind::kCopyToHost
                                                           : EventKind::kOtherCopy;
      return name_of(kind, fmt::format("Memcpy {} ({} -> {})", direction_name(copy.direction),
                                       memory_kind_name(copy.source_kind),
                                       memory_kind_name(copy.destination_kind)));
    }
    case OpKind::kMemset: return name_of(EventKind::kMemset, "Memset");
    case OpKind::kGraph:
      return name_of(EventKind::kGraph,
                     fmt::format("CUDA graph {}", recording_.calls[op.call].graph_launch.graph));
    case OpKind::kKernel: break;
  }
  const std::uint32_t kernel = kernel_of(recording_, op);
  const auto [it, fresh] = kernel_names_.try_emplace(kernel, 0);
  if (fresh) {
    const auto found = recording_.kernels.find(kernel);
    const bool known = found != recording_.kernels.end() && !found->second.name.empty();
    it->second =
        name_of(EventKind::kKernel, known ? shorten(demangle(found->second.name), kMaxName, false)
                                          : fmt::format("kernel {} of unknown name", kernel));
  }
  return it->second;
}

std::uint32_t TimelinePayload::node_of(std::uint32_t python_stack) {
  if (python_stack == 0) return 0;
  const auto [it, fresh] = node_by_stack_.try_emplace(python_stack, 0);
  if (!fresh) return it->second;
  const std::vector<SourceLine> frames = lines_.frames(python_stack, kMaxFrames);
  std::uint32_t node = 0;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    const auto [id, is_new] = frame_ids_.try_emplace({frame->file, frame->function, frame->line},
                                                     static_cast<std::uint32_t>(frames_.size()));
    if (is_new) frames_.push_back(*frame);
    const auto [child, is_new_node] =
        node_ids_.try_emplace({node, id->second}, static_cast<std::uint32_t>(nodes_.size() + 1));
    if (is_new_node) nodes_.emplace_back(node, id->second);
    node = child->second;
  }
  return it->second = node;
}

void TimelinePayload::name_lanes() {
  for (auto& [key, lanes] : rows_) {
    const auto& [kind, owner, stream] = key;
    for (Lane& lane : lanes) {
      lane.kind = kind;
      switch (kind) {
        case LaneKind::kSteps: lane.label = "Steps"; break;
        case LaneKind::kIdle:
          lane.label = fmt::format("GPU {} idle", owner);
          lane.device = static_cast<std::int16_t>(owner);
          break;
        case LaneKind::kDevice:
          lane.label = fmt::format("GPU {} stream {}", owner, stream);
          lane.device = static_cast<std::int16_t>(owner);
          lane.stream = stream;
          break;
        case LaneKind::kCalls:
        case LaneKind::kRanges: {
          lane.thread = static_cast<std::uint32_t>(owner);
          const auto thread = recording_.threads.find(lane.thread);
          const bool named = thread != recording_.threads.end() && !thread->second.name.empty();
          const std::string who =
              owner == 0
                  ? "start/end"
                  : fmt::format("{} {}", named ? thread->second.name : "thread", lane.thread);
          lane.label = (kind == LaneKind::kCalls ? "Calls: " : "Ranges: ") + who;
          break;
        }
      }
    }
  }
}

// ---- output ------------------------------------------------------------------------------------

std::string TimelinePayload::head() const {
  std::string out = fmt::format(
      "{{\"span_ns\": {}, \"begin_unix_ms\": {}, \"events\": {}, \"left_out\": {}, \"cut_ns\": {}, "
      "\"calls_outside\": {}, \"calls\": {}, \"nodes\": {}, \"idle_classes\": [",
      end_ns_ - begin_ns_,
      (recording_.start_unix_ns + (begin_ns_ - std::min(begin_ns_, recording_.start_ns))) /
          1'000'000,
      events_, left_out_, cut_ns_ == 0 ? "null" : fmt::format("{}", cut_ns_ - begin_ns_), outside_,
      next_call_ - 1, nodes_.size());
  for (std::size_t i = 0; i < kIdleClasses; ++i) {
    out += i > 0 ? ", " : "";
    append_json_string(out, idle_id(static_cast<IdleClass>(i)));
  }
  out += "], \"windows\": [";
  for (const recording::Window& window : selection_.windows) {
    out += fmt::format("{}[{}, {}]", &window == &selection_.windows.front() ? "" : ", ",
                       window.begin_ns - begin_ns_,
                       std::max(window.end_ns, window.begin_ns) - begin_ns_);
  }
  out += "],\n\"names\": [";
  for (std::size_t i = 0; i < names_.size(); ++i) {
    out += i > 0 ? ",\n" : "";
    out += fmt::format("[{}, ", static_cast<int>(names_[i].first));
    append_json_string(out, names_[i].second);
    out += ']';
  }
  out += "],\n\"frames\": [";
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    out += i > 0 ? ",\n[" : "[";
    append_json_string(out, frames_[i].file);
    out += ", ";
    append_json_string(out, frames_[i].function);
    out += fmt::format(", {}, {}]", frames_[i].line, frames_[i].user ? 1 : 0);
  }
  static constexpr const char* kLaneKinds[] = {"steps", "idle", "device", "calls", "ranges"};
  out += "],\n\"lanes\": [";
  bool first = true;
  for (const auto& [key, lanes] : rows_) {
    for (const Lane& lane : lanes) {
      out += first ? "" : ",\n";
      first = false;
      out += fmt::format("{{\"kind\": \"{}\", \"label\": ",
                         kLaneKinds[static_cast<std::size_t>(lane.kind)]);
      append_json_string(out, lane.label);
      out += fmt::format(
          ", \"device\": {}, \"stream\": {}, \"thread\": {}, \"depth\": {}, \"count\": {}}}",
          lane.device, lane.stream, lane.thread, lane.depth, lane.events.size());
    }
  }
  return out + "]}";
}

void TimelinePayload::write_columns(Base64Stream& out) const {
  for (const auto& [parent, frame] : nodes_) out.varint(parent);
  for (const auto& [parent, frame] : nodes_) out.varint(frame);
  for (const auto& [key, lanes] : rows_) {
    for (const Lane& lane : lanes) {
      std::uint64_t at = begin_ns_;
      for (const Event& e : lane.events) {
        out.varint(e.begin_ns - at);  // since the end of the one before
        at = e.end_ns;
      }
      for (const Event& e : lane.events) out.varint(e.end_ns - e.begin_ns);
      for (const Event& e : lane.events) out.varint(e.name);
      if (lane.kind == LaneKind::kSteps) continue;
      if (lane.kind == LaneKind::kIdle) {
        for (std::size_t c = 0; c < kIdleClasses; ++c) {
          for (const Event& e : lane.events) {
            std::uint64_t ns = 0;
            for (std::uint32_t i = 0; i < gaps_[e.gap].pieces; ++i) {
              const IdlePiece& piece = times_.pieces[gaps_[e.gap].first_piece + i];
              if (piece.idle == static_cast<IdleClass>(c)) ns += piece.ns;
            }
            out.varint(ns);
          }
        }
        for (const Event& e : lane.events) out.varint(e.stack);
        for (const Event& e : lane.events) out.varint(e.before_stack);
        continue;
      }
      for (const Event& e : lane.events) out.varint(e.bytes);
      if (lane.kind == LaneKind::kRanges) continue;
      // Calls of a thread rise; work mostly does: the difference, its sign in the last bit.
      std::int64_t last = 0;
      for (const Event& e : lane.events) {
        const std::int64_t step = static_cast<std::int64_t>(e.call) - last;
        last = e.call;
        out.varint(static_cast<std::uint64_t>(step << 1) ^ static_cast<std::uint64_t>(step >> 63));
      }
      if (lane.kind != LaneKind::kCalls) continue;
      for (const Event& e : lane.events) out.varint(e.stack);
      for (const Event& e : lane.events) out.varint(e.result);
    }
  }
}

}  // namespace gpubusy::analysis
