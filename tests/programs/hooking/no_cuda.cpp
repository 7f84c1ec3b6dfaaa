// SPDX-License-Identifier: Apache-2.0
//
// Asks in every way whether there is CUDA. Error texts are printed from after the object's name.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

extern "C" [[gnu::weak]] int cudaMalloc(void**, size_t);
extern "C" [[gnu::weak]] int cuInit(unsigned);

namespace {
void tell(const char* how, void* handle, const char* name) {
  dlerror();
  void* p = dlsym(handle, name);
  const char* error = dlerror();
  const char* colon = error == nullptr ? nullptr : strstr(error, ": ");
  std::printf("%s %s %d%s\n", how, name, p != nullptr, colon == nullptr ? "" : colon);
}
}  // namespace

int main(int argc, char** argv) {
  void* self = dlopen(nullptr, RTLD_NOW);
  for (const char* name : {"cudaMalloc", "cuLaunchKernel", "cudaNoSuchFunction", "puts"}) {
    tell("default", RTLD_DEFAULT, name);
    tell("next", RTLD_NEXT, name);
    tell("self", self, name);
  }
  // A call must not eat the error that the program is about to ask for.
  dlopen("libdoes-not-exist.so", RTLD_NOW);
  void* p = nullptr;
  if (cudaMalloc != nullptr) cudaMalloc(&p, 1);
  const char* error = dlerror();
  std::printf("%s\n", error == nullptr ? "no error" : error);
  if (argc > 1) {  // and now with CUDA
    if (dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) return std::puts(dlerror()), 3;
    tell("default", RTLD_DEFAULT, "cudaMalloc");
    tell("self", self, "cudaMalloc");
    auto* alloc = reinterpret_cast<int (*)(void**, size_t)>(dlsym(RTLD_DEFAULT, "cudaMalloc"));
    std::printf("%d\n", alloc(&p, 8));
  }
}
