// SPDX-License-Identifier: Apache-2.0
#include "analysis/steps.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "analysis/passes.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::Recording;
using recording::Window;
using recording::WindowKind;

std::size_t first_call_from(const Recording& recording, std::uint64_t time_ns) {
  const auto it = std::partition_point(recording.calls.begin(), recording.calls.end(),
                                       [&](const Call& c) { return c.start_ns < time_ns; });
  return static_cast<std::size_t>(it - recording.calls.begin());
}

// From the first request for device work to the end of the last work, within the window: what the
// program does behind it delays nothing. Where no work has a time, to the end of the last call.
std::optional<Step> whole_span(const Recording& recording, const Timeline& timeline,
                               const Window& window, std::uint32_t index) {
  std::uint64_t first = 0, last = 0, last_call = 0;
  bool any = false, timed = false;
  const std::vector<Call>& calls = recording.calls;
  for (auto i = static_cast<std::uint32_t>(first_call_from(recording, window.begin_ns));
       i < calls.size() && calls[i].start_ns <= window.end_ns; ++i) {
    const bool wants_work = wants_device_work(calls[i]);
    if (!any && !wants_work) continue;
    if (!any) first = calls[i].start_ns;
    any = true;
    last_call = std::max(last_call, calls[i].end_ns);
    if (!wants_work) continue;
    const auto [from, to] = timeline.ops_of(i);
    timed = timed || from != to;
    last = std::max(last, calls[i].end_ns);  // short work can be over, or have no time
    for (std::size_t op = from; op < to; ++op) {
      last = std::max(last, timeline.ops[timeline.ops_by_call[op]].end_ns);
    }
  }
  if (!timed) last = last_call;
  if (last <= first) return std::nullopt;
  return Step{window.first_step, index, first, last};
}

HostState state_of(const Call& call) {
  if (waits_for_device(call)) return HostState::kWaiting;
  switch (call.category) {
    case Category::kLaunch:
    case Category::kGraphLaunch:
    case Category::kCopy:
    case Category::kMemset: return HostState::kLaunching;
    case Category::kDeviceAlloc:
    case Category::kDeviceFree:
    case Category::kHostAlloc:
    case Category::kHostFree:
    case Category::kModule: return HostState::kOtherCall;
    default: break;
  }
  return call.end_ns - call.start_ns < kShortCallNs ? HostState::kLaunching : HostState::kOtherCall;
}

// Follows, for each thread, the last waiting call that began before the instant asked for.
class Waits {
 public:
  explicit Waits(const Recording& recording) : recording_(recording) {
    for (std::uint32_t i = 0; i < recording.calls.size(); ++i) {
      if (waits_for_device(recording.calls[i])) waits_.push_back(i);
    }
  }

  // The wait that the device's idling since `gap` follows from: the last to begin before the gap
  // that had returned when the next work was asked for. Instants must rise from call to call.
  std::uint32_t at(std::uint64_t gap, std::uint64_t next_asked) {
    for (; next_ < waits_.size() && recording_.calls[waits_[next_]].start_ns < gap; ++next_) {
      latest_[recording_.calls[waits_[next_]].thread_id] = waits_[next_];
    }
    std::uint32_t best = kNoCall;
    for (const auto& [thread, index] : latest_) {
      const Call& call = recording_.calls[index];
      if (call.end_ns > next_asked) continue;
      if (best == kNoCall || call.end_ns > recording_.calls[best].end_ns) best = index;
    }
    return best;
  }

 private:
  const Recording& recording_;
  std::vector<std::uint32_t> waits_;
  std::size_t next_ = 0;
  std::map<std::uint32_t, std::uint32_t> latest_;  // by thread
};

// One gap of the device, whole: from the end of the work before to the begin of the next.
struct Gap {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t previous_op = kNoCall, next_op = kNoCall;
};

