// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include "simulator/faces/export.hpp"
#include "simulator/faces/library.hpp"

#define SIM_CUDNN SIM_EXPORT cudnnStatus_t

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace gpubusy::sim::cudnn {

inline double element_bytes(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64: return 8;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8:
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2: return 1;
    default: return 4;
  }
}

// Of the half precision rate: TF32 for single precision, as cuDNN is allowed to by default.
inline double rate_share(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 1.0 / 8 : element_bytes(type) <= 2 ? 1 : 1.0 / 2;
}

// Of tensors and filters.
struct Tensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int rank = 0;
  int sizes[CUDNN_DIM_MAX] = {}, strides[CUDNN_DIM_MAX] = {};

  double bytes() const {
    double count = rank > 0 ? 1 : 0;
    for (int i = 0; i < rank; ++i) count *= sizes[i];
    return count * element_bytes(type);
  }
};

inline Tensor* tensor_of(const void* descriptor) {
  return static_cast<Tensor*>(const_cast<void*>(descriptor));
}

inline cudnnStatus_t launch(cudnnHandle_t handle, const char* kernel, const Work& work, Dim3 grid) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  Library::Launch what;
  what.kernel = kernel;
  what.work = work;
  what.grid = grid;
  what.block.x = 256;
  return cudnn_library().launch(what, handle->stream) == CUDA_SUCCESS
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace gpubusy::sim::cudnn
