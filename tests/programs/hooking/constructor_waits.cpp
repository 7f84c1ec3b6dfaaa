// SPDX-License-Identifier: Apache-2.0
//
// Loads a library whose constructor waits for a thread that makes a CUDA call, while dlopen() holds
// the loader's lock. Argument 1: calls made before.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  for (int i = std::atoi(argv[1]); i > 0; --i) cudaDeviceSynchronize();
  alarm(20);
  void* handle = dlopen(argv[2], RTLD_NOW);
  std::printf("loaded %d\n", handle != nullptr);
}
