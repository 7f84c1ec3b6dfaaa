// SPDX-License-Identifier: Apache-2.0
//
// How often `--fail-if 'step_time>5%'` holds for made-up series. Seeds are fixed.
#pragma once

#include "analysis/compare/comparison.hpp"
#include "tests/support/step_series.hpp"

namespace gpubusy::testing {

struct AlarmTrial {
  std::size_t steps = 20;
  std::size_t runs = 1;  // on each side
  double slower = 1;     // the truth: by this factor
  int repeats = 200;
};

// Share of the trials in which the condition holds.
inline double alarm_rate(const StepSeries& series, const AlarmTrial& trial) {
  const std::vector<analysis::Condition> conditions = {*analysis::parse_condition("step_time>5%")};
  Dice dice(20'261'130);
  int alarms = 0;
  const auto side = [&](double factor) {
    std::vector<analysis::MeasuredRun> runs(trial.runs);
    for (analysis::MeasuredRun& run : runs) {
      analysis::MeasuredProcess process;
      process.rank = 0;
      for (const double wall : series.make(dice, trial.steps)) {
        process.steps.push_back({.wall = factor * wall});
      }
      run.processes.push_back(process);
    }
    return runs;
  };
  for (int i = 0; i < trial.repeats; ++i) {
    const auto before = side(1), after = side(trial.slower);
    alarms += analysis::compare(before, after, conditions, false).failed;
  }
  return static_cast<double>(alarms) / trial.repeats;
}

}  // namespace gpubusy::testing
