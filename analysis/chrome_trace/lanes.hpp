// SPDX-License-Identifier: Apache-2.0
//
// Which of several rows of a viewer a slice goes to. Thread-safety: one thread per object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gpubusy::analysis::chrome_trace {

// Slices on one row must nest or be disjoint, else viewers drop them. Gives each slice of a row its
// lane: 0 where it fits. Slices come by start.
class Lanes {
 public:
  enum class Rule { kNested, kDisjoint };
  explicit Lanes(Rule rule) : rule_(rule) {}

  std::uint32_t place(std::uint64_t start, std::uint64_t end, std::uint32_t first_lane = 0) {
    for (std::uint32_t lane = first_lane;; ++lane) {
      if (lane >= open_.size()) open_.resize(lane + 1);
      std::vector<std::uint64_t>& ends = open_[lane];
      while (!ends.empty() && ends.back() <= start) ends.pop_back();
      const bool fits = ends.empty() || (rule_ == Rule::kNested && end <= ends.back());
      if (!fits) continue;
      ends.push_back(end);
      return lane;
    }
  }
  // Whether a slice that begins no earlier than those before has room on a lane.
  bool fits(std::uint32_t lane, std::uint64_t start, std::uint64_t end) const {
    if (lane >= open_.size()) return true;
    const std::vector<std::uint64_t>& ends = open_[lane];
    const auto over =
        std::find_if(ends.rbegin(), ends.rend(), [start](std::uint64_t e) { return e > start; });
    return over == ends.rend() || (rule_ == Rule::kNested && end <= *over);
  }
  std::uint32_t count() const { return static_cast<std::uint32_t>(open_.size()); }

 private:
  Rule rule_;
  std::vector<std::vector<std::uint64_t>> open_;
};

}  // namespace gpubusy::analysis::chrome_trace
