// SPDX-License-Identifier: Apache-2.0
#include "analysis/source_text.hpp"

#include <sys/stat.h>

#include <cstddef>
#include <fstream>

namespace gpubusy::analysis {
namespace {

constexpr std::int64_t kLargestFile = 16 << 20;  // no source is larger; what is, is something else

std::vector<std::string> lines_of(const std::string& file, std::uint64_t recorded_unix_ns) {
  std::vector<std::string> lines;
  struct stat status = {};
  if (stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size > kLargestFile) {
    return lines;
  }
  const std::uint64_t changed_ns =
      static_cast<std::uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
      static_cast<std::uint64_t>(status.st_mtim.tv_nsec);
  if (changed_ns > recorded_unix_ns) return lines;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

const std::string& SourceText::line(const std::string& file, int number) {
  static const std::string kUnknown;
  const auto [it, fresh] = files_.try_emplace(file);
  if (fresh) it->second = lines_of(file, recorded_unix_ns_);
  const auto index = static_cast<std::size_t>(number) - 1;
  return number > 0 && index < it->second.size() ? it->second[index] : kUnknown;
}

}  // namespace gpubusy::analysis
