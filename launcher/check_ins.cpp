// SPDX-License-Identifier: Apache-2.0
#include "launcher/check_ins.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <utility>

#include "recording/check_in.hpp"

namespace gpubusy::launcher {
namespace {

// The process is there and is no zombie.
bool is_alive(std::uint32_t pid, std::uint64_t start_ticks) {
  const int fd = open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[1024];
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* name_end = std::strrchr(text, ')');
  if (name_end == nullptr || name_end[1] != ' ' || name_end[2] == 'Z' || name_end[2] == 'X') {
    return false;
  }
  return recording::start_ticks_of(text) == start_ticks;
}

}  // namespace

std::string make_check_in_file(const std::string& directory) {
  std::string name = directory + "/.gpubusy-check-in-XXXXXX";
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return {};
  // Processes that have become another user still say that they are there.
  fchmod(fd, 0622);
  // On a disk that fills up during the run, the check-ins still fit.
  [[maybe_unused]] const int reserved = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 64 * 64);
  close(fd);
  return name;
}

CheckIns read_check_ins(const std::string& file, std::uint32_t command_pid) {
  CheckIns result;
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return result;
  std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
  recording::CheckIn record;
  while (read(fd, &record, sizeof record) == static_cast<ssize_t>(sizeof record)) {
    if (std::memcmp(record.magic, recording::kCheckInMagic, sizeof record.magic) != 0) continue;
    if (!seen.insert({record.pid, record.start_ticks}).second) continue;
    if (record.pid == command_pid) {
      result.command_loaded = true;
    } else if (is_alive(record.pid, record.start_ticks)) {
      result.alive.push_back(record.pid);
    }
  }
  close(fd);
  result.processes = seen.size();
  return result;
}

}  // namespace gpubusy::launcher
