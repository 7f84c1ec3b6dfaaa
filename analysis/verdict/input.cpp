// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/verdict/evidence.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis::verdict {
namespace {

// In a loader, as stacks or a profiler's ranges tell.
bool is_in_loader(Cause cause) { return cause == Cause::kLoading || cause == Cause::kLoaderQueue; }

// Idle time, or looks at it, that is late input.
template <typename Row>
bool is_starved(const Row& row) {
  return is_in_loader(row.cause) ||
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
  // One step behind the other is an epoch that is slow, not the begin of several.
  if (!report.has_steps() || !few || input * 2 < total || even_distance(stalled) < 2 ||
      static_cast<double>(in_stalls) < kShareInStalls * static_cast<double>(total)) {
    return {};
  }
  return stalled;
}

// Rows of processes being started, which a loader does at the begin of an epoch.
std::vector<const IdleRow*> worker_start_rows(const ProcessReport& report) {
  return rows_where(report, [](const IdleRow& row) { return row.cause == Cause::kWorkerStart; });
}

// Whether batches come from a loader.
bool meets_loader(const ProcessReport& report) {
  const auto& idle = report.summary.idle;
  return report.has_loader || std::any_of(idle.begin(), idle.end(), [](const IdleRow& row) {
           return is_in_loader(row.cause);
         });
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

// Whether input is late where the loader begins anew, and hardly elsewhere.
bool restarts_make_input_late(const ProcessReport& report) {
  if (!stalled_steps(report).empty()) return true;
  std::set<std::uint32_t> restarts;
  for (const IdleRow* row : worker_start_rows(report)) {
    for (const auto& [step, ns] : row->by_step) restarts.insert(step);
  }
  std::uint64_t late = 0, at_restarts = 0;
  for (const IdleRow* row : starved_rows(report)) {
    for (const auto& [step, ns] : row->by_step) {
      late += ns;
      at_restarts += restarts.contains(step) ? ns : 0;
    }
  }
  return at_restarts * 2 >= late;
}

// What loading does: in the workers, where they are what is waited for, else in the process itself.
struct LoadingSeen {
  bool in_workers = false;
  bool receives = false;  // the process itself is busy taking what workers have made
  Bottleneck bottleneck = Bottleneck::kUnknown;
};
LoadingSeen loading_seen(const ProcessReport& report) {
  std::uint64_t starved = 0, queue = 0, receiving = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (!is_starved(row)) continue;
    starved += row.ns;
    const bool at_queue = row.cause == Cause::kLoaderQueue;
    queue += at_queue || row.kind == GapKind::kWorkers ? row.ns : 0;
    receiving += at_queue && row.kind == GapKind::kRuns ? row.ns : 0;
  }
  if (queue * 2 > starved) {
    return {true, receiving * 2 > queue,
            report.workers.looks < kFewestLooks ? Bottleneck::kUnknown
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
  return {false, false, bottleneck_of(shares)};
}

// Processors that the process may use, into that text; empty: not known.
std::string with_processors(const ProcessReport& report, const char* text) {
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
      w.looks, loading_shares_text(w.doing), with_processors(report, "; the program has {}"));
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
  if (seen.receives) {
    return "The training process is busy taking batches from its workers: fewer and larger tensors "
           "in a "
           "batch (one for each field, not a list), or pin_memory=True, which takes them in a "
           "thread.";
  }
  switch (seen.bottleneck) {
    case Bottleneck::kProcessor:
      if (!seen.in_workers) {
        return "The training process computes the batch itself: do that in DataLoader workers "
               "(num_workers=4 or more, as far as there are processors), on the GPU, or once "
               "before the training.";
      }
      // The training process needs one of them.
      if (processors > 0 && workers + 1 < processors) {
        return fmt::format(
            "Workers compute all the time, and {} processors are free: more of them (num_workers, "
            "now {}), or make a batch cheaper at that line.",
            count_text(processors - workers - 1), workers);
      }
      if (processors > 0) {
        return fmt::format(
            "Workers compute all the time, and there is no processor for more of them ({} workers, "
            "{}): make a batch cheaper at that line, do that on the GPU, or once before the "
            "training.",
            workers, with_processors(report, "{}"));
      }
      return fmt::format(
          "Workers compute all the time: more of them (num_workers, now {}) help as far as there "
          "are processors; else make a batch cheaper at that line, do that on the GPU, or once "
          "before the training.",
          workers);
    case Bottleneck::kNoProcessor:
      if (!seen.in_workers) {
        return "The training process waits for a processor: leave it one (fewer threads and "
               "processes beside it).";
      }
      // Something else may have taken them.
      if (processors > 0 && workers < processors) {
        return fmt::format(
            "Workers ({}) wait for processors ({}): something else takes these. Threads of numeric "
            "libraries in each worker (OMP_NUM_THREADS, cv2.setNumThreads), or other programs.",
            workers, count_text(processors));
      }
      return fmt::format(
          "There are more workers ({}) than processors for them{}: fewer (num_workers) make as "
          "many batches, and leave the training process one. Make a batch cheaper at that line, or "
          "do that on the GPU.",
          workers, with_processors(report, " ({})"));
    case Bottleneck::kQuota:
      return std::string("Workers are stopped for want of processor time that the quota allows. ") +
             kQuotaCure;
    case Bottleneck::kStorage:
      return std::string(seen.in_workers ? "Workers wait for storage: "
                                         : "The training process reads by itself and waits for "
                                           "storage: workers read ahead (num_workers); ") +
             "many small files into few large ones (shards, one mapped file), on a local disk or "
             "in memory" +
             (seen.in_workers ? fmt::format("; more workers (now {}) wait side by side.", workers)
                              : ".");
    case Bottleneck::kInput:
    case Bottleneck::kSleep:
    case Bottleneck::kChild:
      if (!seen.in_workers) break;
      return fmt::format(
          "Workers wait for something else at that line, which takes no processor: more of them "
          "wait side by side (num_workers, now {}), or fetch more with each request.",
          workers);
    case Bottleneck::kLock:
      if (!seen.in_workers) break;
      return "Workers wait for a lock at that line, which more workers do not cure: hold it for "
             "less, or give each worker its own copy.";
    case Bottleneck::kIdle:
      if (!seen.in_workers) break;
      return "Most workers wait to be asked: batches come in order, so one that takes longer holds "
             "up the rest (prefetch_factor, in_order=False), or what follows the workers is slow "
             "(a large batch through shared memory, pin_memory).";
    case Bottleneck::kUnknown: break;
  }
  return "";
}

bool from_queue(const ProcessReport& report) { return library_share(report, "/queue.py") > 0.5; }

// Only what the recording shows to be there is to be changed: not every batch comes from a loader,
// nor can each be prepared before the step before it has ended.
const char* input_cure(const ProcessReport& report, bool input, bool in_workers) {
  if (in_workers) {
    return "The loader has workers, and they do not keep up: more of them (num_workers, as far as "
           "there are processors), prefetch_factor, or batches that are cheaper to make.";
  }
  if (from_queue(report)) {
    return "What fills the queue does not keep up: make a batch cheaper, or let several threads or "
           "processes fill it.";
  }
  if (!input) {
    return "See what the program does between these two lines; if it prepares data, do that ahead "
           "in another thread or process, else move it off the launching thread.";
  }
  if (report.has_loader) {
    return "Prepare batches while the GPU works: DataLoader(num_workers=4 or more, "
           "pin_memory=True, persistent_workers=True) and .to(device, non_blocking=True); if the "
           "loader has workers already, make a batch cheaper or add workers.";
  }
  return "Prepare it while the GPU works, in a thread or process of its own (a DataLoader with "
         "workers does so), or make it on the GPU (device=). If it depends on results of the work "
         "before it, make it cheaper, or do several at once.";
}

// Whether looks found the host in the loader for long, in more than a slow batch or two.
bool loader_stalls(const ProcessReport& report, const std::vector<const IdleRow*>& rows) {
  std::vector<const IdleRow*> in_loader;
  for (const IdleRow* row : rows) {
    if (is_in_loader(row->cause)) in_loader.push_back(row);
  }
  Finding finding;
  add_numbers(finding, report, in_loader);
  return finding.share >= kStarvationShare && finding.steps >= kFewestStalls;
}

// Whether what looks saw before late work may make its data: who sleeps, writes or waits for
// another does not, but in a loader.
bool makes_data(const ProcessReport& report) {
  std::uint64_t seen = 0, other = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (!is_starved(row)) continue;
    seen += row.ns;
    const bool makes_none = row.kind == GapKind::kSleep || row.kind == GapKind::kOutput ||
                            row.kind == GapKind::kFileWrite || row.kind == GapKind::kLock ||
                            row.kind == GapKind::kChild;
    if (row.cause == Cause::kNone && makes_none) other += row.ns;
  }
  return other * 2 <= seen;
}

}  // namespace

