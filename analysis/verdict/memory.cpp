// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "analysis/thresholds.hpp"
#include "analysis/verdict/evidence.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis::verdict {
namespace {

// Whether memory comes and goes all the time.
bool churns(const ProcessReport& report, std::uint64_t allocated, std::uint64_t freed) {
  if (report.has_steps()) return Per(report).count_of(allocated + freed) >= kAllocationsPerStep;
  return allocated >= kFewestChurns &&
         static_cast<double>(freed) >= kFreedOfAllocated * static_cast<double>(allocated);
}

}  // namespace

Found memory_full(const ProcessReport& report) {
  const Allocations& a = report.summary.allocations;
  if (a.retries == 0 || report.share(a.retry_host_ns) < kMemoryFullShare) return std::nullopt;
  // What was given back is asked for again later: where little else is freed, all of it is the
  // cost.
  const bool all = a.retry_frees * 2 >= a.device_frees;
  const std::uint64_t host_ns = all ? a.host_ns : a.retry_host_ns;
  const Per per(report);
  Finding finding;
  finding.title = "The GPU's memory is full: allocations fail and are made again";
  finding.total_ns = all ? a.idle_ns : a.retry_idle_ns;
  finding.share = report.share(finding.total_ns);
  set_line(finding, a.retry_line);
  finding.evidence = fmt::format(
      "{} allocations{} fail and succeed when {} blocks were given back, which waits for the "
      "GPU{}: {:.2f} ms of the host ({:.1f} %), for {:.2f} ms of that the GPU is idle.",
      count_text(per.count_of(a.retries)), per.word, count_text(per.count_of(a.retry_frees)),
      all ? fmt::format("; {} are allocated anew",
                        count_text(per.count_of(a.device_allocs - a.failed)))
          : "",
      per.ms_of(host_ns), percent(report.share(host_ns)), per.ms_of(finding.total_ns));
  finding.cure =
      "Leave some memory free: a smaller batch, activation checkpointing, lower precision, or no "
      "tensors kept beyond the step; constant shapes and "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against memory in pieces that do not fit.";
  return finding;
}

Found allocation_churn(const ProcessReport& report) {
  const Allocations& a = report.summary.allocations;
  const Per per(report);
  const double share = report.share(a.host_ns);
  if (!churns(report, a.device_allocs, a.device_frees)) return std::nullopt;
  if (share < kAllocationShare && a.failed == 0) return std::nullopt;
  // What is given back because memory is full has been said.
  if (a.retry_host_ns * 2 > a.host_ns && memory_full(report)) return std::nullopt;
  Finding finding;
  finding.title = "Memory is allocated and freed in every step";
  if (!report.has_steps()) finding.title = "Allocating and freeing memory takes time";
  finding.total_ns = a.idle_ns;
  finding.share = report.share(a.idle_ns);
  set_line(finding, a.line);
  // What is given back is what has to be allocated anew.
  if (a.free_line.known() && a.free_line != a.line) {
    set_line(finding, a.free_line);
    if (a.line.known()) finding.where += ", " + to_text(a.line);
  }
  finding.evidence = fmt::format(
      "{} cudaMalloc, {} cudaFree{} take {:.2f} ms of the host ({:.1f} %); the GPU is idle for "
      "{:.2f} ms of that.",
      count_text(per.count_of(a.device_allocs)), count_text(per.count_of(a.device_frees)), per.word,
      per.ms_of(a.host_ns), percent(share), per.ms_of(a.idle_ns));
  if (a.failed) finding.evidence += fmt::format(" {} allocations failed.", a.failed);
  finding.cure =
      "Keep memory: no torch.cuda.empty_cache() in the loop, constant shapes, "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.";
  return finding;
}

Found pinning_churn(const ProcessReport& report) {
  const Allocations& a = report.summary.allocations;
  const Per per(report);
  const double share = report.share(a.pinned_host_ns);
  if (!churns(report, a.host_allocs, a.host_frees) || share < kAllocationShare) {
    return std::nullopt;
  }
  Finding finding;
  finding.title = report.has_steps() ? "Host memory is pinned and released in every step"
                                     : "Pinning host memory takes time";
  finding.total_ns = a.pinned_idle_ns;
  finding.share = report.share(a.pinned_idle_ns);
  set_line(finding, a.pinned_line);
  finding.evidence = fmt::format(
      "{} pinnings, {} releases{} take {:.2f} ms of the host ({:.1f} %); the GPU is idle for "
      "{:.2f} ms of that.",
      count_text(per.count_of(a.host_allocs)), count_text(per.count_of(a.host_frees)), per.word,
      per.ms_of(a.pinned_host_ns), percent(share), per.ms_of(a.pinned_idle_ns));
  finding.cure =
      "Pin once: one buffer from before the loop that is used again, or "
      "DataLoader(pin_memory=True), which pins in a thread of its own and keeps the memory.";
  return finding;
}

}  // namespace gpubusy::analysis::verdict
