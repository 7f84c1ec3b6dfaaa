// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "analysis/api.hpp"
#include "analysis/compare/comparison.hpp"
#include "analysis/report.hpp"
#include "analysis/stacks/stack_report.hpp"
#include "analysis/trace_import/kineto.hpp"
#include "analysis/whatif/whatif.hpp"
#include "launcher/commands.hpp"
#include "launcher/terminal.hpp"

namespace gpubusy::launcher {
namespace {

// Tells what is wrong; nothing where there is no session.
tl::expected<recording::Session, int> load(const std::string& path) {
  auto session = analysis::load_session(path);
  if (!session) {
    say(session.error().message);
    return tl::unexpected(kExitNothing);
  }
  for (const recording::Error& error : session->skipped) say(error.message);
  if (session->processes.empty()) {
    say(fmt::format("no recording in '{}'", path));
    return tl::unexpected(kExitNothing);
  }
  return std::move(*session);
}

bool holds_files_of_runs(const std::filesystem::path& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".gpubusy") || analysis::is_trace_name(name)) return true;
  }
  return false;
}

// A directory without recordings may hold directories of runs; else the path itself.
std::vector<std::string> runs_in(const std::string& path) {
  std::vector<std::string> runs;
  std::error_code error;
  if (std::filesystem::is_directory(path, error) && !holds_files_of_runs(path)) {
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_directory(ignored) && holds_files_of_runs(entry->path())) {
        runs.push_back(entry->path().string());
      }
    }
    std::sort(runs.begin(), runs.end());
  }
  if (runs.empty()) runs.push_back(path);
  return runs;
}

// Recordings, or traces: one run, or several that share a directory.
tl::expected<std::vector<analysis::MeasuredRun>, int> load_runs(const std::string& path) {
  std::vector<analysis::MeasuredRun> runs;
  if (analysis::is_trace_path(path)) {
    auto run = analysis::load_traces(path);
    if (!run) {
      say(run.error().message);
      return tl::unexpected(kExitNothing);
    }
    runs.push_back(std::move(*run));
  } else {
    const auto session = load(path);
    if (!session) return tl::unexpected(session.error());
    runs = analysis::split_by_run(analysis::measured_of(analysis::analyse(*session)));
  }
  std::erase_if(runs, analysis::is_empty);
  if (runs.empty()) {
    say(fmt::format("nothing to compare in '{}': it has no step and no work of a device", path));
    return tl::unexpected(kExitNothing);
  }
  return runs;
}

// All runs of a side.
tl::expected<std::vector<analysis::MeasuredRun>, int> load_side(
    const std::vector<std::string>& paths) {
  std::vector<analysis::MeasuredRun> side;
  for (const std::string& given : paths) {
    for (const std::string& path : runs_in(given)) {
      auto runs = load_runs(path);
      if (!runs) return tl::unexpected(runs.error());
      std::move(runs->begin(), runs->end(), std::back_inserter(side));
    }
  }
  return side;
}

