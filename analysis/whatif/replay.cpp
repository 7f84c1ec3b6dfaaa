// SPDX-License-Identifier: Apache-2.0
#include "analysis/whatif/replay.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace gpubusy::analysis::whatif {
namespace {

// Times of a replay count from the first step's begin. Signed: what is known of the time before it
// is that it was before.
using Time = std::int64_t;

class Run {
 public:
  explicit Run(const Model& model)
      : model_(model),
        end_(model.nodes.size()),
        work_end_(model.nodes.size()),
        stream_done_(model.streams.size()),
        event_done_(model.events),
        step_begin_(model.steps + 1) {}

  Replay go() {
    Replay out;
    std::vector<Time> done(model_.steps);
    Time device_done = 0;
    std::uint32_t step = 0;
    const auto end_steps = [&](std::uint32_t until) {
      for (; step < until; ++step) {
        const Model::StepEnd& edge = model_.step_ends[step];
        const Time host =
            (edge.node == kNone ? 0 : end_[edge.node]) + static_cast<Time>(edge.after_ns);
        step_begin_[step + 1] = std::max(host, step_begin_[step]);
        done[step] = std::max(step_begin_[step + 1], device_done);
      }
    };
    for (std::uint32_t i = 0; i < model_.nodes.size(); ++i) {
      const Node& node = model_.nodes[i];
      end_steps(node.step);
      run(i, node);
      if (node.has_work) {
        device_done = std::max(device_done, work_end_[i]);
        if (node.step > 0) out.busy_ns += node.work.duration_ns;
      }
    }
    end_steps(model_.steps);
    for (std::size_t s = 1; s < done.size(); ++s) {
      out.step_ns.push_back(static_cast<std::uint64_t>(std::max<Time>(done[s] - done[s - 1], 0)));
    }
    return out;
  }

 private:
  Time begin_of(const Node& node) {
    Time begin = node.before == kNone ? 0 : end_[node.before];
    if (node.loads && model_.supply.active) {
      begin = supplied(begin + static_cast<Time>(node.aside_ns));
    } else {
      begin += static_cast<Time>(node.think_ns);
    }
    if (node.before_own != kNone) begin = std::max(begin, end_[node.before_own]);
    return begin;
  }

  // When a batch that is asked for at `asked` is there.
  Time supplied(Time asked) {
    const Supply& supply = model_.supply;
    const std::size_t n = taken_.size();
    Time ready = asked;  // the first ones lie ready: the loader had begun long before
    if (n > 0) {
      Time begun = made_;
      if (n >= supply.ahead) begun = std::max(begun, taken_[n - supply.ahead]);
      made_ = begun + static_cast<Time>(supply.interval_ns);
      ready = std::max(asked, made_);
    } else {
      made_ = asked;
    }
    taken_.push_back(ready);
    return ready + static_cast<Time>(supply.overhead_ns);
  }

  void run(std::uint32_t i, const Node& node) {
    const Time begin = begin_of(node);
    if (node.gates_stream && node.stream != kNone && node.event != kNone) {
      Time& done = stream_done_[node.stream];
      done = std::max(done, event_done_[node.event]);
    }
    if (node.records_event && node.event != kNone) {
      event_done_[node.event] = node.stream == kNone ? all_done() : stream_done_[node.stream];
    }
    if (node.has_work) work_end_[i] = run_work(begin, node);
    Time until = begin;
    switch (node.wait) {
      case Wait::kNone: break;
      case Wait::kStream: until = stream_done_[node.stream]; break;
      case Wait::kDevice: until = all_done(); break;
      case Wait::kEvent: until = event_done_[node.event]; break;
      case Wait::kOwn: until = work_end_[i]; break;
      case Wait::kNode: until = work_end_[node.waits_for]; break;
    }
    end_[i] = std::max(begin, until) + static_cast<Time>(node.own_ns);
  }

  Time run_work(Time begin, const Node& node) {
    const Work& work = node.work;
    const StreamInfo& stream = model_.streams[work.stream];
    Time& engine = engines_[{stream.device, work.engine}];
    Time ready = begin + static_cast<Time>(work.latency_ns);
    Time behind = 0;  // other work that it waits for
    if (work.ahead) {
      ready = step_begin_[node.step > 0 ? node.step - 1 : 0];
    } else {
      behind = stream_done_[work.stream];
      if (stream.legacy || stream.blocking) {
        for (std::size_t s = 0; s < model_.streams.size(); ++s) {
          const StreamInfo& other = model_.streams[s];
          if (other.device == stream.device && (stream.legacy ? other.blocking : other.legacy)) {
            behind = std::max(behind, stream_done_[s]);
          }
        }
      }
      if (work.after != kNone) behind = std::max(behind, work_end_[work.after]);
    }
    if (work.engine != Engine::kNone) behind = std::max(behind, engine);
    const Time start = std::max(ready, behind + static_cast<Time>(work.gap_ns));
    const Time end = start + static_cast<Time>(work.duration_ns);
    if (work.engine != Engine::kNone) engine = end;
    stream_done_[work.stream] = std::max(stream_done_[work.stream], end);
    return end;
  }

  Time all_done() const {
    Time latest = 0;
    for (const Time done : stream_done_) latest = std::max(latest, done);
    return latest;
  }

  const Model& model_;
  std::vector<Time> end_;       // of calls
  std::vector<Time> work_end_;  // of their work
  std::vector<Time> stream_done_, event_done_;
  std::vector<Time> step_begin_;
  std::map<std::pair<std::int16_t, Engine>, Time> engines_;
  std::vector<Time> taken_;  // batches, when each was taken
  Time made_ = 0;
};

}  // namespace

double Replay::mean_ns() const {
  double sum = 0;
  for (const std::uint64_t ns : step_ns) sum += static_cast<double>(ns);
  return step_ns.empty() ? 0 : sum / static_cast<double>(step_ns.size());
}

Replay replay(const Model& model) { return Run(model).go(); }

}  // namespace gpubusy::analysis::whatif
