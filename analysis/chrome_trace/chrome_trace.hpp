// SPDX-License-Identifier: Apache-2.0
//
// One window of one process as a Chrome trace in Kineto's dialect (docs/trace.md). Streamed: memory
// does not grow with the trace. Thread-safe for different files.
#pragma once

#include <cstdint>
#include <string>

#include "analysis/stacks/operators.hpp"
#include "analysis/symbols/native_names.hpp"
#include "analysis/timeline.hpp"
#include "analysis/trace_file.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct TraceCounts {
  std::uint32_t steps = 0;
  std::uint64_t events = 0;    // rows of calls, device work and ranges
  std::uint64_t left_out = 0;  // of these, not written because of the limit
  std::uint64_t frames = 0;    // rows of Python functions and operators, besides
};

// `max_bytes`: of JSON text; 0: no limit. At the limit rows are left out from the end of the window
// on, a call always with its device work, and the trace says how many. With `operators` there are
// rows of Python functions and operators (docs/stacks.md). Errors stay in `file`.
TraceCounts write_trace(const recording::Recording& recording, const Timeline& timeline,
                        const recording::Window& window, NativeNames& names,
                        std::uint64_t max_bytes, const std::string& trace_name, TraceFile& file,
                        Operators* operators = nullptr);

// CLOCK_REALTIME ns of a CLOCK_MONOTONIC instant of a recording.
std::uint64_t unix_time(const recording::Recording& recording, std::uint64_t time_ns);

}  // namespace gpubusy::analysis
