// SPDX-License-Identifier: Apache-2.0
#include "analysis/ranks.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

double collective_ms_per_step(const ProcessReport& report) {
  std::uint64_t ns = 0;
  for (const IdleRow& row : report.summary.idle) {
    if (row.cause == Cause::kCollective) ns += row.ns;
  }
  return static_cast<double>(ns) / 1e6 /
         static_cast<double>(std::max<std::size_t>(1, report.steps.size()));
}

// By the steps' numbers, which ranks of one program have in common.
using ByStep = std::map<std::uint32_t, std::uint64_t>;

ByStep collective_ns_by_step(const ProcessReport& report) {
  ByStep out;
  for (const Step& step : report.steps) out[step.number];  // 0: it did not wait
  for (const IdleRow& row : report.summary.idle) {
    if (row.cause != Cause::kCollective) continue;
    for (const auto& [step, ns] : row.by_step) out[report.steps[step].number] += ns;
  }
  return out;
}

// What another rank is late by, and in which steps.
struct Late {
  std::uint64_t ns = 0;
  std::vector<std::uint32_t> steps;
};

// What most of a rank's idle time in these steps is, but for waiting itself: "garbage_collection,
// a.py:3".
std::string idles_for(const ProcessReport& report, const std::vector<std::uint32_t>& steps) {
  std::map<Cause, std::uint64_t> by_cause;
  for (const IdleRow& row : report.summary.idle) {
    if (row.cause == Cause::kNone || row.cause == Cause::kCollective) continue;
    for (const auto& [step, ns] : row.by_step) {
      if (std::binary_search(steps.begin(), steps.end(), report.steps[step].number)) {
        by_cause[row.cause] += ns;
      }
    }
  }
  const auto most =
      std::max_element(by_cause.begin(), by_cause.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == by_cause.end()) return {};
  const std::string id = cause_id(most->first);
  const auto told = std::find_if(report.findings.begin(), report.findings.end(),
                                 [&](const Finding& f) { return f.id == id; });
  return told == report.findings.end() || told->where.empty() ? id : id + ", " + told->where;
}

// Ranks that are late by turns wait as long as each other: only step by step it shows for whom.
void name_late_ones(Finding& finding, const SessionReport& session, const ProcessReport& waiting) {
  std::map<int, Late> late;
  std::map<int, const ProcessReport*> ranks;
  std::vector<std::pair<int, ByStep>> others;
  for (const ProcessReport& process : session.processes) {
    if (process.rank < 0 || process.rank == waiting.rank || !process.has_steps() ||
        !process.has_device_times()) {
      continue;
    }
    ranks[process.rank] = &process;
    others.emplace_back(process.rank, collective_ns_by_step(process));
  }
  const ByStep own = collective_ns_by_step(waiting);
  std::uint64_t total = 0, longest = 0;
  for (const auto& [step, ns] : own) {
    total += ns;
    longest = std::max(longest, ns);
  }
  for (const auto& [step, ns] : own) {
    if (static_cast<double>(ns) < kDearOfLongest * static_cast<double>(longest)) continue;
    const std::pair<int, ByStep>* least = nullptr;
    for (const auto& other : others) {
      if (!other.second.contains(step)) continue;
      if (least == nullptr || other.second.at(step) < least->second.at(step)) least = &other;
    }
    if (least == nullptr) continue;
    const std::uint64_t its = least->second.at(step);
    if (static_cast<double>(its) > kSlowRankRest * static_cast<double>(ns)) continue;
    late[least->first].ns += ns - its;
    late[least->first].steps.push_back(step);
  }
  for (const auto& [rank, what] : late) {
    if (static_cast<double>(what.ns) < kLateRankShare * static_cast<double>(total)) continue;
    const std::string why = idles_for(*ranks[rank], what.steps);
    finding.evidence +=
        fmt::format(" In {} steps rank {} comes last: {:.1f} ms of the waiting are for it{}{}.",
                    what.steps.size(), rank, static_cast<double>(what.ns) / 1e6,
                    why.empty() ? "" : ", which has meanwhile: ", why);
  }
}

void name_slowest(Finding& finding, double waits_ms, const ProcessReport& slowest) {
  finding.id = "slow_rank";
  finding.title = fmt::format("The GPU waits for rank {}, which is slower", slowest.rank);
  finding.evidence += fmt::format(
      " This rank waits {:.2f} ms per step in collectives, rank {} only {:.2f} ms: what is late "
      "there is waited for here.",
      waits_ms, slowest.rank, collective_ms_per_step(slowest));
  const auto own = std::find_if(slowest.findings.begin(), slowest.findings.end(),
                                [](const Finding& f) { return f.problem; });
  if (own != slowest.findings.end()) {
    finding.evidence += fmt::format(" Its own first finding: {} ({:.1f} %){}{}.", own->id,
                                    own->share * 100, own->where.empty() ? "" : ", ", own->where);
  }
  finding.cure =
      fmt::format("Look at rank {}'s verdict: this one cannot be faster than it.", slowest.rank);
}

}  // namespace

void compare_ranks(SessionReport& session) {
  const ProcessReport* slowest = nullptr;  // the one that the others wait for, so it waits least
  for (const ProcessReport& process : session.processes) {
    if (process.rank < 0 || !process.has_steps() || !process.has_device_times()) continue;
    if (slowest == nullptr || collective_ms_per_step(process) < collective_ms_per_step(*slowest)) {
      slowest = &process;
    }
  }
  if (slowest == nullptr) return;
  const double least = collective_ms_per_step(*slowest);
  for (ProcessReport& process : session.processes) {
    if (&process == slowest || process.rank < 0 || process.rank == slowest->rank) continue;
    const double waits = collective_ms_per_step(process);
    if (least > kSlowRankRest * waits) continue;
    for (Finding& finding : process.findings) {
      if (finding.id == "collective_wait") name_slowest(finding, waits, *slowest);
    }
  }
  for (ProcessReport& process : session.processes) {
    if (process.rank < 0) continue;
    for (Finding& finding : process.findings) {
      if (finding.id == "collective_wait") name_late_ones(finding, session, process);
    }
  }
}

}  // namespace gpubusy::analysis
