// SPDX-License-Identifier: Apache-2.0
//
// cuDNN: handles, the descriptors of its older interface, batch normalisation. Convolutions and
// attention come through the backend interface (cudnn_backend.cpp).
#include <algorithm>
#include <cstring>

#include "simulator/faces/cudnn_handle.hpp"

using namespace gpubusy::sim;

namespace {

// torch 2.13 looks for features by this; engines for attention on this architecture need 9.x.
constexpr std::size_t kVersion = 92000;
constexpr std::size_t kWorkspaceBytes = 1024;

using cudnn::Tensor;
using cudnn::tensor_of;

template <class Handle>
cudnnStatus_t create_tensor(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new Tensor);
  return CUDNN_STATUS_SUCCESS;
}

template <class Handle>
cudnnStatus_t destroy_tensor(Handle handle) {
  delete tensor_of(handle);
  return CUDNN_STATUS_SUCCESS;
}

// Reads `tensors` times the input's size.
cudnnStatus_t normalise(cudnnHandle_t handle, const char* kernel, const void* input,
                        double tensors) {
  const Tensor& x = *tensor_of(input);
  Work work;
  work.bytes = x.bytes() * tensors;
  const auto channels = static_cast<std::uint32_t>(x.rank > 1 ? std::max(1, x.sizes[1]) : 1);
  return cudnn::launch(handle, kernel, work, {channels, 1, 1});
}

}  // namespace

SIM_CUDNN cudnnCreate(cudnnHandle_t* handle) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

SIM_EXPORT size_t cudnnGetVersion() { return kVersion; }
SIM_EXPORT size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
SIM_EXPORT size_t cudnnGetMaxDeviceVersion() { return 1200; }

SIM_CUDNN cudnnGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION   ? static_cast<int>(kVersion / 10000)
           : type == MINOR_VERSION ? static_cast<int>(kVersion / 100 % 100)
                                   : static_cast<int>(kVersion % 100);
  return CUDNN_STATUS_SUCCESS;
}

SIM_EXPORT const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_NOT_SUPPORTED";
  }
}

SIM_EXPORT void cudnnGetLastErrorString(char* message, size_t size) {
  if (message != nullptr && size > 0) *message = '\0';
}

// ---- tensors and filters

SIM_CUDNN cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  return create_tensor(descriptor);
}
SIM_CUDNN cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  return destroy_tensor(descriptor);
}
SIM_CUDNN cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* descriptor) {
  return create_tensor(descriptor);
}
SIM_CUDNN cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
  return destroy_tensor(descriptor);
}

SIM_CUDNN cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type,
                                     int rank, const int* sizes, const int* strides) {
  if (rank < 0 || rank > CUDNN_DIM_MAX) return CUDNN_STATUS_BAD_PARAM;
  Tensor& t = *tensor_of(descriptor);
  t.type = type;
  t.rank = rank;
  std::copy_n(sizes, rank, t.sizes);
  std::copy_n(strides, rank, t.strides);
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t descriptor, int requested,
                                     cudnnDataType_t* type, int* rank, int* sizes, int* strides) {
  const Tensor& t = *tensor_of(descriptor);
  *type = t.type;
  *rank = t.rank;
  std::copy_n(t.sizes, std::min(requested, t.rank), sizes);
  std::copy_n(t.strides, std::min(requested, t.rank), strides);
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                     cudnnTensorFormat_t, int rank, const int* sizes) {
  if (rank < 0 || rank > CUDNN_DIM_MAX) return CUDNN_STATUS_BAD_PARAM;
  Tensor& t = *tensor_of(descriptor);
  t.type = type;
  t.rank = rank;
  std::copy_n(sizes, rank, t.sizes);
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t descriptor, int requested,
                                     cudnnDataType_t* type, cudnnTensorFormat_t* format, int* rank,
                                     int* sizes) {
  const Tensor& t = *tensor_of(descriptor);
  *type = t.type;
  *format = CUDNN_TENSOR_NCHW;
  *rank = t.rank;
  std::copy_n(t.sizes, std::min(requested, t.rank), sizes);
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* descriptor) {
  return create_tensor(descriptor);
}
SIM_CUDNN cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t descriptor) {
  return destroy_tensor(descriptor);
}
SIM_CUDNN cudnnSetActivationDescriptor(cudnnActivationDescriptor_t, cudnnActivationMode_t,
                                       cudnnNanPropagation_t, double) {
  return CUDNN_STATUS_SUCCESS;
}

// ---- batch normalisation

SIM_CUDNN cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t* bytes) {
  *bytes = kWorkspaceBytes;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t,
    size_t* bytes) {
  *bytes = kWorkspaceBytes;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                               cudnnBatchNormOps_t,
                                                               const cudnnActivationDescriptor_t,
                                                               const cudnnTensorDescriptor_t,
                                                               size_t* bytes) {
  *bytes = kWorkspaceBytes;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void*, const void*,
    const cudnnTensorDescriptor_t x, const void*, const cudnnTensorDescriptor_t, const void*,
    const cudnnTensorDescriptor_t, void*, const cudnnTensorDescriptor_t, const void*, const void*,
    double, void*, void*, double, void*, void*, cudnnActivationDescriptor_t, void*, size_t, void*,
    size_t) {
  return normalise(
      handle, "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", x, 3);
}

SIM_CUDNN cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void*, const void*,
    const void*, const void*, const cudnnTensorDescriptor_t x, const void*,
    const cudnnTensorDescriptor_t, const void*, const cudnnTensorDescriptor_t, const void*,
    const cudnnTensorDescriptor_t, void*, const cudnnTensorDescriptor_t, void*,
    const cudnnTensorDescriptor_t, const void*, const void*, void*, void*, double, const void*,
    const void*, cudnnActivationDescriptor_t, void*, size_t, void*, size_t) {
  return normalise(handle, "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>",
                   x, 4);
}

SIM_CUDNN cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t,
                                                  const void*, const void*,
                                                  const cudnnTensorDescriptor_t x, const void*,
                                                  const cudnnTensorDescriptor_t, void*,
                                                  const cudnnTensorDescriptor_t, const void*,
                                                  const void*, const void*, const void*, double) {
  return normalise(handle, "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>", x, 2);
}
