// SPDX-License-Identifier: Apache-2.0
//
// From the driver's handles to the core's objects, with the driver's errors.
#pragma once

#include <cuda.h>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim::driver {

// Leaves the function with the right error when the handle is none.
#define SIM_CONTEXT_OR_RETURN() \
  if (::gpubusy::sim::t_thread.current == nullptr) return CUDA_ERROR_INVALID_CONTEXT

#define SIM_STREAM_OR_RETURN(variable, handle)                                      \
  ::gpubusy::sim::Stream* const variable =                                          \
      ::gpubusy::sim::resolve_stream(static_cast<void*>(handle), per_thread);       \
  if (variable == nullptr) {                                                        \
    return ::gpubusy::sim::t_thread.current == nullptr ? CUDA_ERROR_INVALID_CONTEXT \
                                                       : CUDA_ERROR_INVALID_HANDLE; \
  }

#define SIM_EVENT_OR_RETURN(variable, handle)                                    \
  ::gpubusy::sim::Event* const variable = ::gpubusy::sim::resolve_event(handle); \
  if (variable == nullptr) return CUDA_ERROR_INVALID_HANDLE

#define SIM_POINTER_OR_RETURN(pointer) \
  if ((pointer) == nullptr) return CUDA_ERROR_INVALID_VALUE

template <class Object, class Handle>
Object* checked(Handle handle) noexcept {
  auto* object = reinterpret_cast<Object*>(handle);
  return object != nullptr && object->magic == Object::kMagic ? object : nullptr;
}

inline Device* device_at(int ordinal) noexcept {
  auto& devices = simulation().devices;
  return ordinal >= 0 && ordinal < static_cast<int>(devices.size()) ? devices[ordinal] : nullptr;
}

inline bool is_initialised() noexcept {
  return simulation().initialised.load(std::memory_order_relaxed);
}

template <class T = void>
T* pointer(CUdeviceptr address) noexcept {
  return reinterpret_cast<T*>(address);
}

}  // namespace gpubusy::sim::driver
