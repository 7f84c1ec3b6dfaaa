// SPDX-License-Identifier: Apache-2.0
#include "launcher/environment.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace gpubusy::launcher {
namespace {

constexpr std::string_view kSeparators = " :";  // ld.so takes both

bool is_asan_runtime(std::string_view entry) {
  const std::size_t slash = entry.rfind('/');
  const std::string_view name = slash == entry.npos ? entry : entry.substr(slash + 1);
  return name.starts_with("libasan.so") || name.starts_with("libclang_rt.asan");
}

}  // namespace

std::string merge_preload(const std::string& ours, const char* users) {
  std::string first, later;
  std::string_view rest = users != nullptr ? users : "";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find_first_of(kSeparators), rest.size());
    const std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (entry.empty() || entry == ours) continue;
    if (is_asan_runtime(entry)) {
      first.append(entry).append(":");
    } else {
      later.append(":").append(entry);
    }
  }
  return first + ours + later;
}

bool is_preload_safe(const std::string& path) {
  return path.find_first_of(" :$") == std::string::npos;
}

std::vector<std::string> change_environment(
    const char* const* base, const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> out;
  for (const char* const* e = base; e != nullptr && *e != nullptr; ++e) {
    const char* equals = std::strchr(*e, '=');
    const std::string_view name(
        *e, equals != nullptr ? static_cast<std::size_t>(equals - *e) : std::strlen(*e));
    const bool changed = std::any_of(changes.begin(), changes.end(),
                                     [&](const auto& change) { return change.first == name; });
    if (!changed) out.emplace_back(*e);
  }
  for (const auto& [name, value] : changes) out.push_back(name + "=" + value);
  return out;
}

std::string merge_asan_options(const char* users) {
  std::string options = users != nullptr ? users : "";
  if (options.find("verify_asan_link_order") != std::string::npos) return options;
  if (!options.empty()) options += ':';
  return options + "verify_asan_link_order=0";
}

std::string find_library() {
  std::error_code error;
  if (const char* given = getenv("GPUBUSY_INTERNAL_LIBRARY"); given != nullptr && given[0] != 0) {
    return std::filesystem::absolute(given, error).string();
  }
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path folder = own.parent_path();
  for (const auto& candidate : {folder.parent_path() / "lib" / "libgpubusy.so",
                                folder.parent_path() / GPUBUSY_LIBRARY_FOLDER / "libgpubusy.so",
                                folder / "libgpubusy.so"}) {
    if (access(candidate.c_str(), R_OK) == 0) return candidate.string();
  }
  return {};
}

}  // namespace gpubusy::launcher
