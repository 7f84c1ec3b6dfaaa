// SPDX-License-Identifier: Apache-2.0
//
// What nvcc's start-up code calls for each kernel of a program linked to the shared cudart: the
// only place where the name of a kernel stands beside the address by which it is launched. No
// public header declares these functions; their parameters are those that nvcc has emitted since
// CUDA 3.
#include <vector_types.h>

#include "preload/api.hpp"
#include "runtime/kernels.hpp"
#include "runtime/recorder.hpp"

using namespace gpubusy::preload;
namespace runtime = gpubusy::runtime;

namespace {

template <class Function>
[[gnu::always_inline]] inline Function* real_registration(ApiId id) noexcept {
  // The handle of a module belongs to the libcudart that made it.
  return reinterpret_cast<Function*>(resolve_for_registration(id, __builtin_return_address(0)));
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void __cudaRegisterFunction(
    void** module, const char* host_function, char* device_function, const char* device_name,
    int thread_limit, uint3* thread_id, uint3* block_id, dim3* block, dim3* grid, int* warp_size) {
  using Function =
      void(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
  if (auto* real_function = real_registration<Function>(ApiId::__cudaRegisterFunction)) {
    real_function(module, host_function, device_function, device_name, thread_limit, thread_id,
                  block_id, block, grid, warp_size);
  }
  if (runtime::mode() != runtime::Mode::kOff) {
    runtime::register_kernel(module, host_function, device_name);
  }
}

extern "C" [[gnu::visibility("default")]] void __cudaUnregisterFatBinary(void** module) {
  using Function = void(void**);
  auto* real_function = real_registration<Function>(ApiId::__cudaUnregisterFatBinary);
  if (runtime::mode() != runtime::Mode::kOff) runtime::unregister_module(module);
  if (real_function != nullptr) real_function(module);
}
