// SPDX-License-Identifier: Apache-2.0
//
// Looks a driver function up by dlsym; argument 1: the driver.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return std::puts(dlerror()), 3;
  using Alloc = int (*)(unsigned long long*, unsigned long);
  const auto alloc = reinterpret_cast<Alloc>(dlsym(driver, "cuMemAlloc_v2"));
  unsigned long long p = 0;
  const int small = alloc(&p, 50), large = alloc(&p, 1000);
  std::printf("%d %d\n", small, large);
}
