// SPDX-License-Identifier: Apache-2.0
//
// The events of a Chrome trace, one by one: a trace may be far larger than memory should be.
// Thread-safe for different files.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

// What is read of an event. Kineto's names of categories, lower case; those before 2022 ("Kernel",
// "Memcpy", "Runtime", "Operator") come as "kernel", "memcpy", "runtime", "operator".
struct TraceEvent {
  std::string phase, category, name, process, thread;
  std::int64_t start_ns = 0, length_ns = 0;
  // of args
  std::optional<std::int64_t> correlation, stream, device, context, bytes, graph_node;
  std::array<std::uint32_t, 3> grid = {}, block = {};
  std::uint32_t registers = 0, shared_bytes = 0;
};

struct TraceHead {
  int rank = -1, world_size = -1;
  std::vector<std::string> device_names;  // by id
};

// Calls `take` for each event of phase "X", in the order of the file; the event is the callee's to
// move from. Plain JSON or gzip. An error names the file and what is wrong with it.
tl::expected<TraceHead, recording::Error> read_trace_events(
    const std::string& path, const std::function<void(TraceEvent&)>& take);

}  // namespace gpubusy::analysis
