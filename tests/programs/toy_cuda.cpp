// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime of a few functions for tests of the hooks alone. cudaLaunchHostFunc calls its
// function at once, in the caller's thread, so that a test can leave a hook by an exception.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>

namespace {
std::atomic<long> g_launches{0};
}

extern "C" {
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  ++g_launches;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t fn, void* data) {
  fn(data);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** ptr, size_t size) {
  *ptr = std::malloc(size);
  return *ptr == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* ptr) {
  std::free(ptr);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
long toy_cuda_launches() { return g_launches; }
}
