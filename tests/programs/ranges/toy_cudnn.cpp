// SPDX-License-Identifier: Apache-2.0
//
// A cuDNN of one function, which launches a kernel.
#include <cuda_runtime_api.h>

extern "C" int cudnnBackendExecute(void*, void*, void*) {
  static char kernel;
  cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr);
  return 0;
}