Found worker_restart(const ProcessReport& report) {
  auto rows = worker_start_rows(report);
  if (rows.empty() && !meets_loader(report)) return std::nullopt;
  const std::vector<std::uint32_t> stalled = stalled_steps(report);
  const bool with_input = restarts_make_input_late(report);
  if (stalled.empty()) {
    Finding alone;
    add_numbers(alone, report, rows);
    if (alone.share < kStarvationShare) return std::nullopt;
  }
  if (with_input) {
    for (const IdleRow* row : starved_rows(report)) rows.push_back(row);
  }
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kStarvationShare) return std::nullopt;
  set_region(finding, rows);
  finding.title = "The GPU waits for input each time the data loader begins anew";
  finding.evidence =
      fmt::format("Idle {:.1f} ms in all ({:.1f} %), up to {:.1f} ms in a step.",
                  ms(finding.total_ns), percent(finding.share), finding.ms_of_step.maximum);
  if (!stalled.empty()) {
    finding.evidence += fmt::format(
        " Nearly all of it in every {}. step ({} of {}), before a copy from the host: an even "
        "distance is what epochs have.",
        stalled[1] - stalled[0], stalled.size(), report.steps.size());
  }
  add_doing(finding, report, [&](const GapRow& row) {
    return (with_input && is_starved(row)) || row.cause == Cause::kWorkerStart;
  });
  finding.cure =
      "DataLoader(persistent_workers=True), or one iterator over several epochs (a sampler that "
      "does not end); if workers are kept already, prepare the first batch before the epoch ends.";
  return finding;
}

