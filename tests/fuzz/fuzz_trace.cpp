// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer: any bytes as a trace, through import, analysis and report. Seeds: tests/traces,
// unpacked.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "analysis/trace_import/kineto.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpubusy;
  static const int file = memfd_create("trace", 0);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    return 0;
  auto recording = analysis::import_trace("/proc/self/fd/" + std::to_string(file));
  if (!recording) return 0;
  recording::Session session;
  session.processes.push_back(std::move(*recording));
  const analysis::SessionReport report = analysis::analyse(session);
  if (analysis::render_text(report, {}).empty() || analysis::render_json(report).empty())
    __builtin_trap();
  return 0;
}
