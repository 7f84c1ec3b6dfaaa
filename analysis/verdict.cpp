// SPDX-License-Identifier: Apache-2.0
#include "analysis/verdict.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "analysis/matrix_kernels.hpp"
#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }
double percent(double share) { return share * 100; }

// "per step" where there are steps; whole spans have totals only.
struct Per {
  explicit Per(const ProcessReport& report)
      : steps(report.has_steps() ? static_cast<double>(report.steps.size()) : 1),
        word(report.has_steps() ? " per step" : "") {}
  double ms_of(std::uint64_t ns) const { return ms(ns) / steps; }
  double count_of(std::uint64_t n) const { return static_cast<double>(n) / steps; }
  double steps;
  const char* word;
};

std::string count_text(double count) {
  return count >= 100 || count == static_cast<double>(static_cast<std::uint64_t>(count))
             ? fmt::format("{:.0f}", count)
             : fmt::format("{:.1f}", count);
}

constexpr std::size_t kMaxDoings = 3;  // named in a finding
constexpr double kLeastDoing = 0.05;   // … besides the first

// Sums idle rows by step and fills in the numbers of a finding.
void add_numbers(Finding& finding, const ProcessReport& report,
                 const std::vector<const IdleRow*>& rows) {
  std::map<std::uint32_t, std::uint64_t> by_step;
  for (const IdleRow* row : rows) {
    finding.total_ns += row->ns;
    for (const auto& [step, ns] : row->by_step) by_step[step] += ns;
  }
  finding.share = report.share(finding.total_ns);
  finding.steps = static_cast<std::uint32_t>(by_step.size());
  std::vector<double> shares, lengths;
  for (std::uint32_t i = 0; i < report.steps.size(); ++i) {
    const auto found = by_step.find(i);
    const std::uint64_t ns = found == by_step.end() ? 0 : found->second;
    lengths.push_back(ms(ns));
    const auto wall = static_cast<double>(report.steps[i].wall_ns());
    shares.push_back(wall > 0 ? static_cast<double>(ns) / wall : 0);
  }
  finding.share_of_step = spread_of(std::move(shares));
  finding.ms_of_step = spread_of(lengths);
  finding.dear_steps =
      static_cast<std::uint32_t>(std::count_if(lengths.begin(), lengths.end(), [&](double length) {
        return length > 0 && length >= kDearOfLongest * finding.ms_of_step.maximum;
      }));
}

std::vector<const IdleRow*> rows_where(const ProcessReport& report,
                                       const std::function<bool(const IdleRow&)>& wanted) {
  std::vector<const IdleRow*> rows;
  for (const IdleRow& row : report.summary.idle) {
    if (wanted(row)) rows.push_back(&row);
  }
  return rows;  // longest first, as in the summary
}

// One line, as text and as data.
void set_line(Finding& finding, const SourceLine& line) {
  finding.before = line;
  finding.where = to_text(line);
}

// The first row that knows its place names the finding's; rows are longest first.
void set_region(Finding& finding, const std::vector<const IdleRow*>& rows) {
  for (const IdleRow* row : rows) {
    if (!row->region.known()) continue;
    finding.after = row->region.after;
    finding.before = row->region.before;
    finding.where = row->outside ? to_text(row->region) : to_text(row->region.before);
    return;
  }
}

// Where looks found the host in the gaps of a finding.
class Places {
 public:
  void add(const GapRow& row) {
    seen_ += row.ns;
    if (!row.line.known()) return;
    add(row.line, row.ns);
  }
  std::uint64_t seen() const { return seen_; }

  // The line that it was at for most of the time, else the function's lines; empty: it was all
  // over.
  std::string most() const {
    for (const auto& [line, ns] : lines_) {
      if (is_most(ns)) return to_text(line);
    }
    for (const auto& [line, ns] : lines_) {
      std::uint64_t sum = 0;
      int low = line.line, high = line.line;
      for (const auto& [other, other_ns] : lines_) {
        if (other.file != line.file || other.function != line.function) continue;
        sum += other_ns;
        if (other.line <= 0 || !is_worth_naming(other_ns)) continue;
        low = std::min(low, other.line);
        high = std::max(high, other.line);
      }
      if (!is_most(sum) || low <= 0) continue;
      return low == high
                 ? to_text(line)
                 : fmt::format("{}:{}-{} ({})", file_name(line.file), low, high, line.function);
    }
    return {};
  }

