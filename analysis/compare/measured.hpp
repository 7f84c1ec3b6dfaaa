// SPDX-License-Identifier: Apache-2.0
//
// What `compare` knows of a run, from recordings or from Chrome traces: values of each judged step.
// Times in ms.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/report.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct MeasuredStep {
  double wall = 0;
  double busy = 0;
  std::array<double, kIdleClasses> idle = {};  // by IdleClass; of recordings only
  std::array<double, kParts> parts = {};       // by Part; of recordings only
  double kernels = 0;
};

struct MeasuredProcess {
  int rank = -1;
  std::uint32_t pid = 0;
  std::string host, command;  // of a trace: the name of its file
  std::string program;        // what of the command says which program it is; empty: not known
  std::string device;         // its name; empty: not known
  std::uint64_t run = 0;      // of the launcher; 0: not known
  bool from_trace = false;
  bool has_times = false;           // of the device
  bool has_classes = false;         // idle time by cause
  std::vector<MeasuredStep> steps;  // empty: no step was seen
  double whole_busy_share = 0;  // without steps: of the time from the first to the last activity
  std::string first_finding;    // of recordings only
};

struct MeasuredRun {
  std::string path;
  std::vector<MeasuredProcess> processes;
};

MeasuredRun measured_of(const SessionReport& report);

// Is there anything that could be compared: a step, or work of the device?
bool is_empty(const MeasuredRun& run);

// A directory may hold several runs of the launcher: each by itself. What no launcher started is
// one.
std::vector<MeasuredRun> split_by_run(MeasuredRun run);

// "train.py" of "/usr/bin/python3 -u src/train.py --lr 1", "bench" of "./bench -n 3".
std::string program_of(const std::string& command);

// A trace by gpubusy or torch.profiler (.json or .json.gz), or a directory of such. ProfilerStep#
// annotations are the steps; rows of category kernel, gpu_memcpy and gpu_memset are the device's
// work, on the device that has most.
tl::expected<MeasuredRun, recording::Error> load_traces(const std::string& path);

// Does the path name traces and no recording?
bool is_trace_path(const std::string& path);

}  // namespace gpubusy::analysis
