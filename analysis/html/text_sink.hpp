// SPDX-License-Identifier: Apache-2.0
//
// Text into a descriptor, piece by piece, and bytes as base64 in it. Memory stays small. An error
// stays; what comes behind it is not written. Thread-safety: one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct z_stream_s;

namespace gpubusy::analysis {

class TextSink {
 public:
  explicit TextSink(int descriptor) : descriptor_(descriptor) {}

  void write(std::string_view text);
  bool flush();
  int error() const { return error_; }  // errno of the first failure; 0: none
  std::uint64_t bytes() const { return bytes_; }

 private:
  int descriptor_;
  int error_ = 0;
  std::uint64_t bytes_ = 0;
  std::string buffer_;
};

std::string base64(std::string_view bytes);

// Bytes, in gzip's format or as they are, as base64.
class Base64Stream {
 public:
  Base64Stream(TextSink& sink, bool compress);
  ~Base64Stream();
  Base64Stream(const Base64Stream&) = delete;
  Base64Stream& operator=(const Base64Stream&) = delete;

  // LEB128: seven bits a byte, least first.
  void varint(std::uint64_t value) {
    if (raw_.size() + 10 > kBuffer) drain(false);
    for (; value >= 0x80; value >>= 7) raw_ += static_cast<char>(value | 0x80);
    raw_ += static_cast<char>(value);
  }
  void finish();

 private:
  static constexpr std::size_t kBuffer = 1u << 16;
  void drain(bool last);
  void encode(std::string_view bytes, bool last);

  TextSink& sink_;
  std::unique_ptr<z_stream_s> zip_;  // nullptr: as they are
  std::string raw_, rest_;           // rest_: fewer than three bytes that wait for more
};

}  // namespace gpubusy::analysis
