// SPDX-License-Identifier: Apache-2.0
//
// What stands round the rows of a trace: what it is of and rests on, the names of rows, the steps;
// and at the end what is missing. Thread-safety: one thread per object.
#pragma once

#include <cstdint>
#include <string>

#include "analysis/chrome_trace/chrome_trace.hpp"
#include "analysis/chrome_trace/sink.hpp"
#include "analysis/chrome_trace/texts.hpp"
#include "analysis/chrome_trace/window.hpp"

namespace gpubusy::analysis::chrome_trace {

class Envelope {
 public:
  Envelope(const TraceWindow& window, std::uint32_t pid, std::uint64_t base_ns, Texts& texts,
           Sink& sink)
      : window_(window), pid_(pid), base_ns_(base_ns), texts_(texts), sink_(sink) {}

  void begin();
  void rows_of_names();
  void rows_of_steps();
  void end(const TraceCounts& counts, std::uint64_t frames_left_out, const std::string& trace_name);

 private:
  // What the trace rests on, for people and for scripts.
  void about();
  // Of the whole recording: how calls came to the hooks.
  void about_layers();
  std::string source_text() const;
  void meta(const char* name, std::uint64_t pid, std::uint64_t tid, const char* key,
            const std::string& json_value);
  void instant(const std::string& name, std::uint64_t time_ns);

  const TraceWindow& window_;
  const std::uint32_t pid_;
  const std::uint64_t base_ns_;
  Texts& texts_;
  Sink& sink_;
};

}  // namespace gpubusy::analysis::chrome_trace
