// SPDX-License-Identifier: Apache-2.0
//
// What was seen of the host beside its calls: looks at silent threads, and what the kernel counted.
// Thread-safety: one thread per object.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

#include "analysis/chrome_trace/sink.hpp"
#include "analysis/chrome_trace/texts.hpp"
#include "analysis/chrome_trace/window.hpp"

namespace gpubusy::analysis::chrome_trace {

class HostRows {
 public:
  HostRows(const TraceWindow& window, std::uint32_t pid, Texts& texts, Sink& sink)
      : window_(window), pid_(pid), texts_(texts), sink_(sink) {}

  // `open`: whether there is room still.
  void write(bool open) { rows_of_host(rows_of_looks(open)); }
  std::uint64_t left_out() const { return left_out_; }

 private:
  // What a launching thread was seen to do while it launched nothing. A look at a thread that had
  // not run since the one before says nothing new.
  bool rows_of_looks(bool open);
  // One counter event: a value holds until the next event of its name.
  bool counter(const char* name, std::uint64_t time_ns,
               std::initializer_list<std::pair<const char*, std::optional<double>>> values);
  // What the kernel counted, as rates from one sample of the helper thread to the next.
  void rows_of_host(bool open);

  const TraceWindow& window_;
  const std::uint32_t pid_;
  Texts& texts_;
  Sink& sink_;
  std::uint64_t left_out_ = 0;
};

}  // namespace gpubusy::analysis::chrome_trace
