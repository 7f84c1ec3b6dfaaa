// SPDX-License-Identifier: Apache-2.0
//
// Small text files of the kernel, read without libc's help: system calls only, so that it also runs
// in a thread that libc does not know, and in a hook. No allocation; errno may change.
// Thread-safety: all functions are pure but for the files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::host {

// A path in pieces, cut where it is too long (is_whole() tells).
class Path {
 public:
  static constexpr std::size_t kMax = 1024;
  Path& add(const char* text) noexcept;
  Path& add(const char* text, std::size_t size) noexcept;
  void cut_to(std::size_t size) noexcept;
  const char* text() const noexcept { return text_; }
  std::size_t size() const noexcept { return size_; }
  bool is_whole() const noexcept { return whole_; }

 private:
  char text_[kMax] = "";
  std::size_t size_ = 0;
  bool whole_ = true;
};

// Up to size - 1 bytes and a '\0' behind. How many bytes, or an errno value below zero; the text is
// empty then.
long read_text(const Path& path, char* text, std::size_t size) noexcept;
// The same of a file that is open, from its begin.
long read_text(int file, char* text, std::size_t size) noexcept;
int open_text(const Path& path) noexcept;  // a descriptor, or an errno value below zero

// The rest of the first line that begins with `name`, cut to size - 1 bytes, however long the lines
// before it are. False: there is none, or the file cannot be read; the value is empty then.
bool read_field(const Path& path, const char* name, char* value, std::size_t size) noexcept;
bool read_field(int file, const char* name, char* value, std::size_t size) noexcept;

// A decimal number, and `at` behind it. False: there is none. Too large: the largest.
bool take_number(const char*& at, std::uint64_t& out) noexcept;

// "NAME 123": the number behind a name that begins a line. False: not there.
bool number_of_line(const char* text, const char* name, std::uint64_t& out) noexcept;

}  // namespace gpubusy::host
