// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "analysis/names.hpp"

namespace gpubusy::analysis {
namespace {

constexpr unsigned kMaxAttempts = 10'000;
constexpr std::size_t kMaxChunk = 1u << 30;  // gzwrite takes an int

}  // namespace

TraceFile::TraceFile(const std::string& directory, bool compress) : directory_(directory) {
  for (unsigned attempt = 0; attempt < kMaxAttempts && descriptor_ < 0; ++attempt) {
    temporary_ = fmt::format("{}/.gpubusy-{}-{}.tmp", directory, getpid(), attempt);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) {
    fail("cannot create", errno);
    temporary_.clear();
    return;
  }
  if (compress) {
    // Level 4: within 5 % of the default's size in half its time, for this kind of text.
    zip_ = gzdopen(descriptor_, "wb4");
    if (zip_ == nullptr) fail("cannot compress", ENOMEM);
  }
}

TraceFile::~TraceFile() {
  close();
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void TraceFile::fail(const char* what, int code) {
  if (error_.empty()) {
    error_ = fmt::format("{}: {}: {}", temporary_, what, std::generic_category().message(code));
  }
}

void TraceFile::write(std::string_view text) {
  if (!good()) return;
  bytes_ += text.size();
  while (!text.empty()) {
    const std::size_t size = std::min(text.size(), kMaxChunk);
    std::size_t done = 0;
    if (zip_ != nullptr) {
      const int got = gzwrite(zip_, text.data(), static_cast<unsigned>(size));
      if (got <= 0) return fail("cannot write", errno ? errno : EIO);
      done = static_cast<std::size_t>(got);
    } else {
      const ssize_t got = ::write(descriptor_, text.data(), size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return fail("cannot write", errno ? errno : EIO);
      done = static_cast<std::size_t>(got);
    }
    text.remove_prefix(done);
  }
}

bool TraceFile::close() {
  if (descriptor_ < 0) return true;
  errno = 0;
  const bool good = zip_ != nullptr ? gzclose(zip_) == Z_OK : ::close(descriptor_) == 0;
  zip_ = nullptr;
  descriptor_ = -1;
  return good;
}

tl::expected<std::string, recording::Error> TraceFile::finish(
    const std::function<std::string(unsigned)>& name) {
  if (good() && !close()) fail("cannot write", errno ? errno : EIO);
  for (unsigned attempt = 0; good() && attempt < kMaxAttempts; ++attempt) {
    const std::string path = directory_ + '/' + name(attempt);
    if (link(temporary_.c_str(), path.c_str()) == 0) return path;
    if (errno == EEXIST) continue;
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK) {
      fail("cannot rename", errno);
      break;
    }
    // A file system without hard links: take the name first, then move onto it.
    const int own = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (own < 0) {
      if (errno == EEXIST) continue;
      fail("cannot create", errno);
      break;
    }
    ::close(own);
    if (rename(temporary_.c_str(), path.c_str()) == 0) {
      temporary_.clear();
      return path;
    }
    fail("cannot rename", errno);
    unlink(path.c_str());
  }
  if (good()) fail("no free name", EEXIST);
  return tl::make_unexpected(recording::Error{error_});
}

tl::expected<std::string, recording::Error> TraceFile::replace(const std::string& name) {
  if (good() && !close()) fail("cannot write", errno ? errno : EIO);
  const std::string path = directory_ + '/' + name;
  if (good() && rename(temporary_.c_str(), path.c_str()) != 0) fail("cannot rename", errno);
  if (!good()) return tl::make_unexpected(recording::Error{error_});
  temporary_.clear();
  return path;
}

namespace {

// Without what would part the name of a trace in another way; letters of any script stay.
std::string name_part(std::string_view text) {
  std::string part;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || u >= 0x80;
    part += good ? c : '_';
  }
  return part;
}

// "resnet50_nw0" of "resnet50_nw0.1623143089861.pt.trace.json.gz": without the time, too.
std::string_view name_of_trace(std::string_view path) {
  std::string_view name = file_name(path);
  for (const std::string_view end : {".gz", ".json", ".trace", ".pt"}) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  }
  const std::size_t dot = name.rfind('.');
  const bool has_time = dot != name.npos && dot > 0 && dot + 1 < name.size() &&
                        name.find_first_not_of("0123456789", dot + 1) == name.npos;
  return has_time ? name.substr(0, dot) : name;
}

}  // namespace

std::string worker_name(const recording::Recording& recording) {
  constexpr std::size_t kMost = 64;
  if (recording.from_trace) {  // it knows no host, and of the process often no more than 0
    const std::string name = name_part(name_of_trace(recording.path)).substr(0, 2 * kMost);
    if (!name.empty()) return name;
  }
  const std::string host = name_part(recording.host);
  return fmt::format("{}_{}", host.empty() ? "host" : host.substr(0, kMost), recording.pid);
}

tl::expected<std::string, recording::Error> directory_for(const recording::Session& session,
                                                          const std::string& wanted) {
  struct stat info;
  std::string directory = wanted;
  if (directory.empty()) {
    directory = session.path;
    if (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
      const std::size_t at = directory.rfind('/');
      directory = at == std::string::npos ? "." : directory.substr(0, at + 1);
    }
  }
  std::string problem;
  if (stat(directory.c_str(), &info) != 0) {
    problem = std::generic_category().message(errno);
  } else if (!S_ISDIR(info.st_mode)) {
    problem = "is not a directory";
  }
  if (problem.empty()) return directory;
  return tl::unexpected(recording::Error{
      fmt::format("{}: {}; expected a directory for the traces", directory, problem)});
}

}  // namespace gpubusy::analysis
