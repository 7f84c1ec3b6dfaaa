// SPDX-License-Identifier: Apache-2.0
//
// Another preloaded library, as GPU sharing uses them: replaces a driver function, also for those
// that look it up by dlsym. Its dlsym has no version.
#include <dlfcn.h>

#include <cstring>

namespace {
void* libc_dlsym(void* handle, const char* name) {
  using Find = void* (*)(void*, const char*);
  static auto find = reinterpret_cast<Find>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  if (find == nullptr) find = reinterpret_cast<Find>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17"));
  return find(handle, name);
}
}  // namespace

extern "C" {
int cuMemAlloc_v2(unsigned long long* pointer, unsigned long bytes) {
  if (bytes > 100) return 2;
  using Alloc = int (*)(unsigned long long*, unsigned long);
  static auto real =
      reinterpret_cast<Alloc>(libc_dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2"));
  return real(pointer, bytes);
}
void* dlsym(void* handle, const char* name) {
  if (name != nullptr && strcmp(name, "cuMemAlloc_v2") == 0) {
    return reinterpret_cast<void*>(&cuMemAlloc_v2);
  }
  return libc_dlsym(handle, name);
}
}
