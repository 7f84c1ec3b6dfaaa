// SPDX-License-Identifier: Apache-2.0
#include "analysis/report.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "analysis/api.hpp"
#include "analysis/causes.hpp"
#include "analysis/looks.hpp"
#include "analysis/names.hpp"
#include "analysis/ranks.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/verdict/verdict.hpp"
#include "analysis/whatif/gains.hpp"
#include "analysis/whatif/whatif.hpp"

namespace gpubusy::analysis {
namespace {

using recording::FileState;
using recording::Recording;

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string device_name_of(const Recording& recording, std::int16_t device) {
  const auto found = recording.devices.find(device);
  return found == recording.devices.end() ? std::string() : found->second.name;
}

// Importing torch.utils.data is no use of it: only what runs for a batch counts.
bool has_loader(const Recording& recording) {
  return std::any_of(recording.codes.begin(), recording.codes.end(), [](const auto& entry) {
    const recording::Code& code = entry.second;
    if (code.file.find("/torch/utils/data/") == std::string::npos) return false;
    const std::string_view function =
        std::string_view(code.name).substr(code.name.rfind('.') + 1);  // npos + 1 is 0
    for (const std::string_view at_work : {"__iter__", "__next__", "_next_data", "_get_data",
                                           "_try_get_data", "fetch", "_pin_memory_loop"}) {
      if (function == at_work) return true;
    }
    return false;
  });
}

// Of the judged steps: what lies outside (warm-up, prelude) does not touch the numbers.
Coverage coverage_of(const Recording& recording, const Timeline& timeline,
                     const std::vector<Step>& steps) {
  Coverage out;
  out.orphan_times = timeline.coverage.orphan_times;
  out.dropped = timeline.coverage.dropped;
  out.early_ops = timeline.coverage.early_ops;
  out.max_uncertainty_ns = timeline.coverage.max_uncertainty_ns;
  for (std::size_t i = 0; i < recording.calls.size(); ++i) {
    if (step_at(steps, recording.calls[i].start_ns) == kNoCall) continue;
    count_call(out, recording.calls[i], timeline.timed[i]);
  }
  return out;
}

// What CUPTI and the driver took beside the program's own work, within the judged steps.
void add_overheads(const Recording& recording, ProcessReport& report) {
  for (const recording::Overhead& o : recording.overheads) {
    std::uint64_t ns = 0;
    for (const Step& step : report.steps) {
      const std::uint64_t begin = std::max(o.start_ns, step.begin_ns);
      const std::uint64_t end = std::min(o.end_ns, step.end_ns);
      if (begin < end) ns += end - begin;
    }
    switch (o.kind) {
      case recording::OverheadKind::kLaunchQueueFull: report.queue_full_ns += ns; break;
      case recording::OverheadKind::kBufferFlush:
      case recording::OverheadKind::kInstrumentation:
      case recording::OverheadKind::kResource:
      case recording::OverheadKind::kBufferRequest: report.cupti_ns += ns; break;
      default:  // the driver's own: compiling and loading code
        report.code_loading_ns += ns;
        break;
    }
  }
}

void choose_device(const Recording& recording, const Timeline& timeline, ProcessReport& report) {
  report.device = busiest_device(timeline, report.steps);
  report.device_name = device_name_of(recording, report.device);
  const auto properties = recording.devices.find(report.device);
  if (properties != recording.devices.end()) {
    report.compute_major = properties->second.properties.compute_major;
  }
  for (const auto& [device, line] : timeline.devices) {
    if (device == report.device) continue;
    report.other_devices.push_back(
        {device, device_name_of(recording, device), report.share(busy_in(line, report.steps))});
  }
}

void add_up(ProcessReport& report) {
  std::vector<double> lengths, shares;
  for (const StepTimes& times : report.times) {
    report.busy_ns += times.busy_ns;
    report.kernel_busy_ns += times.kernel_busy_ns;
    report.earlier_busy_ns += times.earlier_busy_ns;
    for (std::size_t i = 0; i < kIdleClasses; ++i) report.idle_ns[i] += times.idle_ns[i];
    lengths.push_back(static_cast<double>(times.wall_ns) / 1e6);
    if (times.wall_ns > 0) {
      shares.push_back(static_cast<double>(times.busy_ns) / static_cast<double>(times.wall_ns));
    }
  }
  report.step_ms = spread_of(lengths);
  report.busy_share_of_step = spread_of(std::move(shares));
  for (const double length : lengths) {
    report.outlier_steps += length > kOutlierFactor * report.step_ms.median;
  }
}

// Edges are recorded in and out of windows.
void measure_other_steps(const Recording& recording, ProcessReport& report) {
  std::vector<double> lengths;
  for (std::size_t i = 1; i < recording.steps.size(); ++i) {
    const recording::StepEdge &from = recording.steps[i - 1], &to = recording.steps[i];
    const bool judged =
        step_at(report.steps, from.time_ns + (to.time_ns - from.time_ns) / 2) != kNoCall;
    if (judged || to.step != from.step + 1) continue;
    lengths.push_back(static_cast<double>(to.time_ns - from.time_ns) / 1e6);
  }
  report.other_steps = lengths.size();
  report.other_step_ms = spread_of(std::move(lengths));
}

// " in step 7": a step that is too large for the limit is named.
std::string where_it_stopped(const Recording& recording) {
  if (recording.windows.empty()) return {};
  const recording::Window& last = recording.windows.back();
  if (last.complete || last.kind != recording::WindowKind::kScheduled) return {};
  return fmt::format(" in step {}, after {} of {} steps of the window",
                     last.first_step + last.completed_steps, last.completed_steps,
                     last.planned_steps);
}

void warn_about_process(const Recording& recording, ProcessReport& report) {
  auto& out = report.warnings;
  switch (recording.state) {
    case FileState::kOpen:
      out.push_back(
          "The process did not end in an orderly way (killed, crashed, ended by _exit as forked "
          "workers do, or still running): this is what it had written until then.");
      break;
    case FileState::kDiskFull:
      out.push_back("Recording stopped early: no space left for the recording.");
      break;
    case FileState::kBudgetSpent:
      out.push_back(
          fmt::format("Recording stopped early{}: its size limit (GPUBUSY_MAX_SIZE) was reached.",
                      where_it_stopped(recording)));
      break;
    case FileState::kDescriptorLost:
      out.push_back(
          "Recording stopped early: the program closed the recording's descriptor (as daemons do, "
          "which close every descriptor).");
      break;
    case FileState::kWriteFailed:
      out.push_back("Recording stopped early: the file system refused a write.");
      break;
    case FileState::kFileLimit:
      out.push_back(
          "Recording stopped early: the limit for the size of a file (ulimit -f) was reached.");
      break;
    case FileState::kFinished:
    case FileState::kExecuted: break;
  }
  if (report.lost_records > 0) {
    out.push_back(
        fmt::format("{} records were lost: counts and times are too low.", report.lost_records));
  }
  if (report.torn_blocks > 0 || report.bad_records > 0) {
    out.push_back(fmt::format(
        "The recording is damaged: {} blocks cut short, {} bad records, {} bytes unreadable.",
        report.torn_blocks, report.bad_records, report.bad_bytes));
  }
  if (report.unknown_records > 0) {
    out.push_back(fmt::format("{} records are of a kind that this version does not know.",
                              report.unknown_records));
  }
}

// The number of a setting as the recording says it, else its default.
std::uint64_t setting_of(const Recording& recording, std::string_view variable) {
  for (const std::string& setting : recording.settings) {
    if (!setting.starts_with(variable) || setting.size() <= variable.size() ||
        setting[variable.size()] != '=') {
      continue;
    }
    std::uint64_t number = 0;
    const char* first = setting.data() + variable.size() + 1;
    if (std::from_chars(first, setting.data() + setting.size(), number).ec == std::errc()) {
      return number;
    }
  }
  static constexpr struct {
    std::string_view variable;
    std::uint64_t number;
  } kDefaults[] = {
#define OPTION(member, variable, flag, kind, otherwise, ...) DEFAULT_##kind(variable, otherwise)
#define DEFAULT_Count(variable, otherwise) {variable, otherwise},
#define DEFAULT_Size(variable, otherwise)
#define DEFAULT_Switch(variable, otherwise)
#define DEFAULT_Text(variable, otherwise)
#include "config/options.def"
#undef DEFAULT_Text
#undef DEFAULT_Switch
#undef DEFAULT_Size
#undef DEFAULT_Count
#undef OPTION
  };
  for (const auto& d : kDefaults) {
    if (d.variable == variable) return d.number;
  }
  return 0;
}

// Steps until the first window of the schedule ends; 0: the recording does not tell its settings.
std::uint64_t steps_needed(const Recording& recording) {
  if (recording.settings.empty()) return 0;
  const bool waits = setting_of(recording, "GPUBUSY_SKIP_FIRST_WAIT") == 0;
  return setting_of(recording, "GPUBUSY_SKIP_FIRST") +
         (waits ? setting_of(recording, "GPUBUSY_WAIT") : 0) +
         setting_of(recording, "GPUBUSY_WARMUP") + setting_of(recording, "GPUBUSY_ACTIVE");
}

std::string how_to_get_steps(const Recording& recording) {
  if (recording.from_trace) return "A profiler's step() at the end of each step marks them.";
  constexpr std::string_view kStep = "GPUBUSY_STEP=";
  for (const std::string& setting : recording.settings) {
    if (!setting.starts_with(kStep)) continue;
    const std::string step = setting.substr(kStep.size());
    if (step == "none") return "None was asked for (--step none).";
    if (step != "optimizer") return fmt::format("Nothing matched --step {}.", step);
  }
  return "Choose what ends a step with --step.";
}

// From the first to the last call.
std::uint64_t recorded_ns(const Recording& recording) {
  std::uint64_t end = 0;
  for (const recording::Call& call : recording.calls) end = std::max(end, call.end_ns);
  return recording.calls.empty() ? 0 : end - recording.calls.front().start_ns;
}

void warn_about_steps(const Recording& recording, ProcessReport& report) {
  auto& out = report.warnings;
  if (report.has_steps() && report.earlier_busy_ns * 2 > report.wall_ns) {
    out.push_back(
        fmt::format("The host runs far ahead of the GPU: for {:.0f} % of the windows the GPU "
                    "worked on launches from before the recording. The length of a step is the "
                    "host's, not the GPU's; record more steps (--active).",
                    100 * report.share(report.earlier_busy_ns)));
  }
  // Outside steps are those of the same run, in tracking mode: hooks cost next to nothing there.
  // Where the GPU sets the pace, a host that runs ahead has lengths of its own.
  if (report.has_steps() && report.share(report.busy_ns) < kBusyShare &&
      report.other_steps >= kFewestToCompare && report.steps.size() >= kFewestToCompare &&
      report.step_ms.median >= kSlowedBy * report.other_step_ms.median &&
      report.step_ms.median >= kSlowedByMs + report.other_step_ms.median) {
    out.push_back(fmt::format(
        "Recorded steps take {:.1f} times as long as the others ({:.2f} against {:.2f} ms, median "
        "of {}): recording slows what launches much. Shares of host time are too high; fewer "
        "details cost less (--python-stacks off, --device-time off), or the steps differ.",
        report.step_ms.median / report.other_step_ms.median, report.step_ms.median,
        report.other_step_ms.median, report.other_steps));
  }
  if (report.calls == 0) {
    out.push_back(report.reach.driver_loaded && report.steps_seen == 0
                      ? "No CUDA call was intercepted, although libcuda.so.1 was loaded."
                      : "No CUDA call was intercepted: the program made none, or none in a window "
                        "of the schedule or of the capture range.");
    return;
  }
  const std::uint64_t needed = steps_needed(recording);
  const std::string seen_and_needed = fmt::format(
      "{} steps were seen{}", report.steps_seen,
      needed == 0 ? "" : fmt::format(", the first window ends with step {}", needed - 1));
  if (report.mode == StepMode::kWholeSpan) {
    out.push_back(report.steps_seen == 0
                      ? std::string("No step was seen: the numbers are of the whole time from the "
                                    "first to the last device work recorded. ") +
                            how_to_get_steps(recording)
                      : fmt::format("No step lies in a recorded window ({}): the numbers are of "
                                    "the whole time from the first to the last device work "
                                    "recorded. Lower --skip-first, --wait or --warmup.",
                                    seen_and_needed));
  }
  if (report.mode == StepMode::kPasses) {
    out.push_back(fmt::format(
        "No step was seen: taken for steps are {} turns of the loop whose first device work is "
        "asked for at {}, {:.0f} of {:.0f} ms recorded. {}",
        report.steps.size(), to_text(report.pass_line), static_cast<double>(report.wall_ns) / 1e6,
        static_cast<double>(recorded_ns(recording)) / 1e6, how_to_get_steps(recording)));
  }
  if (report.cut_windows > 0 && report.cut_planned_steps == 0) {
    out.push_back(
        fmt::format("{} of {} windows of the capture range were still open when the recording "
                    "ended: the last holds {} whole steps.",
                    report.cut_windows, report.windows, report.cut_steps));
  } else if (report.cut_windows > 0) {
    out.push_back(fmt::format(
        "{} of {} windows ended before their last step: of the last, {} of {} steps were seen.",
        report.cut_windows, report.windows, report.cut_steps, report.cut_planned_steps));
  }
  if (report.warmup_left_out > 0) {
    out.push_back(
        fmt::format("The program ended before a window of the schedule ({}): the steps are of the "
                    "start of the program; the first {} left out as warm-up.",
                    seen_and_needed, report.warmup_left_out));
  }
}

void warn_about_times(ProcessReport& report) {
  auto& out = report.warnings;
  const Coverage& c = report.coverage;
  std::string why;
  const auto add = [&](std::uint64_t n, const char* text) {
    if (n) why += fmt::format("{}{} {}", why.empty() ? "" : ", ", n, text);
  };
  add(c.untimed_capture, "during a graph capture");
  add(c.untimed_limit, "beyond the timer limit");
  add(c.untimed_pending, "not yet collected");
  add(c.untimed_failed, "without a context or refused by the driver");
  add(c.untimed_off, "not asked for");
  const bool off = std::find(report.settings.begin(), report.settings.end(),
                             "GPUBUSY_DEVICE_TIME=off") != report.settings.end();
  if (c.expected > 0 && c.timed == 0) {
    out.push_back(
        fmt::format("No device time was measured (0 of {} pieces of work{}): whether the GPU is "
                    "busy is not known.",
                    c.expected,
                    off           ? "; --device-time is off"
                    : why.empty() ? std::string()
                                  : "; " + why));
  } else if (c.untimed() > 0) {
    out.push_back(fmt::format("{} of {} pieces of device work have no time ({}).", c.untimed(),
                              c.expected, why));
  }
  if (c.orphan_times > 0) {
    out.push_back(fmt::format("{} device times belong to calls that are not in the recording.",
                              c.orphan_times));
  }
  if (c.early_ops > 0) {
    out.push_back(
        fmt::format("{} pieces of device work seem to begin more than {} ms before their launch: "
                    "their times are wrong.",
                    c.early_ops, kMaxClockCorrectionNs / 1'000'000));
  }
}

}  // namespace

ProcessReport verdict_of(const Recording& recording, const Timeline& timeline, ModuleScan* scan) {
  ProcessReport report;
  report.path = recording.path;
  report.host = recording.host;
  report.executable = recording.executable;
  report.command = joined(recording.command_line);
  report.library_version = recording.library_version;
  report.pid = recording.pid;
  report.parent_pid = recording.parent_pid;
  report.rank = recording.rank;
  report.world_size = recording.world_size;
  report.local_rank = recording.local_rank;
  report.run = recording.run;
  report.state = recording.state;
  report.calls = recording.calls.size();
  report.lost_records = recording.lost_records;
  report.torn_blocks = recording.torn_blocks;
  report.unknown_records = recording.unknown_records;
  report.bad_records = recording.bad_records;
  report.bad_bytes = recording.bad_bytes;
  report.steps_seen = recording.steps_seen;
  report.settings = recording.settings;
  report.host_offer = recording.host_offer;
  for (const recording::Notice& notice : recording.notices) {
    // A program may meet the same thing ten thousand times.
    if (std::find(report.notices.begin(), report.notices.end(), notice.text) ==
            report.notices.end() &&
        report.notices.size() < 100) {
      report.notices.push_back(notice.text);
    }
  }

  report.reach = reach_of(recording);
  if (scan != nullptr) scan->add(recording, report.reach);

  StepSelection selection = select_steps(recording, timeline);
  report.mode = selection.mode;
  report.windows = static_cast<std::uint32_t>(selection.windows.size());
  report.cut_windows = selection.cut_windows;
  for (const recording::Window& window : selection.windows) {
    if (window.complete) continue;
    report.cut_steps = window.completed_steps;
    report.cut_planned_steps = window.planned_steps;
  }
  report.warmup_left_out = selection.warmup_left_out;
  report.steps = std::move(selection.steps);
  if (!recording.steps.empty()) report.step_source = recording.steps.front().source;
  for (const Step& step : report.steps) report.wall_ns += step.wall_ns();
  report.coverage = coverage_of(recording, timeline, report.steps);
  for (const DeviceOp& op : timeline.ops) {
    if (step_at(report.steps, recording.calls[op.call].start_ns) == kNoCall) continue;
    ++report.times_by_source[op.source];
  }
  std::uint64_t most = 0;
  for (const auto& [source, count] : report.times_by_source) {
    if (count > most) report.time_source = source;
    most = std::max(most, count);
  }
  choose_device(recording, timeline, report);
  const auto line = timeline.devices.find(report.device);
  if (line != timeline.devices.end()) {
    report.clock_correction_ns = line->second.clock_correction_ns;
  }

  add_overheads(recording, report);
  report.host_counters = count_host(recording, report.steps);
  const std::vector<HostSegment> host = host_segments(recording);
  DeviceSteps device = split_time(recording, timeline, host, report.steps, report.device);
  SourceLines lines(recording);
  report.has_loader = has_loader(recording);
  report.pass_line = lines.of_stack(selection.pass_stack);
  report.host_ns = host_times(host, report.steps);
  const std::vector<IdlePiece> pauses = host_pauses(host, report.steps);
  const Looks looks(recording);
  Causes causes(recording, timeline, report.steps, looks, lines);
  device.pieces = causes.tell(device.pieces, pauses);
  std::vector<IdlePiece> told_pauses = causes.tell(pauses, pauses);
  std::vector<std::uint32_t> row_of_piece;
  report.summary = summarise(recording, timeline, report.steps, device, told_pauses, causes, lines,
                             row_of_piece);
  const std::vector<IdlePiece>& told = report.has_device_times() ? device.pieces : told_pauses;
  const std::vector<Gap> gaps = gaps_of(recording, told, pauses);
  if (report.has_device_times()) {
    report.division = divide(recording, timeline, report.steps, device, gaps, looks, report.summary,
                             row_of_piece, lines);
  }
  report.gaps = find_gaps(recording, told, gaps, looks, lines);
  report.workers =
      find_workers(recording, report.has_device_times() ? device.pieces : pauses, lines);
  report.standstill = standstill_of(recording, lines);
  report.times = std::move(device.steps);
  report.ranges = range_rows(recording, timeline, report.steps, report.device);
  add_up(report);
  measure_other_steps(recording, report);
  warn_about_process(recording, report);
  warn_about_steps(recording, report);
  warn_about_times(report);
  report.findings = find_all(report);
  return report;
}

ProcessReport report_of(const Recording& recording, ModuleScan* scan, bool predictions) {
  const Timeline timeline = build_timeline(recording);
  ProcessReport report = verdict_of(recording, timeline, scan);
  const bool problems = std::any_of(report.findings.begin(), report.findings.end(),
                                    [](const Finding& f) { return f.problem; });
  // A model is dear, and without a cure or a page there is nothing to ask it.
  if (!predictions && (!problems || !report.has_device_times())) return report;
  whatif::Study study(recording, timeline, report.mode, report.steps, whatif::processors_here());
  if (study.possible()) whatif::add_gains(study, report);
  if (predictions) {
    report.predictions = std::make_shared<whatif::Predictions>(study.of_findings(report));
  }
  return report;
}

SessionReport analyse(const recording::Session& session, const AnalysisOptions& options) {
  SessionReport out;
  out.path = session.path;
  for (const recording::Error& error : session.skipped) out.skipped.push_back(error.message);
  ModuleScan scan;
  for (const Recording& recording : session.processes) {
    if (recording.calls.empty()) {
      ++out.helpers;
      if (recording.driver_loaded) {
        out.driver_without_calls.push_back({recording.pid, joined(recording.command_line)});
      }
    } else {
      out.processes.push_back(report_of(recording, &scan, options.predictions));
    }
  }
  if (out.processes.empty()) {
    for (const Recording& recording : session.processes) {
      if (out.silent.size() < 8) out.silent.push_back(report_of(recording, &scan));
    }
  }
  std::stable_sort(out.processes.begin(), out.processes.end(),
                   [](const ProcessReport& a, const ProcessReport& b) {
                     const auto key = [](const ProcessReport& p) {
                       return p.rank < 0 ? std::numeric_limits<int>::max() : p.rank;
                     };
                     return key(a) < key(b);
                   });
  compare_ranks(out);
  tell_standstills(out);
  return out;
}

std::string gain_text(const Gain& gain) {
  const double faster = gain.step_ms > 0 ? gain.now_ms / gain.step_ms : 0;
  return fmt::format(
      "step {:.1f} -> {:.1f} ms ({:.1f} to {:.1f}), {:.2f} times as fast, if {}; predicted",
      gain.now_ms, gain.step_ms, gain.low_ms, gain.high_ms, faster, gain.change);
}

const char* idle_title(IdleClass idle) {
  switch (idle) {
    case IdleClass::kStepStart: return "start of the step";
    case IdleClass::kAfterSync: return "after a synchronisation";
    case IdleClass::kLaunch: return "launching";
    case IdleClass::kBlockedCall: return "blocked in other CUDA calls";
    case IdleClass::kHostElsewhere: return "host elsewhere in mid-step";
    case IdleClass::kQueued: return "work queued, not begun";
    case IdleClass::kUnknown: break;
  }
  return "unknown (work without times)";
}

const char* idle_id(IdleClass idle) {
  switch (idle) {
    case IdleClass::kStepStart: return "step_start";
    case IdleClass::kAfterSync: return "after_sync";
    case IdleClass::kLaunch: return "launch";
    case IdleClass::kBlockedCall: return "blocked_call";
    case IdleClass::kHostElsewhere: return "host_elsewhere";
    case IdleClass::kQueued: return "queued";
    case IdleClass::kUnknown: break;
  }
  return "unknown";
}

}  // namespace gpubusy::analysis
