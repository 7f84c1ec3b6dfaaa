// SPDX-License-Identifier: Apache-2.0
//
// Steps, and where the time of each went. docs/verdict.md has the definitions in words.
// Times: CLOCK_MONOTONIC ns. Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/cause.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct Step {
  std::uint32_t number = 0;
  std::uint32_t window = 0;  // index into StepSelection::windows
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t wall_ns() const { return end_ns - begin_ns; }
};

enum class StepMode : std::uint8_t {
  kSteps,      // real steps
  kWholeSpan,  // no step was seen: one span from the first request for work to the last work's end
  kPasses  // no step was seen: the passes of the program's loop (passes.hpp) are taken for steps
};

// The steps that the verdict is about.
struct StepSelection {
  StepMode mode = StepMode::kSteps;
  std::vector<recording::Window> windows;  // those the steps come from
  std::vector<Step> steps;                 // by time, disjoint
  std::uint32_t pass_stack = 0;            // of passes: Passes::python_stack
  std::uint32_t warmup_left_out = 0;       // steps of a prelude that were not judged
  std::uint32_t cut_windows = 0;           // windows that ended before their last step
};

// The windows of a recording; where none was recorded, one of kind kWholeRun over all calls, if
// any.
std::vector<recording::Window> windows_or_all(const recording::Recording& recording);

// Windows of the schedule, or of the program's marks, with steps if there are any, else a prelude's
// steps, else passes of a loop, else whole spans.
StepSelection select_steps(const recording::Recording& recording, const Timeline& timeline);

// The steps of one window (none: it has no step edge).
std::vector<Step> steps_of(const recording::Recording& recording, const recording::Window& window);

// Why the device idles. Each ns of idle time is in exactly one class; the first that fits counts.
enum class IdleClass : std::uint8_t {
  kUnknown,        // work without device times may have run
  kAfterSync,      // the host had waited for the device, which therefore ran dry
  kQueued,         // work was there and did not begin: dependencies, the device's own latency
  kStepStart,      // before the first work of the step began
  kBlockedCall,    // the host was in a CUDA call that neither launches nor waits
  kLaunch,         // the host was launching, or between two launches
  kHostElsewhere,  // the host was outside CUDA for long
};
inline constexpr std::size_t kIdleClasses = 7;
inline constexpr std::array<IdleClass, kIdleClasses> kAllIdleClasses = {
    IdleClass::kStepStart,     IdleClass::kAfterSync, IdleClass::kLaunch, IdleClass::kBlockedCall,
    IdleClass::kHostElsewhere, IdleClass::kQueued,    IdleClass::kUnknown};  // in order of display

// What the process's threads do at an instant; with several threads the first that fits.
enum class HostState : std::uint8_t { kOtherCall, kLaunching, kWaiting, kOutside };

struct HostSegment {  // until the next segment's begin
  std::uint64_t begin_ns = 0;
  std::uint32_t call = kNoCall;  // the call it is in; outside: the call before
  HostState state = HostState::kOutside;
};

// The segments of a recording, from time 0; the last one is open.
std::vector<HostSegment> host_segments(const recording::Recording& recording);

// A part of an idle gap of one class and one cause.
struct IdlePiece {
  std::uint64_t begin_ns = 0;  // of the first of it: launching is gathered from several stretches
  std::uint64_t ns = 0;
  std::uint32_t step = 0;               // index into the steps
  std::uint32_t before_call = kNoCall;  // outside CUDA: the call before
  std::uint32_t call = kNoCall;     // the call that it is about: the wait, the blocking call, the
                                    // launch, the first call behind a stretch outside CUDA
  std::uint32_t next_op = kNoCall;  // index of the work that ended the gap
  IdleClass idle = IdleClass::kUnknown;
  HostState host = HostState::kOutside;
  // Not told by split_time(), but by Causes, and summarise():
  Cause cause = Cause::kNone;
  bool input_copy = false;       // the work behind it is, or begins with, a copy from the host
  std::uint32_t seen_stack = 0;  // Python stack of the looks that tell of most of it; 0: none do
};

struct StepTimes {
  std::uint64_t wall_ns = 0;
  std::uint64_t busy_ns = 0;          // union of all work on the device within the step
  std::uint64_t kernel_busy_ns = 0;   // union of kernels and graphs
  std::uint64_t earlier_busy_ns = 0;  // work asked for before the recording began
  std::array<std::uint64_t, kIdleClasses> idle_ns = {};  // by IdleClass
  std::uint64_t ops = 0;                                 // device work launched in the step
  std::uint64_t kernels = 0;                             // … of these, kernels and graph launches

  std::uint64_t idle(IdleClass c) const { return idle_ns[static_cast<std::size_t>(c)]; }
};

struct DeviceSteps {
  std::int16_t device = 0;
  std::vector<StepTimes> steps;   // as StepSelection::steps
  std::vector<IdlePiece> pieces;  // by time
};

DeviceSteps split_time(const recording::Recording& recording, const Timeline& timeline,
                       const std::vector<HostSegment>& host, const std::vector<Step>& steps,
                       std::int16_t device);

// Time of the host in each state within the steps, by HostState.
inline constexpr std::size_t kHostStates = 4;
std::array<std::uint64_t, kHostStates> host_times(const std::vector<HostSegment>& host,
                                                  const std::vector<Step>& steps);

// Stretches of kLaunchPauseNs or more outside CUDA within the steps, whatever the device did; as
// pieces with `ns`, `step`, `before_call` and `call` set.
std::vector<IdlePiece> host_pauses(const std::vector<HostSegment>& host,
                                   const std::vector<Step>& steps);

// Time within the steps in which a device worked.
std::uint64_t busy_in(const DeviceLine& line, const std::vector<Step>& steps);

// The device with most work in the steps; -1: none has any.
std::int16_t busiest_device(const Timeline& timeline, const std::vector<Step>& steps);

// Index of the step that an instant lies in, or kNoCall.
std::uint32_t step_at(const std::vector<Step>& steps, std::uint64_t time_ns);

}  // namespace gpubusy::analysis
