// SPDX-License-Identifier: Apache-2.0
//
// What nvcc generates for a kernel, by hand: a test compiled by any C++ compiler gets a kernel with
// a name, which it launches through the runtime as `kernel<<<grid, block, shared, stream>>>()`
// would.
//
//   GPUBUSY_FAKE_KERNEL(scale);            // at namespace scope; registered before main
//   void* arguments[] = {&x, &n};
//   cudaLaunchKernel(scale.stub(), grid, block, arguments, 0, stream);
#pragma once

#include <cuda_runtime_api.h>

extern "C" {
void** __cudaRegisterFatBinary(void* fatbin);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host_function, char* device_function,
                            const char* device_name, int thread_limit, uint3* thread_id,
                            uint3* block_id, dim3* block_dim, dim3* grid_dim, int* warp_size);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream);
}

namespace gpubusy::sim {

class FakeKernel {
 public:
  // `stub`: any address of the program's own, different for each kernel.
  FakeKernel(const void* stub, const char* name) : stub_(stub) {
    // The image is of no interest to the simulated runtime.
    static unsigned long long image[4] = {0x466243b1, 0, 0, 0};
    handle_ = __cudaRegisterFatBinary(image);
    __cudaRegisterFunction(handle_, static_cast<const char*>(stub), const_cast<char*>(name), name,
                           -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    __cudaRegisterFatBinaryEnd(handle_);
  }
  ~FakeKernel() { __cudaUnregisterFatBinary(handle_); }
  FakeKernel(const FakeKernel&) = delete;
  FakeKernel& operator=(const FakeKernel&) = delete;

  const void* stub() const { return stub_; }

 private:
  const void* stub_;
  void** handle_ = nullptr;
};

}  // namespace gpubusy::sim

#define GPUBUSY_FAKE_KERNEL(name)                                               \
  [[gnu::noinline, gnu::used]] static void gpubusy_stub_##name() {              \
    asm volatile("# " #name ::: "memory"); /* no two stubs are the same code */ \
  }                                                                             \
  static ::gpubusy::sim::FakeKernel name {                                      \
    reinterpret_cast<const void*>(&gpubusy_stub_##name), #name                  \
  }
