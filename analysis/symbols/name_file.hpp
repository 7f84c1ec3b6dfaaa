// SPDX-License-Identifier: Apache-2.0
//
// Names that were found once, kept beside a recording for machines that have not its files. Known
// by build id and offset, so that they are never those of another build. docs/symbols.md has the
// format. Takes any bytes. Thread-safety: const functions may run in parallel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/symbols/native_names.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

class NameFile {
 public:
  // Of modules without build id names hold for one recording only.
  explicit NameFile(const recording::Recording& recording);

  // "run.gpubusy.symbols"
  static std::string path_for(const recording::Recording& recording);

  // Takes what can be read; counts lines that cannot, and leaves them out. False: nothing of it, it
  // is no such file or of another version.
  bool parse(std::string_view text);
  // As parse(); false too where there is no file.
  bool read(const std::string& path);
  std::uint64_t bad_lines() const { return bad_lines_; }

  const std::vector<NativeFrame>* find(const recording::Module& module, std::uint64_t offset) const;
  // Frames of one address, at least one. Those in which nothing is known are not kept.
  void put(const recording::Module& module, std::uint64_t offset, std::vector<NativeFrame> frames);
  bool empty() const { return modules_.empty(); }

  std::string text() const;
  // Whole or not at all, in the place of an earlier one.
  tl::expected<std::string, recording::Error> write(const std::string& path) const;

 private:
  struct Module {
    std::string path;
    std::map<std::uint64_t, std::vector<NativeFrame>> frames;  // by offset
  };
  static std::string key_of(const std::string& build_id, const std::string& path);

  std::string recording_;                  // what it is known by
  std::map<std::string, Module> modules_;  // by build id, else path
  std::uint64_t bad_lines_ = 0;
};

}  // namespace gpubusy::analysis
