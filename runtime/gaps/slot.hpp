// SPDX-License-Identifier: Apache-2.0
//
// What a launching thread leaves for the gap sampler (sampler.hpp): when its last call ended, and
// how its Python frames are found. Written by the thread, read by the sampler; relaxed, since a
// value that is a moment old only makes the sampler look a moment too early or late.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpubusy::runtime::gaps {

struct Slot {
  // End of the thread's last recorded call, CLOCK_MONOTONIC ns; kInCall while it is in one.
  std::atomic<std::uint64_t> quiet_since{kInCall};
  std::atomic<bool> launches{false};            // it has asked the device for work
  std::atomic<std::uintptr_t> python_state{0};  // PyThreadState, perhaps freed by now; 0: none
  std::atomic<std::uint64_t> ident{0};          // pthread_self(), by which that is checked
  std::uint32_t calls = 0;                      // the thread's own

  static constexpr std::uint64_t kInCall = 0;
  // A thread's state hardly ever changes: one that enters Python from C may get a new one.
  static constexpr std::uint32_t kLookEvery = 64;

  bool wants_python_state() noexcept { return calls++ % kLookEvery == 0; }
  void begin_call() noexcept { quiet_since.store(kInCall, std::memory_order_relaxed); }
  void end_call(std::uint64_t now_ns) noexcept {
    quiet_since.store(now_ns, std::memory_order_relaxed);
  }
  // The state is another thread's from now on.
  void reset() noexcept {
    launches.store(false, std::memory_order_relaxed);
    quiet_since.store(kInCall, std::memory_order_relaxed);
    python_state.store(0, std::memory_order_relaxed);
    calls = 0;
  }
};

}  // namespace gpubusy::runtime::gaps
