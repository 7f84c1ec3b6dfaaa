// SPDX-License-Identifier: Apache-2.0
//
// LIBRARY: its constructor ends the process. Otherwise: exit_in_loader main|thread LIBRARY loads
// it, after a CUDA call, so that a recording is open when exit() runs under the loader's lock.
#include <cstdlib>

#ifdef LIBRARY
[[gnu::constructor]] static void leave() { std::exit(1); }
#else
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <thread>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* memory = nullptr;
  cudaMalloc(&memory, 64);
  std::puts("loading");
  if (std::strcmp(argv[1], "main") == 0) {
    dlopen(argv[2], RTLD_NOW);
  } else {
    std::thread([&] { dlopen(argv[2], RTLD_NOW); }).join();
  }
  std::puts("not reached");
  return 9;
}
#endif
