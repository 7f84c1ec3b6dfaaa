// SPDX-License-Identifier: Apache-2.0
//
// A program with a known amount of work, for tests that read the truth log or interpose.
//
//   sim_work runtime N   N kernels, N/10 copies each way and a synchronisation, through libcudart
//   sim_work static N    the same as static cudart does it: dlopen, dlsym, cuGetProcAddress
//   sim_work forever     launches until killed
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator/fake_kernel.hpp"

GPUBUSY_FAKE_KERNEL(sim_work_kernel);

namespace {

constexpr size_t kBytes = 4096;

#define CHECK(call)                                  \
  if (const int result = call) {                     \
    std::fprintf(stderr, "%s: %d\n", #call, result); \
    return 1;                                        \
  }

int through_runtime(int count) {
  void *device = nullptr, *host = nullptr;
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&device, kBytes));
  CHECK(cudaMallocHost(&host, kBytes));
  for (int i = 0; i < count; ++i) {
    CHECK(cudaLaunchKernel(sim_work_kernel.stub(), 8, 128, nullptr, 0, stream));
    if (i % 10 == 0) {
      CHECK(cudaMemcpyAsync(device, host, kBytes, cudaMemcpyHostToDevice, stream));
      CHECK(cudaMemcpyAsync(host, device, kBytes, cudaMemcpyDeviceToHost, stream));
    }
  }
  CHECK(cudaStreamSynchronize(stream));
  return 0;
}

template <class Function>
Function* entry(decltype(&cuGetProcAddress_v2) get, const char* name) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  get(name, &found, CUDA_VERSION, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
  return reinterpret_cast<Function*>(found);
}
#define ENTRY(name) auto* driver_##name = entry<decltype(name)>(get, #name)

int like_static_cudart(int count) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return 1;
  auto* get =
      reinterpret_cast<decltype(&cuGetProcAddress_v2)>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return 1;
  ENTRY(cuInit);
  ENTRY(cuDevicePrimaryCtxRetain);
  ENTRY(cuCtxSetCurrent);
  ENTRY(cuLibraryLoadData);
  ENTRY(cuLibraryGetKernel);
  ENTRY(cuStreamCreate);
  auto* mem_alloc = entry<decltype(cuMemAlloc_v2)>(get, "cuMemAlloc");
  ENTRY(cuMemHostAlloc);
  ENTRY(cuLaunchKernel);
  auto* to_device = entry<decltype(cuMemcpyHtoDAsync_v2)>(get, "cuMemcpyHtoDAsync");
  auto* to_host = entry<decltype(cuMemcpyDtoHAsync_v2)>(get, "cuMemcpyDtoHAsync");
  ENTRY(cuStreamSynchronize);
  CUcontext context = nullptr;
  CUlibrary code = nullptr;
  CUkernel kernel = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr device = 0;
  void* host = nullptr;
  CHECK(driver_cuInit(0));
  CHECK(driver_cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(driver_cuCtxSetCurrent(context));
  CHECK(driver_cuLibraryLoadData(&code, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK(driver_cuLibraryGetKernel(&kernel, code, "sim_work_kernel"));
  CHECK(driver_cuStreamCreate(&stream, 0));
  CHECK(mem_alloc(&device, kBytes));
  CHECK(driver_cuMemHostAlloc(&host, kBytes, 0));
  for (int i = 0; i < count; ++i) {
    CHECK(driver_cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 8, 1, 1, 128, 1, 1, 0, stream,
                                nullptr, nullptr));
    if (i % 10 == 0) {
      CHECK(to_device(device, host, kBytes, stream));
      CHECK(to_host(host, device, kBytes, stream));
    }
  }
  CHECK(driver_cuStreamSynchronize(stream));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  const int count = argc > 2 ? std::atoi(argv[2]) : 100;
  if (std::strcmp(mode, "runtime") == 0) return through_runtime(count);
  if (std::strcmp(mode, "static") == 0) return like_static_cudart(count);
  if (std::strcmp(mode, "forever") == 0) {
    while (through_runtime(1000) == 0) {
      std::puts("1000");
      std::fflush(stdout);
    }
  }
  return 2;
}
