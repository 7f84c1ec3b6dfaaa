// SPDX-License-Identifier: Apache-2.0
//
// A library that is linked to one of the two runtimes and registers a kernel there, as nvcc's code
// does.
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdio>

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
void __cudaUnregisterFatBinary(void**);

#define JOIN(a, b) a##b
#define NAME(version) JOIN(use, version)
int NAME(VERSION)() {
  static const char stub = 0;
  void** module = __cudaRegisterFatBinary(nullptr);
  __cudaRegisterFunction(module, &stub, nullptr, "kernel", 0, nullptr, nullptr, nullptr, nullptr,
                         nullptr);
  void* p = nullptr;
  const int malloc_version = cudaMalloc(&p, 1);
  const int sync_version = cudaDeviceSynchronize();
  int with_module = 0, without = 0;
  cudaGetDeviceCount(&with_module);
  __cudaUnregisterFatBinary(module);
  cudaGetDeviceCount(&without);
  std::printf("%d: %d %d %d %d\n", VERSION, malloc_version, sync_version, with_module, without);
  std::fflush(stdout);
  return 0;
}
}
