// SPDX-License-Identifier: Apache-2.0
//
// When an engine is in use, and by how much. A slot model: an operation needs its share of the
// engine for its whole duration and starts at the first moment from which it can have that. Kernels
// that fill a part of the device thus overlap with each other; full ones run one after another; a
// kernel never slows another one down. Copy engines are used with a share of 1.
#pragma once

#include <cstdint>
#include <deque>

namespace gpubusy::sim {

class Timeline {
 public:
  // Reserves, and returns the start, which is `ready_ns` or later.
  std::uint64_t reserve(std::uint64_t ready_ns, std::uint64_t duration_ns, float share,
                        std::uint64_t now_ns);
  // [from, to) is in full use after all: an operation took longer than was reserved for it.
  void extend(std::uint64_t from_ns, std::uint64_t to_ns);

 private:
  struct Step {
    std::uint64_t time_ns;
    float used;  // from here to the next step
  };
  void forget_before(std::uint64_t time_ns);
  std::size_t step_at(std::uint64_t time_ns);  // makes one there; needs a step at or before
  void use(std::uint64_t from_ns, std::uint64_t to_ns, float share);

  // By time. The last one is always unused; so is the time before the first.
  std::deque<Step> steps_;
};

}  // namespace gpubusy::sim