Found data_starvation(const ProcessReport& report) {
  const auto rows = starved_rows(report);
  if (restarts_make_input_late(report) && worker_restart(report)) return std::nullopt;
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kStarvationShare) return std::nullopt;
  if (report.has_steps() && !loader_stalls(report, rows) &&
      finding.steps < kStarvationSteps * static_cast<double>(report.steps.size()) &&
      even_stalls(report).empty()) {
    return std::nullopt;
  }
  set_region(finding, rows);
  std::uint64_t before_input = 0;
  for (const IdleRow* row : rows) before_input += row->input_copy ? row->ns : 0;
  const bool before_copy = before_input * 2 > finding.total_ns;
  const bool input = before_copy && makes_data(report);
  const LoadingSeen seen = loading_seen(report);
  // Without steps it may be the weights as well; without a loader an environment, noise, a mask.
  finding.title = !report.has_steps() && input ? "The GPU waits for data from the host"
                  : before_copy && !input      ? "The GPU waits while the host does something else"
                  : !input                     ? "The GPU waits at the start of the step"
                  : report.has_loader || seen.in_workers
                      ? "The GPU waits for input data"
                      : "The GPU waits for data that the host makes";
  finding.evidence = fmt::format("Idle {}", cost_text(finding, report));
  if (report.has_steps()) {
    finding.evidence += fmt::format(", in {} of {} steps", finding.steps, report.steps.size());
  }
  finding.evidence +=
      ". Meanwhile the host is in no CUDA call and no synchronisation explains it; ";
  finding.evidence +=
      input         ? "the work that follows is a copy from the host."
      : before_copy ? "a copy from the host follows, but what is done before it makes no data."
                    : "the work that follows is no copy from the host, so it may be something "
                      "other than input.";
  add_doing(finding, report, is_starved<GapRow>);
  if (seen.in_workers) add_workers(finding, report);
  if (seen.bottleneck == Bottleneck::kQuota) add_quota(finding, report);
  // Of what no loader does only the line is known, not whether it can be prepared ahead.
  if (seen.in_workers || (input && report.has_loader && !from_queue(report))) {
    finding.cure = cure_of_loading(report, seen);
  }
  if (finding.cure.empty()) finding.cure = input_cure(report, input, seen.in_workers);
  return finding;
}

}  // namespace gpubusy::analysis::verdict
