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
  std::uintptr_t busy;  // stack address of the hook that the thread is inside; 0: of none
  bool in_step;   // the last launch of this thread was made by an optimizer's step
  std::int16_t device;  // current device + 1; 0: not known, ask
};
extern constinit thread_local ThreadLocal t_local __attribute__((tls_model("initial-exec")));

[[gnu::always_inline]] inline std::uintptr_t stack_address() noexcept {
  std::uintptr_t sp;
#if defined(__x86_64__)
  asm volatile("movq %%rsp, %0" : "=r"(sp));
#else
  asm volatile("mov %0, sp" : "=r"(sp));
#endif
  return sp;
}

// Is this call made from inside another hook (then it goes straight through)? A hook that was left
// by longjmp could not say so, but its stack is gone: the caller now stands above it.
[[gnu::always_inline]] inline bool is_nested() noexcept {
  return t_local.busy != 0 && stack_address() < t_local.busy;
}

// For our own work outside of a hook: CUDA calls that it makes are not the program's.
class OwnWork {
 public:
  OwnWork() noexcept : before_(t_local.busy) { t_local.busy = ~std::uintptr_t{0}; }
  ~OwnWork() { t_local.busy = before_; }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 private:
  const std::uintptr_t before_;
};

ThreadState* make_thread_state() noexcept;
// The calling thread's state, made on demand; nullptr without memory.
inline ThreadState* thread_state() noexcept {
  if (t_local.state != nullptr) [[likely]] return t_local.state;
  return make_thread_state();
}

// Head of the list; ended states stay in it until release_ended().
ThreadState* all_thread_states() noexcept;

void install_thread_exit() noexcept;       // once per process
void forget_threads_after_fork() noexcept;

}  // namespace gpubusy::runtime
