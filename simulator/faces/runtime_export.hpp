// SPDX-License-Identifier: Apache-2.0
//
// The runtime's exported functions: as driver_export.hpp, with the runtime's "last error".
//
//   SIM_RUNTIME_PTSZ(cudaStreamQuery, (cudaStream_t stream), (stream)) {
//     return driver_table(per_thread).cuStreamQuery(stream);
//   }
#pragma once

#include <cuda_runtime_api.h>

#include "simulator/faces/driver_table.hpp"
#include "simulator/faces/export.hpp"

namespace gpubusy::sim::runtime {

// Of either API: the numbers are the same.
struct Result {
  Result(int value) : code(value) {}                         // NOLINT: meant to be implicit
  Result(cudaError_t value) : code(value) {}                 // NOLINT
  Result(CUresult value) : code(static_cast<int>(value)) {}  // NOLINT
  int code;
};

inline cudaError_t ended(Result result) noexcept {
  if (result.code != 0) [[unlikely]]
    t_thread.last_error = result.code;
  return static_cast<cudaError_t>(result.code);
}

// What the runtime does at the first call of a thread: takes the device's primary context.
int make_context_current() noexcept;
#define SIM_ENSURE_CONTEXT()                                                      \
  if (::gpubusy::sim::t_thread.current == nullptr) [[unlikely]] {                 \
    if (const int no_context = ::gpubusy::sim::runtime::make_context_current()) { \
      return no_context;                                                          \
    }                                                                             \
  }

inline CUdeviceptr address(const void* pointer) noexcept {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// The kernel behind a host stub's address or a cudaKernel_t; nullptr: neither.
Kernel* kernel_of(const void* function) noexcept;

}  // namespace gpubusy::sim::runtime

#define SIM_RUNTIME_ENTRY(symbol, body, params, args, per_thread, survives)                    \
  SIM_ENTRY(kRuntime, cudaError_t, ::gpubusy::sim::runtime::ended, symbol, body, params, args, \
            per_thread, survives)

#define SIM_RUNTIME(symbol, params, args)                              \
  SIM_BODY(::gpubusy::sim::runtime::Result, symbol, params);           \
  SIM_RUNTIME_ENTRY(symbol, symbol##_body, params, args, false, false) \
  SIM_BODY(::gpubusy::sim::runtime::Result, symbol, params)
#define SIM_RUNTIME_PTSZ(symbol, params, args)                               \
  SIM_BODY(::gpubusy::sim::runtime::Result, symbol, params);                 \
  SIM_RUNTIME_ENTRY(symbol, symbol##_body, params, args, false, false)       \
  SIM_RUNTIME_ENTRY(symbol##_ptsz, symbol##_body, params, args, true, false) \
  SIM_BODY(::gpubusy::sim::runtime::Result, symbol, params)
#define SIM_RUNTIME_PTDS(symbol, params, args)                               \
  SIM_BODY(::gpubusy::sim::runtime::Result, symbol, params);                 \
  SIM_RUNTIME_ENTRY(symbol, symbol##_body, params, args, false, false)       \
  SIM_RUNTIME_ENTRY(symbol##_ptds, symbol##_body, params, args, true, false) \
  SIM_BODY(::gpubusy::sim::runtime::Result, symbol, params)
