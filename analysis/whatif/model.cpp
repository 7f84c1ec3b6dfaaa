// SPDX-License-Identifier: Apache-2.0
#include "analysis/whatif/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis::whatif {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::Recording;

constexpr std::uint32_t kLegacyStream = 7;
constexpr std::uint16_t kFlagsUnknown = 0xffff, kNonBlocking = 1;

// A thread that other threads worked for while it made no call had handed its work to them and
// waited (main thread and autograd's); below this it is taken to have gone on by itself: waking a
// thread takes 10 to 50 us.
constexpr std::uint64_t kHandOverNs = 30'000;
// Work that begins this soon behind other work may have waited for it.
constexpr std::uint64_t kBehindNs = 50'000;
// A device that has nothing to do begins sooner than this.
constexpr std::uint64_t kMaxLatencyNs = 200'000;
// Times of the device and of the host are that far apart at times.
constexpr std::uint64_t kSlackNs = 100'000;
// A launch that takes so long, behind so much work, waits for room in the queue.
constexpr std::uint64_t kBlockedLaunchNs = 50'000;
constexpr std::size_t kDeepQueue = 32;
// A pause in front of the step's input that is longer than a framework's own work.
constexpr std::uint64_t kLoadNs = 200'000;
constexpr std::size_t kLeastSteps = 3;  // the first has no beginning, one is no mean
constexpr std::ptrdiff_t kMostCalls = 200'000;
// Too much unknown for a model.
constexpr double kLeastTimed = 0.95;

Engine engine_of(const recording::CopyPayload& copy) {
  switch (copy.direction) {
    case CopyDirection::kHostToDevice: return Engine::kHostToDevice;
    case CopyDirection::kDeviceToHost: return Engine::kDeviceToHost;
    default: return Engine::kNone;
  }
}

class Builder {
 public:
  Builder(const Recording& recording, const Timeline& timeline, const std::vector<Step>& steps)
      : recording_(recording), timeline_(timeline), steps_(steps) {
    for (const recording::Api& api : recording.apis) {
      const std::string_view name = api_base_name(api.name);
      records_event_.push_back(name.find("EventRecord") != std::string_view::npos);
      waits_event_.push_back(name.find("WaitEvent") != std::string_view::npos);
    }
  }

  tl::expected<Model, std::string> build() {
    model_.steps = static_cast<std::uint32_t>(steps_.size());
    model_.origin_ns = steps_.front().begin_ns;
    model_.step_ends.resize(steps_.size());
    std::vector<std::uint64_t> done(steps_.size());
    std::uint32_t step = 0;
    const auto first =
        std::partition_point(recording_.calls.begin(), recording_.calls.end(),
                             [&](const Call& c) { return c.start_ns < steps_.front().begin_ns; });
    for (auto it = first; it != recording_.calls.end() && it->start_ns < steps_.back().end_ns;
         ++it) {
      if (wants_device_work(*it)) launching_threads_.insert(it->thread_id);
    }
    std::uint64_t wanted = 0, timed = 0, device_done = 0;
    for (auto it = first; it != recording_.calls.end(); ++it) {
      const bool over = it->start_ns >= steps_.back().end_ns;
      while (step < steps_.size() && (over || it->start_ns >= steps_[step].end_ns)) {
        done[step] = std::max(steps_[step].end_ns, device_done);
        end_step(step++);
      }
      if (over) break;
      const auto index = static_cast<std::uint32_t>(it - recording_.calls.begin());
      if (wants_device_work(*it)) {
        ++wanted;
        timed += timeline_.timed[index];
      }
      add(index, *it, step);
      if (model_.nodes.back().has_work) device_done = std::max(device_done, work_end_.back());
    }
    for (; step < steps_.size(); ++step) {
      done[step] = std::max(steps_[step].end_ns, device_done);
      end_step(step);
    }
    if (wanted == 0) return tl::unexpected(std::string("the judged steps ask for no device work"));
    if (static_cast<double>(timed) < kLeastTimed * static_cast<double>(wanted)) {
      return tl::unexpected(
          fmt::format("device times are known for {} of {} pieces of work: too few to predict from",
                      timed, wanted));
    }
    model_.observed_mean_ns = (done.back() - done.front()) / (done.size() - 1);
    fill_latencies();
    mark_loads();
    return std::move(model_);
  }

 private:
  struct Running {
    std::uint64_t end_ns;
    std::uint32_t node;
    bool operator>(const Running& other) const { return end_ns > other.end_ns; }
  };

