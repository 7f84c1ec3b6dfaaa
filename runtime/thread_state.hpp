// SPDX-License-Identifier: Apache-2.0
//
// What belongs to one thread of the target. Made at the thread's first recorded call, from mmap
// (never from the program's allocator), given back when the thread has ended and its device times
// are in.
#pragma once

#include <atomic>
#include <cstdint>

#include "recording/writer.hpp"

namespace gpubusy::runtime {

struct TimerRing;

struct ThreadState {
  recording::ThreadWriter writer;
  std::uint32_t thread_id = 0;  // gettid()
  std::uint64_t lost = 0;       // since the last LostRecord
  std::uint32_t next_correlation = 0, end_correlation = 0;
  TimerRing* timers = nullptr;  // runtime/device_timer
  std::atomic<bool> ended{false};
  ThreadState* next = nullptr;  // list of all states
};

// All thread-local storage of the library, kept tiny: initial-exec TLS of preloaded libraries comes
// out of a small surplus that other libraries need too.
struct ThreadLocal {
  ThreadState* state;
  bool busy;      // inside a hook or our own code: calls go straight through
  bool in_step;   // the last launch of this thread was made by an optimizer's step
  std::int16_t device;  // current device + 1; 0: not known, ask
};
extern constinit thread_local ThreadLocal t_local __attribute__((tls_model("initial-exec")));

// The calling thread's state, made on demand; nullptr without memory.
ThreadState* thread_state() noexcept;

// Head of the list; ended states stay in it until release_ended().
ThreadState* all_thread_states() noexcept;

void install_thread_exit() noexcept;       // once per process
void forget_threads_after_fork() noexcept;

}  // namespace gpubusy::runtime
