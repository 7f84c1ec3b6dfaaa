// SPDX-License-Identifier: Apache-2.0
#include "host/text_file.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

namespace gpubusy::host {
namespace {

long ended(long bytes, char* text) noexcept {
  const int error = bytes < 0 ? errno : 0;
  text[bytes > 0 ? bytes : 0] = '\0';
  return bytes < 0 ? -error : bytes;
}

}  // namespace

Path& Path::add(const char* text) noexcept { return add(text, strlen(text)); }

Path& Path::add(const char* text, std::size_t size) noexcept {
  const std::size_t room = kMax - 1 - size_;
  if (size > room) {
    size = room;
    whole_ = false;
  }
  memcpy(text_ + size_, text, size);
  size_ += size;
  text_[size_] = '\0';
  return *this;
}

void Path::cut_to(std::size_t size) noexcept {
  if (size >= size_) return;
  size_ = size;
  text_[size_] = '\0';
  whole_ = true;
}

int open_text(const Path& path) noexcept {
  if (!path.is_whole()) return -ENAMETOOLONG;
  const long file = syscall(SYS_openat, AT_FDCWD, path.text(), O_RDONLY | O_CLOEXEC | O_NOCTTY, 0);
  return file < 0 ? -errno : static_cast<int>(file);
}

long read_text(int file, char* text, std::size_t size) noexcept {
  return ended(syscall(SYS_pread64, file, text, size - 1, 0l), text);
}

long read_text(const Path& path, char* text, std::size_t size) noexcept {
  text[0] = '\0';
  const int file = open_text(path);
  if (file < 0) return file;
  // The kernel hands out at most a page at a time of some files.
  std::size_t at = 0;
  long got = 0;
  while (at < size - 1) {
    got = syscall(SYS_read, file, text + at, size - 1 - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += static_cast<std::size_t>(got);
  }
  const long result = got < 0 && at == 0 ? ended(-1, text) : static_cast<long>(at);
  text[at] = '\0';
  syscall(SYS_close, file);
  return result;
}

bool read_field(int file, const char* name, char* value, std::size_t size) noexcept {
  constexpr std::size_t kOtherLine = ~std::size_t{0};
  const std::size_t length = strlen(name);
  std::size_t matched = 0, kept = 0;  // of the name, in the line in hand; of its rest
  bool whole = false;
  char piece[512];
  for (long at = 0, n = 0; !whole; at += n) {
    do {
      n = syscall(SYS_pread64, file, piece, sizeof piece, at);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) break;
    for (long i = 0; i < n && !whole; ++i) {
      const char c = piece[i];
      if (c == '\n') {
        whole = matched == length;
        if (!whole) matched = 0;
      } else if (matched == length) {
        if (kept + 1 < size) value[kept++] = c;
      } else if (matched != kOtherLine) {
        matched = c == name[matched] ? matched + 1 : kOtherLine;
      }
    }
  }
  value[kept] = '\0';
  return matched == length;
}

bool read_field(const Path& path, const char* name, char* value, std::size_t size) noexcept {
  value[0] = '\0';
  const int file = open_text(path);
  if (file < 0) return false;
  const bool found = read_field(file, name, value, size);
  syscall(SYS_close, file);
  return found;
}

bool take_number(const char*& at, std::uint64_t& out) noexcept {
  while (*at == ' ' || *at == '\t') ++at;
  if (*at < '0' || *at > '9') return false;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    value = value > (kMost - digit) / 10 ? kMost : value * 10 + digit;
  }
  out = value;
  return true;
}

bool number_of_line(const char* text, const char* name, std::uint64_t& out) noexcept {
  const std::size_t length = strlen(name);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    if (strncmp(line, name, length) == 0 && (line[length] == ' ' || line[length] == '\t')) {
      const char* at = line + length;
      return take_number(at, out);
    }
    line = strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  return false;
}

}  // namespace gpubusy::host
