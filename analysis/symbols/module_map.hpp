// SPDX-License-Identifier: Apache-2.0
//
// Which module lay at an address. Thread-safety: const functions may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

class ModuleMap {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Found {
    std::size_t module = kNone;  // index
    // Another object lay there before. Stacks have no time, and one that is loaded again at its old
    // place is not recorded again: the later of them is the better guess, no more.
    bool doubtful = false;
  };

  explicit ModuleMap(const std::vector<recording::Module>& modules);
  Found at(std::uint64_t address) const;

 private:
  struct Segment {
    std::uint64_t begin;
    Found found;
  };
  std::vector<Segment> segments_;
};

}  // namespace gpubusy::analysis
