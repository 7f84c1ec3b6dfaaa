// SPDX-License-Identifier: Apache-2.0
//
// cuDNN: recurrent networks, and the dropout descriptor that they take. A pass is one kernel; the
// layout of the weights is one that torch accepts: all matrices, then all biases, each by layer,
// direction and gate.
#include <algorithm>

#include "simulator/faces/cudnn_handle.hpp"

using namespace gpubusy::sim;

namespace {

struct Network {
  cudnnRNNMode_t cell = CUDNN_LSTM;
  cudnnRNNBiasMode_t bias = CUDNN_RNN_DOUBLE_BIAS;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int input = 0, hidden = 0, projected = 0, layers = 0, directions = 1;

  int gates() const { return cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1; }
  bool projects() const { return projected > 0 && projected != hidden; }
  int output() const { return projects() ? projected : hidden; }
  int input_of(int layer) const { return layer == 0 ? input : output() * directions; }
  int matrices() const { return 2 * gates() + (projects() ? 1 : 0); }

  std::size_t rows(int id) const {
    return static_cast<std::size_t>(id == 2 * gates() ? projected : hidden);
  }
  std::size_t columns(int pseudo_layer, int id) const {
    if (id == 2 * gates()) return static_cast<std::size_t>(hidden);
    return static_cast<std::size_t>(id < gates() ? input_of(pseudo_layer / directions) : output());
  }
  // In elements.
  std::size_t matrix_offset(int pseudo_layer, int id) const {
    std::size_t offset = 0;
    for (int layer = 0; layer <= pseudo_layer; ++layer) {
      const int end = layer == pseudo_layer ? id : matrices();
      for (int i = 0; i < end; ++i) offset += rows(i) * columns(layer, i);
    }
    return offset;
  }
  std::size_t all_matrices() const { return matrix_offset(layers * directions, 0); }
  int biases() const { return bias == CUDNN_RNN_NO_BIAS ? 0 : 2 * gates(); }
  std::size_t all_biases() const {
    return static_cast<std::size_t>(layers * directions * biases()) *
           static_cast<std::size_t>(hidden);
  }
  std::size_t bias_offset(int pseudo_layer, int id) const {
    return all_matrices() + static_cast<std::size_t>(pseudo_layer * biases() + id) *
                                static_cast<std::size_t>(hidden);
  }
};

struct Sequence {
  int steps = 0, batch = 0, size = 0;
};

Network* network_of(cudnnRNNDescriptor_t handle) { return reinterpret_cast<Network*>(handle); }
Sequence* sequence_of(cudnnRNNDataDescriptor_t handle) {
  return reinterpret_cast<Sequence*>(handle);
}

void describe(cudnnTensorDescriptor_t descriptor, const Network& network, std::size_t rows,
              std::size_t columns) {
  cudnn::Tensor& tensor = *cudnn::tensor_of(descriptor);
  tensor.type = network.type;
  tensor.rank = rows == 0 ? 0 : 3;
  tensor.sizes[0] = 1;
  tensor.sizes[1] = static_cast<int>(rows);
  tensor.sizes[2] = static_cast<int>(columns);
  tensor.strides[0] = static_cast<int>(rows * columns);
  tensor.strides[1] = static_cast<int>(columns);
  tensor.strides[2] = 1;
}

// Each step multiplies every weight once for each sequence of the batch.
cudnnStatus_t pass(cudnnHandle_t handle, const Network& network, const Sequence& sequence,
                   const char* kernel) {
  const double weights = static_cast<double>(network.all_matrices());
  Work work;
  work.flops = 2 * weights * sequence.steps * sequence.batch;
  work.bytes = weights * cudnn::element_bytes(network.type) * sequence.steps;
  work.rate_share = cudnn::rate_share(network.type);
  return cudnn::launch(handle, kernel, work,
                       {static_cast<std::uint32_t>(std::max(1, network.hidden / 16)), 1, 1});
}

constexpr std::size_t kSpaceBytes = 4096;

}  // namespace

// ---- dropout

SIM_CUDNN cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnDropoutDescriptor_t>(new int);
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t descriptor) {
  delete reinterpret_cast<int*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* bytes) {
  *bytes = kSpaceBytes;
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void*, size_t,
                                    unsigned long long) {
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void*,
                                        size_t, unsigned long long) {
  return CUDNN_STATUS_SUCCESS;
}

// ---- descriptors

