// SPDX-License-Identifier: Apache-2.0
#include "analysis/verdict/verdict.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "analysis/thresholds.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis {
namespace {

struct Rule {
  const char* id;
  bool needs_device_times;
  verdict::Found (*find)(const ProcessReport&);
};
constexpr Rule kRules[] = {
    {"worker_restart", true, verdict::worker_restart},
    {"data_starvation", true, verdict::data_starvation},
    {"synchronisation", true, verdict::synchronisation},
    {"pageable_copies", true, verdict::pageable_copies},
    {"launch_bound", true, verdict::launch_bound},
    {"small_copies", true, verdict::small_copies},
    {"memory_full", true, verdict::memory_full},
    {"allocation_churn", true, verdict::allocation_churn},
    {"pinning_churn", true, verdict::pinning_churn},
    {"blocked_calls", true, verdict::blocked_calls},
    {"host_elsewhere", true, verdict::host_elsewhere},
    {"copy_bound", true, verdict::copy_bound},
    {"offloading", true, verdict::offloading},
    {"copies_not_overlapped", true, verdict::copies_not_overlapped},
    {"device_copies", true, verdict::device_copies},
    {"serial_streams", true, verdict::serial_streams},
    {"gpu_busy", true, verdict::gpu_busy},
    {"amp", true, verdict::single_precision},
    {"unknown", true, verdict::unknown_time},
    {"host_outside", false, verdict::host_outside},
};

}  // namespace

std::vector<Finding> find_all(const ProcessReport& report) {
  if (report.wall_ns == 0) return {};
  std::vector<Finding> found;
  if (report.has_device_times()) found = verdict::cause_findings(report);
  for (const Rule& rule : kRules) {
    if (rule.needs_device_times && !report.has_device_times()) continue;
    verdict::Found finding = rule.find(report);
    if (!finding) continue;
    finding->id = rule.id;
    found.push_back(std::move(*finding));
  }
  std::erase_if(found, [](const Finding& f) { return f.problem && f.share < kLeastShare; });
  std::stable_sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) {
    return std::pair(a.problem, a.total_ns) > std::pair(b.problem, b.total_ns);
  });
  return found;
}

}  // namespace gpubusy::analysis
