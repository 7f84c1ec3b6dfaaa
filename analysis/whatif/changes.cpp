// SPDX-License-Identifier: Apache-2.0
#include "analysis/whatif/changes.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>

#include "analysis/causes.hpp"
#include "analysis/looks.hpp"
#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/throttling.hpp"
#include "analysis/workers.hpp"

namespace gpubusy::analysis::whatif {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::Recording;

struct Form {
  ChangeKind kind;
  const char* word;
  bool takes_target, takes_factor;
};
constexpr Form kForms[] = {
    {ChangeKind::kPinned, "pinned", false, false},
    {ChangeKind::kNoSync, "no-sync", true, false},
    {ChangeKind::kWorkers, "workers", false, false},
    {ChangeKind::kLaunches, "launches", false, true},
    {ChangeKind::kKernel, "kernel", true, true},
    {ChangeKind::kCopies, "copies", true, true},
    {ChangeKind::kAlloc, "alloc", false, true},
    {ChangeKind::kHost, "host", true, true},
    {ChangeKind::kDrop, "drop", true, false},
    {ChangeKind::kPrefetch, "prefetch", false, false},
    {ChangeKind::kPacked, "packed-copies", false, false},
    {ChangeKind::kQuota, "quota", false, false},
};

constexpr std::string_view kDirections[] = {"htod", "dtoh", "dtod"};

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || !(value >= 0) ||
      value > 1000) {
    return std::nullopt;
  }
  return value;
}

std::optional<unsigned> whole(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > 1024) {
    return std::nullopt;
  }
  return value;
}

std::string allowed_forms() {
  std::string out;
  for (const ChangeForm& form : change_forms()) {
    out += fmt::format("{}{}", out.empty() ? "" : ", ", form.form);
  }
  return out;
}

tl::unexpected<std::string> bad(std::string_view text, const std::string& why) {
  return tl::unexpected(fmt::format("--change='{}': {}", text, why));
}

// Whether a stack has a frame at one of the targets: "file.py", "file.py:12" or a function's name.
class LineMatch {
 public:
  LineMatch(std::string_view targets, SourceLines& lines) : lines_(lines) {
    for (std::size_t at = 0; at <= targets.size();) {
      const std::size_t end = std::min(targets.find(',', at), targets.size());
      if (end > at) targets_.emplace_back(targets.substr(at, end - at));
      at = end + 1;
    }
  }

  bool operator()(std::uint32_t stack) {
    if (targets_.empty()) return true;
    if (stack == 0) return false;
    const auto [it, fresh] = known_.try_emplace(stack, false);
    if (fresh) {
      for (const SourceLine& line : lines_.frames(stack, 256))
        it->second = it->second || fits(line);
    }
    return it->second;
  }

 private:
  bool fits(const SourceLine& line) const {
    return std::any_of(targets_.begin(), targets_.end(),
                       [&](const std::string& target) { return fits(line, target); });
  }

  static bool fits(const SourceLine& line, std::string_view target) {
    if (line.function == target) return true;
    const auto ends_with_file = [&](std::string_view wanted) {
      const std::string_view file = line.file;
      return file.ends_with(wanted) &&
             (file.size() == wanted.size() || file[file.size() - wanted.size() - 1] == '/');
    };
    if (ends_with_file(target)) return true;
    const std::size_t colon = target.rfind(':');
    if (colon == std::string::npos || target.substr(colon + 1) != std::to_string(line.line)) {
      return false;
    }
    return ends_with_file(target.substr(0, colon));
  }

  std::vector<std::string> targets_;
  SourceLines& lines_;
  std::unordered_map<std::uint32_t, bool> known_;
};

std::uint64_t scaled(std::uint64_t ns, double factor) {
  return static_cast<std::uint64_t>(static_cast<double>(ns) * factor + 0.5);
}

template <class T>
T pick(Assumption assumption, T best, T likely, T worst) {
  switch (assumption) {
    case Assumption::kBest: return best;
    case Assumption::kLikely: return likely;
    case Assumption::kWorst: return worst;
  }
  return likely;
}

bool launches(const Call& call) {
  return call.category == Category::kLaunch || call.category == Category::kMemset ||
         call.category == Category::kGraphLaunch ||
         (call.category == Category::kCopy && !waits_for_device(call));
}

