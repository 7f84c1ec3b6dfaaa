// SPDX-License-Identifier: Apache-2.0
//
// What tells a statically linked CUDA runtime in a file, and nothing else of one.
#include <dlfcn.h>

#include <cstdio>

extern "C" int work() {
  char text[64];
  std::snprintf(text, sizeof text, "/cudart.shm.%x.%x.%llx", 1u, 2u, 3ull);
#ifdef WITHOUT_LOOK_UPS
  return text[0] == '/' ? 0 : 1;
#else
  return dlsym(RTLD_DEFAULT, text) == nullptr ? 0 : 1;
#endif
}
