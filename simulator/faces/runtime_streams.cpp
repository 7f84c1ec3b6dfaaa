// SPDX-License-Identifier: Apache-2.0
//
// The runtime: streams, events, host functions.
#include "simulator/faces/runtime_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::runtime;

SIM_RUNTIME(cudaStreamCreateWithPriority, (cudaStream_t * stream, unsigned flags, int priority),
            (stream, flags, priority)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuStreamCreateWithPriority(stream, flags, priority);
}

SIM_RUNTIME(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuStreamCreate(stream, flags);
}

SIM_RUNTIME(cudaStreamCreate, (cudaStream_t * stream), (stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuStreamCreate(stream, CU_STREAM_DEFAULT);
}

SIM_RUNTIME(cudaStreamDestroy, (cudaStream_t stream), (stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuStreamDestroy(stream);
}

SIM_RUNTIME_PTSZ(cudaStreamGetPriority, (cudaStream_t stream, int* priority), (stream, priority)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamGetPriority(stream, priority);
}

SIM_RUNTIME_PTSZ(cudaStreamGetFlags, (cudaStream_t stream, unsigned* flags), (stream, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamGetFlags(stream, flags);
}

SIM_RUNTIME_PTSZ(cudaStreamGetId, (cudaStream_t stream, unsigned long long* id), (stream, id)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamGetId(stream, id);
}

SIM_RUNTIME_PTSZ(cudaStreamGetDevice, (cudaStream_t stream, int* device), (stream, device)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamGetDevice(stream, device);
}

SIM_RUNTIME_PTSZ(cudaStreamQuery, (cudaStream_t stream), (stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamQuery(stream);
}

SIM_RUNTIME_PTSZ(cudaStreamSynchronize, (cudaStream_t stream), (stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamSynchronize(stream);
}

SIM_RUNTIME_PTSZ(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
                 (stream, event, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamWaitEvent(stream, event, flags);
}

SIM_RUNTIME_PTSZ(cudaStreamAttachMemAsync,
                 (cudaStream_t stream, void* pointer, size_t bytes, unsigned flags),
                 (stream, pointer, bytes, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamAttachMemAsync(stream, address(pointer), bytes, flags);
}

SIM_RUNTIME_PTSZ(cudaStreamCopyAttributes, (cudaStream_t destination, cudaStream_t source),
                 (destination, source)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamCopyAttributes(destination, source);
}

SIM_RUNTIME_PTSZ(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data),
                 (stream, function, data)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuLaunchHostFunc(stream, function, data);
}

SIM_RUNTIME_PTSZ(cudaStreamAddCallback,
                 (cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned flags),
                 (stream, function, data, flags)) {
  SIM_ENSURE_CONTEXT();
  // The two callback types differ in the type of the status alone, whose success is 0 in both.
  return driver_table(per_thread)
      .cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(function), data, flags);
}

// ---- events

SIM_RUNTIME(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuEventCreate(event, flags);
}

SIM_RUNTIME(cudaEventCreate, (cudaEvent_t * event), (event)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuEventCreate(event, CU_EVENT_DEFAULT);
}

SIM_RUNTIME(cudaEventDestroy, (cudaEvent_t event), (event)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuEventDestroy(event);
}

SIM_RUNTIME_PTSZ(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuEventRecord(event, stream);
}

SIM_RUNTIME_PTSZ(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags),
                 (event, stream, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuEventRecordWithFlags(event, stream, flags);
}

SIM_RUNTIME(cudaEventQuery, (cudaEvent_t event), (event)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuEventQuery(event);
}

SIM_RUNTIME(cudaEventSynchronize, (cudaEvent_t event), (event)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuEventSynchronize(event);
}

SIM_RUNTIME(cudaEventElapsedTime, (float* ms, cudaEvent_t start, cudaEvent_t end),
            (ms, start, end)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuEventElapsedTime(ms, start, end);
}