  // Dearest first.
  std::vector<SourceLine> worth_naming() const {
    std::vector<std::pair<SourceLine, std::uint64_t>> order;
    for (const auto& place : lines_) {
      if (place.first.line > 0 && is_worth_naming(place.second)) order.push_back(place);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::vector<SourceLine> out;
    for (auto& [line, ns] : order) out.push_back(std::move(line));
    return out;
  }

 private:
  void add(const SourceLine& line, std::uint64_t ns) {
    for (auto& [known, sum] : lines_) {
      if (known != line) continue;
      sum += ns;
      return;
    }
    lines_.emplace_back(line, ns);
  }
  bool is_most(std::uint64_t ns) const {
    return static_cast<double>(ns) >= kGapLineShare * static_cast<double>(seen_);
  }
  bool is_worth_naming(std::uint64_t ns) const {
    return static_cast<double>(ns) >= kLeastDoing * static_cast<double>(seen_);
  }

  std::vector<std::pair<SourceLine, std::uint64_t>> lines_;
  std::uint64_t seen_ = 0;
};

// What the host did in the gaps of a finding, if enough of the time was looked at; a place that it
// was at for long leads.
void add_doing(Finding& finding, const ProcessReport& report,
               const std::function<bool(const GapRow&)>& wanted) {
  std::map<std::pair<std::string, std::string>, std::uint64_t> by_doing;
  Places places, own_work;
  for (const GapRow& row : report.gaps.rows) {
    if (!wanted(row)) continue;
    by_doing[{to_text(row), doing_text(row)}] += row.ns;
    places.add(row);
    if (!row.in_backward) own_work.add(row);
  }
  const std::uint64_t seen = places.seen();
  if (seen == 0 || static_cast<double>(seen) < kLeastSeen * static_cast<double>(finding.total_ns)) {
    return;
  }
  const auto share = [&](std::uint64_t ns) {
    return static_cast<double>(ns) / static_cast<double>(seen);
  };
  std::vector<std::pair<std::uint64_t, std::string>> most;
  for (const auto& [key, ns] : by_doing) {
    most.emplace_back(ns, key.first.empty() ? key.second : key.first + ": " + key.second);
  }
  std::stable_sort(most.begin(), most.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(most.size(), kMaxDoings); ++i) {
    if (i > 0 && share(most[i].first) < kLeastDoing) break;
    text += fmt::format("{}{:.0f} % {}", i > 0 ? "; " : "", percent(share(most[i].first)),
                        most[i].second);
  }
  finding.evidence += fmt::format(
      " The launching thread was looked at for {:.0f} % of it: {}.",
      std::min(100.0, percent(static_cast<double>(seen) / static_cast<double>(finding.total_ns))),
      text);
  const std::string place = places.most();
  if (!place.empty() && place != finding.where) {
    finding.where = place + (finding.where.empty() ? "" : ", " + finding.where);
  }
  // Lines that have little of it say little of the whole.
  if (own_work.seen() * 2 >= seen) finding.lines = own_work.worth_naming();
}

// "31.2 ms of each step (75.9 %; 70.1 to 80.2 %)" or, without steps, "312 ms (75.9 %)".
std::string cost_text(const Finding& finding, const ProcessReport& report) {
  if (!report.has_steps()) {
    return fmt::format("{:.1f} ms ({:.1f} %)", ms(finding.total_ns), percent(finding.share));
  }
  // The median says nothing of what most steps do not meet.
  if (finding.dear_steps > 0 && finding.dear_steps * 2 < report.steps.size()) {
    return fmt::format("{:.1f} ms in all ({:.1f} %; in {} of {} steps, up to {:.1f} ms in one)",
                       ms(finding.total_ns), percent(finding.share), finding.dear_steps,
                       report.steps.size(), finding.ms_of_step.maximum);
  }
  return fmt::format("{:.2f} ms in the median step ({:.1f} %; by step {:.1f} to {:.1f} %)",
                     finding.ms_of_step.median, percent(finding.share_of_step.median),
                     percent(finding.share_of_step.minimum),
                     percent(finding.share_of_step.maximum));
}

// Idle time, or looks at it, that is late input.
template <typename Row>
bool is_starved(const Row& row) {
  const bool input = row.cause == Cause::kLoading || row.cause == Cause::kLoaderQueue;
  return input ||
         (row.cause == Cause::kNone && (row.idle == IdleClass::kStepStart ||
                                        (row.idle == IdleClass::kHostElsewhere && row.input_copy)));
}

std::vector<const IdleRow*> starved_rows(const ProcessReport& report) {
  return rows_where(report, [](const IdleRow& row) { return row.outside && is_starved(row); });
}

// The steps that stall for input: few, evenly spaced, and with most of the time. Empty: there is no
// such pattern.
std::vector<std::uint32_t> even_stalls(const ProcessReport& report) {
  std::map<std::uint32_t, std::uint64_t> by_step;
  std::uint64_t total = 0, input = 0, longest = 0;
  for (const IdleRow* row : starved_rows(report)) {
    input += row->input_copy ? row->ns : 0;
    for (const auto& [step, ns] : row->by_step) {
      total += ns;
      longest = std::max(longest, by_step[step] += ns);
    }
  }
  std::vector<std::uint32_t> stalled;
  std::uint64_t in_stalls = 0;
  for (const auto& [step, ns] : by_step) {
    if (static_cast<double>(ns) < kStallOfLongest * static_cast<double>(longest)) continue;
    stalled.push_back(step);
    in_stalls += ns;
  }
  const bool few = static_cast<double>(stalled.size()) <
                   kStarvationSteps * static_cast<double>(report.steps.size());
  if (!report.has_steps() || !few || stalled.size() < kFewestStalls || input * 2 < total ||
      static_cast<double>(in_stalls) < kShareInStalls * static_cast<double>(total)) {
    return {};
  }
  for (std::size_t i = 2; i < stalled.size(); ++i) {
    if (stalled[i] - stalled[i - 1] != stalled[1] - stalled[0]) return {};
  }
  return stalled;
}

// Rows of processes being started, which a loader does at the begin of an epoch.
std::vector<const IdleRow*> worker_start_rows(const ProcessReport& report) {
  return rows_where(report, [](const IdleRow& row) { return row.cause == Cause::kWorkerStart; });
}

// Workers that keep pace with each other have their batches ready at the same time, and then none
// for as long as one takes: every N steps, of N workers. Looks show that none of them was started
// meanwhile.
bool workers_keep_pace(const ProcessReport& report, const std::vector<std::uint32_t>& stalled) {
  const Workers& w = report.workers;
  return !stalled.empty() && w.looks > 0 && w.started == w.count &&
         stalled[1] - stalled[0] == w.count && worker_start_rows(report).empty();
}

// … as in one whose loader begins anew.
std::vector<std::uint32_t> stalled_steps(const ProcessReport& report) {
  std::vector<std::uint32_t> stalled = even_stalls(report);
  if (workers_keep_pace(report, stalled)) return {};
  return stalled;
}

std::optional<Finding> worker_restart(const ProcessReport& report) {
  const std::vector<std::uint32_t> stalled = stalled_steps(report);
  auto rows = worker_start_rows(report);
  if (stalled.empty()) {
    Finding alone;
    add_numbers(alone, report, rows);
    if (alone.share < kStarvationShare) return std::nullopt;
  }
  for (const IdleRow* row : starved_rows(report)) rows.push_back(row);
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kStarvationShare) return std::nullopt;
  set_region(finding, rows);
  finding.id = "worker_restart";
  finding.title = "The GPU waits for input each time the data loader begins anew";
  finding.evidence =
      fmt::format("Idle {:.1f} ms in all ({:.1f} %), up to {:.1f} ms in a step.",
                  ms(finding.total_ns), percent(finding.share), finding.ms_of_step.maximum);
  if (!stalled.empty()) {
    finding.evidence += fmt::format(
        " Nearly all of it in every {}. step ({} of {}), before a copy from the host: an even "
        "distance "
        "is what epochs have.",
        stalled[1] - stalled[0], stalled.size(), report.steps.size());
  }
  add_doing(finding, report,
            [](const GapRow& row) { return is_starved(row) || row.cause == Cause::kWorkerStart; });
  finding.cure =
      "DataLoader(persistent_workers=True), or one iterator over several epochs (a sampler that "
      "does not end); if workers are kept already, prepare the first batch before the epoch ends.";
  return finding;
}

// Of the gaps that were looked into.
double gap_share(const ProcessReport& report, GapKind kind) {
  std::uint64_t ns = 0;
  for (const GapRow& row : report.gaps.rows) ns += row.kind == kind ? row.ns : 0;
  return report.gaps.seen_ns == 0
             ? 0
             : static_cast<double>(ns) / static_cast<double>(report.gaps.seen_ns);
}

// What loading does: in the workers, where they are what is waited for, else in the process itself.
struct LoadingSeen {
  bool in_workers = false;
  Bottleneck bottleneck = Bottleneck::kUnknown;
};
LoadingSeen loading_seen(const ProcessReport& report) {
  const bool waits = gap_share(report, GapKind::kWorkers) > 0.5;
  if (waits) {
    return {true, report.workers.looks < kFewestLooks ? Bottleneck::kUnknown
                                                      : bottleneck_of(report.workers.doing)};
  }
  LoadingShares shares = {};
  double sum = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (!is_starved(row)) continue;
    const char state = row.kind == GapKind::kPageFault ? 'D' : 'S';
    shares[static_cast<std::size_t>(loading_of(row.kind, state, false))] +=
        static_cast<double>(row.ns);
    sum += static_cast<double>(row.ns);
  }
  if (sum == 0) return {};
  for (double& share : shares) share /= sum;
  return {false, bottleneck_of(shares)};
}

// Processors that the process may use, into that text; empty: not known.
std::string processors_text(const ProcessReport& report, const char* text) {
  const double processors = report.host_offer.effective_processors();
  if (processors <= 0) return "";
  return fmt::format(fmt::runtime(text),
                     count_text(processors) + (processors == 1 ? " processor" : " processors"));
}

// "The 4 workers were looked at 120 times: 97 % compute; 93 % of the looks at data.py:31 …"
void add_workers(Finding& finding, const ProcessReport& report) {
  const Workers& w = report.workers;
  if (w.looks == 0) return;
  finding.evidence += fmt::format(
      " Meanwhile {} worker{} looked at {} times: {}{}.",
      w.count == 1 ? "the one" : fmt::format("the {}", w.count), w.count == 1 ? " was" : "s were",
      w.looks, loading_shares_text(w.doing), processors_text(report, "; the program has {}"));
  std::string lines;
  for (std::size_t i = 0; i < std::min(kMaxDoings, w.lines.size()); ++i) {
    const WorkerLine& l = w.lines[i];
    if (i > 0 && l.share < kLeastDoing) break;
    lines += fmt::format("{}{:.0f} % {}", i > 0 ? ", " : "", percent(l.share), to_text(l.line));
  }
  if (!lines.empty()) finding.evidence += fmt::format(" Where they are: {}.", lines);
  if (w.spawned) {
    finding.evidence +=
        " Workers that were not forked are interpreters of their own: their lines are not known.";
  } else if (w.forbidden) {
    finding.evidence +=
        " The system does not let the memory of workers be read: their lines are not known.";
  }
  if (w.left_out > 0) finding.evidence += fmt::format(" {} more were not looked at.", w.left_out);
}