// Splits the gaps of one device among the classes.
class Splitter {
 public:
  Splitter(const Recording& recording, const Timeline& timeline,
           const std::vector<HostSegment>& host, const std::vector<Step>& steps, DeviceSteps& out,
           const std::vector<std::uint64_t>& first_work)
      : recording_(recording),
        timeline_(timeline),
        host_(host),
        steps_(steps),
        out_(out),
        first_work_(first_work),
        waits_(recording) {}

  void gap(const Gap& gap);

 private:
  void part(const Gap& gap, std::uint32_t step, std::uint64_t begin, std::uint64_t end);
  void by_host(const Gap& gap, std::uint32_t step, std::uint64_t begin, std::uint64_t end);
  void add(IdlePiece piece);

  const Recording& recording_;
  const Timeline& timeline_;
  const std::vector<HostSegment>& host_;
  const std::vector<Step>& steps_;
  DeviceSteps& out_;
  const std::vector<std::uint64_t>& first_work_;
  Waits waits_;
  std::size_t step_ = 0;     // first step that ends behind the last gap's begin
  std::size_t segment_ = 0;  // segment of the last instant looked at
  // of the gap in hand
  std::uint64_t asked_ = 0, asked_end_ = 0;  // when the next work was asked for
  std::uint64_t sync_end_ = 0;               // until here the gap belongs to the wait
  std::uint64_t free_until_ = 0;             // until here that costs none of its credit
  std::uint64_t unknown_from_ = 0;
  std::uint32_t wait_ = kNoCall;
  // of the last wait that gaps follow from
  std::uint32_t spent_wait_ = kNoCall;
  std::uint64_t credit_ = 0;
};

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

void Splitter::gap(const Gap& gap) {
  while (step_ < steps_.size() && steps_[step_].end_ns <= gap.begin) ++step_;
  if (step_ == steps_.size() || steps_[step_].begin_ns >= gap.end) return;

  asked_ = asked_end_ = kNever;
  std::uint32_t asker = kNoCall;
  if (gap.next_op != kNoCall) {
    asker = timeline_.ops[gap.next_op].call;
    asked_ = recording_.calls[asker].start_ns;
    asked_end_ = recording_.calls[asker].end_ns;
  }
  // At most as long as the host had waited, in all gaps behind the wait together: so much earlier
  // it would have gone on without it. Later gaps follow from it only if they are short, as those
  // between launches: in a long one the host does something of its own.
  wait_ = waits_.at(gap.begin, asked_);
  sync_end_ = 0;
  if (wait_ != kNoCall && recording_.calls[wait_].end_ns + kClockSlackNs < gap.begin &&
      gap.end - gap.begin >= kLaunchPauseNs) {
    wait_ = kNoCall;
  }
  if (wait_ != kNoCall) {
    const Call& call = recording_.calls[wait_];
    if (wait_ != spent_wait_) {
      spent_wait_ = wait_;
      credit_ = std::min(call.end_ns, gap.begin) - call.start_ns;
    }
    // The wait itself costs nothing of it: its end is where the host could go on.
    free_until_ = std::max(call.end_ns, gap.begin);
    sync_end_ = free_until_ + credit_;
    if (sync_end_ == gap.begin) wait_ = kNoCall;
  }
  // Untimed work asked for behind the last timed one may have run in this gap.
  unknown_from_ = kNever;
  const std::uint64_t last_asked =
      gap.previous_op == kNoCall ? 0
                                 : recording_.calls[timeline_.ops[gap.previous_op].call].start_ns;
  const auto untimed =
      std::upper_bound(timeline_.untimed_ns.begin(), timeline_.untimed_ns.end(), last_asked);
  if (untimed != timeline_.untimed_ns.end()) unknown_from_ = *untimed;

  for (std::size_t s = step_; s < steps_.size() && steps_[s].begin_ns < gap.end; ++s) {
    const std::uint64_t begin = std::max(gap.begin, steps_[s].begin_ns);
    const std::uint64_t end = std::min(gap.end, steps_[s].end_ns);
    if (begin < end) part(gap, static_cast<std::uint32_t>(s), begin, end);
  }
}

