// SPDX-License-Identifier: Apache-2.0
//
// Half-open time intervals [begin, end) in ns. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace gpubusy::analysis {

struct Interval {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t length() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

// Adds an interval to a sorted disjoint union; intervals must come in order of `begin`. Touching
// intervals become one; empty ones are ignored.
void append_union(std::vector<Interval>& sorted, Interval next);

// The union of two sorted disjoint unions.
std::vector<Interval> united(const std::vector<Interval>& a, const std::vector<Interval>& b);

// ns of [begin, end) that a sorted disjoint union covers. O(log n + covered intervals).
std::uint64_t covered(const std::vector<Interval>& sorted, std::uint64_t begin, std::uint64_t end);

// The parts of [begin, end) that it does not cover, in order.
std::vector<Interval> uncovered(const std::vector<Interval>& sorted, std::uint64_t begin,
                                std::uint64_t end);

}  // namespace gpubusy::analysis
