// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "launcher/check_ins.hpp"
#include "launcher/child.hpp"
#include "launcher/commands.hpp"
#include "launcher/environment.hpp"
#include "launcher/output_directory.hpp"
#include "launcher/preload_check.hpp"
#include "launcher/terminal.hpp"
#include "recording/check_in.hpp"
#include "recording/format.hpp"

extern char** environ;

namespace gpubusy::launcher {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

int refuse(const std::string& why) {
  say(why + "; the program was not started");
  return kExitRefused;
}

class Fd {
 public:
  ~Fd() {
    if (value >= 0) close(value);
  }
  int value = -1;
};

std::string count(std::size_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

constexpr std::size_t kMostTraceLines = 8;

// A capture range may make a window of each step: many have one line together.
void say_traces(const std::vector<analysis::WrittenTrace>& traces, const std::string& directory) {
  const auto line = [](const std::string& what, std::uint64_t steps, std::uint64_t events,
                       std::uint64_t left_out, const std::string& path) {
    say(fmt::format("{} of {}, {}{}: {}", what, count(steps, "step", "steps"),
                    count(events, "event", "events"),
                    left_out == 0 ? "" : fmt::format(", {} left out for size", left_out), path));
  };
  if (traces.size() > kMostTraceLines) {
    std::uint64_t steps = 0, events = 0, left_out = 0;
    for (const analysis::WrittenTrace& trace : traces) {
      steps += trace.steps;
      events += trace.events;
      left_out += trace.left_out;
    }
    line(fmt::format("{} traces", traces.size()), steps, events, left_out, directory);
    return;
  }
  for (const analysis::WrittenTrace& trace : traces) {
    line("trace", trace.steps, trace.events, trace.left_out, trace.path);
  }
}

// Why there is no recording, as far as it was seen.
std::string why_nothing(const CommandLine& line, const PreloadCheck& check,
                        const CheckIns& check_ins) {
  if (!check_ins.command_loaded && !check.reason.empty()) return check.reason;
  const std::string words = reason_in_words(line.command);
  if (check_ins.processes == 0) {
    if (!words.empty()) return words;
    return fmt::format(
        "'{}' did not load libgpubusy.so, and its file does not show why (a security policy, a "
        "container or a changed LD_PRELOAD may be the cause)",
        line.command[0]);
  }
  const std::string chosen =
      line.config.process_kind == config::ProcessKind::kAll
          ? std::string()
          : fmt::format(" in those that --processes={} chooses", line.config.processes);
  return fmt::format("{} loaded libgpubusy.so and no CUDA call was intercepted{}{}{}",
                     count(check_ins.processes, "process", "processes"), chosen,
                     words.empty() ? "" : "; ", words);
}

struct Run {
  const CommandLine& line;
  const OutputDirectory& output;
  const PreloadCheck& check;
  const CheckIns& check_ins;
  std::uint64_t id;
  int report_fd;
  int html_fd;
};

// Different for every run on any host that may share the directory; not 0.
std::uint64_t new_run_id() {
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof id, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof id) || id == 0) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    id = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) + (static_cast<std::uint64_t>(getpid()) << 40);
  }
  return id;
}

void write_page(const Run& run, const recording::Session& session,
                const analysis::SessionReport& report) {
  if (run.html_fd < 0) return;
  const auto written = analysis::write_html(session, report, {}, run.html_fd);
  if (!written) {
    say(fmt::format("cannot write --html '{}': {}", run.line.html_file, written.error().message));
  } else if (written->left_out != 0) {
    say(fmt::format("{}: {} events left out for size", run.line.html_file, written->left_out));
  } else if (!run.line.quiet) {
    say("page: " + run.line.html_file);
  }
}

void tell(const Run& run) {
  // The directory may hold the recordings of earlier runs, and of other ranks that still run.
  const auto session = analysis::load_session(run.output.path, run.id);
  const std::size_t alive = run.check_ins.alive.size();
  const std::string later =
      alive == 0
          ? std::string()
          : fmt::format(
                "{} of the program still {}: `gpubusy report '{}'` counts what they do from now on",
                count(alive, "process", "processes"), alive == 1 ? "runs" : "run", run.output.path);
  if (access(run.output.path.c_str(), F_OK) != 0) {
    const std::string gone = fmt::format(
        "the output directory '{}' was removed while the program ran, and what was recorded with "
        "it",
        run.output.path);
    say(gone);
    if (run.report_fd >= 0) write_all(run.report_fd, gone + "\n");
    return;
  }
  if (!session || session->processes.empty()) {
    const std::string why = why_nothing(run.line, run.check, run.check_ins);
    say("nothing was recorded: " + why);
    if (session) {
      for (const recording::Error& error : session->skipped) say(error.message);
    }
    if (!later.empty()) say(later);
    if (run.report_fd >= 0) {
      analysis::SessionReport nothing =
          session ? analysis::analyse(*session) : analysis::SessionReport{};
      nothing.path = run.output.path;
      nothing.nothing_recorded = why;
      write_all(run.report_fd, run.line.json ? analysis::render_json(nothing)
                                             : "nothing was recorded: " + why + "\n");
    }
    if (session) write_page(run, *session, analysis::analyse(*session));
    return;
  }

  const analysis::SessionReport report =
      analysis::analyse(*session, {.predictions = run.html_fd >= 0});
  if (run.report_fd >= 0) {
    write_all(run.report_fd,
              run.line.json ? analysis::render_json(report) : analysis::render_text(report, {}));
  }
  if (!run.line.quiet) {
    write_all(STDERR_FILENO, run.line.json && run.report_fd < 0
                                 ? analysis::render_json(report)
                                 : analysis::render_text(report, text_options_for(STDERR_FILENO)));
    say(fmt::format("{} loaded the library, {} recorded: {}",
                    count(run.check_ins.processes, "process", "processes"),
                    session->processes.size(), run.output.path));
    if (!later.empty()) say(later);
  }
  write_page(run, *session, report);  // it takes longer than the verdict, which should not wait
  if (run.line.export_traces) {
    analysis::ExportOptions options;
    options.directory = run.output.path;
    const analysis::ExportResult result = analysis::export_traces(*session, options);
    for (const recording::Error& error : result.problems) say(error.message);
    if (!run.line.quiet) {
      for (const std::string& note : result.notes) say(note);
      say_traces(result.written, run.output.path);
    }
  }
}

}  // namespace

