// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "recording/byte_source.hpp"

namespace gpubusy::testing {

// Bytes in memory, which must outlive it.
class MemorySource final : public recording::ByteSource {
 public:
  MemorySource(const void* data, std::size_t size)
      : data_(static_cast<const std::byte*>(data)), size_(size) {}
  std::uint64_t size() const override { return size_; }
  std::size_t read(std::uint64_t offset, void* out, std::size_t size) const override {
    if (offset >= size_) return 0;
    const std::size_t count = std::min<std::size_t>(size, size_ - offset);
    std::memcpy(out, data_ + offset, count);
    return count;
  }

 private:
  const std::byte* data_;
  std::size_t size_;
};

}  // namespace gpubusy::testing
