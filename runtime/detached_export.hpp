// SPDX-License-Identifier: Apache-2.0
//
// Without the launcher nobody makes a trace of a window that has ended. This starts
// `gpubusy export FILE --window A..B` in a way that the program cannot notice: no SIGCHLD, nothing
// for its waitpid(-1) to reap, none of its handlers run, no inherited descriptor that would keep a
// pipe open, lowest priority, the processors that the process was started with.
#pragma once

#include <cstdint>

namespace gpubusy::runtime {

enum class ExportStart : std::uint8_t {
  kStarted,
  kNoProgram,    // no gpubusy beside the library
  kWouldBeSeen,  // we are process 1 or a subreaper: the exporter would become the program's child
  kRefused,      // no memory, no process, no exec
};

// `library`: the path of this library, which tells where the exporter is.
// Returns when the exporter has been started (about a millisecond), not when it has finished. One
// call at a time.
ExportStart start_export(const char* library, const char* recording, std::uint32_t first_window,
                         std::uint32_t last_window) noexcept;

// Whether the exporter that this process has started last still runs (about 20 us).
bool export_is_running() noexcept;

// A phrase for a message: "no trace was written by the process itself: …".
const char* why_not_started(ExportStart result) noexcept;

}  // namespace gpubusy::runtime