std::string cure_of_loading(const ProcessReport& report, const LoadingSeen& seen) {
  const std::uint32_t workers = report.workers.count;
  const double processors = report.host_offer.effective_processors();
  switch (seen.bottleneck) {
    case Bottleneck::kProcessor:
      if (!seen.in_workers) {
        return "The training process computes the batch itself: do that in DataLoader workers "
               "(num_workers=4 or more, as far as there are processors), on the GPU, or once "
               "before the "
               "training.";
      }
      // The training process needs one of them.
      if (processors > 0 && workers + 1 < processors) {
        return fmt::format(
            "Workers compute all the time, and {} processors are free: more of them "
            "(num_workers, now {}), or make a batch cheaper at that line.",
            count_text(processors - workers - 1), workers);
      }
      if (processors > 0) {
        return fmt::format(
            "Workers compute all the time, and there is no processor for more of them "
            "({} workers, {}): make a batch cheaper at that line, do that on the GPU, or "
            "once before the training.",
            workers, processors_text(report, "{}"));
      }
      return fmt::format(
          "Workers compute all the time: more of them (num_workers, now {}) help as far as "
          "there are processors; else make a batch cheaper at that line, do that on the "
          "GPU, or once before the training.",
          workers);
    case Bottleneck::kNoProcessor:
      if (!seen.in_workers) {
        return "The training process waits for a processor: leave it one (fewer threads and "
               "processes "
               "beside it).";
      }
      // Something else may have taken them.
      if (processors > 0 && workers < processors) {
        return fmt::format(
            "Workers ({}) wait for processors ({}): something else takes these. Threads of "
            "numeric libraries in each worker (OMP_NUM_THREADS, cv2.setNumThreads), or "
            "other programs.",
            workers, count_text(processors));
      }
      return fmt::format(
          "There are more workers ({}) than processors for them{}: fewer (num_workers) make "
          "as many batches, and leave the training process one. Make a batch cheaper at "
          "that line, or do that on the GPU.",
          workers, processors_text(report, " ({})"));
    case Bottleneck::kStorage:
      return std::string(
                 seen.in_workers
                     ? "Workers wait for storage: "
                     : "The training process reads by itself and waits for storage: workers read "
                       "ahead (num_workers); ") +
             "many small files into few large ones (shards, one mapped file), on a local disk or "
             "in "
             "memory" +
             (seen.in_workers ? fmt::format("; more workers (now {}) wait side by side.", workers)
                              : ".");
    case Bottleneck::kInput:
    case Bottleneck::kSleep:
    case Bottleneck::kChild:
      if (!seen.in_workers) break;
      return fmt::format(
          "Workers wait for something else at that line, which takes no processor: more of "
          "them wait side by side (num_workers, now {}), or fetch more with each request.",
          workers);
    case Bottleneck::kLock:
      if (!seen.in_workers) break;
      return "Workers wait for a lock at that line, which more workers do not cure: hold it for "
             "less, or "
             "give each worker its own copy.";
    case Bottleneck::kIdle:
      if (!seen.in_workers) break;
      return "Most workers wait to be asked: batches come in order, so one that takes longer holds "
             "up "
             "the rest (prefetch_factor, in_order=False), or what follows the workers is slow (a "
             "large "
             "batch through shared memory, pin_memory).";
    case Bottleneck::kUnknown: break;
  }
  return "";
}

// Of the gaps that were looked into, in a function of a library below the program's own line.
double library_share(const ProcessReport& report, std::string_view file) {
  std::uint64_t ns = 0;
  for (const GapRow& row : report.gaps.rows) {
    const bool there =
        std::any_of(row.inner.begin(), row.inner.end(),
                    [&](const SourceLine& frame) { return frame.file.ends_with(file); });
    ns += there ? row.ns : 0;
  }
  return report.gaps.seen_ns == 0
             ? 0
             : static_cast<double>(ns) / static_cast<double>(report.gaps.seen_ns);
}

bool from_queue(const ProcessReport& report) { return library_share(report, "/queue.py") > 0.5; }

// Only what the recording shows to be there is to be changed: not every batch comes from a loader,
// nor can each be prepared before the step before it has ended.
const char* input_cure(const ProcessReport& report, bool input) {
  if (gap_share(report, GapKind::kWorkers) > 0.5) {
    return "The loader has workers, and they do not keep up: more of them (num_workers, as far as "
           "there "
           "are processors), prefetch_factor, or batches that are cheaper to make.";
  }
  if (from_queue(report)) {
    return "What fills the queue does not keep up: make a batch cheaper, or let several threads or "
           "processes fill it.";
  }
  if (!input) {
    return "See what the program does between these two lines; if it prepares data, do that ahead "
           "in "
           "another thread or process, else move it off the launching thread.";
  }
  if (report.has_loader) {
    return "Prepare batches while the GPU works: DataLoader(num_workers=4 or more, "
           "pin_memory=True, "
           "persistent_workers=True) and .to(device, non_blocking=True); if the loader has workers "
           "already, make a batch cheaper or add workers.";
  }
  return "Prepare it while the GPU works, in a thread or process of its own (a DataLoader with "
         "workers "
         "does so), or make it on the GPU (device=). If it depends on results of the work before "
         "it, make "
         "it cheaper, or do several at once.";
}

// Whether looks found the host in the loader for long, in more than a slow batch or two.
bool loader_stalls(const ProcessReport& report, const std::vector<const IdleRow*>& rows) {
  std::vector<const IdleRow*> in_loader;
  for (const IdleRow* row : rows) {
    if (row->cause == Cause::kLoading || row->cause == Cause::kLoaderQueue)
      in_loader.push_back(row);
  }
  Finding finding;
  add_numbers(finding, report, in_loader);
  return finding.share >= kStarvationShare && finding.steps >= kFewestStalls;
}

std::optional<Finding> data_starvation(const ProcessReport& report) {
  const auto rows = starved_rows(report);
  if (worker_restart(report)) return std::nullopt;
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kStarvationShare) return std::nullopt;
  if (report.has_steps() && !loader_stalls(report, rows) &&
      finding.steps < kStarvationSteps * static_cast<double>(report.steps.size()) &&
      !workers_keep_pace(report, even_stalls(report))) {
    return std::nullopt;
  }
  set_region(finding, rows);
  std::uint64_t before_input = 0;
  for (const IdleRow* row : rows) before_input += row->input_copy ? row->ns : 0;
  const bool input = before_input * 2 > finding.total_ns;
  finding.id = "data_starvation";
  // Without steps it may be the weights as well.
  finding.title = !report.has_steps() ? "The GPU waits for data from the host"
                  : input             ? "The GPU waits for input data"
                                      : "The GPU waits at the start of the step";
  finding.evidence = fmt::format("Idle {}", cost_text(finding, report));
  if (report.has_steps()) {
    finding.evidence += fmt::format(", in {} of {} steps", finding.steps, report.steps.size());
  }
  finding.evidence +=
      ". Meanwhile the host is in no CUDA call and no synchronisation explains it; ";
  finding.evidence += input ? "the work that follows is a copy from the host."
                            : "the work that follows is no copy from the host, so it may be "
                              "something other than input.";
  add_doing(finding, report, is_starved<GapRow>);
  const LoadingSeen seen = loading_seen(report);
  if (seen.in_workers) add_workers(finding, report);
  // Of what no loader does only the line is known, not whether it can be prepared ahead.
  if (seen.in_workers || (input && report.has_loader && !from_queue(report))) {
    finding.cure = cure_of_loading(report, seen);
  }
  if (finding.cure.empty()) finding.cure = input_cure(report, input);
  return finding;
}

