// SPDX-License-Identifier: Apache-2.0
//
// What the host did to the process in the judged steps, as the kernel counted it
// (docs/host-counters.md): processor time, faults, switches, throttling, memory, pressure, swap.
// What could not be counted is not known, never 0. ns, bytes. Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/intervals.hpp"
#include "analysis/steps.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

// Of a process or a thread.
struct HostUse {
  std::optional<std::uint64_t> user_ns, system_ns;
  std::optional<std::uint64_t> minor_faults, major_faults;
  std::optional<std::uint64_t> voluntary_switches, involuntary_switches;

  bool known() const { return user_ns.has_value(); }
  void add(const HostUse& other);  // what one of them does not know is not known
};

// Counted from one edge to the next; edges of the optimizer are met at the first CUDA call behind
// them, so that what is done between two steps is counted for the one that ended.
struct HostStep {
  HostUse process;
  HostUse thread;  // that makes the edges; not known where another made the one before
};

// By the helper thread, within the judged steps.
struct HostBeside {
  std::uint64_t ns = 0;  // of these, between two samples
  std::optional<std::uint64_t> quota_periods, throttled_periods, throttled_ns;
  std::optional<std::uint64_t> memory_high, memory_max, memory_oom_kills;
  std::optional<std::uint64_t> cpu_some_ns, cpu_full_ns, io_some_ns, io_full_ns, memory_some_ns,
      memory_full_ns;
  std::optional<std::uint64_t> swap_in_pages, swap_out_pages;
  std::optional<std::uint64_t> swapped_bytes;  // the most of the process at a time
  HostUse process;
};

struct HostReport {
  std::vector<HostStep> steps;      // as the judged ones
  std::uint64_t counted_steps = 0;  // of these with numbers of the process
  HostUse process, thread;          // summed over them
  std::uint64_t samples = 0;        // of the helper thread, in the whole recording
  HostBeside beside;
  // By HostTopic: where numbers come from, or why there are none.
  std::array<recording::HostSource, recording::kHostTopics> sources{};
};

HostReport count_host(const recording::Recording& recording, const std::vector<Step>& steps);

}  // namespace gpubusy::analysis
