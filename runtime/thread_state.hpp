// SPDX-License-Identifier: Apache-2.0
//
// What belongs to one thread of the target. Made at the thread's first recorded call, from mmap
// (never from the program's allocator), given back when the thread has ended and its device times
// are in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "recording/writer.hpp"
#include "runtime/gaps/slot.hpp"

namespace gpubusy::runtime {

namespace native {
class ThreadStack;
}
struct PythonFrames;
struct RangeStack;
struct TimerRing;

struct ThreadState {
  recording::ThreadWriter writer;
  std::uint32_t thread_id = 0;  // gettid()
  std::uint64_t lost = 0;       // since the last LostRecord
  std::uint32_t next_correlation = 0, end_correlation = 0;
  std::uint32_t external_ids = 0;         // runtime/cupti: pushed on this thread …
  std::uint32_t external_generation = 0;  // … since this many of the program's cuptiFinalize
  TimerRing* timers = nullptr;            // runtime/device_timer
  native::ThreadStack* native_stack = nullptr;  // made on demand, stays with the state
  PythonFrames* python_frames = nullptr;        // the same: 8 KiB that small stacks have not
  gaps::Slot gap;
  std::atomic<bool> ended{false};
  ThreadState* next = nullptr;  // list of all states
};

// All thread-local storage of the library, kept tiny: initial-exec TLS of preloaded libraries comes
// out of a small surplus that other libraries need too.
struct ThreadLocal {
  ThreadState* state;
  std::uintptr_t busy;  // stack address of the hook that the thread is inside, or 0; kInRealCall
  bool in_step;         // the last launch of this thread was made by an optimizer's step
  std::int16_t device;  // current device + 1; 0: not known, ask
  RangeStack* ranges;   // runtime/ranges: those that the thread has open
  std::uintptr_t
      library;  // stack address of the call of cuDNN or NCCL it is in | RangeLibrary, or 0
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

// Where the real CUDA functions are, and this library: filled by the preload part. A slot whose
// begin is 0 is free.
struct CodeRange {
  std::atomic<std::uintptr_t> begin{0}, end{0};
};
inline constexpr std::size_t kCodeRanges = 16;
inline constinit CodeRange g_cuda_code[kCodeRanges] = {};

inline bool is_cuda_code(const void* address) noexcept {
  const auto a = reinterpret_cast<std::uintptr_t>(address);
  for (const CodeRange& range : g_cuda_code) {
    const std::uintptr_t begin = range.begin.load(std::memory_order_acquire);
    if (begin != 0 && a >= begin && a < range.end.load(std::memory_order_acquire)) return true;
  }
  return false;
}

// In t_local.busy: the hook is inside the real call, not in code of ours. Stack addresses are even.
inline constexpr std::uintptr_t kInRealCall = 1;

// Is this call made from inside another hook (then it goes straight through)? While our own code
// runs, every call on this stack is (a signal handler's). Inside the real call only CUDA's own
// calls are: whatever else calls is a callback of the program, or the program after a longjmp out
// of the hook, which no hook can notice; its old address then says nothing.
[[gnu::always_inline]] inline bool is_nested() noexcept {
  const std::uintptr_t busy = t_local.busy;
  if (busy == 0) [[likely]]
    return false;
  if (stack_address() >= busy) return false;
  return (busy & kInRealCall) == 0 || is_cuda_code(__builtin_return_address(0));
}

// The same for a function further in: `caller` is where the hook returns to.
inline bool is_nested(const void* caller) noexcept {
  const std::uintptr_t busy = t_local.busy;
  if (busy == 0 || stack_address() >= (busy & ~kInRealCall)) return false;
  return (busy & kInRealCall) == 0 || is_cuda_code(caller);
}

// No other hook is active on this stack: the address of one that was left by longjmp is no longer
// on it.
inline bool is_outermost() noexcept {
  const std::uintptr_t busy = t_local.busy;
  return busy == 0 || stack_address() >= (busy & ~kInRealCall);
}

// Round the real call. What enter gives is for leave: a hook inside may have cleared busy.
inline std::uintptr_t enter_real_call() noexcept {
  const std::uintptr_t busy = t_local.busy;
  t_local.busy = busy | kInRealCall;
  return busy;
}
inline void leave_real_call(std::uintptr_t busy) noexcept { t_local.busy = busy; }

// For our own work outside of a hook: CUDA calls that it makes are not the program's.
class OwnWork {
 public:
  OwnWork() noexcept : before_(t_local.busy) { t_local.busy = ~kInRealCall; }
  ~OwnWork() { t_local.busy = before_; }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 private:
  const std::uintptr_t before_;
};

ThreadState* make_thread_state() noexcept;
// The calling thread's state, made on demand; nullptr without memory.
inline ThreadState* thread_state() noexcept {
  if (t_local.state != nullptr) [[likely]]
    return t_local.state;
  return make_thread_state();
}

// Head of the list; ended states stay in it until release_ended().
ThreadState* all_thread_states() noexcept;

void install_thread_exit() noexcept;  // once per process
// What the thread has is given back when it ends.
void watch_thread_exit() noexcept;
void forget_threads_after_fork() noexcept;

}  // namespace gpubusy::runtime