void Splitter::part(const Gap& gap, std::uint32_t step, std::uint64_t begin, std::uint64_t end) {
  IdlePiece piece;
  piece.step = step;
  piece.next_op = gap.next_op;
  if (unknown_from_ < end) {
    const std::uint64_t from = std::max(begin, unknown_from_);
    piece.begin_ns = from;
    piece.ns = end - from;
    piece.idle = IdleClass::kUnknown;
    add(piece);
    end = from;
  }
  if (begin < sync_end_ && begin < end) {
    const std::uint64_t until = std::min(end, sync_end_);
    piece.begin_ns = begin;
    piece.ns = until - begin;
    piece.idle = IdleClass::kAfterSync;
    piece.call = wait_;
    piece.host = HostState::kWaiting;
    credit_ -= until - std::min(until, std::max(begin, free_until_));
    add(piece);
    begin = until;
  }
  if (begin >= end) return;
  if (gap.next_op != kNoCall && asked_end_ <= gap.begin) {
    piece.begin_ns = begin;
    piece.ns = end - begin;
    piece.idle = IdleClass::kQueued;
    piece.call = timeline_.ops[gap.next_op].call;
    piece.host = HostState::kOutside;
    add(piece);
    return;
  }
  // The step's first work may begin inside this part only at its end: the gap ends with work.
  by_host(gap, step, begin, end);
}

void Splitter::by_host(const Gap& gap, std::uint32_t step, std::uint64_t begin, std::uint64_t end) {
  const bool start = begin < first_work_[step];
  const std::uint32_t asker = gap.next_op == kNoCall ? kNoCall : timeline_.ops[gap.next_op].call;
  while (segment_ + 1 < host_.size() && host_[segment_ + 1].begin_ns <= begin) ++segment_;
  while (segment_ > 0 && host_[segment_].begin_ns > begin) --segment_;

  IdlePiece launching;  // gathers what is launching or small
  launching.begin_ns = begin;
  launching.step = step;
  launching.next_op = gap.next_op;
  launching.call = asker;
  launching.idle = start ? IdleClass::kStepStart : IdleClass::kLaunch;
  launching.host = HostState::kLaunching;
  for (std::uint64_t at = begin; at < end;) {
    if (at >= asked_) {  // asked for; what remains is the way to the device
      launching.ns += end - at;
      break;
    }
    const HostSegment& segment = host_[segment_];
    const bool last = segment_ + 1 == host_.size();
    const std::uint64_t segment_end = last ? kNever : host_[segment_ + 1].begin_ns;
    const std::uint64_t until = std::min({end, segment_end, asked_});
    IdlePiece piece = launching;
    piece.begin_ns = at;
    piece.ns = until - at;
    piece.host = segment.state;
    piece.call = segment.call;
    // Nothing is known of what comes behind the last call: count what lies before the step's end.
    const std::uint64_t stretch = (last ? end : segment_end) - segment.begin_ns;
    switch (segment.state) {
      case HostState::kOutside:
        piece.before_call = segment.call;
        piece.call = last ? kNoCall : host_[segment_ + 1].call;
        if (start ? stretch >= kSmallPauseNs : stretch >= kLaunchPauseNs) {
          piece.idle = start ? IdleClass::kStepStart : IdleClass::kHostElsewhere;
          add(piece);
        } else {
          launching.ns += piece.ns;
        }
        break;
      case HostState::kLaunching: launching.ns += piece.ns; break;
      case HostState::kWaiting:
        piece.idle = IdleClass::kAfterSync;
        add(piece);
        break;
      case HostState::kOtherCall:
        piece.idle = start ? IdleClass::kStepStart : IdleClass::kBlockedCall;
        add(piece);
        break;
    }
    at = until;
    if (at == segment_end) ++segment_;
  }
  if (launching.ns > 0) add(launching);
}

void Splitter::add(IdlePiece piece) {
  out_.steps[piece.step].idle_ns[static_cast<std::size_t>(piece.idle)] += piece.ns;
  out_.pieces.push_back(piece);
}

}  // namespace

