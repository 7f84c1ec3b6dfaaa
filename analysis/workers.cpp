// SPDX-License-Identifier: Apache-2.0
#include "analysis/workers.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "analysis/looks.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/throttling.hpp"

namespace gpubusy::analysis {
namespace {

using recording::WorkerLook;

constexpr std::size_t kMaxFrames = 256;
// What a worker's process calls its main thread where torch is new enough.
constexpr std::string_view kTorchName = "pt_data_worker";

struct Text {
  const char* words;
  const char* id;
};
constexpr std::array<Text, kLoadings> kTexts = {{{"compute", "computes"},
                                                 {"wait for a processor", "no_processor"},
                                                 {"wait for the CPU quota", "cpu_quota"},
                                                 {"wait for storage", "storage"},
                                                 {"wait for input", "input"},
                                                 {"wait for a lock", "lock"},
                                                 {"sleep", "sleep"},
                                                 {"wait for a child process", "child_process"},
                                                 {"wait to be asked for a batch", "idle"},
                                                 {"do something else", "other"}}};

bool has_frame(const std::vector<SourceLine>& frames, std::string_view file) {
  return std::any_of(frames.begin(), frames.end(),
                     [&](const SourceLine& f) { return f.file.ends_with(file); });
}

// The frames of a forked process go on with those of the one that forked it. What belongs to the
// worker itself; empty: it is not known where it begins.
std::vector<SourceLine> own_frames(std::vector<SourceLine> frames) {
  const auto begin = std::find_if(frames.begin(), frames.end(), [](const SourceLine& f) {
    return f.file.ends_with("/multiprocessing/process.py") && f.function.ends_with("_bootstrap");
  });
  if (begin == frames.end()) return {};
  frames.erase(begin, frames.end());
  return frames;
}

// Whether it waits for the next task, not for what it needs for the one in hand.
bool is_between_tasks(const std::vector<SourceLine>& own) {
  if (has_frame(own, "/torch/utils/data/_utils/fetch.py")) return false;
  return has_frame(own, "/multiprocessing/queues.py") ||
         (!own.empty() && !own.front().user &&
          (has_frame(own, "/torch/utils/data/_utils/worker.py") ||
           has_frame(own, "/multiprocessing/pool.py")));
}

recording::GapSample as_sample(const WorkerLook& look) {
  recording::GapSample sample{};
  sample.time_ns = look.time_ns;
  sample.argument = look.argument;
  sample.run_ns = look.run_ns;
  sample.wait_ns = look.wait_ns;
  sample.system_call = look.system_call;
  sample.state = look.state;
  sample.flags = look.flags;
  sample.file = look.file;
  return sample;
}

class Finder {
 public:
  Finder(const recording::Recording& recording, const std::vector<IdlePiece>& pieces,
         SourceLines& lines)
      : recording_(recording), lines_(lines) {
    for (const IdlePiece& piece : pieces) {
      if (is_gap(piece)) gaps_.emplace_back(piece.begin_ns, piece.begin_ns + piece.ns);
    }
    std::sort(gaps_.begin(), gaps_.end());
  }

  Workers find() {
    find_workers();
    if (workers_.empty()) return {};
    std::uint64_t between = 0, run = 0, ready = 0, throttled = 0, process_ms = 0;
    std::map<std::uint32_t, std::vector<CountedWait>> counted;
    std::vector<WorkerLook> looks;
    for (const WorkerLook& look : recording_.worker_looks) {
      if (!workers_.contains(look.pid)) continue;
      looks.push_back(look);
      if (look.since_ns == 0) continue;
      between += look.time_ns - look.since_ns;
      run += look.run_ns;
      ready += look.wait_ns;
      process_ms += look.process_run_ms;
      counted[look.pid].push_back({look.since_ns, look.time_ns, look.run_ns, look.wait_ns});
    }
    const Throttling throttling(recording_);
    for (const auto& [pid, waits] : counted) {
      throttled_[pid] = throttling.stretches(waits);
      for (const Interval& stretch : throttled_[pid]) throttled += stretch.length();
    }
    give_to_earlier(looks, [](const WorkerLook& look) { return look.pid; });
    for (const WorkerLook& look : looks) {
      out_.left_out = std::max<std::uint32_t>(out_.left_out, look.left_out);
      if (in_gap(look.time_ns)) add(look);
    }
    if (between > 0) {
      const auto of = [&](double ns) { return ns / static_cast<double>(between); };
      out_.run_share = of(static_cast<double>(run));
      out_.ready_share = of(static_cast<double>(ready));
      out_.quota_share = of(static_cast<double>(throttled));
      out_.processors_used = of(static_cast<double>(process_ms) * 1e6);
    }
    out_.started = static_cast<std::uint32_t>(workers_.size());
    out_.count = most_at_once();
    const double all = std::accumulate(out_.doing.begin(), out_.doing.end(), 0.0);
    for (double& share : out_.doing) share = all > 0 ? share / all : 0;
    for (auto& [key, line] : by_line_) {
      const double sum = std::accumulate(line.doing.begin(), line.doing.end(), 0.0);
      for (double& share : line.doing) share = sum > 0 ? share / sum : 0;
      line.share = static_cast<double>(line.looks) / static_cast<double>(out_.looks);
      out_.lines.push_back(std::move(line));
    }
    std::stable_sort(out_.lines.begin(), out_.lines.end(),
                     [](const WorkerLine& a, const WorkerLine& b) { return a.looks > b.looks; });
    return std::move(out_);
  }

