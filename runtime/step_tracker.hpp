// SPDX-License-Identifier: Apache-2.0
//
// Finds the ends of steps in the stream of calls, by the one source that GPUBUSY_STEP names.
//
// optimizer: the last launch made inside a Python optimizer's step() ends the step; seen at the
//            first call behind it. Between windows only kernels that are ever launched by an
//            optimizer are looked at more closely.
// kernel:    each launch of a kernel whose name matches the pattern ends a step.
// call:      each call of the named function ends a step.
#pragma once

#include <cstdint>

#include "recording/format.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {

// Between windows: may this launch pass without steps_before_call/steps_after_call? About 1 ns.
bool launch_is_plain(const void* function) noexcept;

// `function` is null for calls that are not launches. May move the schedule on (step_edge).
void steps_before_call(const void* function, recording::Layer layer) noexcept;
void steps_after_call(std::uint32_t api, const void* function, recording::Layer layer,
                      std::uint64_t end_ns) noexcept;

void set_up_steps() noexcept;  // when the recorder arms
void forget_steps_after_fork() noexcept;

}  // namespace gpubusy::runtime
