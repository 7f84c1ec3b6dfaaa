// SPDX-License-Identifier: Apache-2.0
//
// Which line of the program something goes back to, if it goes back to several.
// Thread-safety: one thread per object.
#pragma once

#include <cstdint>
#include <map>

#include "analysis/source_lines.hpp"

namespace gpubusy::analysis {

// Adds up weights by stack id; the line with the largest sum is the answer.
class LineVote {
 public:
  void add(std::uint32_t stack, std::uint64_t weight) {
    if (stack != 0) weights_[stack] += weight;
  }
  SourceLine winner(SourceLines& lines) const { return lines.line(winning_line(lines)); }

  // The stack with most weight of those at the winning line; 0: none.
  std::uint32_t winning_stack(SourceLines& lines) const {
    const std::uint32_t line = winning_line(lines);
    std::uint32_t best = 0;
    std::uint64_t most = 0;
    for (const auto& [stack, weight] : weights_) {
      if (lines.id_of(stack) != line || (best != 0 && weight <= most)) continue;
      best = stack;
      most = weight;
    }
    return best;
  }

 private:
  std::uint32_t winning_line(SourceLines& lines) const {
    std::map<std::uint32_t, std::uint64_t> by_line;
    std::uint32_t best = 0;
    std::uint64_t most = 0;
    for (const auto& [stack, weight] : weights_) {
      const std::uint32_t id = lines.id_of(stack);
      if (id == 0) continue;
      const std::uint64_t sum = by_line[id] += weight + 1;
      if (sum > most) {
        most = sum;
        best = id;
      }
    }
    return best;
  }

  std::map<std::uint32_t, std::uint64_t> weights_;
};

}  // namespace gpubusy::analysis
