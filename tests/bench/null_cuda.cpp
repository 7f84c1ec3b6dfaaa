// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime that does nothing, so that a benchmark of hooks measures the hooks.
#include <cuda_runtime_api.h>

extern "C" {
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t) {
  *pointer = nullptr;
  return cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
}
