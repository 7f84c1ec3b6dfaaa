// SPDX-License-Identifier: Apache-2.0
//
// How the simulated libraries reach the driver: as the real ones do, by dlopen("libcuda.so.1"),
// dlsym("cuGetProcAddress_v2"), and from there on by cuGetProcAddress. Whoever interposes these
// sees the driver call inside each runtime call, and the launches of cuBLAS and cuDNN, where they
// really are: at the driver alone. So no simulated library may call another's exported functions.
#pragma once

#include <cuda.h>

// In no header of the wheels.
extern "C" {
CUresult cuProfilerStart();
CUresult cuProfilerStop();
}

namespace gpubusy::sim {

struct DriverTable {
#define DRIVER_FUNCTION(name) decltype(&::name) name;
#define DRIVER_FUNCTION_OF(name, version) decltype(&::name) name;
#include "simulator/faces/driver_table.def"
#undef DRIVER_FUNCTION
#undef DRIVER_FUNCTION_OF

  // Looks all of them up; one that the driver does not have answers CUDA_ERROR_NOT_FOUND. Without a
  // driver all stay null.
  void resolve(bool per_thread_default_stream) noexcept;
};

// The runtime's own tables, looked up once. Each simulated library has one more.
const DriverTable& driver_table(bool per_thread) noexcept;

}  // namespace gpubusy::sim