std::vector<Step> steps_of(const Recording& recording, const Window& window) {
  std::vector<Step> steps;
  std::uint64_t begin = window.begin_ns;
  auto edge = std::partition_point(
      recording.steps.begin(), recording.steps.end(),
      [&](const recording::StepEdge& e) { return e.time_ns <= window.begin_ns; });
  for (; edge != recording.steps.end() && edge->time_ns <= window.end_ns; ++edge) {
    if (edge->time_ns == begin) continue;  // two sources marked the same step
    steps.push_back({edge->step, 0, begin, edge->time_ns});
    begin = edge->time_ns;
  }
  return steps;
}

std::vector<Window> windows_or_all(const Recording& recording) {
  std::vector<Window> windows = recording.windows;
  if (windows.empty() && !recording.calls.empty()) {
    Window all = {};
    all.kind = WindowKind::kWholeRun;
    all.begin_ns = recording.calls.front().start_ns;
    all.end_ns = std::max(recording.end_ns, recording.calls.back().end_ns);
    windows.push_back(all);
  }
  return windows;
}

namespace {

// When the device work ends that was asked for from `begin_ns` to `end_ns`; at most `limit_ns`.
std::uint64_t end_of_work(const Recording& recording, const Timeline& timeline,
                          std::uint64_t begin_ns, std::uint64_t end_ns, std::uint64_t limit_ns) {
  std::uint64_t last = 0;
  for (const DeviceOp& op : timeline.ops) {
    const std::uint64_t asked = recording.calls[op.call].start_ns;
    if (asked >= begin_ns && asked < end_ns) last = std::max(last, op.end_ns);
  }
  return std::min(last, limit_ns);
}

// Whether the user asked for no steps.
bool are_unwanted(const Recording& recording) {
  return std::find(recording.settings.begin(), recording.settings.end(), "GPUBUSY_STEP=none") !=
         recording.settings.end();
}

}  // namespace

StepSelection select_steps(const Recording& recording, const Timeline& timeline) {
  StepSelection selection;
  const auto take = [&](const Window& window, std::vector<Step> steps) {
    const auto index = static_cast<std::uint32_t>(selection.windows.size());
    selection.windows.push_back(window);
    for (Step& step : steps) {
      step.window = index;
      // Damaged recordings may hold windows that overlap.
      if (!selection.steps.empty() && step.begin_ns < selection.steps.back().end_ns) continue;
      selection.steps.push_back(step);
    }
  };
  for (const Window& window : recording.windows) {
    if (window.kind != WindowKind::kScheduled && window.kind != WindowKind::kCaptured) continue;
    std::vector<Step> steps = steps_of(recording, window);
    if (steps.empty()) continue;
    selection.cut_windows += !window.complete;
    take(window, std::move(steps));
  }
  if (!selection.steps.empty()) return selection;

  for (const Window& window : recording.windows) {
    std::vector<Step> steps = steps_of(recording, window);
    // One edge only ends the prelude: its step holds the whole start of the program.
    if (steps.size() < kPreludeWarmupSteps + 2) continue;
    steps.erase(steps.begin(), steps.begin() + kPreludeWarmupSteps);
    selection.warmup_left_out += kPreludeWarmupSteps;
    take(window, std::move(steps));
  }
  if (!selection.steps.empty()) return selection;

  selection.windows.clear();
  selection.mode = StepMode::kPasses;
  const bool no_steps =
      recording.steps.empty() && !recording.from_trace && !are_unwanted(recording);
  for (const Window& window : no_steps ? windows_or_all(recording) : std::vector<Window>()) {
    const Passes passes = find_passes(recording, window);
    std::vector<Step> steps;
    for (std::size_t i = 1; i < passes.edges_ns.size(); ++i) {
      steps.push_back({static_cast<std::uint32_t>(selection.steps.size() + steps.size()), 0,
                       passes.edges_ns[i - 1], passes.edges_ns[i]});
    }
    if (steps.empty()) continue;
    // A host that runs ahead asks for all passes in the time of some: what a pass costs shows in
    // the end of the last one's work.
    steps.back().end_ns =
        std::max(steps.back().end_ns, end_of_work(recording, timeline, steps.front().begin_ns,
                                                  steps.back().end_ns, window.end_ns));
    selection.pass_stack = passes.python_stack;
    take(window, std::move(steps));
  }
  if (!selection.steps.empty()) return selection;

  selection.mode = StepMode::kWholeSpan;
  for (const Window& window : windows_or_all(recording)) {
    const auto span = whole_span(recording, timeline, window,
                                 static_cast<std::uint32_t>(selection.windows.size()));
    if (span) take(window, {*span});
  }
  return selection;
}

