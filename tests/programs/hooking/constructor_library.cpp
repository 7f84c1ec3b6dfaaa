// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <cstdio>
#include <thread>

namespace {
struct Constructed {
  Constructed() {
    std::thread([] {
      static const char kernel = 0;
      cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr);
      void* p = nullptr;
      cudaMalloc(&p, 1);
      cudaFree(p);
    }).join();
    std::puts("constructed");
    std::fflush(stdout);
  }
} g_constructed;
}  // namespace
