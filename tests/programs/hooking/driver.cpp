// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 of a few functions. cuGetProcAddress hands out other entry points than the
// exported ones, with the same effect. Results tell which function was reached.
#include <cuda.h>

#include <cstring>

#undef cuGetProcAddress
#undef cuMemAlloc
#undef cuStreamBeginCapture
#undef cuCtxSynchronize

namespace {
CUresult result(int n) { return static_cast<CUresult>(n); }
CUresult alloc(CUdeviceptr* p, size_t bytes) {
  *p = bytes;
  return result(0);
}
CUresult begin_1(CUstream) { return result(101); }
CUresult begin_2(CUstream, CUstreamCaptureMode) { return result(102); }
CUresult begin_2_ptsz(CUstream, CUstreamCaptureMode) { return result(103); }
CUresult synchronize() { return result(201); }
CUresult synchronize_2(CUcontext c) { return result(c == nullptr ? 203 : 202); }
}  // namespace

extern "C" {
CUresult cuInit(unsigned) { return result(0); }
CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t bytes) { return alloc(p, bytes); }
CUresult cuStreamBeginCapture(CUstream s) { return begin_1(s); }
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode m) { return begin_2(s, m); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode m) {
  return begin_2_ptsz(s, m);
}
CUresult cuCtxSynchronize() { return synchronize(); }
CUresult cuCtxSynchronize_v2(CUcontext c) { return synchronize_2(c); }
CUresult cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *out = nullptr;
  if (strcmp(name, "cuMemAlloc") == 0) *out = reinterpret_cast<void*>(&alloc);
  if (strcmp(name, "cuStreamBeginCapture") == 0) {
    *out = version < 10010 ? reinterpret_cast<void*>(&begin_1)
           : per_thread    ? reinterpret_cast<void*>(&begin_2_ptsz)
                           : reinterpret_cast<void*>(&begin_2);
  }
  if (strcmp(name, "cuCtxSynchronize") == 0) {
    *out = version < 13000 ? reinterpret_cast<void*>(&synchronize)
                           : reinterpret_cast<void*>(&synchronize_2);
  }
  if (status != nullptr) {
    *status = *out == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *out == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
}