  const Call& call_of(std::uint32_t node) const {
    return recording_.calls[model_.nodes[node].call];
  }

  // Looks at the calls that have ended by now.
  void end_until(std::uint64_t time_ns) {
    while (!running_.empty() && running_.top().end_ns <= time_ns) {
      const std::uint32_t node = running_.top().node;
      // A thread that only pins memory, say, is part of what others wait for, not of who works for
      // them.
      if (launching_threads_.contains(call_of(node).thread_id)) last_ended_ = node;
      running_.pop();
    }
  }

  void end_step(std::uint32_t step) {
    end_until(steps_[step].end_ns);
    Model::StepEnd& end = model_.step_ends[step];
    end.node = last_ended_;
    end.after_ns = steps_[step].end_ns -
                   (last_ended_ == kNone ? model_.origin_ns : call_of(last_ended_).end_ns);
  }

  std::uint32_t stream_of(std::uint32_t id, std::int16_t device) {
    if (id == 0) id = kLegacyStream;
    const auto [it, fresh] =
        streams_.try_emplace({id, device}, static_cast<std::uint32_t>(model_.streams.size()));
    if (fresh) {
      StreamInfo info;
      info.id = id;
      info.device = device;
      info.legacy = id == kLegacyStream;
      const auto known = recording_.streams.find(id);
      info.blocking = !info.legacy && known != recording_.streams.end() &&
                      known->second.flags != kFlagsUnknown &&
                      (known->second.flags & kNonBlocking) == 0;
      model_.streams.push_back(info);
      stream_done_.push_back(0);
      stream_work_.emplace_back();
    }
    return it->second;
  }

  std::uint32_t event_of(std::uint64_t handle) {
    const auto [it, fresh] = events_.try_emplace(handle, model_.events);
    if (fresh) {
      ++model_.events;
      event_done_.push_back(0);
    }
    return it->second;
  }

  std::uint64_t all_done() const {
    std::uint64_t latest = 0;
    for (const std::uint64_t done : stream_done_) latest = std::max(latest, done);
    return latest;
  }

  void add(std::uint32_t index, const Call& call, std::uint32_t step) {
    end_until(call.start_ns);
    const auto i = static_cast<std::uint32_t>(model_.nodes.size());
    Node node;
    node.call = index;
    node.step = step;
    const auto own = last_of_thread_.find(call.thread_id);
    if (own != last_of_thread_.end()) node.before_own = own->second;
    node.before = node.before_own;
    if (node.before == kNone ||
        (call.start_ns - std::min(call.start_ns, call_of(node.before).end_ns) >= kHandOverNs &&
         last_ended_ != kNone && call_of(last_ended_).end_ns > call_of(node.before).end_ns)) {
      node.before = last_ended_;
    }
    const std::uint64_t from =
        node.before == kNone ? model_.origin_ns : call_of(node.before).end_ns;
    node.think_ns = call.start_ns - std::min(call.start_ns, from);

    const std::int16_t device = std::max<std::int16_t>(call.device, 0);
    if (call.stream != 0) node.stream = stream_of(call.stream, device);
    if (call.category == Category::kEvent && records_event_[call.api]) {
      node.records_event = true;
      node.event = event_of(call.sync.handle);
      event_done_[node.event] = node.stream == kNone ? all_done() : stream_done_[node.stream];
    } else if (call.category == Category::kStream && waits_event_[call.api] &&
               node.stream != kNone) {
      node.gates_stream = true;
      node.event = event_of(call.sync.other);
      std::uint64_t& done = stream_done_[node.stream];
      done = std::max(done, event_done_[node.event]);
    }
    work_end_.push_back(0);
    add_work(i, call, index, node);
    add_wait(call, node);

    model_.nodes.push_back(node);
    last_of_thread_[call.thread_id] = i;
    running_.push({call.end_ns, i});
  }

