// SPDX-License-Identifier: Apache-2.0
//
// Seccomp filters: one that the program puts on may end it for a system call of ours, one that was
// there before it started (a container's) is taken for harmless. What tells of them may itself be
// forbidden: prctl(PR_GET_SECCOMP) is asked only where there was no filter at the start, since with
// one it tells nothing new. Thread-safe behind the start. errno may change.
#pragma once

#include <cstdint>

namespace gpubusy::runtime::sandbox {

// Once, before anything else here. `may_ask`: by prctl, where /proc does not tell.
void remember_start(bool may_ask) noexcept;

// What stands in a status of /proc, in which "Seccomp_filters" came with Linux 5.9.
enum class Filters : std::uint8_t { kAsAtStart, kMore, kUnknown };
// Of the calling thread, without a file where that can be.
Filters of_this_thread() noexcept;
// By /proc alone. 0: the calling thread, else one of this process.
Filters by_status_of(std::uint32_t thread_id) noexcept;

// The same as far as it is told without a file: next to nothing in time.
bool is_none_new() noexcept;

}  // namespace gpubusy::runtime::sandbox
