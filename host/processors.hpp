// SPDX-License-Identifier: Apache-2.0
//
// Processors and memory of the machine. libc only, no allocation, errno may change.
// Thread-safety: pure but for the files.
#pragma once

#include <cstdint>

namespace gpubusy::host {

struct Processors {
  std::uint32_t online = 0;  // 0: not known
  std::uint32_t usable = 0;  // by the calling thread's affinity; 0: not known
};
// `root` stands in front of every path; "" is the real one.
Processors processors(const char* root) noexcept;

// "0-3,8" has five. 0: not such a text.
std::uint32_t count_of_list(const char* text) noexcept;

struct Memory {
  bool known = false;
  std::uint64_t bytes = 0, swap_bytes = 0;
};
Memory memory() noexcept;

}  // namespace gpubusy::host
