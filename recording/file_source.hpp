// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "recording/byte_source.hpp"

namespace gpubusy::recording {

// A regular file, as long as it was when it was opened. Thread-safe.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  int error() const { return error_; }  // errno of the opening
  bool regular() const { return regular_; }
  bool good() const { return error_ == 0 && regular_; }
  // When its bytes or its place last changed, CLOCK_REALTIME ns.
  std::uint64_t written_ns() const { return written_ns_; }
  std::uint64_t changed_ns() const { return changed_ns_; }

  std::uint64_t size() const override { return size_; }
  std::size_t read(std::uint64_t offset, void* out, std::size_t size) const override;

 private:
  int descriptor_ = -1;
  int error_ = 0;
  bool regular_ = false;
  std::uint64_t size_ = 0, written_ns_ = 0, changed_ns_ = 0;
};

}  // namespace gpubusy::recording
