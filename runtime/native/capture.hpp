// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's stack as a number (runtime/stack_table.hpp): native frames, and in their
// place among them those of Python.
#pragma once

#include <cstdint>

#include "runtime/definitions.hpp"
#include "runtime/native/walker.hpp"
#include "runtime/stack_table.hpp"

namespace gpubusy::runtime::native {

// Id of the node of the innermost frame: the caller of this function, or of the injected library.
// 0: none. Locations of native frames are return addresses; of a frame that a signal interrupted,
// the interrupted instruction + 1, so that `location - 1` is always inside the instruction that is
// meant. Where the walk did not get to the outermost frame, the last one is flagged as cut.
// Sends StackNodeRecords to the sink before it returns an id that needs them. When the table is
// full or the sink refuses, the id of the deepest node that is known. Keeps errno.
//
// `python`: what capture_python_stack() has just found on this thread, nullptr or empty where there
// is nothing. The frames that one eval call runs come right inside of that call's native frame. It
// is found by its address on the stack; before 3.10, where frames do not tell it, each frame
// belongs to one native frame of the function that runs them, if there are as many of these. Where
// that cannot be told for sure the stack is native alone, and counted. Python frames further out
// than a cut native stack are left out; those that a chain of more than kMaxStackFrames lost are
// missing behind a Python frame flagged as cut. Where a greenlet runs, the native frames outside of
// its first Python function may be those of another one that has moved on: the stack is cut there.
//
// `stack` belongs to the calling thread. Afterwards its frames() tell where on the stack each frame
// begins: a frame's own words lie between its `sp` and that of the next one outwards.
std::uint32_t capture_native_stack(DefinitionSink& sink, ThreadStack& stack,
                                   PythonFrames* python = nullptr) noexcept;

// Stacks that are native alone although there were Python frames, since the start or the last
// forget_unplaced_stacks().
std::uint64_t unplaced_stacks() noexcept;
void forget_unplaced_stacks() noexcept;

}  // namespace gpubusy::runtime::native
