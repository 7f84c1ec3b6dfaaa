// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace/chrome_trace.hpp"

#include "analysis/chrome_trace/envelope.hpp"
#include "analysis/chrome_trace/host_rows.hpp"
#include "analysis/chrome_trace/rows.hpp"
#include "analysis/chrome_trace/sink.hpp"
#include "analysis/chrome_trace/texts.hpp"
#include "analysis/chrome_trace/window.hpp"

namespace gpubusy::analysis {
namespace {

// Kineto's base: all ranks of a job share it whenever they started, and ts stays small enough for a
// double to hold ns.
constexpr std::uint64_t kBaseUnit = 7'889'238ull * 1'000'000'000;

constexpr std::uint32_t kPidShift = 1'000'000'000;

}  // namespace

std::uint64_t unix_time(const recording::Recording& recording, std::uint64_t time_ns) {
  // Unsigned arithmetic: times before the start of the recording come out right as well.
  return recording.start_unix_ns + (time_ns - recording.start_ns);
}

TraceCounts write_trace(const recording::Recording& recording, const Timeline& timeline,
                        const recording::Window& window, NativeNames& names,
                        std::uint64_t max_bytes, const std::string& trace_name, TraceFile& file,
                        Operators* operators) {
  using namespace chrome_trace;
  const TraceWindow shown(recording, timeline, window);
  const std::uint64_t base_ns = unix_time(recording, window.begin_ns) / kBaseUnit * kBaseUnit;
  const std::uint32_t pid =
      recording.pid >= kFirstProcessPid ? recording.pid : recording.pid + kPidShift;
  Texts texts(recording, names);
  Sink sink(file, max_bytes, unix_time(recording, 0) - base_ns);
  Envelope envelope(shown, pid, base_ns, texts, sink);
  envelope.begin();
  envelope.rows_of_names();
  envelope.rows_of_steps();
  Rows rows(shown, pid, operators, texts, sink);
  HostRows host(shown, pid, texts, sink);
  host.write(rows.write());
  TraceCounts counts = rows.counts();
  counts.steps = static_cast<std::uint32_t>(shown.steps.size());
  counts.left_out += host.left_out();
  envelope.end(counts, rows.frames_left_out(), trace_name);
  sink.flush(0);
  return counts;
}

}  // namespace gpubusy::analysis