 private:
  // Of the processes below this one, a loader's workers; where there are none, those of
  // multiprocessing: a program's own.
  void find_workers() {
    std::set<std::uint32_t> others;
    std::set<std::uint32_t> spawned;
    for (const WorkerLook& look : recording_.worker_looks) {
      const bool torch = look.name.starts_with(kTorchName) ||
                         has_frame(frames_of(look), "/torch/utils/data/_utils/worker.py");
      if ((look.worker_flags & recording::kWorkerSpawned) != 0) spawned.insert(look.pid);
      if (torch) workers_.insert(look.pid);
      if (spawned.contains(look.pid) || !frames_of(look).empty()) others.insert(look.pid);
    }
    if (workers_.empty()) workers_ = std::move(others);
    out_.spawned = std::any_of(workers_.begin(), workers_.end(),
                               [&](std::uint32_t pid) { return spawned.contains(pid); });
  }

  const std::vector<SourceLine>& frames_of(const WorkerLook& look) {
    const auto [it, fresh] = frames_.try_emplace(look.python_stack);
    if (fresh && look.python_stack != 0) {
      it->second = own_frames(lines_.frames(look.python_stack, kMaxFrames));
    }
    return it->second;
  }

  bool in_gap(std::uint64_t time) const {
    auto it = std::upper_bound(gaps_.begin(), gaps_.end(), std::pair(time, ~std::uint64_t{0}));
    return it != gaps_.begin() && time <= std::prev(it)->second;
  }

  void add(const WorkerLook& look) {
    const std::vector<SourceLine>& frames = frames_of(look);
    LoadingShares doing = {};
    const GapKind kind = kind_of(as_sample(look), frames, {});
    const bool idle = is_between_tasks(frames);
    const std::uint64_t moved = look.run_ns + look.wait_ns;
    if ((kind == GapKind::kRuns || kind == GapKind::kNoProcessor) && moved > 0) {
      // Which of the two it did at this moment is not told, but how long each since the last look.
      const auto part = [&](std::uint64_t ns) {
        return static_cast<double>(ns) / static_cast<double>(moved);
      };
      const std::uint64_t stopped =
          std::min(look.wait_ns, covered(throttled_[look.pid], look.since_ns, look.time_ns));
      doing[static_cast<std::size_t>(Loading::kQuota)] = part(stopped);
      doing[static_cast<std::size_t>(Loading::kNoProcessor)] = part(look.wait_ns - stopped);
      doing[static_cast<std::size_t>(Loading::kComputes)] = part(look.run_ns);
    } else {
      const bool locks = (look.flags & recording::kGapInSystemCall) != 0 &&
                         system_call_name(look.system_call) == "flock";
      const Loading what = locks ? Loading::kLock : loading_of(kind, look.state, idle);
      doing[static_cast<std::size_t>(what)] = 1;
    }
    ++out_.looks;
    out_.forbidden |= (look.worker_flags & recording::kWorkerForbidden) != 0;
    for (std::size_t i = 0; i < kLoadings; ++i) out_.doing[i] += doing[i];
    const auto user =
        std::find_if(frames.begin(), frames.end(), [](const SourceLine& f) { return f.user; });
    const bool waits_idle = doing[static_cast<std::size_t>(Loading::kIdle)] > 0;
    if (waits_idle) return;
    if (frames.empty()) {
      ++out_.without_line;
      return;
    }
    const SourceLine& line = user != frames.end() ? *user : frames.front();
    WorkerLine& row = by_line_[{line.file, line.function, line.line}];
    row.line = line;
    ++row.looks;
    for (std::size_t i = 0; i < kLoadings; ++i) row.doing[i] += doing[i];
  }