std::optional<Finding> host_elsewhere(const ProcessReport& report) {
  const auto is_elsewhere = [](const auto& row) {
    return row.cause == Cause::kNone && row.idle == IdleClass::kHostElsewhere && !row.input_copy;
  };
  const auto rows = rows_where(report, is_elsewhere);
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kHostShare) return std::nullopt;
  set_region(finding, rows);
  finding.id = "host_elsewhere";
  finding.title = "The host does something else in mid-step";
  finding.evidence =
      fmt::format("Idle {}. The host is in no CUDA call for {} us or more at a time.",
                  cost_text(finding, report), kLaunchPauseNs / 1000);
  add_doing(finding, report, is_elsewhere);
  std::uint64_t seen_ns = 0, backward_ns = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (!is_elsewhere(row)) continue;
    seen_ns += row.ns;
    backward_ns += row.in_backward ? row.ns : 0;
  }
  finding.cure =
      gap_share(report, GapKind::kLock) > 0.5
          ? "Another thread holds the lock: let it hold it for less, or take it before or behind "
            "the step."
      : gap_share(report, GapKind::kChild) > 0.5
          ? "Start the child process earlier and fetch its result later, or leave it out of the "
            "loop."
      : backward_ns * 2 > seen_ns
          ? "Backward launches from threads of autograd's own, and these are slow: launch less "
            "(CUDA "
            "graphs, torch.compile), or see what functions of the program's it calls back."
          : "Move that work off the launching thread, or behind the launches of the step.";
  return finding;
}

std::optional<Finding> synchronisation(const ProcessReport& report) {
  const auto rows = rows_where(report, [](const IdleRow& row) {
    return row.cause == Cause::kNone && row.idle == IdleClass::kAfterSync;
  });
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kSyncShare) return std::nullopt;
  const Per per(report);
  std::uint64_t count = 0, host_ns = 0;
  std::vector<const WaitRow*> waits;
  for (const WaitRow& row : report.summary.waits) {
    count += row.count;
    host_ns += row.host_ns;
    if (row.idle_after_ns > 0) waits.push_back(&row);
  }
  std::stable_sort(waits.begin(), waits.end(), [](const WaitRow* a, const WaitRow* b) {
    return a->idle_after_ns > b->idle_after_ns;
  });
  std::string lines;
  for (const WaitRow* row : waits) {
    if (!row->line.known()) continue;
    if (finding.where.empty()) {
      set_line(finding, row->line);
    }
    if (static_cast<double>(row->idle_after_ns) >=
        kLeastDoing * static_cast<double>(finding.total_ns)) {
      finding.lines.push_back(row->line);
    }
    if (lines.size() > 200) break;
    lines += fmt::format("{}{} {} x {}{} ({:.1f} ms idle)", lines.empty() ? "" : ", ",
                         to_text(row->line), count_text(per.count_of(row->count)), row->call,
                         per.word, per.ms_of(row->idle_after_ns));
  }
  finding.id = "synchronisation";
  finding.title = "The host waits for the GPU, then the GPU for the host";
  finding.evidence = fmt::format(
      "Idle {} behind waits that let the GPU run dry. The host waits {} times{}, "
      "{:.2f} ms in all.{}",
      cost_text(finding, report), count_text(per.count_of(count)), per.word, per.ms_of(host_ns),
      lines.empty() ? "" : " By line: " + lines + ".");
  finding.cure =
      "Read results less often: keep losses and counts on the GPU (.detach()), call .item(), "
      ".cpu(), print or a Python `if` on a tensor every N steps only; no torch.cuda.synchronize() "
      "in the loop.";
  return finding;
}

std::optional<Finding> pageable_copies(const ProcessReport& report) {
  Finding finding;
  const Per per(report);
  std::uint64_t bytes = 0, count = 0, dearest = 0;
  std::string directions;
  bool to_host = false;  // most of the cost
  for (const CopyRow& row : report.summary.copies) {
    if (row.host_kind != recording::MemoryKind::kPageable || row.large_count == 0) continue;
    bytes += row.large_bytes;
    count += row.large_count;
    finding.total_ns += row.large_idle_ns;
    if (finding.before.file.empty() || row.large_idle_ns > dearest) {
      dearest = row.large_idle_ns;
      finding.before = row.line;
      to_host = row.direction == recording::CopyDirection::kDeviceToHost;
    }
    const std::string direction(direction_name(row.direction));
    if (directions.find(direction) == std::string::npos) {
      directions += (directions.empty() ? "" : " and ") + direction;
    }
  }
  finding.share = report.share(finding.total_ns);
  const bool many_bytes =
      report.has_steps() && per.count_of(bytes) >= static_cast<double>(kPageableBytes);
  if (count == 0 || (finding.share < kPageableShare && !many_bytes)) return std::nullopt;
  finding.id = "pageable_copies";
  finding.title = "Copies from or to pageable memory block the host";
  finding.where = to_text(finding.before);
  finding.evidence = fmt::format(
      "{} {} copies{}, {:.1f} MB, from or to pageable memory hold the host for {:.2f} ms ({:.1f} "
      "%) "
      "while no kernel runs; \"async\" does not help with pageable memory.",
      count_text(per.count_of(count)), directions, per.word, per.count_of(bytes) / 1e6,
      per.ms_of(finding.total_ns), percent(finding.share));
  finding.cure =
      to_host ? "Read less, and less often: reduce on the GPU first (mean, argmax, .half()). What "
                "must be "
                "read goes into a pinned buffer (torch.empty(..., pin_memory=True).copy_(x, "
                "non_blocking=True)), with an event to wait for before it is used."
      : report.has_loader
          ? "Use pinned memory: DataLoader(pin_memory=True), then .to(device, non_blocking=True)."
          : "Use pinned memory: tensor.pin_memory(), best into one buffer that is used again, then "
            ".to(device, non_blocking=True).";
  return finding;
}

std::optional<Finding> launch_bound(const ProcessReport& report) {
  const auto rows = rows_where(report, [](const IdleRow& row) {
    return row.cause == Cause::kSeries ||
           (row.cause == Cause::kNone && row.idle == IdleClass::kLaunch);
  });
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kLaunchBoundShare) return std::nullopt;
  const Per per(report);
  const Summary& s = report.summary;
  set_region(finding, rows);
  finding.id = "launch_bound";
  finding.title = "Launch-bound: kernels are shorter than what it costs to launch them";
  finding.evidence = fmt::format(
      "Idle {} while the host launches. {} launches{}:{} a kernel lasts {:.1f} us (median).",
      cost_text(finding, report), count_text(per.count_of(s.launches)), per.word,
      s.median_launch_gap_ns == 0 ? ""
                                  : fmt::format(" one each {:.1f} us (median),",
                                                static_cast<double>(s.median_launch_gap_ns) / 1e3),
      static_cast<double>(s.median_kernel_ns) / 1e3);
  finding.cure =
      "Launch less: CUDA graphs or torch.compile(mode=\"reduce-overhead\"), fused optimizers "
      "(fused=True, foreach=True), larger batches.";
  return finding;
}

// Whether memory comes and goes all the time.
bool churns(const ProcessReport& report, std::uint64_t allocated, std::uint64_t freed) {
  if (report.has_steps()) return Per(report).count_of(allocated + freed) >= kAllocationsPerStep;
  return allocated >= kFewestChurns &&
         static_cast<double>(freed) >= kFreedOfAllocated * static_cast<double>(allocated);
}

