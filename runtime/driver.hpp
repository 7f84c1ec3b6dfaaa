// SPDX-License-Identifier: Apache-2.0
//
// The driver functions that the recorder itself calls. The driver, not the runtime API: the driver
// has no "last error" that the program could find changed, and it is there in every CUDA process,
// also where cudart is linked statically.
//
// Only looked up after the program itself has made a CUDA call, in the libcuda that is already
// loaded; nothing is ever loaded or initialised for us. A missing function is a null pointer.
#pragma once

#include <cuda.h>

#include "runtime/api_info.hpp"

// cuda.h renames these to their newest version; rows below name the symbol that is looked up.
#undef cuEventElapsedTime
#undef cuDeviceTotalMem

namespace gpubusy::runtime {

// DRIVER_FUNCTION(member, "exported symbol", signature)
#define GPUBUSY_DRIVER_FUNCTIONS(F)                                                             \
  F(driver_get_version, "cuDriverGetVersion", CUresult(int*))                                   \
  F(ctx_get_current, "cuCtxGetCurrent", CUresult(CUcontext*))                                   \
  F(ctx_get_device, "cuCtxGetDevice", CUresult(CUdevice*))                                      \
  F(ctx_get_id, "cuCtxGetId", CUresult(CUcontext, unsigned long long*))                         \
  F(device_get_attribute, "cuDeviceGetAttribute", CUresult(int*, CUdevice_attribute, CUdevice)) \
  F(device_get_name, "cuDeviceGetName", CUresult(char*, int, CUdevice))                         \
  F(device_total_mem, "cuDeviceTotalMem_v2", CUresult(size_t*, CUdevice))                       \
  F(event_create, "cuEventCreate", CUresult(CUevent*, unsigned))                                \
  F(event_destroy, "cuEventDestroy_v2", CUresult(CUevent))                                      \
  F(event_record, "cuEventRecord", CUresult(CUevent, CUstream))                                 \
  F(event_record_ptsz, "cuEventRecord_ptsz", CUresult(CUevent, CUstream))                       \
  F(event_query, "cuEventQuery", CUresult(CUevent))                                             \
  F(event_elapsed, "cuEventElapsedTime", CUresult(float*, CUevent, CUevent))                    \
  F(stream_create, "cuStreamCreate", CUresult(CUstream*, unsigned))                             \
  F(stream_get_id, "cuStreamGetId", CUresult(CUstream, unsigned long long*))                    \
  F(stream_get_id_ptsz, "cuStreamGetId_ptsz", CUresult(CUstream, unsigned long long*))          \
  F(stream_get_flags, "cuStreamGetFlags", CUresult(CUstream, unsigned*))                        \
  F(stream_get_priority, "cuStreamGetPriority", CUresult(CUstream, int*))                       \
  F(stream_is_capturing, "cuStreamIsCapturing", CUresult(CUstream, CUstreamCaptureStatus*))     \
  F(stream_is_capturing_ptsz, "cuStreamIsCapturing_ptsz",                                       \
    CUresult(CUstream, CUstreamCaptureStatus*))                                                 \
  F(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", CUresult(CUstreamCaptureMode*)) \
  F(pointer_get_attributes, "cuPointerGetAttributes",                                           \
    CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr))                              \
  F(func_get_name, "cuFuncGetName", CUresult(const char**, CUfunction))                         \
  F(kernel_get_name, "cuKernelGetName", CUresult(const char**, CUkernel))                       \
  F(graph_get_nodes, "cuGraphGetNodes", CUresult(CUgraph, CUgraphNode*, size_t*))               \
  F(graph_node_get_type, "cuGraphNodeGetType", CUresult(CUgraphNode, CUgraphNodeType*))         \
  F(graph_child_get_graph, "cuGraphChildGraphNodeGetGraph", CUresult(CUgraphNode, CUgraph*))

struct Driver {
  template <class T>
  using Pointer = T*;
#define GPUBUSY_DECLARE(member, symbol, ...) Pointer<__VA_ARGS__> member;
  GPUBUSY_DRIVER_FUNCTIONS(GPUBUSY_DECLARE)
#undef GPUBUSY_DECLARE
};

// Looks up once the program's libcuda is there; nullptr until then. Safe from any thread.
const Driver* driver() noexcept;
void forget_driver_search_after_fork() noexcept;
void set_symbol_finder(FindSymbol find) noexcept;
FindSymbol symbol_finder() noexcept;

}  // namespace gpubusy::runtime