std::vector<HostSegment> host_segments(const Recording& recording) {
  struct Active {
    std::uint64_t end_ns;
    std::uint32_t call;
    HostState state;
    bool operator>(const Active& other) const { return end_ns > other.end_ns; }
  };
  std::vector<HostSegment> out = {{}};
  std::priority_queue<Active, std::vector<Active>, std::greater<>> active;
  // For each state the call that began last; which one is shown hardly matters, the state does.
  std::array<std::uint32_t, 3> count = {};
  std::array<std::uint32_t, 3> newest = {kNoCall, kNoCall, kNoCall};
  std::uint32_t last_ended = kNoCall;

  const auto mark = [&](std::uint64_t time) {
    HostSegment next = {time, last_ended, HostState::kOutside};
    for (std::size_t s = 0; s < count.size(); ++s) {
      if (count[s] == 0) continue;
      next.state = static_cast<HostState>(s);
      next.call = newest[s];
      break;
    }
    HostSegment& back = out.back();
    if (back.begin_ns == time) {
      back = next;
    } else if (back.state != next.state || back.call != next.call) {
      out.push_back(next);
    }
  };
  const auto end_until = [&](std::uint64_t time) {
    while (!active.empty() && active.top().end_ns <= time) {
      const Active ended = active.top();
      active.pop();
      --count[static_cast<std::size_t>(ended.state)];
      last_ended = ended.call;
      mark(ended.end_ns);
    }
  };
  for (std::uint32_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    end_until(call.start_ns);
    const HostState state = state_of(call);
    active.push({call.end_ns, i, state});
    ++count[static_cast<std::size_t>(state)];
    newest[static_cast<std::size_t>(state)] = i;
    mark(call.start_ns);
  }
  end_until(kNever);
  return out;
}

namespace {

// Calls visit(segment index, step index, begin, end) for each part of a segment within a step.
template <typename Visit>
void for_each_part(const std::vector<HostSegment>& host, const std::vector<Step>& steps,
                   Visit visit) {
  std::size_t segment = 0;
  for (std::uint32_t step = 0; step < steps.size(); ++step) {
    const auto [begin, end] = std::pair(steps[step].begin_ns, steps[step].end_ns);
    while (segment + 1 < host.size() && host[segment + 1].begin_ns <= begin) ++segment;
    for (std::size_t s = segment; s < host.size() && host[s].begin_ns < end; ++s) {
      const std::uint64_t until = s + 1 < host.size() ? host[s + 1].begin_ns : kNever;
      visit(s, step, std::max(host[s].begin_ns, begin), std::min(until, end));
    }
  }
}

}  // namespace

std::array<std::uint64_t, kHostStates> host_times(const std::vector<HostSegment>& host,
                                                  const std::vector<Step>& steps) {
  std::array<std::uint64_t, kHostStates> out = {};
  for_each_part(host, steps, [&](std::size_t s, std::uint32_t, std::uint64_t b, std::uint64_t e) {
    out[static_cast<std::size_t>(host[s].state)] += e - b;
  });
  return out;
}

