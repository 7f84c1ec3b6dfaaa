// SPDX-License-Identifier: Apache-2.0
//
// Joins what CUPTI saw with the calls that the hooks saw. CUPTI counts calls in a way of its own; a
// CorrelationRecord says which of its calls is which of ours. A call that no hook saw but that led
// to device work becomes a Call of its own, with kCallUnhooked and without a stack.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::recording {

// CUPTI's correlation id with its epoch.
using ActivityKey = std::uint64_t;
constexpr ActivityKey activity_key(std::uint32_t epoch, std::uint32_t correlation) {
  return ActivityKey{epoch} << 32 | correlation;
}

struct Correlation {
  std::uint32_t call;  // correlation id
  ActivityKey activity;
  std::uint64_t start_ns, end_ns;  // of the call as CUPTI saw it; 0: not known
};

struct ApiActivity {
  std::uint64_t start_ns, end_ns;
  ActivityKey activity;
  std::uint32_t thread;
  std::int32_t result;
  std::uint16_t api;
};

// Fills in device_times, and adds calls, of `recording`, whose activities and calls are complete
// (calls by start_ns, with their categories). Leaves `calls` by start_ns.
void join_activities(Recording& recording, std::vector<Correlation> correlations,
                     std::vector<ApiActivity> api_activities);

// gettid() for a thread as CUPTI names it.
class ThreadNames {
 public:
  explicit ThreadNames(const Recording& recording);
  std::uint32_t find(std::uint32_t thread) const;  // 0: not known

 private:
  std::unordered_map<std::uint32_t, std::uint32_t> ids_;
};

}  // namespace gpubusy::recording
