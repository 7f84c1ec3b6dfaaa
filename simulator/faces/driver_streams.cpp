// SPDX-License-Identifier: Apache-2.0
//
// The driver: streams and events.
#include <algorithm>

#include "simulator/core/work.hpp"
#include "simulator/faces/driver_export.hpp"
#include "simulator/faces/driver_handles.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::driver;

SIM_DRIVER(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
           (stream, flags, priority)) {
  SIM_POINTER_OR_RETURN(stream);
  SIM_CONTEXT_OR_RETURN();
  if ((flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(
      new_stream(*t_thread.current->device, flags, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags)) {
  return cuStreamCreateWithPriority_body(per_thread, stream, flags, 0);
}

SIM_DRIVER(cuStreamDestroy_v2, (CUstream stream), (stream)) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  SIM_STREAM_OR_RETURN(s, stream);
  if (s->capture != nullptr) return simulation().captures.not_while_capturing(*s->capture);
  delete_stream(s);
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamGetPriority, (CUstream stream, int* priority), (stream, priority)) {
  SIM_POINTER_OR_RETURN(priority);
  SIM_STREAM_OR_RETURN(s, stream);
  *priority = s->priority;
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamGetFlags, (CUstream stream, unsigned* flags), (stream, flags)) {
  SIM_POINTER_OR_RETURN(flags);
  SIM_STREAM_OR_RETURN(s, stream);
  *flags = s->flags;
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamGetId, (CUstream stream, unsigned long long* id), (stream, id)) {
  SIM_POINTER_OR_RETURN(id);
  SIM_STREAM_OR_RETURN(s, stream);
  *id = s->id;
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamGetDevice, (CUstream stream, CUdevice* device), (stream, device)) {
  SIM_POINTER_OR_RETURN(device);
  SIM_STREAM_OR_RETURN(s, stream);
  *device = s->device->index;
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext* context), (stream, context)) {
  SIM_POINTER_OR_RETURN(context);
  SIM_STREAM_OR_RETURN(s, stream);
  *context = reinterpret_cast<CUcontext>(&s->device->primary);
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamGetCtx_v2, (CUstream stream, CUcontext* context, CUgreenCtx* green_context),
                (stream, context, green_context)) {
  if (green_context != nullptr) *green_context = nullptr;
  return cuStreamGetCtx_body(per_thread, stream, context);
}

SIM_DRIVER_PTSZ(cuStreamQuery, (CUstream stream), (stream)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return query_stream(*s);
}

SIM_DRIVER_PTSZ(cuStreamSynchronize, (CUstream stream), (stream)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return synchronize_stream(*s);
}

SIM_DRIVER_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
                (stream, event, flags)) {
  SIM_STREAM_OR_RETURN(s, stream);
  SIM_EVENT_OR_RETURN(e, event);
  return wait_event(*s, *e, flags);
}

SIM_DRIVER_PTSZ(cuStreamAttachMemAsync,
                (CUstream stream, CUdeviceptr address, std::size_t bytes, unsigned flags),
                (stream, address, bytes, flags)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuStreamCopyAttributes, (CUstream destination, CUstream source),
                (destination, source)) {
  SIM_STREAM_OR_RETURN(to, destination);
  SIM_STREAM_OR_RETURN(from, source);
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data),
                (stream, function, data)) {
  SIM_POINTER_OR_RETURN(function);
  SIM_STREAM_OR_RETURN(s, stream);
  return launch_host_function(*s, function, data);
}

namespace {

struct StreamCallback {
  CUstreamCallback function;
  CUstream stream;
  void* data;
};

void call_stream_callback(void* argument) {
  const StreamCallback callback = *static_cast<StreamCallback*>(argument);
  delete static_cast<StreamCallback*>(argument);
  callback.function(callback.stream, CUDA_SUCCESS, callback.data);
}

}  // namespace

SIM_DRIVER_PTSZ(cuStreamAddCallback,
                (CUstream stream, CUstreamCallback function, void* data, unsigned flags),
                (stream, function, data, flags)) {
  if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  SIM_STREAM_OR_RETURN(s, stream);
  // Unlike a host function, a callback cannot be captured.
  if (s->capture != nullptr) return simulation().captures.not_while_capturing(*s->capture);
  return launch_host_function(*s, call_stream_callback, new StreamCallback{function, stream, data});
}

// ---- events

SIM_DRIVER(cuEventCreate, (CUevent * event, unsigned flags), (event, flags)) {
  SIM_POINTER_OR_RETURN(event);
  SIM_CONTEXT_OR_RETURN();
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(new_event(flags, t_thread.current->device->index));
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuEventDestroy_v2, (CUevent event), (event)) {
  SIM_EVENT_OR_RETURN(e, event);
  delete_event(e);
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
                (event, stream, flags)) {
  SIM_EVENT_OR_RETURN(e, event);
  SIM_STREAM_OR_RETURN(s, stream);
  return record_event(*e, *s, flags);
}

SIM_DRIVER_PTSZ(cuEventRecord, (CUevent event, CUstream stream), (event, stream)) {
  return cuEventRecordWithFlags_body(per_thread, event, stream, 0);
}

SIM_DRIVER(cuEventQuery, (CUevent event), (event)) {
  SIM_EVENT_OR_RETURN(e, event);
  return query_event(*e);
}

SIM_DRIVER(cuEventSynchronize, (CUevent event), (event)) {
  SIM_EVENT_OR_RETURN(e, event);
  return synchronize_event(*e);
}

SIM_DRIVER(cuEventElapsedTime, (float* ms, CUevent start, CUevent end), (ms, start, end)) {
  SIM_POINTER_OR_RETURN(ms);
  SIM_EVENT_OR_RETURN(first, start);
  SIM_EVENT_OR_RETURN(second, end);
  return elapsed_ms(*first, *second, ms);
}

SIM_DRIVER(cuEventElapsedTime_v2, (float* ms, CUevent start, CUevent end), (ms, start, end)) {
  return cuEventElapsedTime_body(per_thread, ms, start, end);
}
