// SPDX-License-Identifier: Apache-2.0
//
// What the driver face asks of the core. Results are CUresult values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {

// Operations as they are submitted, or put into a graph.
int describe_kernel(Kernel& kernel, Dim3 grid, Dim3 block, std::uint32_t shared_bytes,
                    void** arguments, Operation& operation);
int describe_copy(Effect effect, Operation& operation);
int describe_fill(Effect effect, Operation& operation);
Operation describe_host_function(void (*function)(void*), void* argument);

int launch_kernel(Kernel& kernel, Dim3 grid, Dim3 block, std::uint32_t shared_bytes, Stream& stream,
                  void** arguments);

// `effect` describes the bytes (kCopy). Synchronous: the call waits as cudaMemcpy does.
int copy_memory(Stream& stream, Effect effect, bool synchronous);
// `effect`: kFill.
int fill_memory(Stream& stream, Effect effect, bool synchronous);

int launch_host_function(Stream& stream, void (*function)(void*), void* argument);
int launch_graph_exec(GraphExec& exec, Stream& stream);

int record_event(Event& event, Stream& stream, unsigned flags);
int wait_event(Stream& stream, Event& event, unsigned flags);
int query_event(Event& event);
int synchronize_event(Event& event);
int elapsed_ms(Event& start, Event& end, float* ms);

int query_stream(Stream& stream);
int synchronize_stream(Stream& stream);
int synchronize_device(Device& device);

int allocate_device(void** pointer, std::size_t bytes, MemoryKind kind, Device& device);
int free_device(void* pointer);
int allocate_stream_ordered(void** pointer, std::size_t bytes, Stream& stream);
int free_stream_ordered(void* pointer, Stream& stream);
int allocate_host(void** pointer, std::size_t bytes, unsigned flags);
int free_host(void* pointer);
int register_host(void* pointer, std::size_t bytes, unsigned flags);
int unregister_host(void* pointer);

}  // namespace gpubusy::sim