int print(const CommandLine& line, const std::string& text) {
  int fd = STDOUT_FILENO;
  if (!line.report_file.empty()) {
    fd = open(line.report_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  if (fd < 0 || !write_all(fd, text)) {
    say(fmt::format("cannot write {}: {}",
                    line.report_file.empty() ? "the report" : "'" + line.report_file + "'",
                    std::generic_category().message(errno)));
    return kExitNothing;
  }
  return 0;
}

int write_html_file(const CommandLine& line, const recording::Session& session,
                    const analysis::SessionReport& report) {
  const int fd =
      open(line.html_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd < 0) {
    say(fmt::format("cannot write '{}': {}", line.html_file,
                    std::generic_category().message(errno)));
    return kExitNothing;
  }
  analysis::HtmlOptions options;
  options.compress = line.compress;
  const auto written = analysis::write_html(session, report, options, fd);
  // On a network file system only now it may turn out that there is no room.
  const int late = close(fd) != 0 ? errno : 0;
  if (!written || late != 0) {
    say(fmt::format("cannot write '{}': {}", line.html_file,
                    written ? std::generic_category().message(late) : written.error().message));
    return kExitNothing;
  }
  if (written->left_out != 0) {
    say(fmt::format("{}: {} events left out for size", line.html_file, written->left_out));
  }
  return 0;
}

analysis::TextOptions options_for(const CommandLine& line) {
  return line.report_file.empty() ? text_options_for(STDOUT_FILENO) : analysis::TextOptions{};
}

}  // namespace

int report_command(const CommandLine& line) {
  const auto session = load(line.paths[0]);
  if (!session) return session.error();
  if (line.by) {
    analysis::CostTableOptions table;
    table.by = *line.by;
    table.top = line.top;
    table.symbols.directories = line.symbol_directories;
    return print(line, line.json ? analysis::render_tables_json(*session, table)
                                 : analysis::render_tables(*session, table, options_for(line)));
  }
  const analysis::SessionReport report =
      analysis::analyse(*session, {.predictions = !line.html_file.empty()});
  if (!line.html_file.empty()) {
    const int status = write_html_file(line, *session, report);
    // The page has all of it; what was asked for besides is still given.
    if (status != 0 || (!line.json && !line.markdown && line.report_file.empty())) return status;
  }
  return print(line, line.json       ? analysis::render_json(report)
                     : line.markdown ? analysis::render_markdown(report)
                                     : analysis::render_text(report, options_for(line)));
}

int compare_command(const CommandLine& line) {
  std::vector<analysis::Condition> conditions;
  for (const std::string& text : line.conditions) {
    auto condition = analysis::parse_condition(text);
    if (!condition) {
      say(condition.error());
      return kExitRefused;
    }
    conditions.push_back(std::move(*condition));
  }
  const auto before = load_side(line.paths);
  if (!before) return before.error();
  const auto after = load_side(line.after);
  if (!after) return after.error();
  const analysis::Comparison comparison =
      analysis::compare(*before, *after, conditions, line.strict);
  const int printed =
      print(line, line.json       ? analysis::render_json(comparison)
                  : line.markdown ? analysis::render_markdown(comparison)
                                  : analysis::render_text(comparison, options_for(line)));
  if (printed != 0) return printed;
  if (comparison.failed) return kExitWorse;
  return comparison.pairs.empty() ? kExitNothing : 0;
}

int whatif_command(const CommandLine& line) {
  analysis::whatif::Options options;
  options.changes = line.changes;
  options.together = line.together;
  options.processors = line.processors;
  for (const std::string& text : line.changes) {  // before a large recording is read
    const auto change = analysis::whatif::parse_change(text);
    if (!change) {
      say(change.error());
      return kExitRefused;
    }
  }
  const auto session = load(line.paths[0]);
  if (!session) return session.error();
  const auto predictions = analysis::whatif::predict(*session, options);
  if (!predictions) {
    say(predictions.error());
    return kExitRefused;
  }
  const bool any = std::any_of(predictions->begin(), predictions->end(),
                               [](const auto& p) { return p.error.empty(); });
  const int printed =
      print(line, line.json ? analysis::whatif::render_json(*predictions)
                            : analysis::whatif::render_text(*predictions, options_for(line)));
  return printed != 0 || any ? printed : kExitNothing;
}

namespace {

int export_stacks(const CommandLine& line, const recording::Session& session) {
  analysis::StackExportOptions options;
  options.directory = line.export_directory;
  options.format = line.format == ExportFormat::kPprof ? analysis::StackFormat::kPprof
                                                       : analysis::StackFormat::kFolded;
  options.weight = line.weight;
  options.symbols.directories = line.symbol_directories;
  const analysis::StackExportResult result = analysis::export_stacks(session, options);
  for (const recording::Error& error : result.problems) say(error.message);
  std::string paths;
  for (const std::string& path : result.written) paths += path + "\n";
  if (result.written.empty() && result.problems.empty()) {
    say("no step to export: `gpubusy report` tells what was seen");
  }
  const bool written = line.quiet || write_all(STDOUT_FILENO, paths);
  return written && result.problems.empty() && !result.written.empty() ? 0 : kExitNothing;
}

}  // namespace

int export_command(const CommandLine& line) {
  const auto session = load(line.paths[0]);
  if (!session) return session.error();
  if (line.format != ExportFormat::kTrace) return export_stacks(line, *session);
  analysis::ExportOptions options;
  options.directory = line.export_directory;
  options.window = line.window;
  options.last_window = line.last_window;
  options.compress = line.compress;
  options.frames = line.frames;
  options.include_prelude = line.include_prelude;
  options.symbols.directories = line.symbol_directories;
  struct stat info {};
  if (options.directory.empty() && stat(line.paths[0].c_str(), &info) == 0 &&
      S_ISREG(info.st_mode)) {
    const std::size_t slash = line.paths[0].rfind('/');
    options.directory = slash == std::string::npos ? "." : line.paths[0].substr(0, slash + 1);
  }
  const analysis::ExportResult result = analysis::export_traces(*session, options);
  for (const recording::Error& error : result.problems) say(error.message);
  if (!line.quiet) {
    for (const std::string& note : result.notes) say(note);
  }
  std::string paths;
  for (const analysis::WrittenTrace& trace : result.written) {
    paths += trace.path + "\n";
    if (trace.left_out != 0) {
      say(fmt::format("{}: {} events left out for size", trace.path, trace.left_out));
    }
  }
  if (result.written.empty() && result.problems.empty()) {
    say("no window to export: `gpubusy report` tells what was seen");
  }
  const bool written = line.quiet || write_all(STDOUT_FILENO, paths);
  return written && result.problems.empty() && !result.written.empty() ? 0 : kExitNothing;
}

}  // namespace gpubusy::launcher
