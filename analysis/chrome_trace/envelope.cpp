// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace/envelope.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "analysis/coverage.hpp"
#include "analysis/json_text.hpp"
#include "analysis/names.hpp"

namespace gpubusy::analysis::chrome_trace {
namespace {

using recording::Call;
using recording::Category;
using recording::Window;

// The program went on, but nothing was recorded any more.
bool stopped_early(recording::FileState state) {
  switch (state) {
    case recording::FileState::kDiskFull:
    case recording::FileState::kBudgetSpent:
    case recording::FileState::kDescriptorLost:
    case recording::FileState::kWriteFailed:
    case recording::FileState::kFileLimit: return true;
    case recording::FileState::kOpen:
    case recording::FileState::kFinished:
    case recording::FileState::kExecuted: break;
  }
  return false;
}

}  // namespace

void Envelope::begin() {
  sink_.text += "{\n\"schemaVersion\": 1,\n\"deviceProperties\": [";
  bool first = true;
  std::uint32_t runtime_version = 0, driver_version = 0;
  for (const std::int32_t id : window_.devices) {
    const auto found = window_.recording.devices.find(id);
    static const recording::Device kUnknown = {"unknown", {}};
    const recording::Device& device =
        found == window_.recording.devices.end() ? kUnknown : found->second;
    const recording::DeviceRecord& p = device.properties;
    runtime_version = std::max(runtime_version, p.runtime_version);
    driver_version = std::max(driver_version, p.driver_version);
    sink_.put("{}\n  {{\"id\": {}, \"name\": ", first ? "" : ",", id);
    append_json_string(sink_.text, device.name);
    sink_.put(
        ", \"totalGlobalMem\": {}, \"computeMajor\": {}, \"computeMinor\": {}, "
        "\"maxThreadsPerBlock\": {}, \"maxThreadsPerMultiprocessor\": {}, \"regsPerBlock\": {}, "
        "\"warpSize\": {}, \"sharedMemPerBlock\": {}, \"numSms\": {}, "
        "\"sharedMemPerMultiprocessor\": {}}}",
        p.total_memory, p.compute_major, p.compute_minor, p.max_threads_per_block,
        p.max_threads_per_sm, p.registers_per_block, p.warp_size, p.shared_per_block, p.sm_count,
        p.shared_per_sm);
    first = false;
  }
  sink_.put(
      "],\n\"cupti_version\": 0,\n\"cuda_runtime_version\": {},\n\"cuda_driver_version\": {},\n",
      runtime_version, driver_version);
  if (window_.recording.rank >= 0) {
    sink_.put(
        "\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}, "
        "\"pg_count\": 0, \"pg_config\": [], \"nccl_version\": \"unknown\"}},\n",
        window_.recording.rank, std::max(window_.recording.world_size, window_.recording.rank + 1));
  }
  sink_.put("\"trace_id\": \"{:08X}{:08X}{:016X}\",\n\"host_name\": ", window_.recording.pid,
            window_.window.index, unix_time(window_.recording, window_.window.begin_ns));
  append_json_string(sink_.text, window_.recording.host);
  sink_.put(",\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": {},\n", base_ns_);
  about();
  sink_.text += "\"traceEvents\": [";
  sink_.flush();
}

void Envelope::about() {
  sink_.put("\"gpubusy\": {{\n  \"version\": ");
  append_json_string(sink_.text, window_.recording.library_version);
  sink_.text += ",\n  \"time source\": ";
  append_json_string(sink_.text, source_text());
  const char* kind = window_.window.kind == recording::WindowKind::kScheduled  ? "scheduled"
                     : window_.window.kind == recording::WindowKind::kPrelude  ? "prelude"
                     : window_.window.kind == recording::WindowKind::kCaptured ? "captured"
                                                                               : "whole run";
  sink_.put(
      ",\n  \"window\": {{\"index\": {}, \"kind\": \"{}\", \"first_step\": {}, "
      "\"planned_steps\": "
      "{}, \"completed_steps\": {}, \"complete\": {}}},\n",
      window_.window.index, kind, window_.window.first_step, window_.window.planned_steps,
      window_.steps.size(), window_.window.complete);
  const recording::StepSource source = window_.recording.steps.empty()
                                           ? recording::StepSource::kNone
                                           : window_.recording.steps.front().source;
  sink_.put("  \"step source\": \"{}\",\n", step_source_name(source));
  sink_.put("  \"calls\": {}, \"device work\": {}, \"device work without time\": {},\n",
            window_.last - window_.first, window_.ops.size(), window_.untimed);
  about_layers();
  sink_.put(
      "  \"lost records\": {}, \"torn blocks\": {}, \"bad records\": {}, \"recording state\": "
      "\"{}\",\n",
      window_.recording.lost_records, window_.recording.torn_blocks, window_.recording.bad_records,
      file_state_name(window_.recording.state));
  sink_.put("  \"process id\": {},\n", window_.recording.pid);
  if (window_.recording.local_rank >= 0)
    sink_.put("  \"local rank\": {},\n", window_.recording.local_rank);
  sink_.put("  \"command\": [");
  for (std::size_t i = 0; i < window_.recording.command_line.size(); ++i) {
    if (i > 0) sink_.text += ", ";
    append_json_string(sink_.text, window_.recording.command_line[i]);
  }
  sink_.text += "],\n  \"settings\": [";
  for (std::size_t i = 0; i < window_.recording.settings.size(); ++i) {
    if (i > 0) sink_.text += ", ";
    append_json_string(sink_.text, window_.recording.settings[i]);
  }
  sink_.text += "],\n  \"notices\": [";
  for (std::size_t i = 0; i < std::min<std::size_t>(window_.recording.notices.size(), 100); ++i) {
    if (i > 0) sink_.text += ", ";
    append_json_string(sink_.text, window_.recording.notices[i].text);
  }
  sink_.text += "],\n  \"long names\": {";
  const char* separator = "";
  const auto name_kernel = [&](std::uint32_t kernel) {
    const std::string* name = texts_.name_kernel(kernel);
    if (name == nullptr) return;
    sink_.put("{}\n    \"{}\": ", separator, kernel);
    append_json_string(sink_.text, *name);
    sink_.flush();
    separator = ",";
  };
  for (std::uint32_t i = window_.first; i < window_.last; ++i) {
    const Call& call = window_.recording.calls[i];
    if (call.category == Category::kLaunch) name_kernel(call.launch.kernel);
  }
  for (const std::uint32_t op : window_.ops) {
    if (window_.timeline.ops[op].kind == OpKind::kKernel) {
      name_kernel(kernel_of(window_.recording, window_.timeline.ops[op]));
    }
  }
  sink_.text += "}\n},\n";
}

void Envelope::about_layers() {
  const Reach reach = reach_of(window_.recording);
  const auto layer = [&](const char* name, const LayerReach& l, const char* end) {
    sink_.put("\"{}\": {{\"calls\": {}", name, l.calls);
    if (reach.known) {
      sink_.put(
          ", \"linked calls\": {}, \"functions by dlsym\": {}, \"functions by dlvsym\": {}, "
          "\"functions by cuGetProcAddress\": {}",
          l.linked_calls, l.by_dlsym, l.by_dlvsym, l.by_proc_address);
    }
    sink_.put("}}{}", end);
  };
  sink_.put("  \"layers\": {{");
  layer("runtime", reach.runtime(), ", ");
  layer("driver", reach.driver(), "},\n");
}

std::string Envelope::source_text() const {
  std::string text;
  for (const recording::TimeSource source : window_.sources) {
    text += (text.empty() ? "" : ", ") + std::string(time_source_name(source));
  }
  return text.empty() ? "none" : text;
}

void Envelope::meta(const char* name, std::uint64_t pid, std::uint64_t tid, const char* key,
                    const std::string& json_value) {
  sink_.begin();
  sink_.put("{{\"ph\": \"M\", \"name\": \"{}\", \"ts\": ", name);
  sink_.append_ts(sink_.text, window_.window.begin_ns);
  sink_.put(", \"pid\": {}, \"tid\": {}, \"args\": {{\"{}\": {}}}}}", pid, tid, key, json_value);
  sink_.flush();
}

void Envelope::rows_of_names() {
  std::string program = window_.recording.command_line.empty()
                            ? window_.recording.executable
                            : window_.recording.command_line.front();
  program = program.substr(program.rfind('/') + 1);
  if (program.empty()) program = "process";
  meta("process_name", pid_, 0, "name", json_string(program));
  meta("process_labels", pid_, 0, "labels", "\"CPU\"");
  meta("process_sort_index", pid_, 0, "sort_index", std::to_string(pid_));
  for (const std::int32_t device : window_.devices) {
    const auto id = static_cast<std::uint64_t>(device);
    meta("process_name", id, 0, "name", json_string(program));
    meta("process_labels", id, 0, "labels", fmt::format("\"GPU {}\"", device));
    meta("process_sort_index", id, 0, "sort_index", std::to_string(5'000'000 + device));
  }
  for (const auto& [thread, calls] : window_.launches) {
    const auto found = window_.recording.threads.find(thread);
    const std::string name = found == window_.recording.threads.end() ? "" : found->second.name;
    meta("thread_name", pid_, thread, "name",
         json_string(fmt::format("thread {} ({})", thread, name.empty() ? program : name)));
    meta("thread_sort_index", pid_, thread, "sort_index", std::to_string(thread));
  }
  for (std::uint32_t lane = 0; lane < window_.start_end.count(); ++lane) {
    meta("thread_name", pid_, kRangeRow + lane, "name",
         lane == 0 ? "\"ranges\"" : json_string(fmt::format("ranges (overlapping, {})", lane)));
    meta("thread_sort_index", pid_, kRangeRow + lane, "sort_index",
         std::to_string(kRangeRow + lane));
  }
  for (const auto& [key, lanes] : window_.streams) {
    const auto& [device, stream] = key;
    for (std::uint32_t lane = 0; lane < lanes.count(); ++lane) {
      const std::uint64_t row = window_.stream_row(stream, lane);
      meta("thread_name", static_cast<std::uint64_t>(device), row, "name",
           json_string(lane == 0 ? fmt::format("stream {} ", stream)
                                 : fmt::format("stream {} (overlapping, {})", stream, lane)));
      meta("thread_sort_index", static_cast<std::uint64_t>(device), row, "sort_index",
           std::to_string(stream * 100 + lane));
    }
  }
}

void Envelope::instant(const std::string& name, std::uint64_t time_ns) {
  sink_.begin();
  sink_.text += "{\"ph\": \"i\", \"s\": \"g\", \"name\": ";
  append_json_string(sink_.text, name);
  sink_.put(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_,
            window_.step_thread ? window_.step_thread : pid_);
  sink_.append_ts(sink_.text, time_ns);
  sink_.text += '}';
}

void Envelope::rows_of_steps() {
  instant("Iteration Start: gpubusy", window_.window.begin_ns);
  for (const Step& step : window_.steps) {
    sink_.begin();
    sink_.put(
        "{{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{}\", \"pid\": "
        "{}, "
        "\"tid\": {}, \"ts\": ",
        step.number, pid_, window_.step_thread);
    sink_.append_ts(sink_.text, step.begin_ns);
    sink_.text += ", \"dur\": ";
    append_microseconds(sink_.text, step.end_ns - step.begin_ns);
    sink_.text += ", \"args\": {}}";
    sink_.flush();
  }
}

void Envelope::end(const TraceCounts& counts, std::uint64_t frames_left_out,
                   const std::string& trace_name) {
  if (counts.left_out > 0) {
    instant(fmt::format("Truncated: {} of {} rows left out from here on", counts.left_out,
                        counts.events),
            sink_.left_out_from_ns);
  }
  const bool stopped = !window_.window.complete && stopped_early(window_.recording.state);
  if (stopped) {
    instant(fmt::format("Truncated: the recording stopped here ({}), {} records lost",
                        file_state_name(window_.recording.state), window_.recording.lost_records),
            window_.first < window_.last ? window_.recording.calls[window_.last - 1].end_ns
                                         : window_.window.end_ns);
  }
  instant("Record Window End", window_.window.end_ns);
  // No brackets behind the events: TensorBoard looks for the last one.
  sink_.put(
      "\n],\n\"truncated\": {},\n\"rows left out\": {},\n\"frame rows\": {},\n"
      "\"frame rows left out\": {},\n\"traceName\": ",
      counts.left_out > 0 || stopped, counts.left_out, counts.frames, frames_left_out);
  std::string name = trace_name;
  for (char& c : name) {
    if (c == '[' || c == ']' || c == '{' || c == '}') c = '_';
  }
  append_json_string(sink_.text, name);
  sink_.text += "\n}\n";
}

}  // namespace gpubusy::analysis::chrome_trace
