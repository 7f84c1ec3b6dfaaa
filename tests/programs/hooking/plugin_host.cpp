// SPDX-License-Identifier: Apache-2.0
//
// Loads, uses and unloads a plug-in that brings its CUDA runtime, twice. In between other things
// are mapped, so that nothing of the first load is where it was.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int scope = strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
  for (int i = 0; i < 2; ++i) {
    void* handle = dlopen(argv[2], RTLD_NOW | scope);
    if (handle == nullptr) return std::puts(dlerror()), 3;
    auto* work = reinterpret_cast<int (*)()>(dlsym(handle, "work"));
    std::printf("work %d\n", work());
    std::fflush(stdout);
    std::printf("dlclose %d\n", dlclose(handle));
    std::fflush(stdout);
    for (int k = 1; k <= 64; ++k) {
      mmap(nullptr, 4096u * static_cast<unsigned>(k), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
  }
  std::printf("bad handle %d\n", dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD) != nullptr);
}
