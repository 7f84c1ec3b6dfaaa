// SPDX-License-Identifier: Apache-2.0
#include "analysis/timeline.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::Recording;

constexpr std::int32_t kErrorNotReady = 600;  // the same number in runtime and driver
constexpr std::uint32_t kDefaultStream = 7;

OpKind kind_of(Category category) {
  switch (category) {
    case Category::kCopy: return OpKind::kCopy;
    case Category::kMemset: return OpKind::kMemset;
    case Category::kGraphLaunch: return OpKind::kGraph;
    default: return OpKind::kKernel;
  }
}

OpKind kind_of(recording::ActivityKind kind) {
  switch (kind) {
    case recording::ActivityKind::kCopy: return OpKind::kCopy;
    case recording::ActivityKind::kMemset: return OpKind::kMemset;
    default: return OpKind::kKernel;
  }
}

// Correlation id -> call index; ids rise with time, so most look-ups hit the first guess.
class CallIndex {
 public:
  explicit CallIndex(const std::vector<Call>& calls) {
    entries_.reserve(calls.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      entries_.emplace_back(calls[i].correlation, static_cast<std::uint32_t>(i));
    }
    if (!std::is_sorted(entries_.begin(), entries_.end())) {
      std::sort(entries_.begin(), entries_.end());
    }
  }
  std::uint32_t find(std::uint32_t correlation) {
    if (hint_ < entries_.size() && entries_[hint_].first == correlation) {
      return entries_[hint_++].second;
    }
    const auto it = std::lower_bound(entries_.begin(), entries_.end(),
                                     std::pair<std::uint32_t, std::uint32_t>(correlation, 0));
    if (it == entries_.end() || it->first != correlation) return kNoCall;
    hint_ = static_cast<std::size_t>(it - entries_.begin()) + 1;
    return it->second;
  }

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entries_;
  std::size_t hint_ = 0;
};

void join(const Recording& recording, Timeline& timeline) {
  CallIndex index(recording.calls);
  timeline.coverage.orphan_times = recording.orphan_activities;
  timeline.coverage.dropped = recording.dropped_activities;
  timeline.ops.reserve(recording.device_times.size());
  for (const recording::DeviceTime& time : recording.device_times) {
    const std::uint32_t call = index.find(time.correlation);
    if (call == kNoCall) {
      ++timeline.coverage.orphan_times;
      continue;
    }
    const Call& c = recording.calls[call];
    DeviceOp op;
    op.start_ns = time.start_ns;
    op.end_ns = time.end_ns;
    op.call = call;
    op.stream = time.stream ? time.stream : c.stream ? c.stream : kDefaultStream;
    op.uncertainty_ns = time.uncertainty_ns;
    op.graph_node = time.graph_node;
    op.device = time.device >= 0 ? time.device : std::max<std::int16_t>(c.device, 0);
    op.kind = kind_of(c.category);
    if (time.activity != recording::kNoActivity) {
      op.kind = kind_of(recording.activities[time.activity].kind);
      op.activity = time.activity;
    }
    op.source = time.source;
    timeline.ops.push_back(op);
    timeline.coverage.max_uncertainty_ns =
        std::max<std::uint64_t>(timeline.coverage.max_uncertainty_ns, op.uncertainty_ns);
  }
}

// Work cannot begin before it was asked for. Where it seems to, the device's clock is moved by the
// least that makes it right, so that no length changes: by one amount for all work between two
// pauses of the recording, in which the clock may have drifted; but where that would be much, by
// pieces, since then the clock drifts or jumps within.
class ClockCorrection {
 public:
  ClockCorrection(const Recording& recording, Timeline& timeline)
      : recording_(recording), timeline_(timeline) {
    for (const recording::RecordingEdge& edge : recording.recording_edges) {
      if (edge.begins) begins_.push_back(edge.time_ns);
    }
  }

  void run() {
    for (const DeviceOp& op : timeline_.ops) {
      const std::uint64_t early = too_early(op);
      if (early == 0) continue;
      if (early > limit(op)) {
        ++timeline_.coverage.early_ops;
        continue;
      }
      const Place place = place_of(op);
      raise(by_stretch_[{op.device, op.source, place.stretch}], early);
      raise(by_piece_[{op.device, op.source, place.stretch, place.piece}], early);
    }
    for (DeviceOp& op : timeline_.ops) {
      const std::uint64_t ns = correction_of(op);
      op.start_ns += ns;
      op.end_ns += ns;
      raise(timeline_.devices[op.device].clock_correction_ns, ns);
    }
  }

