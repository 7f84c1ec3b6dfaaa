// SPDX-License-Identifier: Apache-2.0
//
// RUNTIME: the plug-in's CUDA runtime, which counts its calls. Otherwise the plug-in.
#include <cuda_runtime_api.h>

#include <cstdio>

namespace {
struct Unloaded {
  ~Unloaded() {
#ifdef RUNTIME
    std::puts("runtime unloaded");
#else
    std::puts("plug-in unloaded");
#endif
    std::fflush(stdout);
  }
} g_unloaded;
}  // namespace

#ifdef RUNTIME
extern "C" cudaError_t cudaDeviceSynchronize() {
  static int calls = 0;
  return static_cast<cudaError_t>(++calls);
}
#else
extern "C" int work() {
  cudaDeviceSynchronize();
  return cudaDeviceSynchronize();
}
#endif