  // A process is there from the first look at it to the last.
  std::uint32_t most_at_once() const {
    std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> lives;
    for (const WorkerLook& look : recording_.worker_looks) {
      if (!workers_.contains(look.pid)) continue;
      const auto [it, fresh] = lives.try_emplace(look.pid, look.time_ns, look.time_ns);
      it->second.second = look.time_ns;
    }
    std::vector<std::pair<std::uint64_t, int>> changes;
    for (const auto& [pid, life] : lives) {
      changes.emplace_back(life.first, 1);
      changes.emplace_back(life.second + 1, -1);
    }
    std::sort(changes.begin(), changes.end());
    int now = 0, most = 0;
    for (const auto& [time, change] : changes) most = std::max(most, now += change);
    return static_cast<std::uint32_t>(most);
  }

  const recording::Recording& recording_;
  SourceLines& lines_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps_;
  std::set<std::uint32_t> workers_;
  std::map<std::uint32_t, std::vector<Interval>> throttled_;  // by process
  std::map<std::uint32_t, std::vector<SourceLine>> frames_;   // by stack
  std::map<std::tuple<std::string, std::string, int>, WorkerLine> by_line_;
  Workers out_;
};

}  // namespace

const char* loading_text(Loading doing) { return kTexts[static_cast<std::size_t>(doing)].words; }
const char* loading_id(Loading doing) { return kTexts[static_cast<std::size_t>(doing)].id; }

Loading loading_of(GapKind kind, char state, bool idle) {
  switch (kind) {
    case GapKind::kRuns:
    case GapKind::kCollector:
    case GapKind::kAutograd:
    case GapKind::kMemory: return Loading::kComputes;
    case GapKind::kNoProcessor: return Loading::kNoProcessor;
    case GapKind::kPageFault:
    case GapKind::kFileRead:
    case GapKind::kFileWrite:
    case GapKind::kFileLookUp: return Loading::kStorage;
    case GapKind::kLock:
    case GapKind::kWorkers:
    case GapKind::kInput:
    case GapKind::kOutput:
      if (idle) return Loading::kIdle;
      return kind == GapKind::kLock ? Loading::kLock : Loading::kInput;
    case GapKind::kInterpreter: return Loading::kLock;
    case GapKind::kSleep: return Loading::kSleep;
    case GapKind::kChild: return Loading::kChild;
    case GapKind::kNotSeen:
    case GapKind::kOther: break;
  }
  return state == 'D' ? Loading::kStorage : Loading::kOther;
}

Bottleneck bottleneck_of(const LoadingShares& shares) {
  const auto of = [&](Loading doing) { return shares[static_cast<std::size_t>(doing)]; };
  if (of(Loading::kIdle) > kWorkersIdle) return Bottleneck::kIdle;
  const double busy = 1 - of(Loading::kIdle);
  const double computing = of(Loading::kComputes) + of(Loading::kNoProcessor) + of(Loading::kQuota);
  if (computing > busy / 2) {
    if (of(Loading::kQuota) >= kReadyOfComputing * computing) return Bottleneck::kQuota;
    return of(Loading::kNoProcessor) >= kReadyOfComputing * computing ? Bottleneck::kNoProcessor
                                                                      : Bottleneck::kProcessor;
  }
  constexpr std::pair<Loading, Bottleneck> kWaits[] = {{Loading::kStorage, Bottleneck::kStorage},
                                                       {Loading::kInput, Bottleneck::kInput},
                                                       {Loading::kLock, Bottleneck::kLock},
                                                       {Loading::kSleep, Bottleneck::kSleep},
                                                       {Loading::kChild, Bottleneck::kChild}};
  for (const auto& [doing, bottleneck] : kWaits) {
    if (of(doing) > busy / 2) return bottleneck;
  }
  return Bottleneck::kUnknown;
}

const char* bottleneck_id(Bottleneck bottleneck) {
  constexpr const char* kIds[] = {"unknown",       "processor", "no_processor", "cpu_quota",
                                  "storage",       "input",     "lock",         "sleep",
                                  "child_process", "idle"};
  return kIds[static_cast<std::size_t>(bottleneck)];
}

Workers find_workers(const recording::Recording& recording, const std::vector<IdlePiece>& pieces,
                     SourceLines& lines) {
  return Finder(recording, pieces, lines).find();
}

std::string loading_shares_text(const LoadingShares& shares) {
  std::vector<std::size_t> order(kLoadings);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return shares[a] > shares[b]; });
  std::string text;
  for (const std::size_t i : order) {
    if (shares[i] < kLeastLoading) break;
    text +=
        fmt::format("{}{:.0f} % {}", text.empty() ? "" : ", ", shares[i] * 100, kTexts[i].words);
  }
  return text;
}

}  // namespace gpubusy::analysis