 private:
  struct Place {
    std::size_t stretch;  // between two pauses
    std::uint64_t piece;
  };
  static void raise(std::uint64_t& most, std::uint64_t value) { most = std::max(most, value); }
  std::uint64_t asked(const DeviceOp& op) const { return recording_.calls[op.call].start_ns; }
  std::uint64_t too_early(const DeviceOp& op) const {
    return op.start_ns < asked(op) ? asked(op) - op.start_ns : 0;
  }
  static std::uint64_t limit(const DeviceOp& op) {
    return op.source == recording::TimeSource::kCupti ? kMaxCuptiCorrectionNs
                                                      : kMaxClockCorrectionNs;
  }
  Place place_of(const DeviceOp& op) const {
    const auto begin = std::upper_bound(begins_.begin(), begins_.end(), asked(op));
    return {static_cast<std::size_t>(begin - begins_.begin()), asked(op) / kClockPieceNs};
  }
  std::uint64_t correction_of(const DeviceOp& op) const {
    const Place place = place_of(op);
    const auto stretch = by_stretch_.find({op.device, op.source, place.stretch});
    if (stretch == by_stretch_.end()) return 0;
    if (stretch->second <= kSteadyClockNs) return stretch->second;
    return of_piece({op.device, op.source, place.stretch, place.piece});
  }

  const Recording& recording_;
  Timeline& timeline_;
  std::vector<std::uint64_t> begins_;
  // Events and CUPTI have clocks of their own.
  using Stretch = std::tuple<std::int16_t, recording::TimeSource, std::uint64_t>;
  using Piece = std::tuple<std::int16_t, recording::TimeSource, std::uint64_t, std::uint64_t>;

  // A piece whose work was all queued behind other work proves nothing: what is next to it counts.
  std::uint64_t of_piece(const Piece& piece) const {
    const auto same_stretch = [&](const Piece& other) {
      return std::get<0>(other) == std::get<0>(piece) && std::get<1>(other) == std::get<1>(piece) &&
             std::get<2>(other) == std::get<2>(piece);
    };
    const auto next = by_piece_.lower_bound(piece);
    const bool has_next = next != by_piece_.end() && same_stretch(next->first);
    if (has_next && next->first == piece) return next->second;
    const bool has_last = next != by_piece_.begin() && same_stretch(std::prev(next)->first);
    if (!has_last) return has_next ? next->second : 0;
    const auto last = std::prev(next);
    if (!has_next) return last->second;
    const std::uint64_t at = std::get<3>(piece);
    return at - std::get<3>(last->first) <= std::get<3>(next->first) - at ? last->second
                                                                          : next->second;
  }

  std::map<Stretch, std::uint64_t> by_stretch_;
  std::map<Piece, std::uint64_t> by_piece_;
};

void correct_clocks(const Recording& recording, Timeline& timeline) {
  ClockCorrection(recording, timeline).run();
  const auto by_start = [](const DeviceOp& a, const DeviceOp& b) {
    return std::pair(a.start_ns, a.end_ns) < std::pair(b.start_ns, b.end_ns);
  };
  if (!std::is_sorted(timeline.ops.begin(), timeline.ops.end(), by_start)) {
    std::stable_sort(timeline.ops.begin(), timeline.ops.end(), by_start);
  }
}

void count_coverage(const Recording& recording, Timeline& timeline) {
  timeline.timed.assign(recording.calls.size(), false);
  for (const DeviceOp& op : timeline.ops) timeline.timed[op.call] = true;
  for (std::size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    count_call(timeline.coverage, call, timeline.timed[i]);
    if (wants_device_work(call) && !timeline.timed[i]) {
      timeline.untimed_ns.push_back(call.start_ns);
    }
  }
}

}  // namespace

std::pair<std::size_t, std::size_t> Timeline::ops_of(std::uint32_t call) const {
  const auto first = std::partition_point(ops_by_call.begin(), ops_by_call.end(),
                                          [&](std::uint32_t op) { return ops[op].call < call; });
  auto last = first;
  while (last != ops_by_call.end() && ops[*last].call == call) ++last;
  return {static_cast<std::size_t>(first - ops_by_call.begin()),
          static_cast<std::size_t>(last - ops_by_call.begin())};
}

