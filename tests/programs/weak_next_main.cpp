// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>

extern "C" void chained();

int main() {
  chained();
  // A name that CUDA might have, but does not: the error text must be libc's own.
  void* self = dlopen(nullptr, RTLD_NOW);
  void* none = dlsym(self, "cuNoSuchFunction");
  const char* error = dlerror();
  std::printf("%d %s\n", none == nullptr, error == nullptr ? "no error" : error);
  return 7;
}