  void add_work(std::uint32_t i, const Call& call, std::uint32_t index, Node& node) {
    const auto [from, to] = timeline_.ops_of(index);
    if (from == to) return;
    std::uint64_t start = timeline_.ops[timeline_.ops_by_call[from]].start_ns, end = 0;
    for (std::size_t k = from; k < to; ++k) {
      const DeviceOp& op = timeline_.ops[timeline_.ops_by_call[k]];
      start = std::min(start, op.start_ns);
      end = std::max(end, op.end_ns);
    }
    const DeviceOp& op = timeline_.ops[timeline_.ops_by_call[from]];
    Work& work = node.work;
    node.has_work = true;
    work.stream = stream_of(op.stream, op.device);
    if (node.stream == kNone) node.stream = work.stream;
    work.duration_ns = end - start;
    if (op.kind == OpKind::kCopy) work.engine = engine_of(copy_of(recording_, op));

    std::uint64_t behind = stream_done_[work.stream];
    const StreamInfo& stream = model_.streams[work.stream];
    if (stream.legacy || stream.blocking) {
      for (std::size_t s = 0; s < model_.streams.size(); ++s) {
        const StreamInfo& other = model_.streams[s];
        if (other.device == stream.device && (stream.legacy ? other.blocking : other.legacy)) {
          behind = std::max(behind, stream_done_[s]);
        }
      }
    }
    std::uint64_t& engine = engine_done_[{stream.device, work.engine}];
    if (work.engine != Engine::kNone) behind = std::max(behind, engine);

    const std::uint64_t asked = call.start_ns;
    const std::uint64_t latency = start - std::min(start, asked);
    if (behind > asked && start - std::min(start, behind) <= kBehindNs) {
      work.gap_ns = start - std::min(start, behind);
      queued_.push_back(i);
    } else if (latency <= kMaxLatencyNs) {
      work.latency_ns = latency;
      idle_latencies_.push_back(latency);
    } else {
      // Neither the call nor anything known explains when it began: some other work that had just
      // ended does, if there is any.
      const auto next = by_end_.upper_bound(start);
      if (next != by_end_.begin() && start - std::prev(next)->first <= kBehindNs) {
        work.after = std::prev(next)->second;
        work.gap_ns = start - std::prev(next)->first;
        queued_.push_back(i);
      } else {
        work.latency_ns = latency;
      }
    }
    if (work.engine != Engine::kNone) engine = std::max(engine, end);
    stream_done_[work.stream] = std::max(stream_done_[work.stream], end);
    stream_work_[work.stream].push_back(i);
    by_end_.emplace(end, i);
    work_end_[i] = end;
  }

  void add_wait(const Call& call, Node& node) {
    const std::uint64_t length = call.end_ns - call.start_ns;
    node.own_ns = length;
    std::uint64_t until = 0;
    if (waits_for_device(call)) {
      if (call.category != Category::kSync) {
        if (!node.has_work) return;
        node.wait = Wait::kOwn;
        until = work_end_.back();
      } else if (node.stream != kNone) {
        node.wait = Wait::kStream;
        until = stream_done_[node.stream];
      } else if (call.sync.handle != 0) {
        node.wait = Wait::kEvent;
        node.event = event_of(call.sync.handle);
        until = event_done_[node.event];
      } else {
        node.wait = Wait::kDevice;
        until = all_done();
      }
      // It returned before: then it was not this that it waited for.
      if (until > call.end_ns + kSlackNs) {
        node.wait = Wait::kNone;
        return;
      }
    } else if (allocates(call.category)) {
      // cudaFree and its like may wait for the device; whether this one did, its end tells.
      until = all_done();
      if (until <= call.start_ns || until > call.end_ns + kSlackNs) return;
      node.wait = Wait::kDevice;
    } else if (node.has_work && length >= kBlockedLaunchNs) {
      const std::vector<std::uint32_t>& queue = stream_work_[node.work.stream];
      if (queue.size() <= kDeepQueue) return;
      const auto end_of_queue = queue.end() - static_cast<std::ptrdiff_t>(kDeepQueue);
      const auto next = std::partition_point(queue.begin(), end_of_queue, [&](std::uint32_t n) {
        return work_end_[n] <= call.end_ns;
      });
      if (next == queue.begin() ||
          work_end_[*std::prev(next)] < call.start_ns + kBlockedLaunchNs / 2) {
        return;
      }
      node.wait = Wait::kNode;
      node.waits_for = *std::prev(next);
      until = work_end_[node.waits_for];
    } else {
      return;
    }
    node.own_ns = call.end_ns - std::clamp(until, call.start_ns, call.end_ns);
  }

  static bool allocates(Category category) {
    return category == Category::kDeviceAlloc || category == Category::kDeviceFree ||
           category == Category::kHostAlloc || category == Category::kHostFree;
  }

