// SPDX-License-Identifier: Apache-2.0
//
// LIBRARY: a CUDA runtime that is torn down by an exit handler made at its first call, as the real
// one, and answers 4 (unloading) from then on. Otherwise a program that frees memory later than
// that.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#ifdef LIBRARY
namespace {
bool g_gone = false;
struct TearDown {
  ~TearDown() { g_gone = true; }
};
}  // namespace
extern "C" {
cudaError_t cudaMalloc(void** p, size_t bytes) {
  static TearDown tear_down;
  *p = g_gone ? nullptr : std::malloc(bytes);
  return g_gone ? cudaErrorCudartUnloading : cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (g_gone) return cudaErrorCudartUnloading;
  std::free(p);
  return cudaSuccess;
}
}
#else
namespace {
void* g_memory = nullptr;
// Runs after every static object is gone, those of libraries too.
[[gnu::destructor]] void free_late() {
  std::printf("late %d %d\n", cudaFree(g_memory), cudaMalloc(&g_memory, 8));
  std::fflush(stdout);
}
struct Early {
  ~Early() { std::printf("static %d\n", cudaFree(nullptr)); }
} g_early;
}  // namespace
int main() {
  std::printf("main %d\n", cudaMalloc(&g_memory, 64));
  return 6;
}
#endif
