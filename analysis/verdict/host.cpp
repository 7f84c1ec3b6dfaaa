// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/verdict/evidence.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis::verdict {

Found host_elsewhere(const ProcessReport& report) {
  const auto is_elsewhere = [](const auto& row) {
    return row.cause == Cause::kNone && row.idle == IdleClass::kHostElsewhere && !row.input_copy;
  };
  const auto rows = rows_where(report, is_elsewhere);
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kHostShare) return std::nullopt;
  set_region(finding, rows);
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
      gap_share(report, GapKind::kLock) > 0.5 ? "Another thread holds the lock: let it hold it for "
                                                "less, or take it before or behind the step."
      : gap_share(report, GapKind::kChild) > 0.5 ? "Start the child process earlier and fetch its "
                                                   "result later, or leave it out of the loop."
      : backward_ns * 2 > seen_ns
          ? "Backward launches from threads of autograd's own, and these are slow: launch less "
            "(CUDA graphs, torch.compile), or see what functions of the program's it calls back."
          : "Move that work off the launching thread, or behind the launches of the step.";
  return finding;
}

Found synchronisation(const ProcessReport& report) {
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
  finding.title = "The host waits for the GPU, then the GPU for the host";
  finding.evidence = fmt::format(
      "Idle {} behind waits that let the GPU run dry. The host waits {} times{}, {:.2f} ms in "
      "all.{}",
      cost_text(finding, report), count_text(per.count_of(count)), per.word, per.ms_of(host_ns),
      lines.empty() ? "" : " By line: " + lines + ".");
  finding.cure =
      "Read results less often: keep losses and counts on the GPU (.detach()), call .item(), "
      ".cpu(), print or a Python `if` on a tensor every N steps only; no torch.cuda.synchronize() "
      "in the loop.";
  return finding;
}

Found launch_bound(const ProcessReport& report) {
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
  finding.title = s.median_kernel_ns < s.median_launch_gap_ns
                      ? "Launch-bound: kernels are shorter than what it costs to launch them"
                      : "Launch-bound: the host launches more slowly than the GPU works";
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

Found blocked_calls(const ProcessReport& report) {
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
  finding.title = "The host is held up in CUDA calls that launch nothing";
  finding.evidence = fmt::format("Idle {}", cost_text(finding, report));
  if (!rows.empty() && !rows.front()->call.empty()) {
    finding.evidence += ", most of it in " + rows.front()->call;
  }
  finding.evidence += ".";
  finding.cure = "Make that call once, before the loop.";
  return finding;
}

Found unknown_time(const ProcessReport& report) {
  const auto rows =
      rows_where(report, [](const IdleRow& row) { return row.idle == IdleClass::kUnknown; });
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kUnknownShare) return std::nullopt;
  finding.problem = false;
  finding.title = "Part of the time is unknown";
  finding.evidence = fmt::format(
      "For {} the GPU was either idle or at work whose times were not measured ({} of {} pieces of "
      "device work have no time).",
      cost_text(finding, report), report.coverage.untimed(), report.coverage.expected);
  return finding;
}

// All that can be said without device times.
Found host_outside(const ProcessReport& report) {
  if (report.has_device_times()) return std::nullopt;
  std::vector<const IdleRow*> rows;
  for (const IdleRow& row : report.summary.pauses) rows.push_back(&row);
  Finding finding;
  add_numbers(finding, report, rows);
  if (finding.share < kHostShare) return std::nullopt;
  set_region(finding, rows);
  finding.problem = false;
  finding.title = "The host is outside CUDA for long";
  finding.evidence = fmt::format(
      "{}, {} us or more at a time. Without device times it is not known whether the GPU still had "
      "work then.",
      cost_text(finding, report), kLaunchPauseNs / 1000);
  return finding;
}

}  // namespace gpubusy::analysis::verdict