void count_call(Coverage& coverage, const Call& call, bool timed) {
  coverage.failed_calls += has_failed(call);
  coverage.unhooked += (call.flags & recording::kCallUnhooked) != 0;
  if (!wants_device_work(call)) {
    coverage.captured += (call.flags & recording::kCallCaptured) != 0;
    return;
  }
  ++coverage.expected;
  if (timed) {
    ++coverage.timed;
  } else if (call.flags & recording::kCallUntimedCapture) {
    ++coverage.untimed_capture;
  } else if (call.flags & recording::kCallUntimedLimit) {
    ++coverage.untimed_limit;
  } else if (call.flags & recording::kCallUntimedFailed) {
    ++coverage.untimed_failed;
  } else if (call.flags & recording::kCallTimed) {
    ++coverage.untimed_pending;
  } else {
    ++coverage.untimed_off;
  }
}

namespace {

// Ends of a device's work by the time at which it was asked for: whether a stream's first work,
// which began late, may have waited for recorded work of another stream (an event).
class Ends {
 public:
  Ends(const Recording& recording, const Timeline& timeline) : recording_(recording) {
    for (const DeviceOp& op : timeline.ops) {
      if (op.call != kNoCall) by_device_[op.device].push_back(&op);
    }
    for (auto& [device, ops] : by_device_) {
      std::sort(ops.begin(), ops.end(),
                [](const DeviceOp* a, const DeviceOp* b) { return a->end_ns < b->end_ns; });
    }
  }

  bool may_wait_for_another(const DeviceOp& op) const {
    const std::vector<const DeviceOp*>& ops = by_device_.at(op.device);
    auto at = std::partition_point(ops.begin(), ops.end(), [&](const DeviceOp* other) {
      return other->end_ns + kWaitedForNs < op.start_ns;
    });
    for (; at != ops.end() && (*at)->end_ns <= op.start_ns; ++at) {
      if ((*at)->stream != op.stream &&
          recording_.calls[(*at)->call].start_ns < recording_.calls[op.call].start_ns) {
        return true;
      }
    }
    return false;
  }

 private:
  const Recording& recording_;
  std::map<std::int16_t, std::vector<const DeviceOp*>> by_device_;
};

// A stream works in order. If the first work that was asked for behind a pause of the recording had
// to wait in its stream, then for work from within the pause: the device was busy until it began.
// (Or it waited for another stream, which comes to the same where nothing recorded was there to
// wait for.)
std::map<std::int16_t, std::vector<Interval>> earlier_work(const Recording& recording,
                                                           const Timeline& timeline) {
  // The first work of each stretch of recording, by stream. Nothing ran before the first stretch:
  // the recording opens with the first CUDA call.
  std::vector<std::uint64_t> edges;
  for (const recording::RecordingEdge& edge : recording.recording_edges) {
    edges.push_back(edge.time_ns);
  }
  std::map<std::tuple<std::size_t, std::int16_t, std::uint32_t>, const DeviceOp*> first;
  for (const DeviceOp& op : timeline.ops) {
    if (op.call == kNoCall) continue;
    const std::uint64_t asked_ns = recording.calls[op.call].start_ns;
    const auto stretch = static_cast<std::size_t>(
        std::upper_bound(edges.begin(), edges.end(), asked_ns) - edges.begin());
    if (stretch <= 1 || !recording.recording_edges[stretch - 1].begins) continue;
    const DeviceOp*& earliest = first[{stretch - 1, op.device, op.stream}];
    if (earliest == nullptr || asked_ns < recording.calls[earliest->call].start_ns) earliest = &op;
  }
  std::map<std::pair<std::int16_t, std::size_t>, std::uint64_t> until;
  const Ends ends(recording, timeline);
  for (const auto& [key, op] : first) {
    const auto& [edge, device, stream] = key;
    if (op->start_ns > recording.calls[op->call].end_ns + kQueuedBehindEarlierNs &&
        !ends.may_wait_for_another(*op)) {
      std::uint64_t& most = until[{device, edge}];
      most = std::max(most, op->start_ns);
    }
  }
  std::map<std::int16_t, std::vector<Interval>> found;
  for (const auto& [key, time_ns] : until) {
    append_union(found[key.first], {edges[key.second], time_ns});
  }
  return found;
}

}  // namespace