// GB/s of the recording's own large pinned copies in a direction; 0: there are none.
double pinned_rate(const Recording& recording, const Timeline& timeline, CopyDirection direction) {
  std::uint64_t bytes = 0, ns = 0;
  for (const DeviceOp& op : timeline.ops) {
    if (op.kind != OpKind::kCopy) continue;
    const recording::CopyPayload copy = copy_of(recording, op);
    const MemoryKind host =
        direction == CopyDirection::kHostToDevice ? copy.source_kind : copy.destination_kind;
    if (copy.direction != direction || host != MemoryKind::kPinned || copy.bytes < (1u << 18)) {
      continue;
    }
    bytes += copy.bytes;
    ns += op.end_ns - op.start_ns;
  }
  return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns);
}

Applied pin(Model& model, Assumption assumption, const Recording& recording,
            const Timeline& timeline) {
  Applied out;
  bool assumed_rate = false;
  const double rates[] = {pinned_rate(recording, timeline, CopyDirection::kHostToDevice),
                          pinned_rate(recording, timeline, CopyDirection::kDeviceToHost)};
  for (Node& node : model.nodes) {
    const Call& call = recording.calls[node.call];
    if (!node.has_work || !is_pageable_copy(call)) continue;
    ++out.touched;
    const bool to_device = call.copy.direction == CopyDirection::kHostToDevice;
    double rate = rates[to_device ? 0 : 1];
    if (rate == 0) {
      assumed_rate = true;
      rate = pick(assumption, 50.0, 25.0, 12.0);
    }
    const auto transfer = static_cast<std::uint64_t>(static_cast<double>(call.copy.bytes) / rate);
    node.work.duration_ns = std::min(node.work.duration_ns, transfer + 1'500);
    // A copy to the host is mostly read at once: somebody waits for it either way.
    if (!to_device) continue;
    node.wait = Wait::kNone;
    node.own_ns = std::min(node.own_ns, model.launch_own_ns + 5'000);
  }
  if (assumed_rate) out.assumed = "pinned copies at 25 GB/s (12 to 50): the recording has none";
  return out;
}

Applied unsync(Model& model, const Change& change, Assumption assumption,
               const Recording& recording, SourceLines& lines) {
  Applied out;
  LineMatch match(change.target, lines);
  for (Node& node : model.nodes) {
    const Call& call = recording.calls[node.call];
    if (!waits_for_device(call) || !match(call.python_stack)) continue;
    // Input copies block too, but are no reading of results.
    if (call.category == Category::kCopy && call.copy.direction == CopyDirection::kHostToDevice) {
      continue;
    }
    ++out.touched;
    node.wait = Wait::kNone;
    // What was read is not read any more: the copy of the result goes, too.
    const bool reads = call.category == Category::kCopy;
    if (reads && assumption != Assumption::kWorst) node.has_work = false;
    node.own_ns = std::min<std::uint64_t>(
        node.own_ns,
        pick<std::uint64_t>(assumption, 0, 0, reads ? model.launch_own_ns + 5'000 : 2'000));
  }
  return out;
}

// Host time of a step beside loading and waiting: what competes with workers for processors.
double host_work_ns(const Model& model) {
  double sum = 0;
  for (const Node& node : model.nodes) {
    sum += static_cast<double>(node.loads ? node.aside_ns : node.think_ns);
    sum += static_cast<double>(node.own_ns);
  }
  return sum / model.steps;
}

// Taking a batch that a worker has ready.
constexpr std::uint64_t kTakeBatchNs = 300'000;

// What workers do not take over.
bool stays_in_thread(Cause cause) {
  return cause == Cause::kCheckpoint || cause == Cause::kLogging || cause == Cause::kEvaluation ||
         cause == Cause::kCollective || cause == Cause::kCollection;
}

// How much of the time that the input was loaded in the thread was on a processor, by the looks at
// it.
std::optional<double> computing_share(const Model& model, const Recording& recording,
                                      SourceLines& lines) {
  const Looks looks(recording);
  StackCauses causes(recording, lines);
  std::uint64_t seen = 0, run = 0;
  for (const Node& node : model.nodes) {
    if (!node.loads) continue;
    const Call& call = recording.calls[node.call];
    const std::uint64_t begin = call.start_ns - std::min(call.start_ns, node.think_ns);
    looks.seen(begin, call.start_ns,
               [&](const recording::GapSample& look, std::uint64_t from, std::uint64_t until) {
                 // How long it ran is known of a look's whole time only.
                 const bool whole = from == look.since_ns && until == look.time_ns;
                 if (look.thread_id != call.thread_id || !whole) return;
                 if (stays_in_thread(causes.of(look.python_stack))) return;
                 seen += until - from;
                 run += std::min(look.run_ns, until - from);
               });
  }
  if (seen == 0) return std::nullopt;
  return static_cast<double>(run) / static_cast<double>(seen);
}

// What looks tell of the pauses before input: visit(node, cause, ns).
template <typename Visit>
void look_into_loads(Model& model, const Recording& recording, SourceLines& lines, Visit visit) {
  const Looks looks(recording);
  StackCauses causes(recording, lines);
  for (Node& node : model.nodes) {
    if (!node.loads) continue;
    const Call& call = recording.calls[node.call];
    const std::uint64_t begin = call.start_ns - std::min(call.start_ns, node.think_ns);
    looks.telling(
        begin, call.start_ns, begin, call.thread_id,
        [&](const recording::GapSample& look, const recording::GapSample*, std::uint64_t from,
            std::uint64_t until) { visit(node, causes.of(look.python_stack), until - from); });
  }
}

// Of these, what workers do not take over.
void set_aside(Model& model, const Recording& recording, SourceLines& lines) {
  for (Node& node : model.nodes) node.aside_ns = 0;
  look_into_loads(model, recording, lines, [](Node& node, Cause cause, std::uint64_t ns) {
    if (stays_in_thread(cause)) node.aside_ns += ns;
  });
}

Applied use_workers(Model& model, const Change& change, Assumption assumption,
                    const Recording& recording, SourceLines& lines,
                    const Surroundings& surroundings) {
  Applied out;
  double load = 0;
  set_aside(model, recording, lines);
  for (const Node& node : model.nodes) {
    if (!node.loads) continue;
    ++out.touched;
    load += static_cast<double>(node.think_ns - node.aside_ns);
  }
  if (out.touched == 0) return out;
  load /= model.steps;
  double batch_ns = load;  // one batch, by one process
  if (change.workers_before > 0) {
    // Workers that cannot keep up make one batch each in as many steps as there are workers.
    batch_ns = static_cast<double>(model.observed_mean_ns) * change.workers_before;
  }
  const double per_step = static_cast<double>(out.touched) / model.steps;
  batch_ns /= std::max(per_step, 1.0);
  const double workers = std::max(change.workers, 1u);
  const double processors = std::max(surroundings.processors, 1u);
  const std::optional<double> computing =
      change.workers_before > 0 ? std::nullopt : computing_share(model, recording, lines);
  // Workers and the main process share the processors, as far as loading computes.
  const auto with_sharing = [&](double share) {
    return std::max(batch_ns / workers, (batch_ns * share + host_work_ns(model)) / processors);
  };
  const double likely = computing ? *computing : change.workers_before > 0 ? 0 : 1;
  const double least = computing ? *computing : 0, most = computing ? *computing : 1;
  const double interval =
      pick(assumption, with_sharing(least), with_sharing(likely), with_sharing(most) * 1.15);
  model.supply.active = true;
  model.supply.interval_ns = static_cast<std::uint64_t>(interval);
  model.supply.overhead_ns = pick<std::uint64_t>(assumption, 50'000, kTakeBatchNs, 1'000'000);
  model.supply.ahead = static_cast<std::uint32_t>(2 * workers);
  out.assumed = fmt::format(
      "a batch takes one worker {:.1f} ms{}, {:.0f} % of it computing{}, on {} processors; taking "
      "a batch from a worker 0.3 ms (0.05 to 1)",
      batch_ns / 1e6, change.workers_before > 0 ? " (they could not keep up)" : "", likely * 100,
      computing ? " (as looks tell)" : " (0 to 100)", surroundings.processors);
  return out;
}

Applied scale_launches(Model& model, const Change& change, const Recording& recording) {
  Applied out;
  for (Node& node : model.nodes) {
    if (!launches(recording.calls[node.call])) continue;
    ++out.touched;
    if (!node.loads && node.think_ns < kLaunchPauseNs) {
      node.think_ns = scaled(node.think_ns, change.factor);
    }
    if (node.wait == Wait::kNone) node.own_ns = scaled(node.own_ns, change.factor);
  }
  return out;
}

void scale_work(Node& node, double factor) {
  node.work.duration_ns = scaled(node.work.duration_ns, factor);
  if (factor != 0) return;
  // Gone altogether, with the call and the framework's work in front of it.
  node.has_work = false;
  node.own_ns = 0;
  if (node.wait == Wait::kOwn || node.wait == Wait::kNode) node.wait = Wait::kNone;
  if (!node.loads && node.think_ns < kLaunchPauseNs) node.think_ns = 0;
}

Applied scale_kernels(Model& model, const Change& change, const Recording& recording,
                      const Timeline& timeline) {
  Applied out;
  std::unordered_map<std::uint32_t, bool> fits;
  const auto is_meant = [&](std::uint32_t kernel) {
    const auto [it, fresh] = fits.try_emplace(kernel, false);
    if (fresh) {
      const auto known = recording.kernels.find(kernel);
      if (known != recording.kernels.end()) {
        const std::string name = demangle(known->second.name);
        it->second = change.target.empty() || fnmatch(change.target.c_str(), name.c_str(), 0) == 0;
      }
    }
    return it->second;
  };
  for (Node& node : model.nodes) {
    if (!node.has_work) continue;
    const auto [from, to] = timeline.ops_of(node.call);
    std::uint64_t all = 0, meant = 0;
    for (std::size_t k = from; k < to; ++k) {
      const DeviceOp& op = timeline.ops[timeline.ops_by_call[k]];
      const std::uint64_t ns = op.end_ns - op.start_ns;
      all += ns;
      if ((op.kind == OpKind::kKernel || op.kind == OpKind::kGraph) &&
          is_meant(kernel_of(recording, op))) {
        meant += ns;
        ++out.touched;
      }
    }
    if (all == 0 || meant == 0) continue;
    const double share = static_cast<double>(meant) / static_cast<double>(all);
    scale_work(node, 1 - share + share * change.factor);
  }
  return out;
}

Applied scale_copies(Model& model, const Change& change, const Recording& recording) {
  Applied out;
  const CopyDirection direction = change.target == "htod"   ? CopyDirection::kHostToDevice
                                  : change.target == "dtoh" ? CopyDirection::kDeviceToHost
                                                            : CopyDirection::kDeviceToDevice;
  for (Node& node : model.nodes) {
    const Call& call = recording.calls[node.call];
    if (!node.has_work || call.category != Category::kCopy || call.copy.direction != direction) {
      continue;
    }
    ++out.touched;
    scale_work(node, change.factor);
  }
  return out;
}

Applied scale_allocations(Model& model, const Change& change, const Recording& recording) {
  Applied out;
  for (Node& node : model.nodes) {
    switch (recording.calls[node.call].category) {
      case Category::kDeviceAlloc:
      case Category::kDeviceFree:
      case Category::kHostAlloc:
      case Category::kHostFree: break;
      default: continue;
    }
    ++out.touched;
    node.own_ns = scaled(node.own_ns, change.factor);
    if (change.factor == 0) node.wait = Wait::kNone;
  }
  return out;
}

// How much of the host's time in front of calls was at a target's lines. Short pauses are not
// looked at.
class HostShare {
 public:
  HostShare(const Model& model, const Recording& recording, std::string_view target,
            SourceLines& lines)
      : model_(model),
        recording_(recording),
        lines_(lines),
        looks_(recording),
        match_(target, lines) {
    for (const Node& node : model.nodes) {
      if (node.think_ns < kLaunchPauseNs) continue;
      const Seen seen = look_at(node);
      Seen& sum = by_place_[place_of(node)];
      sum.ns += seen.ns;
      sum.matching_ns += seen.matching_ns;
    }
  }

  bool matches(std::uint32_t stack) { return match_(stack); }

  // As the looks at it tell, or those at other pauses between the same calls; else nothing is
  // known.
  std::optional<double> seen(const Node& node) {
    if (node.think_ns < kLaunchPauseNs) return std::nullopt;
    Seen seen = look_at(node);
    if (seen.ns * 2 < node.think_ns) seen = by_place_[place_of(node)];
    if (seen.ns == 0) return std::nullopt;
    return static_cast<double>(seen.matching_ns) / static_cast<double>(seen.ns);
  }

  // … or by the lines of the calls round it.
  double of(const Node& node) {
    if (const auto share = seen(node)) return *share;
    const Call* before = call_before(node);
    return match_(recording_.calls[node.call].python_stack) ||
                   (before != nullptr && match_(before->python_stack))
               ? 1
               : 0;
  }

 private:
  struct Seen {
    std::uint64_t ns = 0, matching_ns = 0;
  };
  using Place = std::pair<std::uint32_t, std::uint32_t>;  // lines of the calls round it

  const Call* call_before(const Node& node) const {
    return node.before == kNone ? nullptr : &recording_.calls[model_.nodes[node.before].call];
  }
  Place place_of(const Node& node) {
    const Call* before = call_before(node);
    return {lines_.id_of(before == nullptr ? 0 : before->python_stack),
            lines_.id_of(recording_.calls[node.call].python_stack)};
  }

  Seen look_at(const Node& node) {
    const Call& call = recording_.calls[node.call];
    const std::uint64_t begin = call.start_ns - std::min(call.start_ns, node.think_ns);
    Seen out;
    looks_.telling(begin, call.start_ns, begin, call.thread_id,
                   [&](const recording::GapSample& look, const recording::GapSample*,
                       std::uint64_t from, std::uint64_t until) {
                     if (look.python_stack == 0) return;
                     out.ns += until - from;
                     if (match_(look.python_stack)) out.matching_ns += until - from;
                   });
    return out;
  }

  const Model& model_;
  const Recording& recording_;
  SourceLines& lines_;
  Looks looks_;
  LineMatch match_;
  std::map<Place, Seen> by_place_;
};

void take_host_time(Node& node, double share, double factor, Applied& out) {
  const std::uint64_t before = node.think_ns;
  node.think_ns = scaled(node.think_ns, 1 - share + share * factor);
  if (node.think_ns < before) out.host_ns += before - node.think_ns;
}

Applied scale_host(Model& model, const Change& change, const Recording& recording,
                   SourceLines& lines) {
  Applied out;
  HostShare share_of(model, recording, change.target, lines);
  for (Node& node : model.nodes) {
    if (node.think_ns < kSmallPauseNs) continue;
    const double share = share_of.of(node);
    if (share == 0) continue;
    ++out.touched;
    take_host_time(node, share, change.factor, out);
  }
  return out;
}

// As if the line were not there: its calls, and the host's time at it. The pause in front of one of
// its calls goes with it, but for what looks say was elsewhere.
Applied drop(Model& model, const Change& change, const Recording& recording, SourceLines& lines) {
  Applied out;
  HostShare share_of(model, recording, change.target, lines);
  for (Node& node : model.nodes) {
    const bool gone = share_of.matches(recording.calls[node.call].python_stack);
    double share = gone ? 1 : 0;
    share = share_of.seen(node).value_or(share);
    out.touched += gone || share > 0;
    take_host_time(node, share, 0, out);
    if (!gone) continue;
    node.has_work = node.records_event = node.gates_stream = false;
    node.wait = Wait::kNone;
    node.own_ns = 0;
  }
  return out;
}

// Whether the pauses before input are waits for a loader's workers, for most of what looks saw.
bool waits_for_workers(Model& model, const Recording& recording, SourceLines& lines) {
  std::uint64_t seen = 0, queue = 0;
  look_into_loads(model, recording, lines, [&](const Node&, Cause cause, std::uint64_t ns) {
    seen += ns;
    if (cause == Cause::kLoaderQueue) queue += ns;
  });
  return queue * 2 > seen;
}

// Workers that are not stopped make their batches in what is left of the time.
void free_workers(Model& model, const Recording& recording, SourceLines& lines,
                  const Surroundings& surroundings) {
  const Workers workers = find_workers(recording, {}, lines);
  std::uint64_t loads = 0;
  for (const Node& node : model.nodes) loads += node.loads;
  if (workers.quota_share <= 0 || loads == 0 || !waits_for_workers(model, recording, lines)) return;
  set_aside(model, recording, lines);
  const auto step = static_cast<double>(model.observed_mean_ns);
  const double computing = step * workers.run_share * workers.count;
  const double processors = std::max(surroundings.processors, 1u);
  const double interval =
      std::max(step * (1 - workers.quota_share), (computing + host_work_ns(model)) / processors);
  const double per_step = static_cast<double>(loads) / model.steps;
  model.supply.active = true;
  model.supply.interval_ns = static_cast<std::uint64_t>(interval / std::max(per_step, 1.0));
  model.supply.overhead_ns = kTakeBatchNs;
  model.supply.ahead = 2 * std::max(workers.count, 1u);
}

// As if the program had no quota: neither its launching threads nor the workers that they wait for
// are stopped.
Applied lift_quota(Model& model, const Recording& recording, SourceLines& lines,
                   const Surroundings& surroundings) {
  Applied out;
  const Throttling throttling(recording);
  for (Node& node : model.nodes) {
    const Call& call = recording.calls[node.call];
    const std::uint64_t begin = call.start_ns - std::min(call.start_ns, node.think_ns);
    // It came after a call of another thread where that one had handed its work over.
    const std::uint32_t other = node.before == kNone
                                    ? call.thread_id
                                    : recording.calls[model.nodes[node.before].call].thread_id;
    const std::uint64_t before =
        other == call.thread_id
            ? covered(throttling.of(other), begin, call.start_ns)
            : covered(united(throttling.of(call.thread_id), throttling.of(other)), begin,
                      call.start_ns);
    const std::uint64_t within =
        std::min(node.own_ns, covered(throttling.of(call.thread_id), call.start_ns, call.end_ns));
    if (before + within == 0) continue;
    ++out.touched;
    node.think_ns -= std::min(node.think_ns, before);
    node.own_ns -= within;
    out.host_ns += before;
  }
  free_workers(model, recording, lines, surroundings);
  out.touched += model.supply.active;
  if (out.touched > 0) {
    out.assumed =
        fmt::format("{} processors are free for what the quota stopped", surroundings.processors);
  }
  return out;
}

bool copies_input(const Node& node, const Recording& recording) {
  const Call& call = recording.calls[node.call];
  return node.has_work && call.category == Category::kCopy &&
         call.copy.direction == CopyDirection::kHostToDevice;
}

Applied prefetch(Model& model, const Recording& recording) {
  Applied out;
  for (Node& node : model.nodes) {
    if (!copies_input(node, recording)) continue;
    ++out.touched;
    node.work.ahead = true;
    node.wait = Wait::kNone;
    node.own_ns = std::min(node.own_ns, model.launch_own_ns + 5'000);
  }
  return out;
}

Applied pack(Model& model, const Recording& recording) {
  Applied out;
  std::unordered_map<std::uint32_t, std::uint32_t> first_of_step;
  std::vector<bool> gone(model.nodes.size());
  for (std::uint32_t i = 0; i < model.nodes.size(); ++i) {
    Node& node = model.nodes[i];
    const Call& call = recording.calls[node.call];
    // What waited for a copy that is not made is not called either.
    if (call.category == Category::kSync && node.before_own != kNone && gone[node.before_own]) {
      scale_work(node, 0);
      node.wait = Wait::kNone;
      continue;
    }
    if (!copies_input(node, recording) || call.copy.bytes > kSmallCopyBytes) continue;
    const auto [it, fresh] = first_of_step.try_emplace(node.step, i);
    if (fresh) continue;
    ++out.touched;
    gone[i] = true;
    // The bytes still move: at the rate of the packed copy, some 10 GB/s at least.
    model.nodes[it->second].work.duration_ns += call.copy.bytes / 10;
    scale_work(node, 0);
  }
  return out;
}

}  // namespace

const std::vector<ChangeForm>& change_forms() {
  static const std::vector<ChangeForm> forms = {
      {"pinned", "copies from pageable memory become pinned and non_blocking"},
      {"no-sync[:WHERE]", "waits for the device (at lines or functions) do not wait"},
      {"workers=N", "input that the main process loads is loaded by N workers"},
      {"workers=M:N", "the same with N workers where there were M"},
      {"launches*F", "the host's cost of launching, times F (CUDA graphs: 0.1)"},
      {"kernel[:GLOB]*F", "kernels of this name take F times as long"},
      {"copies:htod*F", "copies in this direction (htod, dtoh, dtod); 0: they are not made"},
      {"alloc*F", "allocating and freeing memory, times F"},
      {"host:WHERE*F", "host time outside CUDA at lines or functions (a.py:5,b.py:7), times F"},
      {"drop:WHERE", "lines or functions are not there: their calls, device work and host time"},
      {"prefetch", "input is copied one step ahead, beside the kernels"},
      {"packed-copies", "the small input copies of a step become one"},
      {"quota", "the program has no quota of processor time"},
  };
  return forms;
}

tl::expected<Change, std::string> parse_change(std::string_view text) {
  Change change;
  change.text = text;
  std::string_view rest = text;
  std::string_view factor;
  if (const std::size_t star = rest.rfind('*');
      star != std::string_view::npos && number(rest.substr(star + 1))) {
    factor = rest.substr(star + 1);
    rest = rest.substr(0, star);
    change.factor = *number(factor);
  }
  std::string_view value;
  if (rest.starts_with("workers=")) {
    value = rest.substr(8);
    rest = "workers";
  }
  std::string_view word = rest;
  bool has_target = false;
  if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    word = rest.substr(0, colon);
    change.target = rest.substr(colon + 1);
    // "kernel:GLOB:*0.5" and "kernel:GLOB*0.5" are the same.
    if (change.target.ends_with(':')) change.target.pop_back();
    has_target = true;
  }
  for (const Form& form : kForms) {
    if (word != form.word) continue;
    change.kind = form.kind;
    if (form.takes_factor != !factor.empty()) {
      return bad(text, form.takes_factor
                           ? fmt::format("{} needs a factor from 0 to 1000, such as *0.5", word)
                           : fmt::format("{} takes no factor", word));
    }
    if (has_target && !form.takes_target) return bad(text, fmt::format("{} takes no target", word));
    if (has_target && change.target.empty()) return bad(text, "the part behind ':' is empty");
    if (form.kind == ChangeKind::kCopies &&
        std::find(std::begin(kDirections), std::end(kDirections),
                  std::string_view(change.target)) == std::end(kDirections)) {
      return bad(text, "allowed are copies:htod, copies:dtoh and copies:dtod");
    }
    if ((form.kind == ChangeKind::kHost || form.kind == ChangeKind::kDrop) && !has_target) {
      return bad(text, fmt::format("{} needs a line, a file or a function: {}", word,
                                   form.takes_factor ? "host:train.py:60*0" : "drop:evaluate"));
    }
    if (form.kind == ChangeKind::kWorkers) {
      const std::size_t colon = value.find(':');
      const auto last = whole(colon == std::string_view::npos ? value : value.substr(colon + 1));
      const auto before =
          colon == std::string_view::npos ? std::optional(0u) : whole(value.substr(0, colon));
      if (!last || !before || *last == 0) {
        return bad(text, "allowed is workers=N or workers=M:N, with N from 1 to 1024");
      }
      change.workers = *last;
      change.workers_before = *before;
    }
    return change;
  }
  return bad(text, "allowed are " + allowed_forms());
}

Applied apply(Model& model, const Change& change, Assumption assumption, const Recording& recording,
              const Timeline& timeline, SourceLines& lines, const Surroundings& surroundings) {
  switch (change.kind) {
    case ChangeKind::kPinned: return pin(model, assumption, recording, timeline);
    case ChangeKind::kNoSync: return unsync(model, change, assumption, recording, lines);
    case ChangeKind::kWorkers:
      return use_workers(model, change, assumption, recording, lines, surroundings);
    case ChangeKind::kLaunches: return scale_launches(model, change, recording);
    case ChangeKind::kKernel: return scale_kernels(model, change, recording, timeline);
    case ChangeKind::kCopies: return scale_copies(model, change, recording);
    case ChangeKind::kAlloc: return scale_allocations(model, change, recording);
    case ChangeKind::kHost: return scale_host(model, change, recording, lines);
    case ChangeKind::kDrop: return drop(model, change, recording, lines);
    case ChangeKind::kPrefetch: return prefetch(model, recording);
    case ChangeKind::kPacked: return pack(model, recording);
    case ChangeKind::kQuota: return lift_quota(model, recording, lines, surroundings);
  }
  return {};
}

}  // namespace gpubusy::analysis::whatif
