// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer: any bytes through reader, analysis and reports. Seeds: gpubusy_scenario golden DIR
// recording, and the same for `everything` and `ranges`.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "recording/reader.hpp"
#include "tests/support/memory_source.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpubusy;
  auto recording = recording::read_source("fuzz", testing::MemorySource(data, size));
  if (!recording) return 0;
  // A record of 8 bytes becomes at most a few hundred: more would be a way to exhaust memory.
  if (recording->calls.size() * sizeof(recording::CallRecord) > size) std::abort();
  recording::Session session;
  session.path = "fuzz";
  session.processes.push_back(std::move(*recording));
  const analysis::SessionReport report = analysis::analyse(session);
  for (const analysis::ProcessReport& process : report.processes) {
    for (const analysis::StepTimes& times : process.times) {
      std::uint64_t sum = times.busy_ns;
      for (const std::uint64_t idle : times.idle_ns) sum += idle;
      if (sum != times.wall_ns) std::abort();
    }
  }
  if (analysis::render_text(report, {}).empty()) std::abort();
  if (analysis::render_json(report).empty()) std::abort();
  return 0;
}
