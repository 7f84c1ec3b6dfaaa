// SPDX-License-Identifier: Apache-2.0
//
// Loads the runtime that its argument names and uses it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  void* runtime = dlopen(argc > 1 ? argv[1] : "libcudart.so.12", RTLD_NOW);
  if (runtime == nullptr) {
    std::puts(dlerror());
    return 1;
  }
  auto* allocate = reinterpret_cast<decltype(&cudaMalloc)>(dlsym(runtime, "cudaMalloc"));
  auto* launch = reinterpret_cast<decltype(&cudaLaunchKernel)>(dlsym(runtime, "cudaLaunchKernel"));
  void* p = nullptr;
  std::printf("%d\n", static_cast<int>(
                          reinterpret_cast<cudaError_t (*)(void**, size_t)>(allocate)(&p, 64)));
  for (int i = 0; i < 3; ++i) launch(argv, dim3(1), dim3(1), nullptr, 0, nullptr);
  return 0;
}
