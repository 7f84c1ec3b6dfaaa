// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/measured.hpp"

namespace gpubusy::analysis {

MeasuredRun measured_of(const SessionReport& report) {
  MeasuredRun run;
  run.path = report.path;
  for (const ProcessReport& p : report.processes) {
    MeasuredProcess out;
    out.rank = p.rank;
    out.pid = p.pid;
    out.host = p.host;
    out.command = p.command;
    out.has_times = out.has_classes = p.has_device_times();
    out.whole_busy_share = p.share(p.busy_ns);
    if (!p.findings.empty()) out.first_finding = p.findings.front().id;
    if (p.has_steps()) {
      for (std::size_t s = 0; s < p.times.size(); ++s) {
        const StepTimes& times = p.times[s];
        MeasuredStep step;
        step.wall = static_cast<double>(times.wall_ns) / 1e6;
        step.busy = static_cast<double>(times.busy_ns) / 1e6;
        for (std::size_t i = 0; i < kIdleClasses; ++i) {
          step.idle[i] = static_cast<double>(times.idle_ns[i]) / 1e6;
        }
        for (std::size_t i = 0; p.division.known() && i < kParts; ++i) {
          step.parts[i] = static_cast<double>(p.division.steps[s].ns[i]) / 1e6;
        }
        step.kernels = static_cast<double>(times.kernels);
        out.steps.push_back(step);
      }
    }
    run.processes.push_back(std::move(out));
  }
  return run;
}

}  // namespace gpubusy::analysis
