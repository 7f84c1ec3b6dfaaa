// SPDX-License-Identifier: Apache-2.0
//
// Linked to the driver.
#include <cuda.h>

extern "C" int work() {
#ifdef ONLY_LOOKS
  return cuInit(0);
#else
  CUdeviceptr p = 0;
  return cuMemAlloc(&p, 1000);
#endif
}