int run_command(const CommandLine& line) {
  const std::string library = find_library();
  if (library.empty() || access(library.c_str(), R_OK) != 0) {
    return refuse(fmt::format("libgpubusy.so is not where this launcher expects it{}",
                              library.empty() ? " (../lib)" : ": " + library));
  }
  struct statvfs library_system {};
  if (statvfs(library.c_str(), &library_system) == 0 && (library_system.f_flag & ST_NOEXEC) != 0) {
    return refuse(fmt::format(
        "'{}' lies on a file system mounted noexec, from where no program can load it", library));
  }
  Fd report, html;
  const struct {
    const char* option;
    const std::string& file;
    Fd& fd;
  } files[] = {{"--report", line.report_file, report}, {"--html", line.html_file, html}};
  for (const auto& [option, file, fd] : files) {
    if (file.empty()) continue;
    fd.value = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd.value < 0) {
      return refuse(fmt::format("cannot write {} '{}': {}", option, file, error_text(errno)));
    }
  }
  const auto output = prepare_output(line.config, line.has_output);
  if (!output) return refuse(output.error());
  const auto undo = [&] { remove_made(*output); };

  const PreloadCheck check = check_preload(line.command, library);
  const std::string check_in_file = make_check_in_file(output->path);
  std::string link;
  std::vector<std::pair<std::string, std::string>> changes = line.variables;
  changes.emplace_back("GPUBUSY_OUTPUT", as_pattern(output->path));
  changes.emplace_back(recording::kCheckInVariable, check_in_file);
  changes.emplace_back(recording::kLauncherVariable, std::to_string(getpid()));
  const std::uint64_t run_id = new_run_id();
  changes.emplace_back(recording::kRunVariable, fmt::format("{:x}", run_id));
  if (check.verdict != PreloadVerdict::kHarmful) {
    std::string named = library;
    if (!is_preload_safe(library)) {
      named = link = make_private_link(library);
      if (link.empty()) {
        unlink(check_in_file.c_str());
        undo();
        return refuse(
            fmt::format("LD_PRELOAD cannot name '{}' (space, colon or $), and no link to it could "
                        "be made in XDG_RUNTIME_DIR, TMPDIR, /tmp or /var/tmp",
                        library));
      }
    }
    changes.emplace_back("LD_PRELOAD", merge_preload(named, getenv("LD_PRELOAD")));
    // Another tool's stays in force; the library says so in its recording.
    const char* nvtx = getenv("NVTX_INJECTION64_PATH");
    if (nvtx == nullptr || nvtx[0] == '\0') changes.emplace_back("NVTX_INJECTION64_PATH", library);
    changes.emplace_back("ASAN_OPTIONS", merge_asan_options(getenv("ASAN_OPTIONS")));
  }

  const ChildResult child = run_child(line.command, change_environment(environ, changes));
  const CheckIns check_ins =
      read_check_ins(check_in_file, static_cast<std::uint32_t>(std::max(child.pid, 0)));
  unlink(check_in_file.c_str());
  // Processes that outlive the command start others with the same LD_PRELOAD.
  if (!link.empty() && check_ins.alive.empty()) remove_private_link(link);
  if (child.exec_error != 0) {
    undo();
    say(fmt::format("cannot run '{}': {}", line.command[0], error_text(child.exec_error)));
    return child.pid < 0                ? kExitRefused
           : child.exec_error == ENOENT ? kExitNotFound
                                        : kExitNotExecutable;
  }

  end_as_child_on_signals(child.status);
  try {
    tell({line, *output, check, check_ins, run_id, report.value, html.value});
  } catch (const std::exception& error) {
    say(fmt::format("no verdict ({}); `gpubusy report '{}'` tries again", error.what(),
                    output->path));
  }
  // Empty: nothing was recorded. A directory that the user named stays.
  if (!output->made.empty() && output->named_by_us && check_ins.alive.empty()) {
    rmdir(output->path.c_str());
  }
  end_as_child(child.status);
}

}  // namespace gpubusy::launcher
