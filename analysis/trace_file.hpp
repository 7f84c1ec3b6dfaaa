// SPDX-License-Identifier: Apache-2.0
//
// A file that appears whole or not at all, and in the place of another only where that is asked
// for: written under a temporary name in the same directory, then linked to its own. Thread-safety:
// one thread per object.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "recording/recording.hpp"

struct gzFile_s;

namespace gpubusy::analysis {

class TraceFile {
 public:
  // The directory must exist.
  TraceFile(const std::string& directory, bool compress);
  ~TraceFile();  // removes the temporary file
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void write(std::string_view text);
  std::uint64_t bytes() const { return bytes_; }  // before compression
  bool good() const { return error_.empty(); }

  // Completes the file under the first free of name(0), name(1), …; returns its path.
  tl::expected<std::string, recording::Error> finish(
      const std::function<std::string(unsigned attempt)>& name);
  // Completes the file as `name`, in the place of an earlier one; returns its path.
  tl::expected<std::string, recording::Error> replace(const std::string& name);

 private:
  void fail(const char* what, int code);
  bool close();

  std::string directory_, temporary_, error_;
  int descriptor_ = -1;
  gzFile_s* zip_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// "<host>_<pid>", of an imported trace its own name: how the files of a process begin. It has no
// dots: TensorBoard takes what is behind one for a time.
std::string worker_name(const recording::Recording& recording);

// The directory for the files of a session: `wanted`, or where the recordings are if that is empty.
tl::expected<std::string, recording::Error> directory_for(const recording::Session& session,
                                                          const std::string& wanted);

}  // namespace gpubusy::analysis
