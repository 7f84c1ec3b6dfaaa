// SPDX-License-Identifier: Apache-2.0
//
// What is told of the ranges that a program names (NVTX, cuDNN, NCCL). Times: ns.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

// All ranges of one name and domain. Ranges that lie in others of their name, or beside them on
// other threads, count for themselves: a share may exceed 1.
struct RangeRow {
  std::string domain;  // "": the default one
  std::string name;
  std::uint64_t count = 0;        // that touch the judged steps
  std::uint64_t total_ns = 0;     // within these
  std::uint64_t gpu_idle_ns = 0;  // … while the device had nothing to do
  std::uint64_t longest_ns = 0;
  std::uint64_t bytes = 0;  // of ranges that tell how many
  double share = 0;         // of the judged steps
};

// Longest in total first. Marks are no ranges.
std::vector<RangeRow> range_rows(const recording::Recording& recording, const Timeline& timeline,
                                 const std::vector<Step>& steps, std::int16_t device);

// The message; a word for ranges without one.
const std::string& range_name(const recording::Recording& recording, const recording::Range& range);
// By id of Recording::range_texts; "" for 0.
const std::string& range_text(const recording::Recording& recording, std::uint32_t id);

// The payload as a JSON value; "" if there is none.
std::string range_payload(const recording::Range& range);

}  // namespace gpubusy::analysis