  // Work that was queued never showed how soon it could have begun: as soon as other work, mostly.
  void fill_latencies() {
    std::uint64_t typical = 3'000;
    if (!idle_latencies_.empty()) {
      const auto middle =
          idle_latencies_.begin() + static_cast<std::ptrdiff_t>(idle_latencies_.size() / 2);
      std::nth_element(idle_latencies_.begin(), middle, idle_latencies_.end());
      typical = *middle;
    }
    for (const std::uint32_t i : queued_) model_.nodes[i].work.latency_ns = typical;
    std::vector<std::uint64_t> launches;
    for (const Node& node : model_.nodes) {
      if (node.wait == Wait::kNone && recording_.calls[node.call].category == Category::kLaunch) {
        launches.push_back(node.own_ns);
      }
    }
    model_.launch_own_ns = 5'000;
    if (!launches.empty()) {
      const auto middle = launches.begin() + static_cast<std::ptrdiff_t>(launches.size() / 2);
      std::nth_element(launches.begin(), middle, launches.end());
      model_.launch_own_ns = *middle;
    }
  }

  // The pauses that end with the copy of the step's input.
  void mark_loads() {
    std::vector<std::uint64_t> largest(model_.steps);
    const auto input_bytes = [&](const Node& node) -> std::uint64_t {
      const Call& call = recording_.calls[node.call];
      return node.has_work && call.category == Category::kCopy &&
                     call.copy.direction == CopyDirection::kHostToDevice
                 ? call.copy.bytes
                 : 0;
    };
    for (const Node& node : model_.nodes) {
      largest[node.step] = std::max(largest[node.step], input_bytes(node));
    }
    for (std::size_t i = 0; i < model_.nodes.size(); ++i) {
      Node& node = model_.nodes[i];
      if (node.think_ns < kLoadNs || largest[node.step] == 0) continue;
      int works = 0;
      for (std::size_t k = i; k < model_.nodes.size() && works < kWorkBehindPause; ++k) {
        const Node& next = model_.nodes[k];
        if (next.step != node.step || (k > i && next.think_ns >= kLoadNs)) break;
        works += next.has_work;
        if (input_bytes(next) * 10 >= largest[node.step]) {
          node.loads = true;
          break;
        }
      }
    }
  }

  const Recording& recording_;
  const Timeline& timeline_;
  const std::vector<Step>& steps_;
  std::vector<bool> records_event_, waits_event_;  // by api
  Model model_;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
  std::uint32_t last_ended_ = kNone;
  std::unordered_map<std::uint32_t, std::uint32_t> last_of_thread_;
  std::unordered_set<std::uint32_t> launching_threads_;
  std::map<std::pair<std::uint32_t, std::int16_t>, std::uint32_t> streams_;
  std::unordered_map<std::uint64_t, std::uint32_t> events_;
  // As observed; 0: before all that was seen.
  std::vector<std::uint64_t> stream_done_, event_done_, work_end_;
  std::map<std::pair<std::int16_t, Engine>, std::uint64_t> engine_done_;
  std::vector<std::vector<std::uint32_t>> stream_work_;
  std::multimap<std::uint64_t, std::uint32_t> by_end_;
  std::vector<std::uint32_t> queued_;
  std::vector<std::uint64_t> idle_latencies_;
};

// The steps of the window that has most of them: between windows nothing is known.
std::vector<Step> longest_run(const std::vector<Step>& steps) {
  std::vector<Step> best, run;
  for (const Step& step : steps) {
    if (!run.empty() && (run.back().window != step.window || run.back().end_ns != step.begin_ns)) {
      run.clear();
    }
    run.push_back(step);
    if (run.size() > best.size()) best = run;
  }
  return best;
}

// Of a long run its last steps: each change copies the model, and more steps say nothing new.
void keep_last_calls(std::vector<Step>& run, const Recording& recording) {
  const auto calls_before = [&](std::uint64_t time_ns) {
    return std::partition_point(recording.calls.begin(), recording.calls.end(),
                                [&](const Call& c) { return c.start_ns < time_ns; }) -
           recording.calls.begin();
  };
  const auto end = calls_before(run.back().end_ns);
  std::size_t first = 0;
  while (run.size() - first > kLeastSteps && end - calls_before(run[first].begin_ns) > kMostCalls) {
    ++first;
  }
  run.erase(run.begin(), run.begin() + static_cast<std::ptrdiff_t>(first));
}

}  // namespace

tl::expected<Model, std::string> build_model(const Recording& recording, const Timeline& timeline,
                                             const std::vector<Step>& steps) {
  std::vector<Step> run = longest_run(steps);
  if (run.size() < kLeastSteps) {
    return tl::unexpected(
        fmt::format("at least {} steps in a row are needed to predict from, {} recorded",
                    kLeastSteps, run.size()));
  }
  keep_last_calls(run, recording);
  return Builder(recording, timeline, run).build();
}

}  // namespace gpubusy::analysis::whatif
