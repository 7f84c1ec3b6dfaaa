// SPDX-License-Identifier: Apache-2.0
//
// Files and directories of recordings.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "recording/file_source.hpp"
#include "recording/format.hpp"
#include "recording/reader.hpp"
#include "recording/recording.hpp"

namespace gpubusy::recording {
namespace {

Error system_error_of(const std::string& path, const char* what, int code) {
  return {fmt::format("{}: {}: {}", path, what, std::generic_category().message(code))};
}

// From the header alone: the recordings of others may be large, and still be written.
bool is_of_run(const std::string& path, std::uint64_t run) {
  const FileSource file(path);
  std::uint64_t found = 0;
  return file.good() &&
         file.read(offsetof(FileHeader, run), &found, sizeof found) == sizeof found && found == run;
}

}  // namespace

tl::expected<Recording, Error> read_file(const std::string& path) {
  const FileSource file(path);
  if (file.error() != 0) {
    return tl::make_unexpected(system_error_of(path, "cannot open", file.error()));
  }
  if (!file.regular()) {
    return tl::make_unexpected(Error{path + ": is not a regular file; expected a recording"});
  }
  return read_source(path, file);
}

tl::expected<Session, Error> read_session(const std::string& path, std::uint64_t run) {
  namespace fs = std::filesystem;
  Session session;
  session.path = path;
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status)) {
    return tl::make_unexpected(Error{
        fmt::format("{}: does not exist; expected a directory with *{} files, or one such file",
                    path, kFileSuffix)});
  }
  if (!fs::is_directory(status)) {
    auto recording = read_file(path);
    if (!recording) return tl::make_unexpected(recording.error());
    session.processes.push_back(std::move(*recording));
    return session;
  }
  std::vector<std::string> files;
  fs::directory_iterator it(path, code);
  if (code) return tl::make_unexpected(system_error_of(path, "cannot list", code.value()));
  for (const fs::directory_iterator end; it != end; it.increment(code)) {
    if (it->path().extension() == kFileSuffix &&
        (run == 0 || is_of_run(it->path().string(), run))) {
      files.push_back(it->path().string());
    }
    if (code) break;
  }
  if (code) return tl::make_unexpected(system_error_of(path, "cannot list", code.value()));
  if (files.empty() && run == 0) {
    return tl::make_unexpected(
        Error{fmt::format("{}: no recording here; expected *{} files", path, kFileSuffix)});
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    auto recording = read_file(file);
    if (recording) {
      session.processes.push_back(std::move(*recording));
    } else {
      session.skipped.push_back(recording.error());
    }
  }
  std::stable_sort(session.processes.begin(), session.processes.end(),
                   [](const Recording& a, const Recording& b) { return a.start_ns < b.start_ns; });
  return session;
}

}  // namespace gpubusy::recording
