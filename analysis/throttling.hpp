// SPDX-License-Identifier: Apache-2.0
//
// When a thread stood still because the control group's quota of processor time was used up
// (docs/host-counters.md). The kernel counts a thread's wait for a processor, the time in which its
// group is throttled among it, and throttled time of the group: a wait in which that rose was the
// quota's. Both are counted when they end, the group's first. CLOCK_MONOTONIC ns.
// Thread-safety: const after construction.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "analysis/intervals.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

// What was counted of a thread from one look to a later one.
struct CountedWait {
  std::uint64_t since_ns, time_ns;
  std::uint64_t run_ns, wait_ns;  // the wait may have begun before `since_ns`
};

class Throttling {
 public:
  explicit Throttling(const recording::Recording& recording);

  // Of a launching thread, by gettid(): disjoint, by time.
  const std::vector<Interval>& of(std::uint32_t thread) const;
  // Of any thread in the group, by what was counted of it, in order of time. Throttled time is
  // summed over processors: it is an upper bound, and explains a thread's waits once.
  std::vector<Interval> stretches(const std::vector<CountedWait>& counted) const;

 private:
  struct Rise {  // of the group's throttled time, at an unknown instant within
    std::uint64_t begin_ns, end_ns, ns;
  };
  std::vector<Rise> rises_;  // by time
  std::map<std::uint32_t, std::vector<Interval>> threads_;
};

}  // namespace gpubusy::analysis
