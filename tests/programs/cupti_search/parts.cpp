// SPDX-License-Identifier: Apache-2.0
//
// One source for three small libraries: a driver whose version TEST_CUDA_VERSION gives, a runtime
// that loads it in its first call as libcudart does, and a CUPTI that writes where it was loaded
// from into the file TEST_CUPTI_LOG when a kind is enabled.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {
#if defined(PART_DRIVER)
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  const char* text = std::getenv("TEST_CUDA_VERSION");
  *version = text == nullptr ? 13000 : std::atoi(text);
  return CUDA_SUCCESS;
}
#elif defined(PART_RUNTIME)
namespace {
void start() {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  static auto* init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(driver, "cuInit"));
  init(0);
}
}  // namespace
cudaError_t cudaMalloc(void** p, size_t size) {
  start();
  *p = std::malloc(size);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  start();
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "?"; }
#elif defined(PART_CUPTI)
namespace {
const char g_here = 0;
}
int cuptiActivityEnable(std::uint32_t kind) {
  Dl_info info{};
  dladdr(&g_here, &info);
  if (std::FILE* log = std::fopen(std::getenv("TEST_CUPTI_LOG"), "a")) {
    std::fprintf(log, "%u %s\n", kind, info.dli_fname);
    std::fclose(log);
  }
  return 0;
}
int cuptiActivityDisable(std::uint32_t) { return 0; }
int cuptiActivityRegisterCallbacks(void*, void*) { return 0; }
int cuptiActivityFlushAll(std::uint32_t) { return 0; }
int cuptiActivityGetNextRecord(void*, std::size_t, void*) { return 12; }
int cuptiActivityPushExternalCorrelationId(std::uint32_t, std::uint64_t) { return 0; }
int cuptiActivityPopExternalCorrelationId(std::uint32_t, std::uint64_t*) { return 0; }
int cuptiGetTimestamp(std::uint64_t* t) {
  *t = 1;
  return 0;
}
int cuptiGetCallbackName(std::uint32_t, std::uint32_t, const char**) { return 1; }
int cuptiSubscribe(void*, void*, void*) { return 0; }
int cuptiUnsubscribe(void*) { return 0; }
#endif
}
