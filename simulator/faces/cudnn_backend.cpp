// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's backend interface: descriptors are stores of attributes that refer to each other; there
// is one engine, which supports every operation graph; executing a plan is one kernel, timed by
// what the graph's operations compute and move.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "simulator/faces/cudnn_handle.hpp"

using namespace gpubusy::sim;

namespace {

// What a handle refers to. Shared: cuDNN's users destroy descriptors that others were made from.
struct Content {
  struct Attribute {
    cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
    std::int64_t count = 0;
    std::vector<char> bytes;
    std::vector<std::shared_ptr<Content>> parts;  // for CUDNN_TYPE_BACKEND_DESCRIPTOR
  };
  cudnnBackendDescriptorType_t type = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  std::map<int, Attribute> attributes;

  const Content* part(int name, std::size_t index = 0) const {
    const auto found = attributes.find(name);
    if (found == attributes.end() || index >= found->second.parts.size()) return nullptr;
    return found->second.parts[index].get();
  }
  void set_part(int name, std::shared_ptr<Content> content) {
    attributes[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {std::move(content)}};
  }
};

struct Descriptor {
  std::shared_ptr<Content> content = std::make_shared<Content>();
};
Descriptor* descriptor_of(cudnnBackendDescriptor_t handle) {
  return static_cast<Descriptor*>(handle);
}

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_FRACTION: return 16;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    default: return 4;
  }
}