std::optional<Finding> memory_full(const ProcessReport& report) {
  const Allocations& a = report.summary.allocations;
  if (a.retries == 0 || report.share(a.retry_host_ns) < kMemoryFullShare) return std::nullopt;
  // What was given back is asked for again later: where little else is freed, all of it is the
  // cost.
  const bool all = a.retry_frees * 2 >= a.device_frees;
  const std::uint64_t host_ns = all ? a.host_ns : a.retry_host_ns;
  const Per per(report);
  Finding finding;
  finding.id = "memory_full";
  finding.title = "The GPU's memory is full: allocations fail and are made again";
  finding.total_ns = all ? a.idle_ns : a.retry_idle_ns;
  finding.share = report.share(finding.total_ns);
  set_line(finding, a.retry_line);
  finding.evidence = fmt::format(
      "{} allocations{} fail and succeed when {} blocks were given back, which waits for the "
      "GPU{}: "
      "{:.2f} ms of the host ({:.1f} %), for {:.2f} ms of that the GPU is idle.",
      count_text(per.count_of(a.retries)), per.word, count_text(per.count_of(a.retry_frees)),
      all ? fmt::format("; {} are allocated anew",
                        count_text(per.count_of(a.device_allocs - a.failed)))
          : "",
      per.ms_of(host_ns), percent(report.share(host_ns)), per.ms_of(finding.total_ns));
  finding.cure =
      "Leave some memory free: a smaller batch, activation checkpointing, lower precision, or no "
      "tensors "
      "kept beyond the step; constant shapes and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
      "against memory in pieces that do not fit.";
  return finding;
}

std::optional<Finding> allocation_churn(const ProcessReport& report) {
  const Allocations& a = report.summary.allocations;
  const Per per(report);
  const double share = report.share(a.host_ns);
  if (!churns(report, a.device_allocs, a.device_frees)) return std::nullopt;
  if (share < kAllocationShare && a.failed == 0) return std::nullopt;
  // What is given back because memory is full has been said.
  if (a.retry_host_ns * 2 > a.host_ns && memory_full(report)) return std::nullopt;
  Finding finding;
  finding.id = "allocation_churn";
  finding.title = "Memory is allocated and freed in every step";
  if (!report.has_steps()) finding.title = "Allocating and freeing memory takes time";
  finding.total_ns = a.idle_ns;
  finding.share = report.share(a.idle_ns);
  set_line(finding, a.line);
  finding.evidence = fmt::format(
      "{} cudaMalloc, {} cudaFree{} take {:.2f} ms of the host ({:.1f} %); the GPU is idle for "
      "{:.2f} "
      "ms of that.",
      count_text(per.count_of(a.device_allocs)), count_text(per.count_of(a.device_frees)), per.word,
      per.ms_of(a.host_ns), percent(share), per.ms_of(a.idle_ns));
  if (a.failed) finding.evidence += fmt::format(" {} allocations failed.", a.failed);
  finding.cure =
      "Keep memory: no torch.cuda.empty_cache() in the loop, constant shapes, "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.";
  return finding;
}

std::optional<Finding> pinning_churn(const ProcessReport& report) {
  const Allocations& a = report.summary.allocations;
  const Per per(report);
  const double share = report.share(a.pinned_host_ns);
  if (!churns(report, a.host_allocs, a.host_frees) || share < kAllocationShare) {
    return std::nullopt;
  }
  Finding finding;
  finding.id = "pinning_churn";
  finding.title = report.has_steps() ? "Host memory is pinned and released in every step"
                                     : "Pinning host memory takes time";
  finding.total_ns = a.pinned_idle_ns;
  finding.share = report.share(a.pinned_idle_ns);
  set_line(finding, a.pinned_line);
  finding.evidence = fmt::format(
      "{} pinnings, {} releases{} take {:.2f} ms of the host ({:.1f} %); the GPU is idle for "
      "{:.2f} "
      "ms of that.",
      count_text(per.count_of(a.host_allocs)), count_text(per.count_of(a.host_frees)), per.word,
      per.ms_of(a.pinned_host_ns), percent(share), per.ms_of(a.pinned_idle_ns));
  finding.cure =
      "Pin once: one buffer from before the loop that is used again, or "
      "DataLoader(pin_memory=True), which pins in a thread of its own and keeps the memory.";
  return finding;
}

std::optional<Finding> small_copies(const ProcessReport& report) {
  const SmallCopies& c = report.summary.small_copies;
  const Per per(report);
  // Without steps, one copy for each batch is many in all: those that follow each other could be
  // one.
  const double many = report.has_steps() ? per.count_of(c.count) : static_cast<double>(c.in_series);
  if (many < kSmallCopiesPerStep || report.share(c.idle_ns) < kSmallCopiesShare) {
    return std::nullopt;
  }
  Finding finding;
  finding.id = "small_copies";
  finding.title = "Many small copies to the GPU, where one would do";
  finding.total_ns = c.idle_ns;
  finding.share = report.share(c.idle_ns);
  set_line(finding, c.line);
  finding.evidence = fmt::format(
      "{} copies{} of {:.1f} kB on average take the host {:.2f} ms ({:.1f} %) while no kernel "
      "runs: "
      "{:.1f} us each, with what the framework does for it.",
      count_text(per.count_of(c.count)), per.word,
      static_cast<double>(c.bytes) / static_cast<double>(c.count) / 1e3, per.ms_of(c.idle_ns),
      percent(finding.share), static_cast<double>(c.idle_ns) / static_cast<double>(c.count) / 1e3);
  finding.cure =
      "Put them into one tensor on the host (torch.cat, torch.stack, a collate function), copy "
      "that, "
      "and split it on the GPU.";
  return finding;
}

// Of work that the steps launched, wherever it ran. A host that runs ahead launches more in a
// step's time than the device does in it.
double share_of_work(const ProcessReport& report, std::uint64_t ns) {
  std::uint64_t work = report.summary.kernel_ns;
  for (const CopyRow& row : report.summary.copies) work += row.device_ns;
  const std::uint64_t whole = std::max(report.wall_ns, work);
  return whole == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(whole);
}

// Modules of torch that copy because of the layout in which they are given their data.
bool is_layout_module(const SourceLine& frame) {
  for (const std::string_view file : {"/torch/nn/modules/conv.py", "/torch/nn/modules/batchnorm.py",
                                      "/torch/nn/modules/pooling.py"}) {
    if (frame.file.ends_with(file)) return true;
  }
  return frame.file.find("/torch/nn/") == std::string::npos;
}

std::optional<Finding> device_copies(const ProcessReport& report) {
  const Concurrency& c = report.summary.concurrency;
  Finding finding;
  finding.total_ns = c.device_copy_ns;
  finding.share = share_of_work(report, c.device_copy_ns);
  if (finding.share < kDeviceCopyShare) return std::nullopt;
  const Per per(report);
  finding.id = "device_copies";
  finding.title = "The GPU copies its own memory: clones, or layouts that change";
  set_line(finding, c.device_copy_line);
  finding.evidence = fmt::format(
      "{} copies within the device{} take {:.2f} ms of it ({:.1f} %), layout changes "
      "(.contiguous()) among them.",
      count_text(per.count_of(c.device_copies)), per.word, per.ms_of(c.device_copy_ns),
      percent(finding.share));
  finding.cure =
      "No .clone() of what is not changed; one memory layout throughout (channels_last for "
      "convolutions), so that no .contiguous() copies.";
  if (c.device_copy_inside.known()) {
    finding.evidence += fmt::format(" Most are made inside {}, called from that line.",
                                    to_text(c.device_copy_inside));
    if (!is_layout_module(c.device_copy_inside)) {
      finding.problem = false;
      finding.cure =
          "These copies are the library's own: only another implementation of that module (or "
          "torch.compile) has fewer.";
    }
  }
  return finding;
}

