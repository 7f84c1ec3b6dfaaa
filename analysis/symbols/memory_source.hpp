// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "recording/byte_source.hpp"

namespace gpubusy::analysis {

// Bytes in memory, of its own.
class MemorySource final : public recording::ByteSource {
 public:
  explicit MemorySource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t offset, void* out, std::size_t size) const override {
    if (offset >= bytes_.size()) return 0;
    const std::size_t count = std::min<std::size_t>(size, bytes_.size() - offset);
    std::memcpy(out, bytes_.data() + offset, count);
    return count;
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace gpubusy::analysis
