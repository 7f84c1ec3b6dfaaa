// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpubusy::recording {

// Bytes of a file system of this size that recordings leave free: the program may want to write a
// last file of its own.
constexpr std::uint64_t disk_reserve(std::uint64_t total_bytes) noexcept {
  constexpr std::uint64_t kShare = 64, kMost = 256u << 20;
  return total_bytes / kShare < kMost ? total_bytes / kShare : kMost;
}

}  // namespace gpubusy::recording
