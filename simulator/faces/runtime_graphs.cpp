// SPDX-License-Identifier: Apache-2.0
//
// The runtime: capture and graphs. Its types are the driver's by other names, up to enumerations.
#include "simulator/faces/runtime_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::runtime;

namespace {

CUstreamCaptureMode driver_mode(cudaStreamCaptureMode mode) {
  return static_cast<CUstreamCaptureMode>(mode);
}

}  // namespace

SIM_RUNTIME_PTSZ(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode),
                 (stream, mode)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamBeginCapture(stream, driver_mode(mode));
}

SIM_RUNTIME_PTSZ(cudaStreamBeginCaptureToGraph,
                 (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                  const cudaGraphEdgeData* edges, size_t count, cudaStreamCaptureMode mode),
                 (stream, graph, dependencies, edges, count, mode)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuStreamBeginCaptureToGraph(stream, graph, dependencies,
                                   reinterpret_cast<const CUgraphEdgeData*>(edges), count,
                                   driver_mode(mode));
}

SIM_RUNTIME_PTSZ(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph), (stream, graph)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuStreamEndCapture(stream, graph);
}

SIM_RUNTIME_PTSZ(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status),
                 (stream, status)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status));
}

SIM_RUNTIME_PTSZ(cudaStreamGetCaptureInfo,
                 (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                  cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                  const cudaGraphEdgeData** edges, size_t* count),
                 (stream, status, id, graph, dependencies, edges, count)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuStreamGetCaptureInfo(stream, reinterpret_cast<CUstreamCaptureStatus*>(status),
                              reinterpret_cast<cuuint64_t*>(id), graph, dependencies,
                              reinterpret_cast<const CUgraphEdgeData**>(edges), count);
}

SIM_RUNTIME_PTSZ(cudaStreamUpdateCaptureDependencies,
                 (cudaStream_t stream, cudaGraphNode_t* dependencies,
                  const cudaGraphEdgeData* edges, size_t count, unsigned flags),
                 (stream, dependencies, edges, count, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuStreamUpdateCaptureDependencies(
          stream, dependencies, reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags);
}

SIM_RUNTIME(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode), (mode)) {
  return driver_table(false).cuThreadExchangeStreamCaptureMode(
      reinterpret_cast<CUstreamCaptureMode*>(mode));
}

