// SPDX-License-Identifier: Apache-2.0
#include "recording/file_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace gpubusy::recording {
namespace {

std::uint64_t nanoseconds(const timespec& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

// O_NONBLOCK: a FIFO of that name must not hang us.
FileSource::FileSource(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
  struct stat info {};
  if (descriptor_ < 0 || fstat(descriptor_, &info) != 0) {
    error_ = errno;
    return;
  }
  regular_ = S_ISREG(info.st_mode);
  if (!regular_) return;
  size_ = static_cast<std::uint64_t>(info.st_size);
  written_ns_ = nanoseconds(info.st_mtim);
  changed_ns_ = nanoseconds(info.st_ctim);
}

FileSource::~FileSource() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::size_t FileSource::read(std::uint64_t offset, void* out, std::size_t size) const {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(descriptor_, static_cast<char*>(out) + done, size - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace gpubusy::recording