SIM_CUDNN cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnRNNDescriptor_t>(new Network);
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t descriptor) {
  delete network_of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t,
                                   cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                                   cudnnDirectionMode_t direction, cudnnRNNInputMode_t,
                                   cudnnDataType_t type, cudnnDataType_t, cudnnMathType_t,
                                   int32_t input, int32_t hidden, int32_t projected, int32_t layers,
                                   cudnnDropoutDescriptor_t, uint32_t) {
  *network_of(descriptor) = {cell,   bias,      type,   input,
                             hidden, projected, layers, direction == CUDNN_BIDIRECTIONAL ? 2 : 1};
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnRNNDataDescriptor_t>(new Sequence);
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor) {
  delete sequence_of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
SIM_CUDNN cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor, cudnnDataType_t,
                                    cudnnRNNDataLayout_t, int steps, int batch, int size,
                                    const int*, void*) {
  *sequence_of(descriptor) = {steps, batch, size};
  return CUDNN_STATUS_SUCCESS;
}

// ---- sizes and weights

SIM_CUDNN cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t descriptor,
                                     size_t* bytes) {
  const Network& network = *network_of(descriptor);
  *bytes = (network.all_matrices() + network.all_biases()) *
           static_cast<std::size_t>(cudnn::element_bytes(network.type));
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t,
                                    cudnnRNNDataDescriptor_t, size_t* workspace, size_t* reserve) {
  if (workspace != nullptr) *workspace = kSpaceBytes;
  if (reserve != nullptr) *reserve = kSpaceBytes;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t descriptor,
                                  int32_t pseudo_layer, size_t, const void* space, int32_t id,
                                  cudnnTensorDescriptor_t matrix, void** matrix_address,
                                  cudnnTensorDescriptor_t bias, void** bias_address) {
  const Network& network = *network_of(descriptor);
  const auto at = [&](std::size_t element) -> void* {
    const auto bytes = static_cast<std::size_t>(cudnn::element_bytes(network.type));
    return const_cast<char*>(static_cast<const char*>(space) + element * bytes);
  };
  const bool has_matrix = id < network.matrices(), has_bias = id < network.biases();
  // Either half may be left out.
  if (matrix != nullptr && matrix_address != nullptr) {
    describe(matrix, network, has_matrix ? network.rows(id) : 0,
             has_matrix ? network.columns(pseudo_layer, id) : 0);
    *matrix_address = has_matrix ? at(network.matrix_offset(pseudo_layer, id)) : nullptr;
  }
  if (bias != nullptr && bias_address != nullptr) {
    describe(bias, network, has_bias ? static_cast<std::size_t>(network.hidden) : 0, 1);
    *bias_address = has_bias ? at(network.bias_offset(pseudo_layer, id)) : nullptr;
  }
  return CUDNN_STATUS_SUCCESS;
}

// ---- passes

SIM_CUDNN cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t network, cudnnForwardMode_t,
                          const int32_t*, cudnnRNNDataDescriptor_t x, const void*,
                          cudnnRNNDataDescriptor_t, void*, cudnnTensorDescriptor_t, const void*,
                          void*, cudnnTensorDescriptor_t, const void*, void*, size_t, const void*,
                          size_t, void*, size_t, void*) {
  return pass(handle, *network_of(network), *sequence_of(x),
              "void RNN_blockPersist_fp_LSTM<float, float, float, 64>");
}

SIM_CUDNN cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                                  const int32_t*, cudnnRNNDataDescriptor_t, const void*,
                                  const void*, cudnnRNNDataDescriptor_t x, void*,
                                  cudnnTensorDescriptor_t, const void*, const void*, void*,
                                  cudnnTensorDescriptor_t, const void*, const void*, void*, size_t,
                                  const void*, size_t, void*, size_t, void*) {
  return pass(handle, *network_of(network), *sequence_of(x),
              "void RNN_blockPersist_bp_LSTM<float, float, float, 64>");
}

SIM_CUDNN cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                                     cudnnWgradMode_t, const int32_t*, cudnnRNNDataDescriptor_t x,
                                     const void*, cudnnTensorDescriptor_t, const void*,
                                     cudnnRNNDataDescriptor_t, const void*, size_t, void*, size_t,
                                     void*, size_t, void*) {
  return pass(handle, *network_of(network), *sequence_of(x),
              "void RNN_blockPersist_wgrad<float, float, float, 64>");
}
