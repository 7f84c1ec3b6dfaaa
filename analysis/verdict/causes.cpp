// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/verdict/evidence.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis::verdict {
namespace {

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

std::string processors_text(const recording::HostOffer& h) {
  if (h.usable_processors == 0) return {};
  std::string text = fmt::format("{} processors", h.usable_processors);
  if (h.is_capped()) text += fmt::format(" and a quota of {:.1f}", h.quota_processors());
  return text;
}

// Pages that were swapped out, or of files? Of the whole machine, so that a process beside this one
// may have swapped them.
bool swaps(const ProcessReport& report) {
  const HostReport& h = report.host_counters;
  const HostUse& use = h.process.known() ? h.process : h.beside.process;
  return h.beside.swap_in_pages && use.major_faults && *h.beside.swap_in_pages > 0 &&
         *h.beside.swap_in_pages * 2 >= *use.major_faults;
}

void add_faults(Finding& finding, const ProcessReport& report) {
  const HostReport& h = report.host_counters;
  const HostUse& use = h.process.known() ? h.process : h.beside.process;
  const double steps = h.process.known() ? static_cast<double>(h.counted_steps) : Per(report).steps;
  if (use.major_faults) {
    finding.evidence +=
        fmt::format(" {} major faults{}.",
                    count_text(static_cast<double>(*use.major_faults) / steps), Per(report).word);
  }
  if (h.beside.swap_in_pages && *h.beside.swap_in_pages > 0) {
    finding.evidence +=
        fmt::format(" Pages swapped in by the machine meanwhile: {}.", *h.beside.swap_in_pages);
  }
  if (h.beside.swapped_bytes && *h.beside.swapped_bytes > 0) {
    finding.evidence += fmt::format(" Of this process {:.0f} MiB were swapped out.",
                                    static_cast<double>(*h.beside.swapped_bytes) / (1 << 20));
  }
}

// Processors that the process kept busy on average in the judged steps, with those of its workers;
// none: not known.
std::optional<double> processors_used(const ProcessReport& report) {
  const HostReport& h = report.host_counters;
  if (!h.process.user_ns || !h.process.system_ns || h.counted_steps == 0) return std::nullopt;
  const double wall = static_cast<double>(report.wall_ns) * static_cast<double>(h.counted_steps) /
                      static_cast<double>(report.steps.size());
  return static_cast<double>(*h.process.user_ns + *h.process.system_ns) / wall +
         report.workers.processors_used * report.workers.count;
}

void add_processors(Finding& finding, const ProcessReport& report) {
  const HostReport& h = report.host_counters;
  const std::string processors = processors_text(report.host_offer);
  if (!processors.empty()) finding.evidence += fmt::format(" The process has {}", processors);
  if (const auto used = processors_used(report); used && !processors.empty()) {
    finding.evidence += fmt::format(" and uses {:.1f}{}", *used,
                                    report.workers.count > 0 ? " of them with its workers" : "");
    if (*used * 2 < report.host_offer.effective_processors()) {
      finding.cure =
          "Other programs take the processors (see top): end them, or give this one processors of "
          "its own (taskset, cpusets, another machine).";
    }
  }
  if (!processors.empty()) finding.evidence += '.';
  if (h.process.involuntary_switches) {
    finding.evidence +=
        fmt::format(" Its threads were put off a processor {} times{}",
                    count_text(static_cast<double>(*h.process.involuntary_switches) /
                               static_cast<double>(h.counted_steps)),
                    Per(report).word);
    if (h.thread.involuntary_switches) {
      finding.evidence +=
          fmt::format(", the launching one {} times",
                      count_text(static_cast<double>(*h.thread.involuntary_switches) /
                                 static_cast<double>(h.counted_steps)));
    }
    finding.evidence += '.';
  }
  if (h.beside.cpu_some_ns && h.beside.ns > 0) {
    finding.evidence +=
        fmt::format(" For {:.0f} % of the time some task of {} waited for a processor.",
                    std::min(100.0, percent(static_cast<double>(*h.beside.cpu_some_ns) /
                                            static_cast<double>(h.beside.ns))),
                    h.sources[static_cast<std::size_t>(recording::HostTopic::kPressure)] ==
                            recording::HostSource::kMachine
                        ? "the machine"
                        : "its control group");
  }
}

// What samples, stacks or copies tell of the host while the GPU idles: a finding for each.
struct CauseText {
  Cause cause;
  const char* id;
  const char* title;
  const char* evidence;
  const char* cure;
  void (*add_more)(Finding&, const ProcessReport&) = nullptr;  // that only this cause has
  bool (*applies)(const ProcessReport&) = nullptr;             // of two with one cause
};
constexpr CauseText kCauseTexts[] = {
    {Cause::kCheckpoint, "checkpoint", "The GPU waits while the program saves its state",
     "with the host in torch.save or the like, or right behind a call from there",
     "Save less often, or save a copy from a thread (torch.distributed.checkpoint.async_save), and "
     "to a fast local disk first."},
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
     "which works on the GPU: gloo sends through the host."},
    {Cause::kInterpreter, "gil_contention", "Another Python thread holds the interpreter's lock",
     "with the launching thread waiting for the lock (GIL)",
     "Move that thread's work to another process, or into code that releases the lock (numpy, "
     "native code).",
     add_holders},
    {Cause::kLock, "lock_wait", "The launching thread waits for a lock",
     "with the launching thread waiting at a line that takes a lock",
     "Let the thread that has the lock hold it for less (copy what is shared, and send or write "
     "behind the lock), or take it behind the launches of the step."},
    {Cause::kCollection, "garbage_collection", "The GPU waits while Python collects garbage",
     "with the host in a garbage collection",
     "No gc.collect() in the loop; gc.freeze() behind loading, or gc.disable() and a collection "
     "every N steps; a larger gc.set_threshold() where many objects are made.",
     add_collections},
    {Cause::kNoProcessor, "no_processor", "The launching thread is ready but has no processor",
     "with the launching thread waiting for a processor",
     "Run fewer busy threads and processes than there are processors: fewer DataLoader workers, "
     "torch.set_num_threads(1) in each; or ask for more processors.",
     add_processors},
    {Cause::kQuota, "cpu_quota", "The process has used up its quota of processor time",
     "with the launching thread stopped until the next period of the quota", kQuotaCure, add_quota},
    {Cause::kPageFault, "page_faults",
     "The GPU waits while memory is read from a disk (page faults)",
     "with the host waiting for pages that were not in memory",
     "Read ahead in a thread or in DataLoader workers, or read the file with read() in large "
     "pieces; keep in memory what is used again (madvise WILLNEED, a copy in RAM).",
     add_faults, [](const ProcessReport& report) { return !swaps(report); }},
    {Cause::kPageFault, "swapping", "The GPU waits while memory is swapped in",
     "with the host waiting for pages that had been swapped out",
     "Use less memory (fewer workers, smaller caches), or ask for more; mlock or MAP_LOCKED for "
     "what each step needs.",
     add_faults, swaps},
};

