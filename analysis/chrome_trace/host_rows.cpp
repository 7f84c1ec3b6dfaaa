// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace/host_rows.hpp"

#include <algorithm>
#include <utility>

#include "analysis/gaps.hpp"
#include "analysis/json_text.hpp"

namespace gpubusy::analysis::chrome_trace {

bool HostRows::rows_of_looks(bool open) {
  for (const recording::GapSample& look : window_.recording.gap_samples) {
    if (look.time_ns < window_.window.begin_ns || look.time_ns > window_.window.end_ns ||
        (look.flags & recording::kGapUnmoved) != 0 || !sink_.good()) {
      continue;
    }
    if (!open) {
      ++left_out_;
      continue;
    }
    sink_.rows.clear();
    sink_.begin_row();
    sink_.rows += "{\"ph\": \"i\", \"s\": \"t\", \"cat\": \"gap\", \"name\": ";
    const GapKind kind = kind_of(look, texts_.lines().frames(look.python_stack, kMaxFrames), {});
    append_json_string(sink_.rows, gap_title(kind));
    sink_.add(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, look.thread_id);
    sink_.append_ts(sink_.rows, look.time_ns);
    sink_.rows += ", \"args\": {\"looked at before (us)\": ";
    append_microseconds(sink_.rows, look.time_ns - look.since_ns);
    if ((look.flags & recording::kGapInSystemCall) != 0) {
      sink_.rows += ", \"system call\": ";
      append_json_string(sink_.rows, system_call_name(look.system_call));
    }
    if (const recording::GilHolder* holder = holder_at(window_.recording, look)) {
      sink_.add(", \"GIL held by thread\": {}, \"at\": ", holder->thread_id);
      append_json_string(
          sink_.rows, to_text(place_of(texts_.lines().frames(holder->python_stack, kMaxFrames))));
    }
    sink_.rows += texts_.python_args(look.python_stack);
    sink_.rows += texts_.native_args(look.native_stack);
    sink_.rows += "}}";
    open = sink_.keep(look.time_ns);
  }
  return open;
}

bool HostRows::counter(
    const char* name, std::uint64_t time_ns,
    std::initializer_list<std::pair<const char*, std::optional<double>>> values) {
  const bool any = std::any_of(values.begin(), values.end(),
                               [](const auto& value) { return value.second.has_value(); });
  if (!any) return true;
  sink_.rows.clear();
  sink_.begin_row();
  sink_.add("{{\"ph\": \"C\", \"name\": \"{}\", \"pid\": {}, \"tid\": 0, \"ts\": ", name, pid_);
  sink_.append_ts(sink_.rows, time_ns);
  sink_.rows += ", \"args\": {";
  const char* comma = "";
  for (const auto& [key, value] : values) {
    if (!value) continue;
    sink_.add("{}\"{}\": ", comma, key);
    append_number(sink_.rows, *value);
    comma = ", ";
  }
  sink_.rows += "}}";
  return sink_.keep(time_ns);
}

void HostRows::rows_of_host(bool open) {
  using recording::HostCounter;
  const recording::HostCounts* before = nullptr;
  for (const recording::HostCounts& counts : window_.recording.host_counts) {
    if (counts.moment != recording::HostMoment::kHelper) continue;
    const recording::HostCounts* const from = std::exchange(before, &counts);
    if (from == nullptr || from->thread_id != counts.thread_id || from->time_ns >= counts.time_ns ||
        counts.time_ns < window_.window.begin_ns || from->time_ns > window_.window.end_ns ||
        !sink_.good()) {
      continue;
    }
    if (!open) {
      ++left_out_;
      continue;
    }
    const auto ns = static_cast<double>(counts.time_ns - from->time_ns);
    const auto rate = [&](HostCounter c, double scale) -> std::optional<double> {
      const auto a = from->at(c), b = counts.at(c);
      if (!a || !b || *b < *a) return std::nullopt;
      return static_cast<double>(*b - *a) / ns * scale;
    };
    const std::uint64_t time = std::max(from->time_ns, window_.window.begin_ns);
    constexpr double kSecond = 1e9, kPercent = 100;
    open = counter("host: processors in use", time,
                   {{"user", rate(HostCounter::kUserNs, 1)},
                    {"system", rate(HostCounter::kSystemNs, 1)}}) &&
           counter("host: page faults per s", time,
                   {{"major", rate(HostCounter::kMajorFaults, kSecond)},
                    {"minor", rate(HostCounter::kMinorFaults, kSecond)}}) &&
           counter("host: context switches per s", time,
                   {{"voluntary", rate(HostCounter::kVoluntarySwitches, kSecond)},
                    {"involuntary", rate(HostCounter::kInvoluntarySwitches, kSecond)}}) &&
           counter("host: processors throttled", time,
                   {{"throttled", rate(HostCounter::kThrottledNs, 1)}}) &&
           counter("host: pressure (%)", time,
                   {{"cpu", rate(HostCounter::kCpuSomeNs, kPercent)},
                    {"io", rate(HostCounter::kIoSomeNs, kPercent)},
                    {"memory", rate(HostCounter::kMemorySomeNs, kPercent)}}) &&
           counter("host: pages swapped per s", time,
                   {{"in", rate(HostCounter::kSwapInPages, kSecond)},
                    {"out", rate(HostCounter::kSwapOutPages, kSecond)}});
  }
}

}  // namespace gpubusy::analysis::chrome_trace
