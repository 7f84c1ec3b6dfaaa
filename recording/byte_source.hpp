// SPDX-License-Identifier: Apache-2.0
//
// Where the reader's bytes come from: a file, or memory (fuzzing). A file is read with pread and
// not mapped: a process that still records may shorten its file at any time, and a mapping would
// then kill the reader with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::recording {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Copies up to `size` bytes from `offset`; returns how many there were.
  virtual std::size_t read(std::uint64_t offset, void* out, std::size_t size) const = 0;
};

}  // namespace gpubusy::recording
