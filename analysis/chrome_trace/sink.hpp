// SPDX-License-Identifier: Apache-2.0
//
// The text of a trace on its way to the file: rows are written one by one and kept while the file
// has room. Thread-safety: one thread per object. Errors stay in the file.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "analysis/json_text.hpp"
#include "analysis/trace_file.hpp"

namespace gpubusy::analysis::chrome_trace {

class Sink {
 public:
  // `unix_offset_ns`: from the recording's clock to a trace's times. `max_bytes`: 0: no limit.
  Sink(TraceFile& file, std::uint64_t max_bytes, std::uint64_t unix_offset_ns)
      : file_(file), max_bytes_(max_bytes), offset_ns_(unix_offset_ns) {}

  // Straight to the file.
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  }
  void begin() { begin(text); }
  void flush(std::size_t keep = kBufferSize) {
    if (text.size() <= keep) return;
    file_.write(text);
    text.clear();
  }

  // Rows that stand or fall together: gathered, and then kept.
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(rows), format, std::forward<Args>(args)...);
  }
  void begin_row() { begin(rows); }
  // False: the file would grow too large.
  bool keep(std::uint64_t time_ns) {
    if (max_bytes_ != 0 &&
        file_.bytes() + text.size() + rows.size() + kFooterReserve > max_bytes_) {
      left_out_from_ns = time_ns;
      return false;
    }
    text += rows;
    flush();
    return true;
  }

  void append_ts(std::string& out, std::uint64_t time_ns) const {
    append_microseconds(out, time_ns + offset_ns_);
  }
  bool good() const { return file_.good(); }

  std::string text, rows;
  std::uint64_t left_out_from_ns = 0;

 private:
  static constexpr std::size_t kBufferSize = 1u << 16;
  static constexpr std::uint64_t kFooterReserve = 4096;

  void begin(std::string& out) {
    out += any_row_ ? ",\n" : "\n";
    any_row_ = true;
  }

  TraceFile& file_;
  const std::uint64_t max_bytes_;
  const std::uint64_t offset_ns_;
  bool any_row_ = false;
};

}  // namespace gpubusy::analysis::chrome_trace
