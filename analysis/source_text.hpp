// SPDX-License-Identifier: Apache-2.0
//
// The text of source lines, from the files that a recording names, where they are still those that
// ran. Thread-safety: one thread per object (it caches).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpubusy::analysis {

class SourceText {
 public:
  // `recorded_unix_ns`: when the recording began. A file that was changed since is not read.
  explicit SourceText(std::uint64_t recorded_unix_ns) : recorded_unix_ns_(recorded_unix_ns) {}

  // Empty: not known.
  const std::string& line(const std::string& file, int number);

 private:
  std::uint64_t recorded_unix_ns_;
  std::unordered_map<std::string, std::vector<std::string>> files_;
};

}  // namespace gpubusy::analysis
