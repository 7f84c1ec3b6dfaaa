// SPDX-License-Identifier: Apache-2.0
//
// Which windows become traces, and what the files are called.
#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "analysis/api.hpp"
#include "analysis/chrome_trace/chrome_trace.hpp"
#include "analysis/steps.hpp"
#include "analysis/symbols/recording_names.hpp"
#include "analysis/timeline.hpp"
#include "analysis/trace_file.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Recording;
using recording::Window;
using recording::WindowKind;

bool has_calls(const Recording& recording, const Window& window) {
  const auto first = std::partition_point(
      recording.calls.begin(), recording.calls.end(),
      [&](const recording::Call& call) { return call.start_ns < window.begin_ns; });
  return first != recording.calls.end() && first->start_ns <= window.end_ns;
}

bool is_wanted(const Recording& recording, const Window& window, const ExportOptions& options) {
  if (options.window) {
    return window.index >= *options.window &&
           window.index <= options.last_window.value_or(*options.window);
  }
  // The process may have ended just behind the step that opened the window.
  if (window.kind == WindowKind::kScheduled && !window.complete && window.completed_steps == 0 &&
      !has_calls(recording, window)) {
    return false;
  }
  if (window.kind != WindowKind::kPrelude || options.include_prelude) return true;
  for (const Window& other : recording.windows) {
    if (other.kind == WindowKind::kScheduled && other.completed_steps > 0) return false;
  }
  return true;
}

void export_window(const Recording& recording, const Timeline& timeline, const Window& window,
                   NativeNames& names, const std::string& directory, const ExportOptions& options,
                   Operators* operators, ExportResult& result) {
  const std::string worker = worker_name(recording);
  const std::uint64_t stamp = unix_time(recording, window.end_ns);
  TraceFile file(directory, options.compress);
  const TraceCounts counts =
      write_trace(recording, timeline, window, names, options.max_bytes,
                  fmt::format("{}.{}.pt.trace.json", worker, stamp), file, operators);
  const auto path = file.finish([&](unsigned attempt) {
    return fmt::format("{}.{}.pt.trace.json{}", worker, stamp + attempt,
                       options.compress ? ".gz" : "");
  });
  if (!path) {
    result.problems.push_back(path.error());
    return;
  }
  WrittenTrace written;
  written.path = *path;
  written.pid = recording.pid;
  written.rank = recording.rank;
  written.window = window.index;
  written.steps = counts.steps;
  written.events = counts.events;
  written.left_out = counts.left_out;
  written.frames = counts.frames;
  result.written.push_back(std::move(written));
}

}  // namespace

ExportResult export_traces(const recording::Session& session, const ExportOptions& options) {
  ExportResult result;
  const auto place = directory_for(session, options.directory);
  if (!place) {
    result.problems.push_back(place.error());
    return result;
  }
  const std::string& directory = *place;
  bool found = false;
  for (const Recording& recording : session.processes) {
    if (recording.calls.empty()) continue;
    const Timeline timeline = build_timeline(recording);
    RecordingNames names(recording, options.symbols);
    Stacks stacks(recording, &names);
    Operators operators(stacks);
    for (const Window& window : windows_or_all(recording)) {
      if (!is_wanted(recording, window, options)) continue;
      found = true;
      export_window(recording, timeline, window, names, directory, options,
                    options.frames ? &operators : nullptr, result);
    }
    // The traces have the names already, so that a directory that cannot be written is no failure.
    const auto kept = names.keep();
    if (!kept) result.notes.push_back(kept.error().message);
    for (const NameProblem& problem : names.problems()) {
      if (!problem.curable) continue;
      result.notes.push_back(fmt::format("process {}: {}", recording.pid, to_text(problem)));
    }
  }
  if (options.window && !found) {
    const std::uint32_t last = options.last_window.value_or(*options.window);
    result.problems.push_back(
        {fmt::format("{}: has no window {}{} with calls", session.path, *options.window,
                     last == *options.window ? "" : fmt::format("..{}", last))});
  }
  return result;
}

}  // namespace gpubusy::analysis
