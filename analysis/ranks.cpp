// SPDX-License-Identifier: Apache-2.0
#include "analysis/ranks.hpp"

#include <algorithm>
#include <string>

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
}

}  // namespace gpubusy::analysis
