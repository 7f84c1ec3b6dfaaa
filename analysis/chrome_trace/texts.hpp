// SPDX-License-Identifier: Apache-2.0
//
// Pieces of JSON that many rows share, each made once. Thread-safety: one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "analysis/source_lines.hpp"
#include "analysis/symbols/native_names.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis::chrome_trace {

inline constexpr std::size_t kMaxFrames = 32;
inline constexpr std::size_t kMaxName = 1024;  // longer ones are kept once and cut in each row

// Cut where it is too long, as JSON.
void append_name(std::string& out, const std::string& name);

class Texts {
 public:
  Texts(const recording::Recording& recording, NativeNames& names)
      : recording_(recording), names_(names), lines_(recording) {}

  const std::string& api_name(std::uint16_t api);

  const std::string& python_args(std::uint32_t stack);

  // Functions of native code and of Python, innermost first. A stack that goes on behind the last
  // one ends in "...".
  const std::string& native_args(std::uint32_t stack);
  // The name of a kernel as rows have it. A long one is cut there: name_kernel(), before, gives it
  // in full, once; else null.
  const std::string* name_kernel(std::uint32_t kernel);
  const std::string& kernel_name(std::uint32_t kernel) const;

  SourceLines& lines() { return lines_; }

 private:
  const recording::Recording& recording_;
  NativeNames& names_;
  SourceLines lines_;
  std::unordered_map<std::uint32_t, std::string> kernel_names_;
  std::unordered_map<std::string, std::uint32_t> long_names_;  // in full, and its number
  std::unordered_map<std::uint16_t, std::string> api_names_;
  std::unordered_map<std::uint32_t, std::string> python_args_, native_args_;
};

}  // namespace gpubusy::analysis::chrome_trace
