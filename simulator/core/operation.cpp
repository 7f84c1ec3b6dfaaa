// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/operation.hpp"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace gpubusy::sim {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGiveBackBytes = std::size_t{1} << 20;

void fill(std::byte* destination, std::uint32_t value, std::uint8_t element, std::size_t bytes,
          bool gives_back) {
  if (gives_back && value == 0 && bytes >= kGiveBackBytes) {
    // Device memory is private anonymous memory: pages that are given back read as zeros.
    const auto first = reinterpret_cast<std::uintptr_t>(destination);
    const std::uintptr_t begin = (first + kPage - 1) & ~(kPage - 1);
    const std::uintptr_t end = (first + bytes) & ~(kPage - 1);
    if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0) {
      memset(destination, 0, begin - first);
      memset(reinterpret_cast<void*>(end), 0, first + bytes - end);
      return;
    }
  }
  if (element == 1) {
    memset(destination, static_cast<int>(value), bytes);
    return;
  }
  for (std::size_t i = 0; i + element <= bytes; i += element) {
    memcpy(destination + i, &value, element);
  }
}

}  // namespace

void Effect::run() const {
  switch (type) {
    case Type::kNone: return;
    case Type::kCall: function(argument); return;
    case Type::kFill:
      for (std::size_t row = 0; row < height * depth; ++row) {
        fill(destination + row / height * destination_slice + row % height * destination_pitch,
             value, element, width, gives_back);
      }
      return;
    case Type::kCopy:
      for (std::size_t row = 0; row < height * depth; ++row) {
        std::byte* to =
            destination + row / height * destination_slice + row % height * destination_pitch;
        const std::byte* from = source + row / height * source_slice + row % height * source_pitch;
        if (reads_zero) {
          memset(to, 0, width);
        } else {
          memmove(to, from, width);
        }
      }
      if (frees_source) free(const_cast<std::byte*>(source));
      return;
  }
}

}  // namespace gpubusy::sim
