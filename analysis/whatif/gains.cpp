// SPDX-License-Identifier: Apache-2.0
#include "analysis/whatif/gains.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/whatif/whatif.hpp"

namespace gpubusy::analysis::whatif {
namespace {

constexpr unsigned kMaxSuggestedWorkers = 8;
constexpr std::size_t kMostGains = 5;  // each runs the model three times
constexpr std::size_t kMostLines = 6;  // of one change
constexpr double kLeastOfCost = 0.5, kMostOfCost = 1.25;

bool waits_for_workers(const ProcessReport& report) {
  std::uint64_t waiting = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (row.kind == GapKind::kWorkers || row.cause == Cause::kLoaderQueue) waiting += row.ns;
  }
  return waiting * 2 > report.gaps.seen_ns;
}

// Where the loading process itself waits for a processor, workers would find none either.
bool loads_without_processor(const ProcessReport& report) {
  std::uint64_t loading = 0, waiting = 0;
  for (const GapRow& row : report.gaps.rows) {
    if (row.cause != Cause::kLoading) continue;
    loading += row.ns;
    if (row.kind == GapKind::kNoProcessor) waiting += row.ns;
  }
  return waiting * 4 >= loading && waiting > 0;
}

bool waits_for_ranks(const ProcessReport& report) {
  return std::any_of(report.findings.begin(), report.findings.end(),
                     [](const Finding& f) { return f.id == "collective_wait"; });
}

// The lines that a finding's time was seen to go to; else the one it is told at.
std::string lines_of(const Finding& finding) {
  std::vector<SourceLine> lines = finding.lines;
  if (lines.empty()) lines.push_back(finding.before);
  std::string out;
  std::size_t named = 0;
  for (const SourceLine& line : lines) {
    if (!line.known() || line.line == 0) continue;
    out += fmt::format("{}{}:{}", out.empty() ? "" : ",", source_name(line.file), line.line);
    if (++named == kMostLines) break;
  }
  return out;
}

// Of a step, on average.
double cost_ms(const Finding& finding, const ProcessReport& report) {
  return static_cast<double>(finding.total_ns) / 1e6 /
         static_cast<double>(std::max<std::size_t>(report.steps.size(), 1));
}

// Whether a change takes away the host's time that a finding is about: where it was not seen what
// the host did, the line at its end may have little to do with it.
bool stands_for(const Change& change, const Prediction& prediction, const Finding& finding,
                const ProcessReport& report) {
  if (change.kind != ChangeKind::kHost && change.kind != ChangeKind::kDrop) return true;
  return prediction.host_ms >= kLeastOfCost * cost_ms(finding, report);
}

// Whether a change brings no more than what the finding costs; else it takes away what is told by
// others as well. How far ahead the host runs changes with it, which is allowed for.
bool is_within_cost(const Change& change, const Prediction& prediction, const Finding& finding,
                    const ProcessReport& report, double now_ms) {
  if (change.kind != ChangeKind::kHost && change.kind != ChangeKind::kLaunches) return true;
  return now_ms - prediction.step_ms <= kMostOfCost * cost_ms(finding, report);
}

struct Cure {
  std::string_view finding;
  std::string_view change;  // "{}" are the finding's lines
};
constexpr Cure kCures[] = {
    {"synchronisation", "no-sync:{}"}, {"pageable_copies", "pinned"},
    {"launch_bound", "launches*0.1"},  {"allocation_churn", "alloc*0"},
    {"memory_full", "alloc*0"},        {"pinning_churn", "alloc*0"},
    {"copy_bound", "prefetch"},        {"copies_not_overlapped", "prefetch"},
    {"small_copies", "packed-copies"}, {"checkpoint", "host:{}*0"},
    {"logging", "host:{}*0"},          {"garbage_collection", "host:{}*0"},
    {"worker_restart", "host:{}*0"},   {"evaluation", "drop:{}"},
    {"host_elsewhere", "host:{}*0"},   {"cpu_quota", "quota"},
};

}  // namespace

std::string change_for(const Finding& finding, const ProcessReport& report, unsigned processors) {
  if (finding.id == "data_starvation") {
    const Workers& w = report.workers;
    if (waits_for_workers(report) && w.looks >= kFewestLooks &&
        bottleneck_of(w.doing) == Bottleneck::kQuota) {
      return "quota";
    }
    // How many workers there are already is not known; and a rank that waits for others gains
    // nothing. Nor whether anything but a loader's batches can be prepared ahead.
    if (!report.has_loader || waits_for_workers(report) || waits_for_ranks(report) ||
        loads_without_processor(report)) {
      return {};
    }
    return fmt::format("workers={}", std::clamp(processors, 1u, kMaxSuggestedWorkers));
  }
  for (const Cure& cure : kCures) {
    if (finding.id != cure.finding) continue;
    const std::size_t place = cure.change.find("{}");
    if (place == std::string_view::npos) return std::string(cure.change);
    const std::string lines = lines_of(finding);
    if (lines.empty()) return {};
    return std::string(cure.change.substr(0, place)) + lines +
           std::string(cure.change.substr(place + 2));
  }
  return {};
}

std::vector<Change> standard_changes(const ProcessReport& report, unsigned processors) {
  std::vector<Change> out;
  for (const Finding& finding : report.findings) {
    if (!finding.problem) continue;
    auto change = parse_change(change_for(finding, report, processors));
    if (change && std::none_of(out.begin(), out.end(),
                               [&](const Change& known) { return known.text == change->text; })) {
      out.push_back(std::move(*change));
    }
  }
  return out;
}

void add_gains(Study& study, ProcessReport& report) {
  std::size_t predicted = 0;
  for (Finding& finding : report.findings) {
    if (!finding.problem || predicted == kMostGains) continue;
    const auto change = parse_change(change_for(finding, report, study.processors()));
    if (!change) continue;
    ++predicted;
    const Prediction& row = study.predict(*change);
    if (!row.is_gain(study.step_ms()) || !stands_for(*change, row, finding, report) ||
        !is_within_cost(*change, row, finding, report, study.step_ms())) {
      continue;
    }
    finding.gain = {change->text, row.step_ms, row.low_ms, row.high_ms, study.step_ms()};
  }
}

}  // namespace gpubusy::analysis::whatif
