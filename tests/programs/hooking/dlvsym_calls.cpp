// SPDX-License-Identifier: Apache-2.0
//
// Finds cudaMalloc by dlvsym in every way and calls what it gets; prints what each way gave.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>

extern "C" int chain_step(int depth);

namespace {

using Find = void* (*)(void*, const char*, const char*);

void call(const char* way, void* found) {
  void* p = nullptr;
  const int result =
      found == nullptr ? -1 : reinterpret_cast<cudaError_t (*)(void**, size_t)>(found)(&p, 8);
  std::printf("%s: %d\n", way, result);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* other = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);  // version 12; 13 is linked
  if (other == nullptr) return std::puts(dlerror()), 3;
  constexpr const char* kName = "cudaMalloc";
  call("default 13", dlvsym(RTLD_DEFAULT, kName, "libcudart.so.13"));
  call("next 13", dlvsym(RTLD_NEXT, kName, "libcudart.so.13"));
  call("handle 12", dlvsym(other, kName, "libcudart.so.12"));
  call("default 12", dlvsym(RTLD_DEFAULT, kName, "libcudart.so.12"));  // not in this scope
  std::printf("%s\n", dlerror());
  call("handle 13", dlvsym(other, kName, "libcudart.so.13"));
  std::printf("%s\n", dlerror());
  call("unknown version", dlvsym(RTLD_DEFAULT, kName, "libcudart.so.99"));
  call("unknown name", dlvsym(RTLD_DEFAULT, "cudaNoSuchFunction", "libcudart.so.13"));
  const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "dlvsym"));
  call("found dlvsym", find(RTLD_DEFAULT, kName, "libcudart.so.13"));
  std::printf("chain: %d\n", chain_step(1));
}
