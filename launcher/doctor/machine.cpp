// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/machine.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace gpubusy::launcher::doctor {
namespace {

constexpr std::size_t kMaxText = 1u << 20;
constexpr std::size_t kMaxCache = 64u << 20;

std::optional<std::string> read_file(const std::string& path, std::size_t most) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  std::string text;
  char part[65536];
  while (text.size() < most) {
    const ssize_t n = ::read(fd, part, std::min(sizeof part, most - text.size()));
    if (n < 0 && text.empty()) {
      close(fd);
      return std::nullopt;
    }
    if (n <= 0) break;
    text.append(part, static_cast<std::size_t>(n));
  }
  close(fd);
  return text;
}

// The path of a name in the text of /etc/ld.so.cache: a header of 48 bytes, then entries of 24 that
// hold offsets of the key and the value. An older format may stand in front of it.
std::string look_up_cache(const std::string& cache, const std::string& name) {
  constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
  constexpr std::size_t kHeader = 48, kEntry = 24;
  constexpr std::uint32_t kAbiMask = 0xff00;
#if defined(__x86_64__)
  constexpr std::uint32_t kAbi = 0x0300;
#elif defined(__aarch64__)
  constexpr std::uint32_t kAbi = 0x0a00;
#else
  constexpr std::uint32_t kAbi = 0;
#endif
  const std::size_t start = cache.find(kMagic);
  if (start == cache.npos || cache.size() - start < kHeader) return {};
  const auto number = [&](std::size_t at) {
    std::uint32_t value = 0;
    if (at + sizeof value <= cache.size()) std::memcpy(&value, cache.data() + at, sizeof value);
    return value;
  };
  const auto text = [&](std::uint32_t offset) -> std::string_view {
    const std::size_t at = start + offset;
    if (at >= cache.size()) return {};
    const std::string_view rest = std::string_view(cache).substr(at);
    const std::size_t end = rest.find('\0');
    return end == rest.npos ? std::string_view() : rest.substr(0, end);
  };
  const std::uint32_t count = number(start + kMagic.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at = start + kHeader + i * kEntry;
    if (at + kEntry > cache.size()) break;
    if ((number(at) & kAbiMask) == kAbi && text(number(at + 4)) == name) {
      return std::string(text(number(at + 8)));
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> Machine::variable(std::string_view name) const {
  for (const std::string& entry : environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

std::vector<std::string> Machine::variables_from(std::string_view prefix) const {
  std::vector<std::string> out;
  for (const std::string& entry : environment) {
    if (entry.starts_with(prefix)) out.push_back(entry);
  }
  return out;
}

std::optional<std::string> Machine::read(const std::string& path) const {
  return read_file(root + path, kMaxText);
}

std::vector<std::string> Machine::list(const std::string& directory) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root + directory, error), end;
       !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Machine::exists(const std::string& path) const {
  struct stat info {};
  return stat((root + path).c_str(), &info) == 0;
}

bool Machine::can_use(const std::string& path) const {
  return access((root + path).c_str(), R_OK | W_OK) == 0;
}

std::string Machine::resolve(const std::string& path) const {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(root + path, error);
  if (error) return {};
  const std::string text = real.string();
  if (root.empty()) return text;
  const std::string base = std::filesystem::canonical(root, error).string();
  return text.starts_with(base + "/") ? text.substr(base.size()) : text;
}

std::string Machine::find_shared_library(const std::string& name) const {
  std::string folders = variable("LD_LIBRARY_PATH").value_or("");
  for (std::size_t at = 0; at < folders.size();) {
    const std::size_t end = std::min(folders.find_first_of(":;", at), folders.size());
    const std::string folder = folders.substr(at, end - at);
    at = end + 1;
    if (!folder.empty() && exists(folder + "/" + name)) return folder + "/" + name;
  }
  if (const auto cache = read_file(root + "/etc/ld.so.cache", kMaxCache)) {
    const std::string found = look_up_cache(*cache, name);
    if (!found.empty() && exists(found)) return found;
  }
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) {
    const std::string candidate = std::string(folder) + "/" + name;
    if (exists(candidate)) return candidate;
  }
  return {};
}

}  // namespace gpubusy::launcher::doctor
