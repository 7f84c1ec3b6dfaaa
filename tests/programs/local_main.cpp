// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 3;
  }
  auto* run = reinterpret_cast<int (*)()>(dlsym(library, "plugin_run"));
  std::printf("%d\n", run == nullptr ? -9 : run());
}
