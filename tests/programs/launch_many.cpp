// SPDX-License-Identifier: Apache-2.0
//
// launch_many N: launches N kernels, prints how many came through.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

extern "C" long toy_cuda_launches();

static void kernel() {}

int main(int, char** arguments) {
  const int times = std::atoi(arguments[1]);
  for (int i = 0; i < times; ++i) {
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
  }
  std::printf("launched %ld\n", toy_cuda_launches());
}
