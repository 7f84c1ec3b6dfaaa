// SPDX-License-Identifier: Apache-2.0
#include "analysis/intervals.hpp"

#include <algorithm>
#include <iterator>

namespace gpubusy::analysis {
namespace {

// The first interval that ends behind `time`.
std::vector<Interval>::const_iterator first_behind(const std::vector<Interval>& sorted,
                                                   std::uint64_t time) {
  return std::partition_point(sorted.begin(), sorted.end(),
                              [time](const Interval& i) { return i.end <= time; });
}

}  // namespace

void append_union(std::vector<Interval>& sorted, Interval next) {
  if (next.end <= next.begin) return;
  if (!sorted.empty() && next.begin <= sorted.back().end) {
    sorted.back().end = std::max(sorted.back().end, next.end);
  } else {
    sorted.push_back(next);
  }
}

std::vector<Interval> united(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> all;
  all.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all),
             [](const Interval& x, const Interval& y) { return x.begin < y.begin; });
  std::vector<Interval> out;
  for (const Interval& interval : all) append_union(out, interval);
  return out;
}

std::uint64_t covered(const std::vector<Interval>& sorted, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t sum = 0;
  for (auto it = first_behind(sorted, begin); it != sorted.end() && it->begin < end; ++it) {
    sum += std::min(it->end, end) - std::max(it->begin, begin);
  }
  return sum;
}

std::vector<Interval> uncovered(const std::vector<Interval>& sorted, std::uint64_t begin,
                                std::uint64_t end) {
  std::vector<Interval> out;
  std::uint64_t at = begin;
  for (auto it = first_behind(sorted, begin); it != sorted.end() && it->begin < end; ++it) {
    if (it->begin > at) out.push_back({at, it->begin});
    at = std::max(at, it->end);
  }
  if (at < end) out.push_back({at, end});
  return out;
}

}  // namespace gpubusy::analysis
