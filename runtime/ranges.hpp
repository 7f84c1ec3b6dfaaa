// SPDX-License-Identifier: Apache-2.0
//
// Ranges that the program (NVTX) or a library (cuDNN, NCCL) names: nesting, ids and names are kept
// always, as a program may open a range long before a window; records are written in windows only.
//
// Thread-safe and without locks: a fork at any time leaves nothing taken, and the child goes on
// with the nesting of the thread that forked. Memory is bounded (the limits below); what does not
// fit is counted and said in a notice when the recording ends. All is called from the program's
// NVTX calls, never allocates but for a thread's stack of ranges (mmap), and keeps errno.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recording/format.hpp"
#include "runtime/clock.hpp"
#include "runtime/recorder.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime {

inline constexpr std::uint32_t kRangeDomains = 128;     // the default one and one for all others
inline constexpr std::uint32_t kOpenPerThread = 1024;   // push/pop ranges; deeper ones are counted
inline constexpr std::uint32_t kOpenPerProcess = 4096;  // start/end ranges
inline constexpr std::size_t kRangeTextMax = 2048;      // bytes of a message; longer ones are cut
inline constexpr std::size_t kOpenTextMax = 184;  // … of a start/end range that is not interned

// A text that is kept for the life of the process. Its address is the handle that the program gets.
struct RangeText;
struct RangeDomain;  // likewise

struct RangeAttributes {
  const char* text = nullptr;  // UTF-8 or what the program had, `text_bytes` long
  std::size_t text_bytes = 0;
  RangeText* registered = nullptr;  // instead of `text`
  std::uint64_t payload = 0;
  std::uint32_t category = 0;
  std::uint32_t colour = 0;
  recording::RangePayload payload_type = recording::RangePayload::kNone;
  std::uint16_t flags = 0;  // recording::RangeFlags
};

// ---- names. Never null: what does not fit shares one handle.
RangeText* register_range_text(const char* text, std::size_t bytes) noexcept;
RangeDomain* range_domain(const char* name, std::size_t bytes) noexcept;
// Of a handle that the program gives back; what is no domain of ours is the default one.
std::uint32_t domain_index(const void* handle) noexcept;
// nullptr: not a text of ours.
RangeText* range_text_of(const void* handle) noexcept;
void name_range_category(std::uint32_t domain, std::uint32_t category, RangeText* name) noexcept;
void name_thread(std::uint32_t thread_id, const char* name, std::size_t bytes) noexcept;
// The thread has ended: its number may come again.
void forget_thread_name(std::uint32_t thread_id) noexcept;
// The name that the program gave to a thread, else nullptr.
const char* program_name_of_thread(std::uint32_t thread_id) noexcept;

// ---- ranges
// The level of the range, from 0.
int push_range(std::uint32_t domain, const RangeAttributes& attributes) noexcept;
// The level of the range that ended; -1: none was open.
int pop_range(std::uint32_t domain) noexcept;
// Not 0, and of no other range of the process.
std::uint64_t start_range(std::uint32_t domain, const RangeAttributes& attributes) noexcept;
void end_range(std::uint64_t id) noexcept;
void mark_range(std::uint32_t domain, const RangeAttributes& attributes) noexcept;

// A call of a library's function. Nothing is opened: a call that never returns leaves nothing
// behind.
enum class RangeLibrary : std::uint8_t { kNone, kCudnn, kNccl };
class LibraryCall {
 public:
  // In the frame that calls the real function: what that calls lies below it.
  [[gnu::always_inline]] LibraryCall(RangeLibrary library, const char* function) noexcept
      : start_ns_(now_ns()),
        function_(function),
        outer_(t_local.library),
        generation_(file_generation()),
        library_(library) {
    t_local.library = (stack_address() & ~std::uintptr_t{3}) | static_cast<std::uintptr_t>(library);
  }
  // Behind the real call; the program's errno is kept. `payload`: bytes, where has_payload.
  void end(bool has_payload, std::uint64_t payload) noexcept;
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;

 private:
  const std::uint64_t start_ns_;
  const char* const function_;
  const std::uintptr_t outer_;
  const std::uint32_t generation_;
  const RangeLibrary library_;
};

// ---- from the recorder
// Windows end, or the process: push/pop ranges of the calling thread and start/end ranges that are
// still open are written as such. Takes no lock: the recorder holds its own.
void write_open_ranges(std::uint64_t time_ns) noexcept;
void range_thread_ended() noexcept;  // gives the thread's stack of ranges back
// Is a range open that matches GPUBUSY_CAPTURE_RANGE=nvtx:…?
bool capture_range_is_open() noexcept;
void notice_range_limits() noexcept;
void forget_ranges_after_fork() noexcept;

}  // namespace gpubusy::runtime
