// SPDX-License-Identifier: Apache-2.0
//
// Two CUDA runtimes in one process: linked, or (with the libraries as arguments) loaded one after
// the other and used by turns.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

extern "C" int use12();
extern "C" int use13();

int main(int argc, char** argv) {
#ifdef LINKED
  (void)argc, (void)argv;
  for (int i = 0; i < 2; ++i) use12(), use13();
#else
  int (*use[2])() = {};
  const char* names[] = {"use12", "use13"};
  if (argc != 3) return 2;
  for (int i = 0; i < 2; ++i) {
    void* handle = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return std::puts(dlerror()), 3;
    const char* name = strstr(argv[1 + i], "12") != nullptr ? names[0] : names[1];
    use[i] = reinterpret_cast<int (*)()>(dlsym(handle, name));
    use[i]();
  }
  for (int i = 0; i < 4; ++i) use[i % 2]();
#endif
}
