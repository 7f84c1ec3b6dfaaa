// SPDX-License-Identifier: Apache-2.0
//
// Is a difference between two series of steps more than chance? Deterministic: the same numbers
// give the same interval. Thread-safe.
#pragma once

#include <vector>

namespace gpubusy::analysis {

enum class Statistic { kMean, kMedian };

double value_of(const std::vector<double>& values, Statistic statistic);

struct Difference {
  double change = 0;          // b's value minus a's
  double low = 0, high = 0;   // its 95 % interval
  bool has_interval = false;  // false: too few steps
  bool beyond_noise() const { return has_interval && (low > 0 || high < 0); }
};

inline constexpr std::size_t kLeastSteps = 5;  // of each series, for an interval

// Of two single runs: steps in the order of time. The interval comes from a circular block
// bootstrap, since steps that follow each other are alike, widened by Student's factor, since few
// steps underrate their spread, and by what blocks so short miss of steps that are alike for
// longer. It knows nothing of what differs between runs.
Difference difference(const std::vector<double>& a, const std::vector<double>& b,
                      Statistic statistic);

// Of several runs on one side at least: one value of each run. Student's interval, with one spread
// of both sides; none where each has one run.
Difference difference_of_runs(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace gpubusy::analysis
