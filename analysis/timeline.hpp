// SPDX-License-Identifier: Apache-2.0
//
// What the device did, joined with the calls that asked for it. Times: CLOCK_MONOTONIC ns.
// Thread-safety: built by one thread, then read by any. The recording must outlive the timeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "analysis/intervals.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

inline constexpr std::uint32_t kNoCall = std::numeric_limits<std::uint32_t>::max();

enum class OpKind : std::uint8_t { kKernel, kCopy, kMemset, kGraph };

// A piece of work on the device: that of a call, or with CUPTI each node of a graph. It belongs to
// the step and window in which it was launched.
struct DeviceOp {
  std::uint64_t start_ns = 0, end_ns = 0;
  std::uint32_t call = kNoCall;  // index into Recording::calls
  std::uint32_t stream = 0;      // never 0: unknown streams count as the default stream, 7
  std::uint32_t uncertainty_ns = 0;
  std::uint32_t graph_node = 0;
  std::uint32_t activity = recording::kNoActivity;  // index into Recording::activities
  std::int16_t device = 0;
  OpKind kind = OpKind::kKernel;
  recording::TimeSource source = recording::TimeSource::kNone;
};

// Calls that should have led to device work, and what is known of it. Of a set of calls, but for
// orphan_times, dropped, early_ops and max_uncertainty_ns, which are of the whole recording.
struct Coverage {
  std::uint64_t expected = 0;         // launches, graph launches, copies, memsets that succeeded
  std::uint64_t timed = 0;            // … with a device time
  std::uint64_t untimed_capture = 0;  // not timed: a capture was active somewhere
  std::uint64_t untimed_limit = 0;    // not timed: no timer was free
  std::uint64_t untimed_pending = 0;  // a timer ran, its result never came (killed, still running)
  std::uint64_t untimed_failed = 0;   // not timed: no context yet, or the driver refused an event
  std::uint64_t untimed_off = 0;      // nothing tried to time it
  std::uint64_t captured = 0;         // went into a graph: no device work of its own
  std::uint64_t orphan_times = 0;     // device times whose call was not recorded
  std::uint64_t unhooked = 0;         // calls that CUPTI saw and no hook
  std::uint64_t dropped = 0;          // records that CUPTI had to drop
  std::uint64_t failed_calls = 0;     // calls that returned an error
  std::uint64_t early_ops = 0;        // begin before their launch by more than can be corrected
  std::uint64_t max_uncertainty_ns = 0;
  std::uint64_t untimed() const { return expected - timed; }
};

struct DeviceLine {
  std::int16_t device = 0;
  std::vector<std::uint32_t> ops;         // into Timeline::ops, by start
  std::vector<Interval> busy;             // union of all work, earlier work included
  std::vector<Interval> earlier;          // work that was asked for while nothing was recorded
  std::vector<Interval> kernel_busy;      // union of kernels and graphs
  std::uint64_t clock_correction_ns = 0;  // most that was added to times of this device
};

struct Timeline {
  std::vector<DeviceOp> ops;               // by start
  std::vector<std::uint32_t> ops_by_call;  // op indices, by call and then start
  std::vector<std::uint64_t> untimed_ns;   // start times of successful calls without a device time
  std::map<std::int16_t, DeviceLine> devices;
  std::vector<bool> timed;  // by call: there is a device time
  Coverage coverage;        // of all calls

  // Op indices of a call: [first, last) of ops_by_call.
  std::pair<std::size_t, std::size_t> ops_of(std::uint32_t call) const;
};

Timeline build_timeline(const recording::Recording& recording);

// What a piece of work was: as CUPTI tells, else as the call asked for it.
std::uint32_t kernel_of(const recording::Recording& recording, const DeviceOp& op);  // 0: not known
recording::CopyPayload copy_of(const recording::Recording& recording, const DeviceOp& op);
std::uint64_t memset_bytes_of(const recording::Recording& recording, const DeviceOp& op);

// Adds a call to a coverage.
void count_call(Coverage& coverage, const recording::Call& call, bool timed);

// Whether a call asks the device for work of its own.
bool wants_device_work(const recording::Call& call);

// Whether the host waits in the call for the device: synchronisation, or a copy that blocks.
bool waits_for_device(const recording::Call& call);

// Whether a copy moves between the device and pageable host memory.
bool is_pageable_copy(const recording::Call& call);

// cudaErrorNotReady and its like are answers, not failures.
bool has_failed(const recording::Call& call);

}  // namespace gpubusy::analysis