// What samples, stacks or copies tell of the host while the GPU idles: one finding for each cause.
struct CauseText {
  Cause cause;
  const char* id;
  const char* title;
  const char* evidence;
  const char* cure;
};
constexpr CauseText kCauseTexts[] = {
    {Cause::kCheckpoint, "checkpoint", "The GPU waits while the program saves its state",
     "with the host in torch.save or the like, or right behind a call from there",
     "Save less often, or save a copy from a thread (torch.distributed.checkpoint.async_save), and "
     "to "
     "a fast local disk first."},
    {Cause::kLogging, "logging", "The GPU waits while the program logs or prints",
     "with the host in a logging library or formatting a tensor, or right behind a call from there",
     "Log every N steps; keep values on the GPU until then (.detach()); let a queue write "
     "(logging.handlers.QueueHandler)."},
    {Cause::kEvaluation, "evaluation", "The GPU waits during evaluation",
     "with the host in a function that is called as evaluations are",
     "Evaluate less often; compute metrics on the GPU and read them once at the end."},
    {Cause::kCpuPart, "cpu_part_of_model", "A part of the model runs on the CPU",
     "between a copy of results to the host and a copy back, in mid-step",
     "Move that part to the GPU; if an operator has no GPU form, put it at one end of the model."},
    {Cause::kCollective, "collective_wait", "The GPU waits for other ranks",
     "with the host in a collective of torch.distributed, or gloo's threads at work for one",
     "Find the slowest rank (record all ranks into one directory), or use NCCL (backend=\"nccl\"), "
     "which "
     "works on the GPU: gloo sends through the host."},
    {Cause::kInterpreter, "gil_contention", "Another Python thread holds the interpreter's lock",
     "with the launching thread waiting for the lock (GIL); which thread holds it is not recorded",
     "Move that thread's work to another process, or into code that releases the lock (numpy, "
     "native "
     "code)."},
    {Cause::kLock, "lock_wait", "The launching thread waits for a lock",
     "with the launching thread waiting at a line that takes a lock",
     "Let the thread that has the lock hold it for less (copy what is shared, and send or write "
     "behind "
     "the lock), or take it behind the launches of the step."},
    {Cause::kCollection, "garbage_collection", "The GPU waits while Python collects garbage",
     "with the host in a garbage collection",
     "No gc.collect() in the loop; gc.freeze() behind loading, or gc.disable() and a collection "
     "every "
     "N steps; a larger gc.set_threshold() where many objects are made."},
};

// … those with numbers of the host's besides.
constexpr CauseText kNoProcessorText = {
    Cause::kNoProcessor, "no_processor", "The launching thread is ready but has no processor",
    "with the launching thread waiting for a processor",
    "Run fewer busy threads and processes than there are processors: fewer DataLoader workers, "
    "torch.set_num_threads(1) in each; or ask for more processors."};
constexpr CauseText kQuotaText = {
    Cause::kQuota, "cpu_quota", "The process has used up its quota of processor time",
    "with all of it stopped until the next period of the quota",
    "Ask for more processors (a pod's limits.cpu, docker --cpus, the job's CPUs), or run fewer "
    "busy threads: OMP_NUM_THREADS and DataLoader(num_workers=…) from the quota, not from "
    "os.cpu_count()."};
constexpr CauseText kPageFaultText = {
    Cause::kPageFault, "page_faults",
    "The GPU waits while memory is read from a disk (page faults)",
    "with the host waiting for pages that were not in memory",
    "Read ahead in a thread or in DataLoader workers, or read the file with read() in large "
    "pieces; keep in memory what is used again (madvise WILLNEED, a copy in RAM)."};
constexpr CauseText kSwappingText = {
    Cause::kPageFault, "swapping", "The GPU waits while memory is swapped in",
    "with the host waiting for pages that had been swapped out",
    "Use less memory (fewer workers, smaller caches), or ask for more; mlock or MAP_LOCKED for "
    "what each step needs."};

// Where collections that Python began by itself were met: no call of the program tells.
void add_collections(Finding& finding, const ProcessReport& report) {
  std::map<std::string, std::uint64_t> by_line;
  std::uint64_t looks = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (row.kind != GapKind::kCollector) continue;
    looks += row.looks;
    if (row.line.known()) by_line[to_text(row.line)] += row.looks;
  }
  if (by_line.empty()) return;
  const auto most =
      std::max_element(by_line.begin(), by_line.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  finding.evidence += fmt::format(
      " The interpreter was collecting at {} looks, {:.0f} % of them at {}.", looks,
      percent(static_cast<double>(most->second) / static_cast<double>(looks)), most->first);
}

std::optional<Finding> of_cause(const ProcessReport& report, const CauseText& text) {
  auto rows = rows_where(report, [&](const IdleRow& row) { return row.cause == text.cause; });
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kCauseShare) return std::nullopt;
  // A region says more than the line of a wait before it.
  std::stable_partition(rows.begin(), rows.end(), [](const IdleRow* row) { return row->outside; });
  set_region(finding, rows);
  finding.id = text.id;
  finding.title = text.title;
  finding.evidence =
      fmt::format("Idle {:.1f} ms in all ({:.1f} %)", ms(finding.total_ns), percent(finding.share));
  if (report.has_steps()) {
    finding.evidence += fmt::format(", in {} of {} steps, up to {:.1f} ms in one", finding.steps,
                                    report.steps.size(), finding.ms_of_step.maximum);
  }
  finding.evidence += fmt::format(", {}.", text.evidence);
  add_doing(finding, report, [&](const GapRow& row) { return row.cause == text.cause; });
  if (text.cause == Cause::kCollection) add_collections(finding, report);
  finding.cure = text.cure;
  return finding;
}

std::string processors_text(const recording::HostOffer& h) {
  if (h.usable_processors == 0) return {};
  std::string text = fmt::format("{} processors", h.usable_processors);
  if (h.quota_processors() > 0 && h.quota_processors() < h.usable_processors) {
    text += fmt::format(" and a quota of {:.1f}", h.quota_processors());
  }
  return text;
}

std::optional<Finding> cpu_quota(const ProcessReport& report) {
  auto finding = of_cause(report, kQuotaText);
  if (!finding) return finding;
  const HostBeside& b = report.host_counters.beside;
  const Per per(report);
  if (b.throttled_ns && b.throttled_periods && b.quota_periods) {
    finding->evidence +=
        fmt::format(" Throttled for {:.1f} ms{}, summed over processors, in {} of {} periods.",
                    per.ms_of(*b.throttled_ns), per.word, *b.throttled_periods, *b.quota_periods);
  }
  const double quota = report.host_offer.quota_processors();
  if (quota > 0) {
    finding->evidence +=
        fmt::format(" The quota is {:.1f} ms in each {:.1f} ms: {:.2g} processors.",
                    static_cast<double>(report.host_offer.cpu_quota_us) / 1e3,
                    static_cast<double>(report.host_offer.cpu_period_us) / 1e3, quota);
  }
  return finding;
}

// Pages that were swapped out, or of files? Of the whole machine, so that a process beside this one
// may have swapped them.
bool swaps(const ProcessReport& report) {
  const HostReport& h = report.host_counters;
  const HostUse& use = h.process.known() ? h.process : h.beside.process;
  return h.beside.swap_in_pages && use.major_faults && *h.beside.swap_in_pages > 0 &&
         *h.beside.swap_in_pages * 2 >= *use.major_faults;
}

std::optional<Finding> page_faults_of(const ProcessReport& report, const CauseText& text) {
  auto finding = of_cause(report, text);
  if (!finding) return finding;
  const HostReport& h = report.host_counters;
  const HostUse& use = h.process.known() ? h.process : h.beside.process;
  const double steps = h.process.known() ? static_cast<double>(h.counted_steps) : Per(report).steps;
  if (use.major_faults) {
    finding->evidence +=
        fmt::format(" {} major faults{}.",
                    count_text(static_cast<double>(*use.major_faults) / steps), Per(report).word);
  }
  if (h.beside.swap_in_pages && *h.beside.swap_in_pages > 0) {
    finding->evidence +=
        fmt::format(" Pages swapped in by the machine meanwhile: {}.", *h.beside.swap_in_pages);
  }
  if (h.beside.swapped_bytes && *h.beside.swapped_bytes > 0) {
    finding->evidence += fmt::format(" Of this process {:.0f} MiB were swapped out.",
                                     static_cast<double>(*h.beside.swapped_bytes) / (1 << 20));
  }
  return finding;
}
std::optional<Finding> page_faults(const ProcessReport& report) {
  return swaps(report) ? std::nullopt : page_faults_of(report, kPageFaultText);
}
std::optional<Finding> swapping(const ProcessReport& report) {
  return swaps(report) ? page_faults_of(report, kSwappingText) : std::nullopt;
}

