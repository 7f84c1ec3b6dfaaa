// SPDX-License-Identifier: Apache-2.0
//
// What tests of reports share: short ways to write a recording's calls, and to ask for findings.
#pragma once

#include <gtest/gtest.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/report.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::testing {

inline constexpr const char* kScript = "/home/u/train.py";
inline constexpr std::uint64_t kUs = 1'000, kMs = 1'000'000;  // ns

inline std::vector<std::string> ids(const analysis::ProcessReport& report) {
  std::vector<std::string> out;
  for (const analysis::Finding& f : report.findings) out.push_back(f.id);
  return out;
}

// Fails the test where there is none.
inline const analysis::Finding& finding(const analysis::ProcessReport& report,
                                        std::string_view id) {
  for (const analysis::Finding& f : report.findings) {
    if (f.id == id) return f;
  }
  ADD_FAILURE() << "no finding " << id;
  static const analysis::Finding kNone;
  return kNone;
}

// A call with that Python stack.
inline CallOptions at(std::uint32_t stack) {
  CallOptions o;
  o.python_stack = stack;
  return o;
}

// A kernel that is launched in 5 us at `call` and runs from `start` to `end`.
inline void work(RecordingBuilder& b, std::uint64_t call, std::uint64_t start, std::uint64_t end,
                 std::uint32_t kernel, CallOptions o = {}) {
  b.device_time(b.launch(call, call + 5 * kUs, kernel, o), start, end, o);
}

}  // namespace gpubusy::testing
