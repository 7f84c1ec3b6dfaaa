// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/noise.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kResamples = 2000;
constexpr double kTail = 0.025;  // on each side of the 95 % interval
constexpr double kNormal = 1.959964;
// Steps that are more alike than this cannot be told from a drift.
constexpr double kMostAlike = 0.97;
// Fewer steps than these do not tell how alike neighbours are: something is assumed then.
constexpr double kStepsThatTell = 10;
constexpr double kAssumedPerStepLess = 0.06;

// A small generator of our own (splitmix64): the standard's distributions differ by library.
class Random {
 public:
  std::size_t below(std::size_t limit) {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<std::size_t>((static_cast<unsigned __int128>(z) * limit) >> 64);
  }

 private:
  std::uint64_t state_ = 20'240'229;
};

std::size_t block_length(std::size_t steps) {
  return static_cast<std::size_t>(std::lround(std::cbrt(static_cast<double>(steps))));
}

// Draws whole runs of neighbours, going round at the end.
void resample(const std::vector<double>& from, Random& random, std::vector<double>& to) {
  const std::size_t n = from.size();
  const std::size_t block = block_length(n);
  to.clear();
  while (to.size() < n) {
    const std::size_t start = random.below(n);
    for (std::size_t i = 0; i < block && to.size() < n; ++i) to.push_back(from[(start + i) % n]);
  }
}

bool is_constant(const std::vector<double>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

// How alike neighbours are, 0 to 1: the correlation of each step with the next, of both series
// together. A short series underrates it (its own mean is taken away): made up for to first order.
double likeness(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0, weight = 0;
  for (const std::vector<double>* series : {&a, &b}) {
    const double mean = value_of(*series, Statistic::kMean);
    double own = 0, next = 0;
    for (std::size_t i = 0; i < series->size(); ++i) {
      const double d = (*series)[i] - mean;
      own += d * d;
      if (i > 0) next += d * ((*series)[i - 1] - mean);
    }
    if (own <= 0) continue;
    // Each by its own spread: else the wilder side would decide alone.
    const auto n = static_cast<double>(series->size());
    sum += n * next / own;
    weight += n;
  }
  if (weight <= 0) return 0;
  const double n = static_cast<double>(a.size() + b.size()) / 2;
  const double assumed = kAssumedPerStepLess * std::max(0.0, kStepsThatTell - n);
  return std::clamp((sum / weight + 1 / n) / (1 - 3 / n), assumed, kMostAlike);
}

// Variance of the mean of `n` steps whose likeness falls by `r` from step to step, over that of
// steps that have nothing to do with each other; of neighbours up to `reach` apart.
double excess_variance(double r, double n, double reach) {
  double sum = 1, power = 1;
  for (double k = 1; k < reach; ++k) {
    power *= r;
    sum += 2 * (1 - k / n) * power;
  }
  return sum;
}

// Student's quantile for 95 %.
double student(double freedom) {
  constexpr double kFew[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  const double most = static_cast<double>(std::size(kFew));
  if (freedom > most) {
    return kNormal + (kNormal * kNormal * kNormal + kNormal) / (4 * freedom) +
           (5 * std::pow(kNormal, 5) + 16 * std::pow(kNormal, 3) + 3 * kNormal) /
               (96 * freedom * freedom);
  }
  const auto index = static_cast<std::size_t>(std::max(1.0, std::floor(freedom))) - 1;
  const double at = kFew[index];
  if (index + 1 == std::size(kFew) || freedom <= 1) return at;
  return at + (kFew[index + 1] - at) * (freedom - std::floor(freedom));
}

// By what the bootstrap's interval is too narrow: Student's quantile over the normal one, the
// spread that a resample lacks, and what its blocks do not know of steps that are alike.
double widening(std::size_t least, double r) {
  const auto n = static_cast<double>(least), block = static_cast<double>(block_length(least));
  const double independent = std::max(4.0, n * (1 - r) / (1 + r));  // steps that would tell as much
  const double missed = excess_variance(r, n, n) / excess_variance(r, block, block);
  return student(independent - 1) / kNormal * std::sqrt(n / (n - 1) * missed);
}

}  // namespace

double value_of(const std::vector<double>& values, Statistic statistic) {
  if (values.empty()) return 0;
  if (statistic == Statistic::kMean) {
    double sum = 0;
    for (const double v : values) sum += v;
    return sum / static_cast<double>(values.size());
  }
  std::vector<double> sorted = values;
  const std::size_t middle = sorted.size() / 2;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(middle),
                   sorted.end());
  const double upper = sorted[middle];
  if (sorted.size() % 2 != 0) return upper;
  return (upper +
          *std::max_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(middle))) /
         2;
}

Difference difference(const std::vector<double>& a, const std::vector<double>& b,
                      Statistic statistic) {
  Difference out;
  out.change = value_of(b, statistic) - value_of(a, statistic);
  const std::size_t least = std::min(a.size(), b.size());
  if (least < kLeastSteps) return out;
  if (is_constant(a) && is_constant(b)) {  // every draw is the same
    out.low = out.high = out.change;
    out.has_interval = true;
    return out;
  }
  Random random;
  std::vector<double> changes, from_a, from_b;
  changes.reserve(kResamples);
  for (std::size_t i = 0; i < kResamples; ++i) {
    resample(a, random, from_a);
    resample(b, random, from_b);
    changes.push_back(value_of(from_b, statistic) - value_of(from_a, statistic));
  }
  std::sort(changes.begin(), changes.end());
  const auto quantile = [&](double share) {
    return changes[static_cast<std::size_t>(share * (kResamples - 1))];
  };
  const double wider = widening(least, likeness(a, b));
  out.low = out.change - wider * std::max(0.0, out.change - quantile(kTail));
  out.high = out.change + wider * std::max(0.0, quantile(1 - kTail) - out.change);
  out.has_interval = true;
  return out;
}

Difference difference_of_runs(const std::vector<double>& a, const std::vector<double>& b) {
  Difference out;
  const double mean_a = value_of(a, Statistic::kMean), mean_b = value_of(b, Statistic::kMean);
  out.change = mean_b - mean_a;
  if (a.empty() || b.empty() || a.size() + b.size() < 3) return out;
  double squares = 0;
  for (const double v : a) squares += (v - mean_a) * (v - mean_a);
  for (const double v : b) squares += (v - mean_b) * (v - mean_b);
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  const double freedom = n + m - 2;
  const double half = student(freedom) * std::sqrt(squares / freedom * (1 / n + 1 / m));
  out.low = out.change - half;
  out.high = out.change + half;
  out.has_interval = true;
  return out;
}

}  // namespace gpubusy::analysis
