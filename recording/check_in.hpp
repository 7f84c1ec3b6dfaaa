// SPDX-License-Identifier: Apache-2.0
//
// How a process that has loaded the library tells the launcher so: one record of 64 bytes appended
// to the file that GPUBUSY_INTERNAL_CHECKIN names. ld.so ignores a preload that it cannot load,
// and static programs ignore all of them; without a check-in the launcher says so, and why.
//
// libc only; no allocation, errno kept, never waits. Appends of this size do not mix.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace gpubusy::recording {

inline constexpr char kCheckInMagic[8] = {'G', 'P', 'U', 'B', 'C', 'H', 'K', '\n'};
inline constexpr std::uint32_t kCheckInVersion = 1;
inline constexpr const char* kCheckInVariable = "GPUBUSY_INTERNAL_CHECKIN";
inline constexpr const char* kLauncherVariable = "GPUBUSY_INTERNAL_LAUNCHER";  // its process id

struct CheckIn {
  char magic[8];
  std::uint32_t version;
  std::uint32_t pid;  // as the process itself sees it
  std::uint32_t parent_pid;
  std::uint32_t flags;        // 0
  std::uint64_t start_ticks;  // field 22 of /proc/self/stat; with pid, identifies the process
  std::uint64_t time_ns;      // CLOCK_MONOTONIC
  char name[16];              // as prctl(PR_GET_NAME)
  char library_version[8];    // "0.1.0"; ends with a zero unless it is longer
};
static_assert(sizeof(CheckIn) == 64);

// Field 22 of the text of /proc/PID/stat; 0: not there. The name in field 2 may hold anything.
inline std::uint64_t start_ticks_of(const char* stat) noexcept {
  const char* p = strrchr(stat, ')');
  if (p == nullptr) return 0;
  int spaces = 0;
  for (++p; *p != '\0' && spaces < 20; ++p) {
    if (*p == ' ') ++spaces;
  }
  std::uint64_t ticks = 0;
  for (; *p >= '0' && *p <= '9'; ++p) ticks = ticks * 10 + static_cast<std::uint64_t>(*p - '0');
  return ticks;
}

inline std::uint64_t own_start_ticks() noexcept {
  char text[512];
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return 0;
  text[size] = '\0';
  return start_ticks_of(text);
}

// The launcher has made the file: it is never created here, so that a process which outlives the
// launcher leaves nothing behind.
inline void check_in(const char* file, const char* library_version) noexcept {
  const int saved = errno;
  const int fd = open(file, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd >= 0) {
    CheckIn record{};
    memcpy(record.magic, kCheckInMagic, sizeof record.magic);
    record.version = kCheckInVersion;
    record.pid = static_cast<std::uint32_t>(getpid());
    record.parent_pid = static_cast<std::uint32_t>(getppid());
    record.start_ticks = own_start_ticks();
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    record.time_ns = static_cast<std::uint64_t>(now.tv_sec) * 1000000000u +
                     static_cast<std::uint64_t>(now.tv_nsec);
    prctl(PR_GET_NAME, record.name);
    memcpy(record.library_version, library_version,
           strnlen(library_version, sizeof record.library_version));
    [[maybe_unused]] const ssize_t written = write(fd, &record, sizeof record);
    close(fd);
  }
  errno = saved;
}

}  // namespace gpubusy::recording