std::optional<Finding> no_processor(const ProcessReport& report) {
  auto finding = of_cause(report, kNoProcessorText);
  if (!finding) return finding;
  const HostReport& h = report.host_counters;
  const std::string processors = processors_text(report.host_offer);
  if (!processors.empty()) finding->evidence += fmt::format(" The process has {}.", processors);
  if (h.process.involuntary_switches) {
    finding->evidence +=
        fmt::format(" Its threads were put off a processor {} times{}",
                    count_text(static_cast<double>(*h.process.involuntary_switches) /
                               static_cast<double>(h.counted_steps)),
                    Per(report).word);
    if (h.thread.involuntary_switches) {
      finding->evidence +=
          fmt::format(", the launching one {} times",
                      count_text(static_cast<double>(*h.thread.involuntary_switches) /
                                 static_cast<double>(h.counted_steps)));
    }
    finding->evidence += '.';
  }
  if (h.beside.cpu_some_ns && h.beside.ns > 0) {
    finding->evidence +=
        fmt::format(" For {:.0f} % of the time some task of {} waited for a processor.",
                    std::min(100.0, percent(static_cast<double>(*h.beside.cpu_some_ns) /
                                            static_cast<double>(h.beside.ns))),
                    h.sources[static_cast<std::size_t>(recording::HostTopic::kPressure)] ==
                            recording::HostSource::kMachine
                        ? "the machine"
                        : "its control group");
  }
  return finding;
}

template <std::size_t kIndex>
std::optional<Finding> cause_finding(const ProcessReport& report) {
  return of_cause(report, kCauseTexts[kIndex]);
}

std::optional<Finding> blocked_calls(const ProcessReport& report) {
  const auto rows = rows_where(report, [](const IdleRow& row) {
    return row.cause == Cause::kNone && row.idle == IdleClass::kBlockedCall;
  });
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kBlockedShare) return std::nullopt;
  // Where allocation explains it, another finding has said so.
  const Allocations& a = report.summary.allocations;
  if ((a.idle_ns + a.pinned_idle_ns) * 2 > finding.total_ns &&
      (memory_full(report) || allocation_churn(report) || pinning_churn(report))) {
    return std::nullopt;
  }
  set_region(finding, rows);
  finding.id = "blocked_calls";
  finding.title = "The host is held up in CUDA calls that launch nothing";
  finding.evidence = fmt::format("Idle {}", cost_text(finding, report));
  if (!rows.empty() && !rows.front()->call.empty()) {
    finding.evidence += ", most of it in " + rows.front()->call;
  }
  finding.evidence += ".";
  finding.cure = "Make that call once, before the loop.";
  return finding;
}

std::optional<Finding> unknown_time(const ProcessReport& report) {
  const auto rows =
      rows_where(report, [](const IdleRow& row) { return row.idle == IdleClass::kUnknown; });
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kUnknownShare) return std::nullopt;
  finding.id = "unknown";
  finding.problem = false;
  finding.title = "Part of the time is unknown";
  finding.evidence = fmt::format(
      "For {} the GPU was either idle or at work whose times were not measured ({} of {} pieces of "
      "device work have no time).",
      cost_text(finding, report), report.coverage.untimed(), report.coverage.expected);
  return finding;
}

// Busy, but not with kernels. Work from before the recording is of unknown kind and taken for
// kernels here: only what was seen is blamed.
bool copies_fill_busy_time(const ProcessReport& report) {
  return (report.kernel_busy_ns + report.earlier_busy_ns) * 2 < report.busy_ns;
}

std::optional<Finding> offloading(const ProcessReport& report) {
  const Offloads& o = report.summary.offloads;
  const Per per(report);
  Finding finding;
  finding.total_ns = o.alone_ns;
  finding.share = share_of_work(report, o.alone_ns);
  if (!report.has_steps() || per.count_of(o.count) < kOffloadsPerStep ||
      finding.share < kOffloadShare) {
    return std::nullopt;
  }
  finding.id = "offloading";
  finding.title = "Tensors go to the host and back within a step";
  set_line(finding, o.line);
  finding.evidence = fmt::format(
      "{} per step, {:.1f} MB, go to memory of the host and are copied back from there. While no "
      "kernel runs "
      "the GPU copies them for {:.2f} ms ({:.1f} %).",
      count_text(per.count_of(o.count)), per.count_of(o.bytes) / 1e6, per.ms_of(o.alone_ns),
      percent(finding.share));
  finding.cure =
      "Keep on the GPU what fits; compute again what does not (torch.utils.checkpoint); else copy "
      "on a "
      "stream of its own from and to pinned memory while kernels run.";
  return finding;
}

std::optional<Finding> copy_bound(const ProcessReport& report) {
  if (report.share(report.busy_ns) < kBusyShare || !copies_fill_busy_time(report)) {
    return std::nullopt;
  }
  // Those that come back have been told.
  if (report.summary.offloads.alone_ns * 2 > report.busy_ns - report.kernel_busy_ns &&
      offloading(report)) {
    return std::nullopt;
  }
  const CopyRow* most = nullptr;
  for (const CopyRow& row : report.summary.copies) {
    if (most == nullptr || row.device_ns > most->device_ns) most = &row;
  }
  if (most == nullptr) return std::nullopt;
  Finding finding;
  finding.id = "copy_bound";
  finding.title = "The GPU is busy with copies, not with kernels";
  finding.total_ns = report.busy_ns - report.kernel_busy_ns;
  finding.share = report.share(finding.total_ns);
  set_line(finding, most->line);
  const Per per(report);
  finding.evidence = fmt::format(
      "Busy {:.1f} %, but only {:.1f} % with kernels. Most is {} {} copies, {:.2f} ms{} at {:.1f} "
      "GB/s.",
      percent(report.share(report.busy_ns)), percent(report.share(report.kernel_busy_ns)),
      most->count, direction_name(most->direction), per.ms_of(most->device_ns), per.word,
      most->gigabytes_per_second());
  finding.cure =
      "Move less: convert and augment on the GPU, send smaller types (uint8 instead of float32), "
      "keep on the GPU what does not change; then overlap the rest with kernels "
      "(pin_memory, non_blocking=True, a prefetching stream).";
  return finding;
}

// What ran beside what is known only where nearly all of it was timed.
bool is_timed(const ProcessReport& report) {
  return report.coverage.untimed() * kMostUntimed <= report.coverage.expected;
}

std::optional<Finding> copies_not_overlapped(const ProcessReport& report) {
  if (!is_timed(report)) return std::nullopt;
  const Concurrency& c = report.summary.concurrency;
  Finding finding;
  finding.total_ns = c.copy_alone_ns;
  finding.share = share_of_work(report, c.copy_alone_ns);
  // Where copies take most of the time, moving less comes first.
  if (finding.share < kCopyAloneShare || report.kernel_busy_ns == 0 || copy_bound(report)) {
    return std::nullopt;
  }
  // Those that come back have been told.
  if (report.summary.offloads.alone_ns > c.copy_alone_ns && offloading(report)) return std::nullopt;
  const Per per(report);
  finding.id = "copies_not_overlapped";
  finding.title = "Asynchronous copies do not overlap with kernels";
  set_line(finding, c.copy_line);
  finding.evidence = fmt::format(
      "Copies from pinned memory take {:.2f} ms of the GPU{}; for {:.2f} ms of that ({:.1f} %) no "
      "kernel runs, so kernels wait for them.",
      per.ms_of(c.pinned_copy_ns), per.word, per.ms_of(c.copy_alone_ns), percent(finding.share));
  finding.cure =
      "Copy the next batch on a stream of its own while this one is computed (torch.cuda.Stream, "
      "wait_stream, record_stream), or send smaller types.";
  return finding;
}

