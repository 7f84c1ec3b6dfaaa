// SPDX-License-Identifier: Apache-2.0
//
// MARKER: a user's own preloaded library; whichever comes first is asked. Otherwise the program
// that asks, and that tells whether jemalloc serves its malloc. TLS: a library that needs much
// static thread-local storage.
#if defined(MARKER)
extern "C" int gpubusy_test_marker() { return MARKER; }
#elif defined(TLS)
namespace {
[[gnu::tls_model("initial-exec")]] thread_local volatile char t_room[TLS] = {1};
}
extern "C" int gpubusy_test_tls() { return t_room[0] + static_cast<int>(sizeof t_room); }
#else
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {
[[gnu::weak]] int gpubusy_test_marker();
[[gnu::weak]] int mallctl(const char*, void*, size_t*, void*, size_t);
}

int main(int argc, char** argv) {
  void* memory = nullptr;
  cudaMalloc(&memory, 100);
  std::printf("marker %d\n", gpubusy_test_marker == nullptr ? 0 : gpubusy_test_marker());
  if (mallctl != nullptr) {
    std::uint64_t before = 0, after = 0;
    size_t size = sizeof before;
    mallctl("thread.allocated", &before, &size, nullptr, 0);
    void* volatile p = std::malloc(1 << 20);
    mallctl("thread.allocated", &after, &size, nullptr, 0);
    std::free(p);
    std::printf("jemalloc %d\n", after - before >= 1 << 20);
  }
  for (int i = 1; i < argc; ++i) {
    void* library = dlopen(argv[i], RTLD_NOW);
    if (library == nullptr) return std::puts(dlerror()), 3;
    auto* tls = reinterpret_cast<int (*)()>(dlsym(library, "gpubusy_test_tls"));
    std::printf("tls %d\n", tls());
  }
}
#endif