template <class T>
cudnnStatus_t give(T value, std::int64_t* count, void* out) {
  if (out != nullptr) memcpy(out, &value, sizeof value);
  if (count != nullptr) *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

// ---- what a graph costs

struct TensorShape {
  std::vector<std::int64_t> sizes;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool is_virtual = false;

  double count() const {
    double n = sizes.empty() ? 0 : 1;
    for (const std::int64_t size : sizes) n *= static_cast<double>(size);
    return n;
  }
};

TensorShape shape_of(const Content* tensor) {
  TensorShape shape;
  if (tensor == nullptr) return shape;
  for (const auto& [name, attribute] : tensor->attributes) {
    if (name == CUDNN_ATTR_TENSOR_DIMENSIONS) {
      shape.sizes.resize(static_cast<std::size_t>(attribute.count));
      memcpy(shape.sizes.data(), attribute.bytes.data(), attribute.bytes.size());
    } else if (name == CUDNN_ATTR_TENSOR_DATA_TYPE && attribute.bytes.size() >= 4) {
      int type;
      memcpy(&type, attribute.bytes.data(), sizeof type);
      shape.type = static_cast<cudnnDataType_t>(type);
    } else if (name == CUDNN_ATTR_TENSOR_IS_VIRTUAL && !attribute.bytes.empty()) {
      shape.is_virtual = attribute.bytes[0] != 0;
    }
  }
  return shape;
}

struct GraphCost {
  Work work;
  const char* kernel = "cudnn_generated_runtime_fused_pointwise_kernel";
  Dim3 grid{1, 1, 1};
};

// All three convolutions make as many multiplications: outputs times a filter's size.
void add_convolution(GraphCost& cost, const Content& operation, int filter, int output,
                     const char* kernel) {
  const TensorShape w = shape_of(operation.part(filter)), y = shape_of(operation.part(output));
  double per_output = 1;
  for (std::size_t i = 1; i < w.sizes.size(); ++i) per_output *= static_cast<double>(w.sizes[i]);
  cost.work.flops += 2 * y.count() * per_output;
  cost.work.rate_share = cudnn::rate_share(w.type);
  cost.kernel = kernel;
}

void add_product(GraphCost& cost, const Content& operation) {
  const TensorShape a = shape_of(operation.part(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
  const TensorShape c = shape_of(operation.part(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  const double k = a.sizes.empty() ? 1 : static_cast<double>(a.sizes.back());
  cost.work.flops += 2 * c.count() * k;
  cost.work.rate_share = cudnn::rate_share(a.type);
  cost.kernel =
      "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x64_"
      "cga1x1x1_kernel0_0";
}

GraphCost cost_of(const Content* graph) {
  GraphCost cost;
  if (graph == nullptr) return cost;
  double largest = 0;
  for (std::size_t i = 0;; ++i) {
    const Content* operation = graph->part(CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
    if (operation == nullptr) break;
    switch (operation->type) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        add_convolution(cost, *operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                        "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_"
                        "tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn");
        break;
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        add_convolution(cost, *operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                        "sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_"
                        "tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn");
        break;
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        add_convolution(cost, *operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                        "sm90_xmma_wgrad_implicit_gemm_indexed_f32f32_tf32f32_f32_nhwckrsc_nhwc_"
                        "tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn");
        break;
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: add_product(cost, *operation); break;
      default: break;
    }
    for (const auto& [name, attribute] : operation->attributes) {
      for (const auto& part : attribute.parts) {
        if (part->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
        const TensorShape shape = shape_of(part.get());
        if (shape.is_virtual) continue;
        cost.work.bytes += shape.count() * cudnn::element_bytes(shape.type);
        largest = std::max(largest, shape.count());
      }
    }
  }
  // A block for each tile of 128 x 128 elements.
  cost.grid.x = static_cast<std::uint32_t>(std::clamp(largest / 16384, 1.0, 2e9));
  return cost;
}

}  // namespace

SIM_CUDNN cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                       cudnnBackendDescriptor_t* handle) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  auto* made = new Descriptor;
  made->content->type = type;
  *handle = made;
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t handle) {
  delete descriptor_of(handle);
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  return handle == nullptr ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t count,
                                   const void* values) {
  if (handle == nullptr || count < 0 || (count > 0 && values == nullptr)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  Content::Attribute& attribute = descriptor_of(handle)->content->attributes[name];
  attribute = {type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* handles = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (std::int64_t i = 0; i < count; ++i) {
      attribute.parts.push_back(descriptor_of(handles[i])->content);
    }
  } else {
    const auto* bytes = static_cast<const char*>(values);
    attribute.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * size_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnBackendGetAttribute(cudnnBackendDescriptor_t const handle,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t requested,
                                   int64_t* count, void* values) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  Content& content = *descriptor_of(handle)->content;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      if (count != nullptr) *count = 1;
      if (values == nullptr || requested == 0) return CUDNN_STATUS_SUCCESS;
      auto engine = std::make_shared<Content>();
      engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
      const auto graph = content.attributes.find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      if (graph != content.attributes.end() && !graph->second.parts.empty()) {
        engine->set_part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph->second.parts[0]);
      }
      auto* configurations = static_cast<cudnnBackendDescriptor_t*>(values);
      descriptor_of(configurations[0])->content->set_part(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return give<std::int64_t>(1, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE: return give<std::int64_t>(1024, count, values);
    // Without this, cuDNN's frontend finds "no execution plans".
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: return give<std::int32_t>(1024, count, values);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return give<std::int64_t>(0, count, values);
    default: break;
  }
  const auto found = content.attributes.find(name);
  if (found == content.attributes.end()) {
    if (count != nullptr) *count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  const Content::Attribute& attribute = found->second;
  if (count != nullptr) *count = attribute.count;
  const std::int64_t given = std::min(requested, attribute.count);
  if (values == nullptr || given <= 0) return CUDNN_STATUS_SUCCESS;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto* handles = static_cast<cudnnBackendDescriptor_t*>(values);
    for (std::int64_t i = 0; i < given; ++i) {
      if (handles[i] == nullptr) handles[i] = new Descriptor;
      descriptor_of(handles[i])->content = attribute.parts[static_cast<std::size_t>(i)];
    }
  } else {
    memcpy(values, attribute.bytes.data(),
           std::min(attribute.bytes.size(), static_cast<std::size_t>(given) * size_of(type)));
  }
  return CUDNN_STATUS_SUCCESS;
}

SIM_CUDNN cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                              cudnnBackendDescriptor_t) {
  if (handle == nullptr || plan == nullptr) return CUDNN_STATUS_BAD_PARAM;
  const Content& content = *descriptor_of(plan)->content;
  const Content* configuration = content.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Content* engine =
      configuration == nullptr ? nullptr : configuration->part(CUDNN_ATTR_ENGINECFG_ENGINE);
  const GraphCost cost =
      cost_of(engine == nullptr ? nullptr : engine->part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  return cudnn::launch(handle, cost.kernel, cost.work, cost.grid);
}
