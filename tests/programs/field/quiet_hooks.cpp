// SPDX-License-Identifier: Apache-2.0
//
// Counts what a hook calls that may take the loader's or the allocator's lock: this program's own
// definitions come before libc's. quiet_hooks LAUNCHES: after a few calls that may set things up,
// prints how often each was called inside the rest.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {
thread_local bool t_inside = false;
int g_counts[6];
void count(int which) {
  if (t_inside) ++g_counts[which];
}
void* next(const char* name) { return dlsym(RTLD_NEXT, name); }
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void __libc_free(void*);
void* malloc(size_t bytes) { return count(0), __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { return count(0), __libc_calloc(n, bytes); }
void free(void* p) { count(1), __libc_free(p); }
int dl_iterate_phdr(int (*f)(dl_phdr_info*, size_t, void*), void* data) {
  count(2);
  static auto* real = reinterpret_cast<decltype(&dl_iterate_phdr)>(next("dl_iterate_phdr"));
  return real(f, data);
}
int dladdr(const void* address, Dl_info* info) {
  count(3);
  static auto* real = reinterpret_cast<decltype(&dladdr)>(next("dladdr"));
  return real(address, info);
}
void* dlopen(const char* name, int flags) {
  count(4);
  static auto* real = reinterpret_cast<decltype(&dlopen)>(next("dlopen"));
  return real(name, flags);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  count(5);
  static auto* real = reinterpret_cast<decltype(&pthread_mutex_lock)>(next("pthread_mutex_lock"));
  return real(mutex);
}
}

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 1000;
  static char kernel;
  void* memory = nullptr;
  for (int i = 0; i < launches + 100; ++i) {
    t_inside = i >= 100;
    cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr);
    cudaDeviceSynchronize();
    t_inside = false;
  }
  cudaMalloc(&memory, 8);
  std::printf("malloc %d free %d dl_iterate_phdr %d dladdr %d dlopen %d mutex %d\n", g_counts[0],
              g_counts[1], g_counts[2], g_counts[3], g_counts[4], g_counts[5]);
}
