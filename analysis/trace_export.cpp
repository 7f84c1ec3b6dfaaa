// SPDX-License-Identifier: Apache-2.0
//
// Which windows become traces, and what the files are called.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "analysis/api.hpp"
#include "analysis/chrome_trace.hpp"
#include "analysis/steps.hpp"
#include "analysis/symbols/recording_names.hpp"
#include "analysis/timeline.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Recording;
using recording::Window;
using recording::WindowKind;

// A host name as part of a file name: letters of any script stay.
std::string file_name_part(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || u >= 0x80;
    out += good ? c : '_';  // dots too: TensorBoard takes what is behind one for a time
  }
  return out.empty() ? "host" : out.substr(0, 64);
}

bool is_directory(const std::string& path, std::string& problem) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    problem = std::generic_category().message(errno);
    return false;
  }
  problem = "is not a directory";
  return S_ISDIR(info.st_mode);
}

std::string directory_of(const std::string& path) {
  std::string ignored;
  if (is_directory(path, ignored)) return path;
  const std::size_t at = path.rfind('/');
  return at == std::string::npos ? "." : path.substr(0, at + 1);
}

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
                   ExportResult& result) {
  const std::string worker = fmt::format("{}_{}", file_name_part(recording.host), recording.pid);
  const std::uint64_t stamp = unix_time(recording, window.end_ns);
  TraceFile file(directory, options.compress);
  const TraceCounts counts = write_trace(recording, timeline, window, names, options.max_bytes,
                                         fmt::format("{}.{}.pt.trace.json", worker, stamp), file);
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
  result.written.push_back(std::move(written));
}

}  // namespace

ExportResult export_traces(const recording::Session& session, const ExportOptions& options) {
  ExportResult result;
  const std::string directory =
      options.directory.empty() ? directory_of(session.path) : options.directory;
  std::string problem;
  if (!is_directory(directory, problem)) {
    result.problems.push_back(
        {fmt::format("{}: {}; expected a directory for the traces", directory, problem)});
    return result;
  }
  bool found = false;
  for (const Recording& recording : session.processes) {
    if (recording.calls.empty()) continue;
    const Timeline timeline = build_timeline(recording);
    RecordingNames names(recording, options.symbols);
    for (const Window& window : windows_or_all(recording)) {
      if (!is_wanted(recording, window, options)) continue;
      found = true;
      export_window(recording, timeline, window, names, directory, options, result);
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
