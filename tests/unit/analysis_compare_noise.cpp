// SPDX-License-Identifier: Apache-2.0
//
// False alarms of `gpubusy compare --fail-if`, and what it finds: bounds of what docs/compare.md
// tells.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/compare_noise.hpp"

namespace gpubusy::analysis {
namespace {

using testing::alarm_rate;
using testing::step_series;
using testing::StepSeries;

// 200 trials: 5 % are 10, and with chance 0.001 19 or more are met.
constexpr double kBound = 0.09;

TEST(CompareAlarms, StepsThatDidNotChangeSeldomRaiseOne) {
  for (const StepSeries& series : step_series()) {
    if (series.between_runs) continue;
    EXPECT_LE(alarm_rate(series, {.steps = 20}), kBound) << series.name;
  }
}

// What varies between runs is known from several alone.
TEST(CompareAlarms, ThreeRunsOfASideKnowWhatRunsDifferBy) {
  for (const StepSeries& series : step_series()) {
    EXPECT_LE(alarm_rate(series, {.steps = 20, .runs = 3}), kBound) << series.name;
    if (series.name.starts_with("runs ")) {
      EXPECT_GE(alarm_rate(series, {.steps = 20}), 0.1) << series.name;
    }
  }
}

TEST(CompareAlarms, StepsThatTakeAFifthLongerRaiseOne) {
  std::map<std::string, StepSeries> by_name;
  for (const StepSeries& series : step_series()) by_name[series.name] = series;
  EXPECT_GE(alarm_rate(by_name.at("normal, 3 %"), {.slower = 1.2}), 0.99);
  EXPECT_GE(alarm_rate(by_name.at("normal, 10 %"), {.slower = 1.2}), 0.95);
  EXPECT_GE(alarm_rate(by_name.at("bimodal, 85 or 115"), {.slower = 1.2}), 0.85);
  EXPECT_GE(alarm_rate(by_name.at("runs differ by 4 %, steps by 3 %"), {.runs = 3, .slower = 1.2}),
            0.9);
}

}  // namespace
}  // namespace gpubusy::analysis
