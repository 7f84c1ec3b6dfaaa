// SPDX-License-Identifier: Apache-2.0
//
// Without the launcher nobody makes a trace of a window that has ended. This starts
// `gpubusy export FILE --window N` in a way that the program cannot notice: no SIGCHLD, nothing for
// its waitpid(-1) to reap, no inherited descriptor that would keep a pipe open, lowest priority.
#pragma once

#include <cstdint>

namespace gpubusy::runtime {

// False: no gpubusy beside the library, or the system said no. Returns when the exporter has been
// started (about a millisecond), not when it has finished.
bool start_export(const char* recording, std::uint32_t window) noexcept;

}  // namespace gpubusy::runtime
