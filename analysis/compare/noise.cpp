// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/noise.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kResamples = 2000;
constexpr double kTail = 0.025;  // on each side of the 95 % interval
constexpr double kNormal = 1.959964;

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

// Draws whole runs of neighbours, going round at the end.
void resample(const std::vector<double>& from, Random& random, std::vector<double>& to) {
  const std::size_t n = from.size();
  const auto block = static_cast<std::size_t>(std::lround(std::cbrt(static_cast<double>(n))));
  to.clear();
  while (to.size() < n) {
    const std::size_t start = random.below(n);
    for (std::size_t i = 0; i < block && to.size() < n; ++i) to.push_back(from[(start + i) % n]);
  }
}

bool is_constant(const std::vector<double>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

// Student's quantile over the normal one, and the spread that a resample lacks.
double widening(std::size_t least) {
  const double freedom = static_cast<double>(least) - 1;
  const double student = kNormal + (kNormal * kNormal * kNormal + kNormal) / (4 * freedom);
  return student / kNormal * std::sqrt(static_cast<double>(least) / freedom);
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
  const double wider = widening(least);
  out.low = out.change - wider * std::max(0.0, out.change - quantile(kTail));
  out.high = out.change + wider * std::max(0.0, quantile(1 - kTail) - out.change);
  out.has_interval = true;
  return out;
}

}  // namespace gpubusy::analysis
