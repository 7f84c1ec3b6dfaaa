// SPDX-License-Identifier: Apache-2.0
//
// Streams, captures and graphs: handles of the program -> ids and facts for the recording.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "runtime/api_info.hpp"

namespace gpubusy::runtime {

inline constexpr std::uint32_t kDefaultStreamId = 7;  // CUPTI's number for the legacy stream

// Id for the recording, defined at first sight. 0: the call has no stream.
std::uint32_t stream_id(const StreamArgument& stream, std::int16_t device) noexcept;
void forget_stream(void* handle) noexcept;  // destroyed: the handle may be used again
void forget_streams_of_thread(std::uint32_t thread_id) noexcept;  // it ends
void forget_streams_of_context(CUcontext context) noexcept;       // it ends; nullptr: any may end

// The calling thread's current device, -1 where there is no context. Cached until
// device_changed().
std::int16_t current_device() noexcept;
void device_changed() noexcept;

// Captures: while any is active, calls that are not allowed in a capture must not be made by us.
void capture_began(void* stream) noexcept;
void capture_ended(int result, void* stream) noexcept;
bool any_capture() noexcept;
bool is_capturing(const StreamArgument& stream) noexcept;  // asks the driver

// Graphs: content of an executable graph, defined when it is instantiated.
void graph_instantiated(void* graph_exec, void* graph) noexcept;
std::uint32_t graph_id(void* graph_exec) noexcept;  // 0: not seen
void forget_graph(void* graph_exec) noexcept;       // destroyed

void forget_streams_after_fork() noexcept;

}  // namespace gpubusy::runtime
