// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/measured.hpp"

#include <algorithm>
#include <sstream>

#include "analysis/names.hpp"

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
    out.program = program_of(p.command);
    out.device = p.device_name;
    out.run = p.run;
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

bool is_empty(const MeasuredRun& run) {
  return std::none_of(run.processes.begin(), run.processes.end(),
                      [](const MeasuredProcess& p) { return p.has_times || !p.steps.empty(); });
}

std::vector<MeasuredRun> split_by_run(MeasuredRun run) {
  std::vector<MeasuredRun> out;
  for (MeasuredProcess& process : run.processes) {
    const auto its = std::find_if(out.begin(), out.end(), [&](const MeasuredRun& r) {
      return r.processes.front().run == process.run;
    });
    if (its != out.end()) {
      its->processes.push_back(std::move(process));
    } else {
      out.emplace_back().path = run.path;
      out.back().processes.push_back(std::move(process));
    }
  }
  return out;
}

std::string program_of(const std::string& command) {
  std::istringstream words(command);
  std::string word, program;
  words >> program;
  program = file_name(program);
  if (!program.starts_with("python")) return program;
  while (words >> word) {
    if (word == "-m" || word == "-c") {
      words >> word;
      return word;
    }
    // Of the interpreter's options these have a value that may stand apart.
    if (word == "-W" || word == "-X") {
      words >> word;
    } else if (!word.starts_with('-')) {
      return std::string(file_name(word));
    }
  }
  return program;
}

}  // namespace gpubusy::analysis
