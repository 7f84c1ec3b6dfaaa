// SPDX-License-Identifier: Apache-2.0
//
// Finds the ends of steps in the stream of calls, by the one source that GPUBUSY_STEP names.
//
// optimizer: the last launch made inside a Python optimizer's step() ends the step; seen at the
//            first call behind it (runtime/step_detector.hpp). The launch of a graph into which a
//            step() was captured is such a step.
// kernel:    each launch of a kernel whose name matches the pattern ends a step.
// call:      each call of the named function ends a step.
// nvtx:      the end of a range whose name matches ends a step (runtime/ranges.hpp).
//
// A launch of a graph into which an optimizer's step() was captured is such a step, as a whole.
//
// Calls that failed or were captured into a graph end no step. A call inside another one (a runtime
// function calls the driver's) is seen too, and ends its step when the outer one returns.
#pragma once

#include <cstdint>

#include "recording/format.hpp"
#include "runtime/python/optimizer.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {

// Between windows: may this launch pass without steps_before_call/steps_after_call? About 1.5 ns.
bool launch_is_plain(const void* function) noexcept;

// … and this launch of a graph?
bool graph_is_plain(const void* graph_exec) noexcept;

// Is the thread inside an optimizer's step now? Walks Python's frames where that matters to steps.
python::OptimizerCall look_for_optimizer(const void* function) noexcept;

// `function` is null for calls that are not launches, `optimizer` what look_for_optimizer() or the
// capture of the Python stack told. May move the schedule on (step_edge).
void steps_before_call(const void* function, const python::OptimizerCall& optimizer) noexcept;
// A call that took effect.
void steps_after_call(std::uint32_t api, const void* function, recording::Layer layer,
                      std::uint64_t end_ns) noexcept;

// Graphs: what is captured, at the end of the capture, when it is made executable, when that goes
// away, and when it was launched.
void steps_saw_captured_call() noexcept;
void steps_saw_capture_end(const void* graph) noexcept;  // null: it failed
void steps_saw_instantiation(const void* graph_exec, const void* graph) noexcept;
void steps_forget_graph(const void* graph_exec) noexcept;
void steps_after_graph(const void* graph_exec, std::uint64_t end_ns) noexcept;

// Calls made inside the real function of another one, by the calling thread.
void step_saw_nested_call(std::uint32_t api, const void* function) noexcept;
void steps_forget_nested_calls() noexcept;  // before the outer call

// The calling thread ends: a step that it has open has no later call to end it.
void steps_thread_ended(std::uint32_t thread_id) noexcept;

// The process ends: a step that is still open has no later call to end it. Puts the times of up to
// two ended steps into `times_ns` and says how many; to be called until there is none.
int finish_steps(std::uint64_t (&times_ns)[2]) noexcept;

void set_up_steps() noexcept;  // when the recorder arms
void forget_steps_after_fork() noexcept;

}  // namespace gpubusy::runtime
