// SPDX-License-Identifier: Apache-2.0
//
// Device times by CUDA events recorded round a call, in the program's own stream. The fallback
// where CUPTI cannot be used; needs nothing but the driver API.
//
// Each thread owns a ring of event pairs: it fills it, and whoever holds the harvest lock (one
// thread at a time, never waited for) empties it in order and writes DeviceTimeRecords. While any
// stream of the process is being captured nothing is recorded or queried: the first would become
// part of the graph, the second would break a capture in global mode.
//
// What the numbers mean: the start event is taken when the stream reaches it, so on an idle stream
// it is earlier than the work by the host's time between the two calls; the start is therefore
// moved to the earliest time at which the call can have reached the device. The end event of a call
// that blocks is recorded after the host woke up; the end is therefore capped by the call's return.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "runtime/api_info.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime {

enum class Timing : std::uint8_t { kTimed, kOff, kCapture, kLimit, kFailed };

struct TimerTicket {
  Timing state = Timing::kOff;
  std::uint32_t slot = 0;
};

// Before the real call. Fails softly: the ticket says why.
TimerTicket begin_timing(ThreadState& thread, const StreamArgument& stream) noexcept;

// Right after the real call, with a kTimed ticket. `failed`: the call returned an error, nothing
// ran.
Timing end_event(ThreadState& thread, TimerTicket ticket, const StreamArgument& stream,
                 bool failed) noexcept;

struct TimedCall {
  std::uint32_t correlation;
  std::uint32_t stream;
  std::int16_t device;
  bool blocking;  // the real call returned only when the device was done
  std::uint64_t start_ns, end_ns;
};
// Hands a pair whose end_event() was kTimed to the harvest.
void commit_timing(ThreadState& thread, TimerTicket ticket, const TimedCall& call) noexcept;

// Takes in what the device has finished. Never waits. True: nothing is pending.
bool harvest_device_times() noexcept;

// A context is about to end (nullptr: that of `device`; both unknown: any): its events must not be
// touched any more. Takes in what is ready; the rest stays without device times.
void forget_context(CUcontext context, int device) noexcept;

// Sets the relation between device and host clock anew at the next timed call (window start).
void recalibrate_device_clock() noexcept;

void forget_timers_after_fork() noexcept;

}  // namespace gpubusy::runtime
