// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's native stack as a number (runtime/stack_table.hpp).
#pragma once

#include <cstdint>

#include "runtime/definitions.hpp"
#include "runtime/native/walker.hpp"

namespace gpubusy::runtime::native {

// Id of the node of the innermost frame: the caller of this function, or of the injected library.
// 0: none. Locations are return addresses; of a frame that a signal interrupted, the interrupted
// instruction + 1, so that `location - 1` is always inside the instruction that is meant. Where the
// walk did not get to the outermost frame, the last one is flagged as cut.
// Sends StackNodeRecords to the sink before it returns an id that needs them. When the table is
// full or the sink refuses, the id of the deepest node that is known. Keeps errno.
//
// `stack` belongs to the calling thread. Afterwards its frames() tell where on the stack each frame
// begins: a frame's own words lie between its `sp` and that of the next one outwards.
std::uint32_t capture_native_stack(DefinitionSink& sink, ThreadStack& stack) noexcept;

}  // namespace gpubusy::runtime::native