SIM_RUNTIME(cudaGraphCreate, (cudaGraph_t * graph, unsigned flags), (graph, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuGraphCreate(graph, flags);
}

SIM_RUNTIME(cudaGraphDestroy, (cudaGraph_t graph), (graph)) {
  return driver_table(false).cuGraphDestroy(graph);
}

SIM_RUNTIME(cudaGraphClone, (cudaGraph_t * clone, cudaGraph_t graph), (clone, graph)) {
  return driver_table(false).cuGraphClone(clone, graph);
}

SIM_RUNTIME(cudaGraphDebugDotPrint, (cudaGraph_t graph, const char* path, unsigned flags),
            (graph, path, flags)) {
  return driver_table(false).cuGraphDebugDotPrint(graph, path, flags);
}

SIM_RUNTIME(cudaGraphInstantiateWithFlags,
            (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
            (exec, graph, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuGraphInstantiateWithFlags(exec, graph, flags);
}

SIM_RUNTIME(cudaGraphInstantiate,
            (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
            (exec, graph, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuGraphInstantiateWithFlags(exec, graph, flags);
}

SIM_RUNTIME_PTSZ(cudaGraphInstantiateWithParams,
                 (cudaGraphExec_t * exec, cudaGraph_t graph,
                  cudaGraphInstantiateParams* parameters),
                 (exec, graph, parameters)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuGraphInstantiateWithParams(exec, graph,
                                    reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(parameters));
}

SIM_RUNTIME(cudaGraphExecDestroy, (cudaGraphExec_t exec), (exec)) {
  return driver_table(false).cuGraphExecDestroy(exec);
}

SIM_RUNTIME(cudaGraphExecUpdate,
            (cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info),
            (exec, graph, info)) {
  return driver_table(false).cuGraphExecUpdate(
      exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info));
}

SIM_RUNTIME_PTSZ(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuGraphLaunch(exec, stream);
}

SIM_RUNTIME_PTSZ(cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuGraphUpload(exec, stream);
}

// ---- what is in a graph

SIM_RUNTIME(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count),
            (graph, nodes, count)) {
  return driver_table(false).cuGraphGetNodes(graph, nodes, count);
}

SIM_RUNTIME(cudaGraphGetRootNodes, (cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count),
            (graph, nodes, count)) {
  return driver_table(false).cuGraphGetRootNodes(graph, nodes, count);
}

SIM_RUNTIME(cudaGraphGetEdges,
            (cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* data,
             size_t* count),
            (graph, from, to, data, count)) {
  return driver_table(false).cuGraphGetEdges(graph, from, to,
                                             reinterpret_cast<CUgraphEdgeData*>(data), count);
}

SIM_RUNTIME(cudaGraphNodeGetType, (cudaGraphNode_t node, cudaGraphNodeType* type), (node, type)) {
  return driver_table(false).cuGraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(type));
}

SIM_RUNTIME(cudaGraphNodeGetDependencies,
            (cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* data, size_t* count),
            (node, nodes, data, count)) {
  return driver_table(false).cuGraphNodeGetDependencies(
      node, nodes, reinterpret_cast<CUgraphEdgeData*>(data), count);
}

SIM_RUNTIME(cudaGraphNodeGetDependentNodes,
            (cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* data, size_t* count),
            (node, nodes, data, count)) {
  return driver_table(false).cuGraphNodeGetDependentNodes(
      node, nodes, reinterpret_cast<CUgraphEdgeData*>(data), count);
}

SIM_RUNTIME(cudaGraphChildGraphNodeGetGraph, (cudaGraphNode_t node, cudaGraph_t* graph),
            (node, graph)) {
  return driver_table(false).cuGraphChildGraphNodeGetGraph(node, graph);
}

SIM_RUNTIME(cudaGraphKernelNodeGetParams, (cudaGraphNode_t node, cudaKernelNodeParams* parameters),
            (node, parameters)) {
  if (parameters == nullptr) return cudaErrorInvalidValue;
  CUDA_KERNEL_NODE_PARAMS p{};
  if (const CUresult result = driver_table(false).cuGraphKernelNodeGetParams(node, &p)) {
    return result;
  }
  *parameters = {};
  parameters->func = p.func;
  parameters->gridDim = dim3(p.gridDimX, p.gridDimY, p.gridDimZ);
  parameters->blockDim = dim3(p.blockDimX, p.blockDimY, p.blockDimZ);
  parameters->sharedMemBytes = p.sharedMemBytes;
  return cudaSuccess;
}

// ---- graphs built by hand

#define SIM_NODE_PARAMETERS \
  cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count
#define SIM_NODE_ARGUMENTS node, graph, dependencies, count

SIM_RUNTIME(cudaGraphAddKernelNode, (SIM_NODE_PARAMETERS, const cudaKernelNodeParams* p),
            (SIM_NODE_ARGUMENTS, p)) {
  SIM_ENSURE_CONTEXT();
  Kernel* kernel = p == nullptr ? nullptr : kernel_of(p->func);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  CUDA_KERNEL_NODE_PARAMS driver_parameters{};
  driver_parameters.func = reinterpret_cast<CUfunction>(kernel);
  driver_parameters.gridDimX = p->gridDim.x;
  driver_parameters.gridDimY = p->gridDim.y;
  driver_parameters.gridDimZ = p->gridDim.z;
  driver_parameters.blockDimX = p->blockDim.x;
  driver_parameters.blockDimY = p->blockDim.y;
  driver_parameters.blockDimZ = p->blockDim.z;
  driver_parameters.sharedMemBytes = p->sharedMemBytes;
  driver_parameters.kernelParams = p->kernelParams;
  driver_parameters.extra = p->extra;
  return driver_table(false).cuGraphAddKernelNode(SIM_NODE_ARGUMENTS, &driver_parameters);
}

SIM_RUNTIME(cudaGraphAddMemcpyNode1D,
            (SIM_NODE_PARAMETERS, void* destination, const void* source, size_t bytes,
             cudaMemcpyKind kind),
            (SIM_NODE_ARGUMENTS, destination, source, bytes, kind)) {
  SIM_ENSURE_CONTEXT();
  CUDA_MEMCPY3D p{};
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  p.srcDevice = address(source);
  p.dstDevice = address(destination);
  p.WidthInBytes = bytes;
  p.Height = p.Depth = 1;
  return driver_table(false).cuGraphAddMemcpyNode(SIM_NODE_ARGUMENTS, &p,
                                                  reinterpret_cast<CUcontext>(t_thread.current));
}

SIM_RUNTIME(cudaGraphAddMemsetNode, (SIM_NODE_PARAMETERS, const cudaMemsetParams* p),
            (SIM_NODE_ARGUMENTS, p)) {
  SIM_ENSURE_CONTEXT();
  if (p == nullptr) return cudaErrorInvalidValue;
  CUDA_MEMSET_NODE_PARAMS driver_parameters{};
  driver_parameters.dst = address(p->dst);
  driver_parameters.pitch = p->pitch;
  driver_parameters.value = p->value;
  driver_parameters.elementSize = p->elementSize;
  driver_parameters.width = p->width;
  driver_parameters.height = p->height;
  return driver_table(false).cuGraphAddMemsetNode(SIM_NODE_ARGUMENTS, &driver_parameters,
                                                  reinterpret_cast<CUcontext>(t_thread.current));
}

SIM_RUNTIME(cudaGraphAddHostNode, (SIM_NODE_PARAMETERS, const cudaHostNodeParams* p),
            (SIM_NODE_ARGUMENTS, p)) {
  if (p == nullptr) return cudaErrorInvalidValue;
  CUDA_HOST_NODE_PARAMS driver_parameters{};
  driver_parameters.fn = p->fn;
  driver_parameters.userData = p->userData;
  return driver_table(false).cuGraphAddHostNode(SIM_NODE_ARGUMENTS, &driver_parameters);
}

SIM_RUNTIME(cudaGraphAddEmptyNode, (SIM_NODE_PARAMETERS), (SIM_NODE_ARGUMENTS)) {
  return driver_table(false).cuGraphAddEmptyNode(SIM_NODE_ARGUMENTS);
}

SIM_RUNTIME(cudaGraphAddChildGraphNode, (SIM_NODE_PARAMETERS, cudaGraph_t child),
            (SIM_NODE_ARGUMENTS, child)) {
  return driver_table(false).cuGraphAddChildGraphNode(SIM_NODE_ARGUMENTS, child);
}

SIM_RUNTIME(cudaGraphAddEventRecordNode, (SIM_NODE_PARAMETERS, cudaEvent_t event),
            (SIM_NODE_ARGUMENTS, event)) {
  return driver_table(false).cuGraphAddEventRecordNode(SIM_NODE_ARGUMENTS, event);
}

SIM_RUNTIME(cudaGraphAddEventWaitNode, (SIM_NODE_PARAMETERS, cudaEvent_t event),
            (SIM_NODE_ARGUMENTS, event)) {
  return driver_table(false).cuGraphAddEventWaitNode(SIM_NODE_ARGUMENTS, event);
}

SIM_RUNTIME(cudaGraphAddDependencies,
            (cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
             const cudaGraphEdgeData* data, size_t count),
            (graph, from, to, data, count)) {
  return driver_table(false).cuGraphAddDependencies(
      graph, from, to, reinterpret_cast<const CUgraphEdgeData*>(data), count);
}
