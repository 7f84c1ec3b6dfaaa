// SPDX-License-Identifier: Apache-2.0
//
// The passes of a program that marks no steps (inference, a server, an evaluation): those of the
// outermost loop that asks the device for work again and again, told by the Python frames of its
// calls. Times: CLOCK_MONOTONIC ns. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct Passes {
  // Each ends a pass and begins the next, as edges of steps do: right behind the last work or wait
  // of the pass. Of n passes, n + 1; empty: no such loop was found.
  std::vector<std::uint64_t> edges_ns;
  std::uint32_t python_stack =
      0;  // of the first work of a pass, down to the function with the loop
};

// Of one window. The first and the last turn of the loop are left out: where they begin or end is
// not known.
Passes find_passes(const recording::Recording& recording, const recording::Window& window);

}  // namespace gpubusy::analysis
