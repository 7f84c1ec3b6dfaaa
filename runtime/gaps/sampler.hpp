// SPDX-License-Identifier: Apache-2.0
//
// Names what launching threads do while they launch nothing: where an idle device's time goes.
//
// A helper thread (hidden_thread.hpp) runs while a window is recorded. Once no launching thread has
// made a call for GPUBUSY_GAP_THRESHOLD, it looks at each of them now and then: what the kernel
// tells (state, system call, processor time, faults), the Python frames and, of a blocked thread,
// the native ones. No signal, no ptrace, nothing is stopped: what a thread changes under the look
// is noticed and left out.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/thread_state.hpp"

namespace gpubusy::runtime::gaps {

// Once, before the first window.
void set_up(bool enabled, std::uint64_t threshold_ns) noexcept;

// A window's recording begins or has ended. Under the recorder's mutex; starts nothing itself.
void recording_begins() noexcept;
void recording_ended() noexcept;

// Recording has begun and there is no sampler yet. From a hook without locks, behind a launch.
extern constinit std::atomic<bool> g_wanted;
inline bool is_wanted() noexcept { return g_wanted.load(std::memory_order_relaxed); }
void start(std::uint64_t now_ns) noexcept;

// The calling thread is in a recorded call.
void note_python_state(ThreadState& thread) noexcept;
inline void begin_call(ThreadState& thread) noexcept {
  thread.gap.begin_call();
  if (thread.gap.wants_python_state()) [[unlikely]]
    note_python_state(thread);
}

// A process whose only other thread is the helper forks as one of a single thread (Python warns
// otherwise).
void before_fork() noexcept;
void forget_after_fork() noexcept;

}  // namespace gpubusy::runtime::gaps
