// SPDX-License-Identifier: Apache-2.0
//
// What of a recording one window shows, and on which row of a viewer: chosen once, before the first
// row is written. Thread-safety: const when made.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/chrome_trace/lanes.hpp"
#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis::chrome_trace {

// Rows of devices have the device as pid, so a process whose pid is that small (in a container) is
// shown with another.
inline constexpr std::uint32_t kFirstProcessPid = 64;

// Ranges that may end on another thread, or cross others, have rows of their own.
inline constexpr std::uint64_t kRangeRow = 900'000'000;

struct ShownRange {
  std::uint64_t begin_ns, end_ns;  // as far as the window goes
  std::uint32_t index;             // into Recording::ranges
  std::uint32_t lane = 0;          // of start/end ranges
};

struct TraceWindow {
  TraceWindow(const recording::Recording& recording, const Timeline& timeline,
              const recording::Window& window);

  // Lies neither in one step, nor round whole ones.
  bool crosses_step(std::uint32_t thread_id, std::uint64_t begin_ns, std::uint64_t end_ns) const;
  std::uint64_t stream_row(std::uint32_t stream, std::uint32_t lane) const {
    return stream + lane * stream_lane_shift;
  }

  const recording::Recording& recording;
  const Timeline& timeline;
  const recording::Window& window;
  std::uint32_t first = 0, last = 0;  // calls
  std::vector<std::uint32_t> ops;     // of these, by start
  std::uint64_t untimed = 0;          // calls whose device work has no time
  std::vector<Step> steps;
  std::uint32_t step_thread = 0;
  std::map<std::uint32_t, std::uint64_t> launches;  // calls by thread
  std::vector<ShownRange> ranges;                   // in the order of slices
  Lanes start_end{Lanes::Rule::kNested};            // of start/end ranges
  std::map<std::pair<std::int16_t, std::uint32_t>, Lanes> streams;
  std::unordered_map<std::uint32_t, std::uint32_t> op_lanes;  // those that are not 0
  std::set<std::int32_t> devices;
  std::set<recording::TimeSource> sources;
  std::uint64_t stream_lane_shift = 1000;

 private:
  void select();

  // Steps are shown on the thread that ends them; an edge inside one of that thread's calls moves
  // to the end of the call, for rows must not cross.
  void prepare_steps();

  // Ranges of the window, cut at its ends: a range may hold the whole run of a program. A call that
  // began in the window is shown to its end, so a range round it is too.
  void select_ranges();

  void assign_device_lanes();
};

}  // namespace gpubusy::analysis::chrome_trace
