// SPDX-License-Identifier: Apache-2.0
//
// What the calls of the judged steps cost, by whole stack: the one table from which reports by
// line, exports and flame graphs are made, so that all of them add up to the same. Times: ns.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/stacks/stacks.hpp"
#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct Sums {
  std::uint64_t calls = 0;     // all that were recorded
  std::uint64_t launches = 0;  // kernels and graphs
  std::uint64_t copies = 0;    // and memsets
  std::uint64_t syncs = 0;
  std::uint64_t allocations = 0;  // of device memory and pinned host memory
  std::uint64_t allocated_bytes = 0;
  std::uint64_t host_ns = 0;    // inside the calls
  std::uint64_t device_ns = 0;  // length of the work that they asked for, on all devices
  std::uint64_t idle_ns = 0;  // idle time of the judged device that ended with (or was in) the call

  Sums& operator+=(const Sums& other);
  bool operator==(const Sums&) const = default;
};

enum class Weight : std::uint8_t { kDeviceTime, kHostTime, kLaunches, kIdle };
inline constexpr std::array<Weight, 4> kAllWeights = {Weight::kDeviceTime, Weight::kHostTime,
                                                      Weight::kLaunches, Weight::kIdle};
// Adds a call: everything but what the device did.
void count_call(const recording::Call& call, Sums& sums);

// "device-time", "host-time", "launches", "idle".
std::string_view weight_name(Weight weight);
std::uint64_t value_of(const Sums& sums, Weight weight);

struct StackWeights {
  std::vector<Sums> by_stack;  // by StackId; 0: calls without a stack, and idle time of no call
  Sums total;
};

// One process, judged as the verdict judges it.
struct Judged {
  Timeline timeline;
  StepSelection selection;
  std::int16_t device = -1;  // with most work; -1: none
  DeviceSteps times;
};
Judged judge(const recording::Recording& recording);

StackWeights weigh(const recording::Recording& recording, const Judged& judged, Stacks& stacks);

}  // namespace gpubusy::analysis