std::vector<IdlePiece> host_pauses(const std::vector<HostSegment>& host,
                                   const std::vector<Step>& steps) {
  std::vector<IdlePiece> out;
  for_each_part(
      host, steps, [&](std::size_t s, std::uint32_t step, std::uint64_t b, std::uint64_t e) {
        const bool last = s + 1 == host.size();
        const std::uint64_t stretch = (last ? e : host[s + 1].begin_ns) - host[s].begin_ns;
        if (host[s].state != HostState::kOutside || stretch < kLaunchPauseNs) return;
        IdlePiece piece;
        piece.begin_ns = b;
        piece.ns = e - b;
        piece.step = step;
        piece.before_call = host[s].call;
        piece.call = last ? kNoCall : host[s + 1].call;
        piece.idle = IdleClass::kHostElsewhere;
        out.push_back(piece);
      });
  return out;
}

std::uint64_t busy_in(const DeviceLine& line, const std::vector<Step>& steps) {
  std::uint64_t sum = 0;
  for (const Step& step : steps) sum += covered(line.busy, step.begin_ns, step.end_ns);
  return sum;
}

std::int16_t busiest_device(const Timeline& timeline, const std::vector<Step>& steps) {
  std::int16_t best = -1;
  std::uint64_t most = 0;
  for (const auto& [device, line] : timeline.devices) {
    const std::uint64_t ns = busy_in(line, steps);
    if (best < 0 || ns > most) {
      best = device;
      most = ns;
    }
  }
  return best;
}

std::uint32_t step_at(const std::vector<Step>& steps, std::uint64_t time_ns) {
  const auto it = std::partition_point(steps.begin(), steps.end(),
                                       [&](const Step& s) { return s.end_ns <= time_ns; });
  if (it == steps.end() || it->begin_ns > time_ns) return kNoCall;
  return static_cast<std::uint32_t>(it - steps.begin());
}

DeviceSteps split_time(const Recording& recording, const Timeline& timeline,
                       const std::vector<HostSegment>& host, const std::vector<Step>& steps,
                       std::int16_t device) {
  DeviceSteps out;
  out.device = device;
  out.steps.resize(steps.size());
  std::vector<std::uint64_t> first_work(steps.size(), kNever);
  const auto found = timeline.devices.find(device);
  static const DeviceLine kEmpty;
  const DeviceLine& line = found == timeline.devices.end() ? kEmpty : found->second;

  for (const std::uint32_t index : line.ops) {
    const DeviceOp& op = timeline.ops[index];
    const std::uint32_t step = step_at(steps, recording.calls[op.call].start_ns);
    if (step == kNoCall) continue;
    ++out.steps[step].ops;
    out.steps[step].kernels += op.kind == OpKind::kKernel || op.kind == OpKind::kGraph;
    first_work[step] = std::min(first_work[step], op.start_ns);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    StepTimes& times = out.steps[i];
    times.wall_ns = steps[i].wall_ns();
    times.busy_ns = covered(line.busy, steps[i].begin_ns, steps[i].end_ns);
    times.kernel_busy_ns = covered(line.kernel_busy, steps[i].begin_ns, steps[i].end_ns);
    times.earlier_busy_ns = covered(line.earlier, steps[i].begin_ns, steps[i].end_ns);
  }

  Splitter splitter(recording, timeline, host, steps, out, first_work);
  Gap gap;
  std::size_t next = 0;     // into line.ops
  std::uint64_t reach = 0;  // latest end so far, by the op `gap.previous_op`
  for (const Interval& busy : line.busy) {
    gap.end = busy.begin;
    // Work of no length belongs to no interval; it may stand before this one.
    while (next < line.ops.size() && timeline.ops[line.ops[next]].start_ns < busy.begin) ++next;
    gap.next_op = next < line.ops.size() ? line.ops[next] : kNoCall;
    if (gap.begin < gap.end) splitter.gap(gap);
    gap.begin = busy.end;
    for (; next < line.ops.size() && timeline.ops[line.ops[next]].start_ns < busy.end; ++next) {
      if (timeline.ops[line.ops[next]].end_ns >= reach) {
        reach = timeline.ops[line.ops[next]].end_ns;
        gap.previous_op = line.ops[next];
      }
    }
  }
  gap.end = kNever;
  gap.next_op = kNoCall;
  splitter.gap(gap);
  return out;
}

}  // namespace gpubusy::analysis
