// SPDX-License-Identifier: Apache-2.0
//
// What the simulated libraries share: their own way to the driver, and their kernels. A kernel of a
// library is launched by the driver's functions alone, with its Work as its only argument.
#pragma once

#include <cuda.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "simulator/core/api_call.hpp"
#include "simulator/core/kernels.hpp"
#include "simulator/faces/driver_table.hpp"

namespace gpubusy::sim {

class Library {
 public:
  struct Launch {
    const char* kernel;
    Work work;
    Dim3 grid, block;
    unsigned shared_bytes = 0;
    bool extended = false;  // by cuLaunchKernelEx, as kernels with thread block clusters need
  };
  // A CUresult.
  int launch(const Launch& what, CUstream stream);
  const DriverTable& driver();

 private:
  CUfunction find(const char* name);

  std::once_flag once_;
  DriverTable driver_{};
  CUlibrary handle_ = nullptr;
  std::mutex lock_;
  std::unordered_map<std::string, CUfunction> kernels_;
};

Library& cublas_library();
Library& cublaslt_library();
Library& cudnn_library();

// A matrix product's kernel: named, shaped and timed by its sizes.
struct MatrixProduct {
  std::uint64_t m, n, k, batch;
  int type;  // cudaDataType_t of the inputs
};
int launch_product(Library& library, const MatrixProduct& product, bool extended, CUstream stream);

}  // namespace gpubusy::sim