// What comes now and then: how often, and what is left of the steps without it. A mean, since a
// host that runs ahead pays for many steps in one.
std::string rhythm_text(const Finding& finding, const ProcessReport& report,
                        const std::vector<const IdleRow*>& rows) {
  if (!report.has_steps() || finding.dear_steps == 0 ||
      finding.dear_steps * 2 >= report.steps.size()) {
    return {};
  }
  std::vector<double> own(report.steps.size());
  for (const IdleRow* row : rows) {
    for (const auto& [step, ns] : row->by_step) own[step] += ms(ns);
  }
  std::vector<std::uint32_t> dear;
  for (std::uint32_t i = 0; i < own.size(); ++i) {
    if (own[i] > 0 && own[i] >= kDearOfLongest * finding.ms_of_step.maximum) {
      dear.push_back(report.steps[i].number);
    }
  }
  const std::uint32_t distance = even_distance(dear);
  return fmt::format(
      "{} Without that a step takes {:.2f} ms (mean).",
      distance == 0 ? "" : fmt::format(" Nearly all of it every {} steps.", distance),
      Per(report).ms_of(report.wall_ns - std::min(report.wall_ns, finding.total_ns)));
}

Found of_cause(const ProcessReport& report, const CauseText& text) {
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
  finding.evidence += rhythm_text(finding, report, rows);
  add_doing(finding, report, [&](const GapRow& row) { return row.cause == text.cause; });
  finding.cure = text.cure;
  if (text.add_more != nullptr) text.add_more(finding, report);
  return finding;
}

}  // namespace

std::vector<Finding> cause_findings(const ProcessReport& report) {
  std::vector<Finding> out;
  for (const CauseText& text : kCauseTexts) {
    if (text.applies != nullptr && !text.applies(report)) continue;
    if (Found finding = of_cause(report, text)) out.push_back(std::move(*finding));
  }
  return out;
}

}  // namespace gpubusy::analysis::verdict
