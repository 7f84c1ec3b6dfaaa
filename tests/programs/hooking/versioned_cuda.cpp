// SPDX-License-Identifier: Apache-2.0
//
// One of two CUDA runtimes that live in one process: every function answers with its VERSION.
#include <cuda_runtime_api.h>
#include <vector_types.h>

namespace {
int g_registered = 0;
}

extern "C" {
cudaError_t cudaMalloc(void** ptr, size_t) {
  *ptr = &g_registered;
  return static_cast<cudaError_t>(VERSION);
}
cudaError_t cudaDeviceSynchronize() { return static_cast<cudaError_t>(VERSION); }
// Not among the intercepted functions: 100 a module that was made here, 1 each kernel.
void** __cudaRegisterFatBinary(void*) {
  g_registered += 100;
  return reinterpret_cast<void**>(&g_registered);
}
void __cudaRegisterFunction(void** module, const char*, char*, const char*, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  if (module == reinterpret_cast<void**>(&g_registered)) ++g_registered;
}
void __cudaUnregisterFatBinary(void** module) {
  if (module == reinterpret_cast<void**>(&g_registered)) g_registered -= 100;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = g_registered;
  return cudaSuccess;
}
}
