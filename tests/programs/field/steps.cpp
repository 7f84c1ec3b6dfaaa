// SPDX-License-Identifier: Apache-2.0
//
// steps STEPS LAUNCHES: each step launches and then synchronises, which the tests take for its end.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  static char kernel;
  for (int step = 0; step < std::atoi(argv[1]); ++step) {
    for (int i = 0; i < std::atoi(argv[2]); ++i) {
      cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr);
    }
    cudaDeviceSynchronize();
  }
  std::printf("trained %s\n", argv[1]);
  return 5;
}
