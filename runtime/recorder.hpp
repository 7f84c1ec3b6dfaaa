// SPDX-License-Identifier: Apache-2.0
//
// The recorder: whether anything is recorded right now, where to, and the windows of the schedule.
//
// Modes, in the order of a run: kOff (no GPUBUSY_OUTPUT, or given up), kIdle (waiting for the first
// CUDA call: helpers such as shells never leave it), kTracking (between windows: only step edges
// are looked for), kRecording (in a window, its warm-up, or before the first step).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "config/config.hpp"
#include "recording/writer.hpp"
#include "runtime/api_info.hpp"
#include "runtime/definitions.hpp"
#include "runtime/loaded_library.hpp"
#include "runtime/loaded_modules.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime {

enum class Mode : std::uint32_t { kOff, kIdle, kTracking, kRecording };
extern constinit std::atomic<Mode> g_mode;
// What was set up before a mode was entered is seen by whoever sees the mode.
inline Mode mode() noexcept { return g_mode.load(std::memory_order_acquire); }

// An api whose every call ends a step (GPUBUSY_STEP=call:NAME); kNoApi: none.
inline constexpr std::uint32_t kNoApi = 0xffffffff;
extern constinit std::atomic<std::uint32_t> g_step_api;

struct StartUp {
  const ApiInfo* apis;
  std::size_t api_count;
  FindSymbol find_symbol;
  const LibraryFinder* libraries;
  const std::atomic<std::uint8_t>* reach;  // recording::ReachFlags by api
  LoaderView loader;
  const char* library;  // absolute path of this library, for NVTX; may be ""
};
// From the library's constructor: reads the environment, checks in with the launcher. Cheap: most
// processes that inherit a preload never touch CUDA.
void start_up(const StartUp& start) noexcept;

// First CUDA call: opens the recording. False: nothing is to be recorded.
bool arm() noexcept;

// The first CUDA call of the process is over. Has finish_process() called by exit(): handlers run
// in reverse order, so ours, made after the driver's own, still finds a live driver. CUPTI may
// begin.
void first_call_is_over() noexcept;
// The program had CUPTI, and may have ended. Never waits.
void retry_cupti() noexcept;
// The file takes no more (budget, disk): nothing shall cost any more.
void recording_stopped() noexcept;

// A call reached a hook before anything was recorded: the hooks work, whatever follows.
extern constinit std::atomic<bool> g_hook_was_called;

// The process ends in an orderly way (atexit, library destructor). Waits for nothing.
void finish_process() noexcept;

// A child made by _Fork or a raw clone, which runs no handlers, must not write into the recording
// of its parent. The page is zero in every child.
extern constinit std::atomic<const unsigned char*> g_parents_page;
inline bool is_unnoticed_child() noexcept {
  const unsigned char* page = g_parents_page.load(std::memory_order_relaxed);
  return page != nullptr && *page == 0;
}
void became_child() noexcept;

// Who tells the recorder that a step or window ends: a CUDA call, or something that may run where
// CUDA calls are forbidden (NVTX in a host function of a stream). What must then be asked of the
// driver and of CUPTI is left to the next CUDA call: do_driver_work().
enum class Teller : std::uint8_t { kCall, kElsewhere };
extern constinit std::atomic<bool> g_has_driver_work;
inline bool has_driver_work() noexcept { return g_has_driver_work.load(std::memory_order_relaxed); }
void do_driver_work() noexcept;

// A step ended at `time_ns`: moves the schedule on.
void step_edge(std::uint64_t time_ns, recording::StepSource source,
               Teller teller = Teller::kCall) noexcept;

// The program's own marks (GPUBUSY_CAPTURE_RANGE) open and close windows. Of the profiler's Start
// and Stop the first of several counts, as CUDA has it.
void capture_by_profiler(bool starts) noexcept;
// Whether a matching range is open has changed.
void capture_range_changed(std::uint64_t time_ns) noexcept;
// When recording paused last; 0: it never did.
std::uint64_t recorded_until() noexcept;

const config::Config& configuration() noexcept;
const ApiInfo& api_info(std::uint32_t api) noexcept;
std::uint32_t api_count() noexcept;
recording::RecordingFile& recording_file() noexcept;
std::uint32_t next_correlation(ThreadState& thread) noexcept;
// False while device times are of no use (tracking, or GPUBUSY_DEVICE_TIME=off).
bool wants_device_times() noexcept;

// Reserves a record in the calling thread's block; nullptr (counted as lost) where there is no
// room.
void* reserve_record(ThreadState& thread, std::size_t size, std::uint64_t now_ns) noexcept;
inline void commit_record(ThreadState& thread, std::size_t size) noexcept {
  thread.writer.commit(size);
}

// Before the first step: is its budget spent? Then end_prelude_for_size().
bool prelude_is_full() noexcept;
void end_prelude_for_size() noexcept;

// Definitions go to the calling thread's block.
DefinitionSink& definitions() noexcept;
// A remark for the reader of the recording; each text is kept once.
void notice(recording::NoticeKind kind, const char* text) noexcept;

// Rises with every new file (fork): tables compare it to know that definitions must be made anew.
std::uint32_t file_generation() noexcept;

}  // namespace gpubusy::runtime
