// SPDX-License-Identifier: Apache-2.0
//
// How many blocks a multiprocessor holds. Registers are not modelled.
#pragma once

#include <algorithm>
#include <cstddef>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {

inline constexpr int kMaxSharedPerBlock = 232448;

inline int resident_blocks(int block_size, std::size_t shared_bytes) {
  const int threads = std::max(32, (block_size + 31) / 32 * 32);
  int blocks = std::min(32, 2048 / threads);
  if (shared_bytes > 0) {
    // 1 KiB of each block's shared memory is the system's.
    blocks =
        std::min(blocks, static_cast<int>(kSharedPerSm) / static_cast<int>(shared_bytes + 1024));
  }
  return blocks;
}

}  // namespace gpubusy::sim