Timeline build_timeline(const Recording& recording) {
  Timeline timeline;
  join(recording, timeline);
  correct_clocks(recording, timeline);
  count_coverage(recording, timeline);
  timeline.ops_by_call.resize(timeline.ops.size());
  for (std::uint32_t i = 0; i < timeline.ops.size(); ++i) {
    const DeviceOp& op = timeline.ops[i];
    timeline.ops_by_call[i] = i;
    DeviceLine& line = timeline.devices[op.device];
    line.device = op.device;
    line.ops.push_back(i);
    append_union(line.busy, {op.start_ns, op.end_ns});
    if (op.kind == OpKind::kKernel || op.kind == OpKind::kGraph) {
      append_union(line.kernel_busy, {op.start_ns, op.end_ns});
    }
  }
  for (auto& [device, earlier] : earlier_work(recording, timeline)) {
    DeviceLine& line = timeline.devices[device];
    line.busy = united(line.busy, earlier);
    line.earlier = std::move(earlier);
  }
  const auto by_call = [&](std::uint32_t a, std::uint32_t b) {
    return timeline.ops[a].call < timeline.ops[b].call;
  };
  if (!std::is_sorted(timeline.ops_by_call.begin(), timeline.ops_by_call.end(), by_call)) {
    std::stable_sort(timeline.ops_by_call.begin(), timeline.ops_by_call.end(), by_call);
  }
  return timeline;
}

std::uint32_t kernel_of(const Recording& recording, const DeviceOp& op) {
  if (op.activity != recording::kNoActivity) {
    const recording::Activity& a = recording.activities[op.activity];
    return a.kind == recording::ActivityKind::kKernel ? a.kernel.kernel : 0;
  }
  const Call& call = recording.calls[op.call];
  return call.category == Category::kLaunch ? call.launch.kernel : 0;
}

recording::CopyPayload copy_of(const Recording& recording, const DeviceOp& op) {
  const Call& call = recording.calls[op.call];
  if (op.activity == recording::kNoActivity ||
      recording.activities[op.activity].kind != recording::ActivityKind::kCopy) {
    return call.category == Category::kCopy ? call.copy : recording::CopyPayload{};
  }
  const recording::CopyActivityPayload& a = recording.activities[op.activity].copy;
  recording::CopyPayload copy{};
  if (call.category == Category::kCopy) copy = call.copy;  // its addresses
  copy.bytes = a.bytes;
  copy.direction = a.direction;
  copy.source_kind = a.source_kind;
  copy.destination_kind = a.destination_kind;
  return copy;
}

std::uint64_t memset_bytes_of(const Recording& recording, const DeviceOp& op) {
  if (op.activity != recording::kNoActivity &&
      recording.activities[op.activity].kind == recording::ActivityKind::kMemset) {
    return recording.activities[op.activity].memset.bytes;
  }
  const Call& call = recording.calls[op.call];
  return call.category == Category::kMemset ? call.memset.bytes : 0;
}

bool has_failed(const Call& call) { return call.result != 0 && call.result != kErrorNotReady; }

bool wants_device_work(const Call& call) {
  if (has_failed(call) || (call.flags & recording::kCallCaptured)) return false;
  switch (call.category) {
    case Category::kLaunch:
    case Category::kGraphLaunch: return true;
    case Category::kCopy:
      return call.copy.bytes != 0 && call.copy.direction != CopyDirection::kHostToHost;
    case Category::kMemset: return call.memset.bytes != 0;
    default: return false;
  }
}

bool is_pageable_copy(const Call& call) {
  if (call.category != Category::kCopy) return false;
  switch (call.copy.direction) {
    case CopyDirection::kHostToDevice: return call.copy.source_kind == MemoryKind::kPageable;
    case CopyDirection::kDeviceToHost: return call.copy.destination_kind == MemoryKind::kPageable;
    default: return false;
  }
}

bool waits_for_device(const Call& call) {
  if (call.category == Category::kSync) return true;
  if (call.category != Category::kCopy || (call.flags & recording::kCallCaptured)) return false;
  // A synchronous copy on one device does not wait; the driver's "async" copy to pageable does.
  if (call.copy.direction == CopyDirection::kDeviceToDevice) return false;
  return !call.copy.asynchronous || is_pageable_copy(call);
}

}  // namespace gpubusy::analysis