std::optional<Finding> serial_streams(const ProcessReport& report) {
  if (!is_timed(report)) return std::nullopt;
  const Concurrency& c = report.summary.concurrency;
  const std::uint64_t second = c.small_kernel_ns[1];
  Finding finding;
  finding.total_ns = second - std::min(second, c.small_overlap_ns);
  finding.share = report.share(finding.total_ns);
  if (finding.share < kSerialStreamShare ||
      static_cast<double>(c.small_overlap_ns) >= kSerialOverlap * static_cast<double>(second)) {
    return std::nullopt;
  }
  const Per per(report);
  finding.id = "serial_streams";
  finding.title = "Two streams of small kernels take turns";
  set_line(finding, c.stream_line);
  finding.evidence = fmt::format(
      "Kernels that leave half of the GPU empty or more run on two streams, {:.2f} ms and {:.2f} "
      "ms{}, "
      "and for {:.2f} ms at once. Side by side they would save up to {:.1f} %.",
      per.ms_of(c.small_kernel_ns[0]), per.ms_of(second), per.word, per.ms_of(c.small_overlap_ns),
      percent(finding.share));
  finding.cure =
      "If neither needs the other's result, remove the wait between them (wait_stream, wait_event, "
      "synchronize, work on the default stream); else use one stream.";
  return finding;
}

std::optional<Finding> gpu_busy(const ProcessReport& report) {
  if (report.share(report.busy_ns) < kBusyShare || copies_fill_busy_time(report)) {
    return std::nullopt;
  }
  Finding finding;
  finding.id = "gpu_busy";
  finding.problem = false;
  finding.title = "GPU-bound: the GPU is busy";
  finding.total_ns = report.busy_ns;
  finding.share = report.share(report.busy_ns);
  const Summary& s = report.summary;
  const Per per(report);
  finding.evidence = fmt::format("Busy {:.1f} %", percent(finding.share));
  if (!s.kernels.empty()) {
    finding.evidence +=
        fmt::format(", {:.0f} % of kernel time in {}", percent(s.kernels.front().share),
                    shorten(s.kernels.front().name, 60, true));
  }
  finding.evidence += ".";
  if (!s.waits.empty() && s.waits.front().device_busy_ns * 2 > s.waits.front().host_ns &&
      report.share(s.waits.front().host_ns) >= kSyncShare) {
    const WaitRow& wait = s.waits.front();
    set_line(finding, wait.line);
    finding.evidence += fmt::format(
        " The host waits for it in {} for {:.2f} ms{} ({:.2f} ms of that for work already queued): "
        "that wait is not the cause.",
        wait.call, per.ms_of(wait.host_ns), per.word, per.ms_of(wait.device_busy_ns));
  }
  finding.cure =
      "Make kernels faster: mixed precision, channels_last, torch.compile; or use a larger GPU.";
  return finding;
}

// Where the GPU is what takes the time, and most of it could be taken by its tensor cores.
std::optional<Finding> single_precision(const ProcessReport& report) {
  const Summary& s = report.summary;
  if (!gpu_busy(report) || !has_tensor_cores(report.compute_major, report.device_name)) {
    return std::nullopt;
  }
  Finding finding;
  finding.total_ns = s.single_precision_ns;
  finding.share = share_of_work(report, s.single_precision_ns);
  if (finding.share < kSinglePrecisionShare) return std::nullopt;
  const Per per(report);
  finding.id = "amp";
  finding.problem = false;
  finding.title = "Products in single precision leave the tensor cores idle";
  set_line(finding, s.single_precision_line);
  finding.evidence = fmt::format("Kernels of this kind take {:.2f} ms{} ({:.1f} %), most of it {}.",
                                 per.ms_of(s.single_precision_ns), per.word, percent(finding.share),
                                 shorten(s.single_precision_kernel, 60, true));
  finding.cure =
      report.compute_major >= 8
          ? "If the model bears it: torch.autocast(\"cuda\", dtype=torch.bfloat16), or TF32 "
            "(torch.set_float32_matmul_precision(\"high\"), "
            "torch.backends.cudnn.allow_tf32)."
          : "If the model bears it: torch.autocast(\"cuda\", dtype=torch.float16) with a "
            "torch.amp.GradScaler.";
  return finding;
}

// All that can be said without device times.
std::optional<Finding> host_outside(const ProcessReport& report) {
  if (report.has_device_times()) return std::nullopt;
  std::vector<const IdleRow*> rows;
  for (const IdleRow& row : report.summary.pauses) rows.push_back(&row);
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kHostShare) return std::nullopt;
  set_region(finding, rows);
  finding.id = "host_outside";
  finding.problem = false;
  finding.title = "The host is outside CUDA for long";
  finding.evidence = fmt::format(
      "{}, {} us or more at a time. Without device times it is not known whether the GPU still had "
      "work then.",
      cost_text(finding, report), kLaunchPauseNs / 1000);
  return finding;
}

struct Rule {
  const char* id;
  bool needs_device_times;
  std::optional<Finding> (*find)(const ProcessReport&);
};
static_assert(std::size(kCauseTexts) == 8);
constexpr Rule kRules[] = {
    {kCauseTexts[0].id, true, cause_finding<0>},
    {kCauseTexts[1].id, true, cause_finding<1>},
    {kCauseTexts[2].id, true, cause_finding<2>},
    {kCauseTexts[3].id, true, cause_finding<3>},
    {kCauseTexts[4].id, true, cause_finding<4>},
    {kCauseTexts[5].id, true, cause_finding<5>},
    {kCauseTexts[6].id, true, cause_finding<6>},
    {kCauseTexts[7].id, true, cause_finding<7>},
    {kNoProcessorText.id, true, no_processor},
    {kQuotaText.id, true, cpu_quota},
    {kPageFaultText.id, true, page_faults},
    {kSwappingText.id, true, swapping},
    {"worker_restart", true, worker_restart},
    {"data_starvation", true, data_starvation},
    {"synchronisation", true, synchronisation},
    {"pageable_copies", true, pageable_copies},
    {"launch_bound", true, launch_bound},
    {"small_copies", true, small_copies},
    {"memory_full", true, memory_full},
    {"allocation_churn", true, allocation_churn},
    {"pinning_churn", true, pinning_churn},
    {"blocked_calls", true, blocked_calls},
    {"host_elsewhere", true, host_elsewhere},
    {"copy_bound", true, copy_bound},
    {"offloading", true, offloading},
    {"copies_not_overlapped", true, copies_not_overlapped},
    {"device_copies", true, device_copies},
    {"serial_streams", true, serial_streams},
    {"gpu_busy", true, gpu_busy},
    {"amp", true, single_precision},
    {"unknown", true, unknown_time},
    {"host_outside", false, host_outside},
};

}  // namespace

std::vector<Finding> find_all(const ProcessReport& report) {
  std::vector<Finding> findings;
  if (report.wall_ns == 0) return findings;
  for (const Rule& rule : kRules) {
    if (rule.needs_device_times && !report.has_device_times()) continue;
    auto finding = rule.find(report);
    if (finding && (!finding->problem || finding->share >= kLeastShare)) {
      findings.push_back(std::move(*finding));
    }
  }
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::pair(a.problem, a.total_ns) > std::pair(b.problem, b.total_ns);
  });
  return findings;
}

}  // namespace gpubusy::analysis
