// SPDX-License-Identifier: Apache-2.0
//
// What compare needs of Chrome traces: the device's work and the steps. It asks no more of them
// than that, so that traces of any tool will do.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "analysis/compare/measured.hpp"
#include "analysis/intervals.hpp"
#include "analysis/trace_import/kineto.hpp"
#include "analysis/trace_import/trace_events.hpp"

namespace gpubusy::analysis {
namespace {

struct Trace {
  int rank = -1;
  std::uint32_t pid = 0;
  std::vector<Interval> steps;
  struct Work {
    Interval when;
    bool kernel = false;
  };
  std::map<std::string, std::vector<Work>> devices;  // by the rows' process
};

void add(Trace& trace, const TraceEvent& event) {
  const std::string& category = event.category;
  const Interval when{static_cast<std::uint64_t>(event.start_ns),
                      static_cast<std::uint64_t>(event.start_ns + event.length_ns)};
  const bool kernel = category == "kernel";
  if (kernel || category == "gpu_memcpy" || category == "gpu_memset" || category == "memcpy" ||
      category == "memset") {
    trace.devices[event.process].push_back({when, kernel});
  } else if (event.name.starts_with("ProfilerStep#") && category != "gpu_user_annotation") {
    trace.steps.push_back(when);
    trace.pid = static_cast<std::uint32_t>(std::strtoul(event.process.c_str(), nullptr, 10));
  }
}

MeasuredProcess measure(Trace& trace) {
  MeasuredProcess out;
  out.from_trace = true;
  out.rank = trace.rank;
  out.pid = trace.pid;
  std::sort(trace.steps.begin(), trace.steps.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> busy;
  std::vector<std::uint64_t> kernels;
  std::uint64_t most = 0;
  for (auto& [device, work] : trace.devices) {
    std::sort(work.begin(), work.end(), [](const Trace::Work& a, const Trace::Work& b) {
      return a.when.begin < b.when.begin;
    });
    std::vector<Interval> covering;
    std::uint64_t length = 0;
    for (const Trace::Work& w : work) append_union(covering, w.when);
    for (const Interval& i : covering) length += i.length();
    if (length < most) continue;
    most = length;
    busy = std::move(covering);
    kernels.clear();
    for (const Trace::Work& w : work) {
      if (w.kernel) kernels.push_back(w.when.begin);
    }
  }
  out.has_times = !busy.empty();
  if (!busy.empty()) {
    const std::uint64_t whole = busy.back().end - busy.front().begin;
    if (whole > 0) out.whole_busy_share = static_cast<double>(most) / static_cast<double>(whole);
  }
  for (const Interval& s : trace.steps) {
    MeasuredStep step;
    step.wall = static_cast<double>(s.length()) / 1e6;
    step.busy = static_cast<double>(covered(busy, s.begin, s.end)) / 1e6;
    step.kernels = static_cast<double>(std::lower_bound(kernels.begin(), kernels.end(), s.end) -
                                       std::lower_bound(kernels.begin(), kernels.end(), s.begin));
    out.steps.push_back(step);
  }
  return out;
}

tl::expected<MeasuredProcess, recording::Error> load_trace(const std::string& path) {
  Trace trace;
  const auto head = read_trace_events(path, [&](TraceEvent& event) { add(trace, event); });
  if (!head) return tl::unexpected(head.error());
  trace.rank = head->rank;
  MeasuredProcess process = measure(trace);
  process.command = std::filesystem::path(path).filename().string();
  return process;
}

}  // namespace

bool is_trace_path(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return is_trace_name(path);
  bool traces = false;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".gpubusy")) return false;
    traces = traces || is_trace_name(name);
  }
  return traces;
}

tl::expected<MeasuredRun, recording::Error> load_traces(const std::string& path) {
  MeasuredRun run;
  run.path = path;
  std::vector<std::string> files;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      if (is_trace_name(entry->path().filename().string())) {
        files.push_back(entry->path().string());
      }
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  for (const std::string& file : files) {
    auto process = load_trace(file);
    if (!process) return tl::unexpected(std::move(process).error());
    run.processes.push_back(std::move(*process));
  }
  std::stable_sort(run.processes.begin(), run.processes.end(),
                   [](const MeasuredProcess& a, const MeasuredProcess& b) {
                     return static_cast<unsigned>(a.rank) < static_cast<unsigned>(b.rank);
                   });
  return run;
}

}  // namespace gpubusy::analysis
