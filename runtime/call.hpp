// SPDX-License-Identifier: Apache-2.0
//
// One intercepted call, from the hook's point of view. passes_through() is all that a call costs
// outside a window; CallScope is the rest.
#pragma once

#include <cstdint>
#include <cstring>

#include "recording/format.hpp"
#include "runtime/categories.hpp"
#include "runtime/clock.hpp"
#include "runtime/device_timer.hpp"
#include "runtime/gaps/sampler.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/recorder.hpp"
#include "runtime/step_tracker.hpp"
#include "runtime/streams.hpp"

namespace gpubusy::runtime {

template <recording::Category kCategory>
[[gnu::always_inline]] inline bool passes_through(std::uint32_t api,
                                                  [[maybe_unused]] const void* key) noexcept {
  const Mode m = mode();
  if (m == Mode::kOff) return true;
  if (is_nested()) {
    if ((t_local.busy & kInRealCall) != 0) {
      step_saw_nested_call(api, kCategory == recording::Category::kLaunch ? key : nullptr);
    }
    return true;
  }
  if (m == Mode::kTracking) {
    if constexpr (is_always_seen(kCategory)) return false;
    if (has_driver_work()) [[unlikely]]
      return false;
    if (t_local.in_step || api == g_step_api.load(std::memory_order_relaxed)) return false;
    if constexpr (kCategory == recording::Category::kLaunch) return launch_is_plain(key);
    if constexpr (kCategory == recording::Category::kGraphLaunch) return graph_is_plain(key);
    return true;
  }
  if (m == Mode::kIdle) return !arms(kCategory) && !is_always_seen(kCategory);
  return false;
}

struct CallSite {
  std::uint32_t api;
  recording::Category category;
  recording::Layer layer;
  std::uint16_t flags;  // recording::CallFlags known beforehand
  const void* key;      // launches: the kernel's function; of graphs: the executable; else null
  StreamArgument stream;

  const void* function() const noexcept {
    return category == recording::Category::kLaunch ? key : nullptr;
  }
};

class CallScope {
 public:
  explicit CallScope(const CallSite& site) noexcept : site_(site), outermost_(is_outermost()) {
    t_local.busy = stack_address();
    enter();
  }
  ~CallScope() { t_local.busy = 0; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  bool records() const noexcept { return thread_ != nullptr; }
  bool wants_end() const noexcept { return records() || watches_steps_; }

  // In this order: start, the real call, stop, write (only if records()), done. The caller keeps
  // errno from the end of the real call on.
  void start() noexcept {
    if (!wants_end()) return;
    steps_forget_nested_calls();
    if (records()) gaps::begin_call(*thread_);
    start_ns_ = now_ns();
  }
  void stop(int result) noexcept;
  template <class Payload>
  void write(const Payload& payload) noexcept {
    static_assert(sizeof(Payload) % 8 == 0);
    constexpr std::size_t kSize = sizeof(recording::CallRecord) + sizeof(Payload);
    describe(waits_for_device(payload), asks_for_nothing(payload));
    if (void* out = reserve_record(*thread_, kSize, end_ns_)) {
      fill(out, kSize);
      std::memcpy(static_cast<char*>(out) + sizeof(recording::CallRecord), &payload,
                  sizeof payload);
      commit_record(*thread_, kSize);
    }
  }
  void write() noexcept;
  void done() noexcept;

 private:
  void enter() noexcept;
  void describe(bool blocking, bool asks_for_nothing) noexcept;
  void fill(void* out, std::size_t size) noexcept;

  // Did the call return only after the device had done it? Then its end event is late by the time
  // that the host took to wake up.
  template <class Payload>
  static bool waits_for_device(const Payload&) noexcept {
    return false;
  }
  static bool waits_for_device(const recording::CopyPayload& copy) noexcept {
    using enum recording::MemoryKind;
    const bool to_host = copy.destination_kind == kPageable || copy.destination_kind == kPinned;
    return to_host && (copy.asynchronous == 0 || copy.destination_kind == kPageable);
  }

  // Calls of which the device does nothing, and CUPTI tells nothing.
  template <class Payload>
  static bool asks_for_nothing(const Payload&) noexcept {
    return false;
  }
  static bool asks_for_nothing(const recording::CopyPayload& copy) noexcept {
    return copy.bytes == 0 || copy.direction == recording::CopyDirection::kHostToHost;
  }
  static bool asks_for_nothing(const recording::MemsetPayload& memset) noexcept {
    return memset.bytes == 0;
  }

  const CallSite site_;
  const bool outermost_;   // of the hooks on this thread's stack
  bool in_cupti_ = false;  // CUPTI sees the call, by its correlation
  ThreadState* thread_ = nullptr;
  std::uint32_t generation_ = 0;  // of the file; another one after a fork inside the call
  bool watches_steps_ = false;
  bool armed_ = false;
  std::uint64_t start_ns_ = 0, end_ns_ = 0;
  int result_ = 0;
  std::uint32_t correlation_ = 0, stream_id_ = 0, python_stack_ = 0, native_stack_ = 0;
  std::int16_t device_ = -1;
  std::uint16_t flags_ = 0;
  TimerTicket ticket_;
};

}  // namespace gpubusy::runtime
