// SPDX-License-Identifier: Apache-2.0
//
// The driver: capture of streams, graphs.
#include <algorithm>
#include <cstdio>
#include <mutex>

#include "simulator/core/work.hpp"
#include "simulator/faces/driver_export.hpp"
#include "simulator/faces/driver_handles.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::driver;

namespace {

using Lock = std::lock_guard<std::mutex>;
std::mutex& the_lock() { return simulation().scheduler.mutex; }

CUgraphNode handle_of(GraphNode* node) { return reinterpret_cast<CUgraphNode>(node); }
GraphNode* node_of(CUgraphNode node) { return reinterpret_cast<GraphNode*>(node); }

std::vector<GraphNode*> nodes_of(const CUgraphNode* nodes, std::size_t count) {
  std::vector<GraphNode*> result;
  for (std::size_t i = 0; i < count && nodes != nullptr; ++i) result.push_back(node_of(nodes[i]));
  return result;
}

// The convention of all queries: without an array the number, else at most as many as fit.
int give_nodes(const std::vector<GraphNode*>& found, CUgraphNode* nodes, std::size_t* count) {
  SIM_POINTER_OR_RETURN(count);
  if (nodes != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) {
      nodes[i] = i < found.size() ? handle_of(found[i]) : nullptr;
    }
  }
  *count = nodes == nullptr ? found.size() : std::min(*count, found.size());
  return CUDA_SUCCESS;
}

#define SIM_GRAPH_OR_RETURN(variable, handle)     \
  Graph* const variable = checked<Graph>(handle); \
  if (variable == nullptr) return CUDA_ERROR_INVALID_VALUE

int begin_capture(CUstream stream, bool per_thread, CUstreamCaptureMode mode, Graph* graph,
                  std::vector<GraphNode*> after) {
  SIM_STREAM_OR_RETURN(s, stream);
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Lock lock(the_lock());
  return simulation().captures.begin(*s, static_cast<CaptureMode>(mode), graph, std::move(after));
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

int capture_info(CUstream stream, bool per_thread, CUstreamCaptureStatus* status, cuuint64_t* id,
                 CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  SIM_POINTER_OR_RETURN(status);
  SIM_STREAM_OR_RETURN(s, stream);
  Lock lock(the_lock());
  if (s->is_legacy) {
    if (const int result = simulation().captures.check_legacy(*s)) return result;
  }
  *status = status_of(*s);
  if (count != nullptr) *count = 0;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = s->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(s->capture->graph);
  if (dependencies != nullptr) {
    *dependencies = reinterpret_cast<const CUgraphNode*>(s->capture_tail.data());
  }
  if (count != nullptr) *count = s->capture_tail.size();
  return CUDA_SUCCESS;
}

}  // namespace

// ---- capture

SIM_DRIVER_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
                (stream, mode)) {
  return begin_capture(stream, per_thread, mode, nullptr, {});
}

SIM_DRIVER_PTSZ(cuStreamBeginCaptureToGraph,
                (CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                 const CUgraphEdgeData* edges, std::size_t count, CUstreamCaptureMode mode),
                (stream, graph, dependencies, edges, count, mode)) {
  SIM_GRAPH_OR_RETURN(g, graph);
  return begin_capture(stream, per_thread, mode, g, nodes_of(dependencies, count));
}

SIM_DRIVER_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph* graph), (stream, graph)) {
  SIM_POINTER_OR_RETURN(graph);
  SIM_STREAM_OR_RETURN(s, stream);
  Lock lock(the_lock());
  Graph* captured = nullptr;
  const int result = simulation().captures.end(*s, &captured);
  *graph = reinterpret_cast<CUgraph>(captured);
  return result;
}

SIM_DRIVER_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status),
                (stream, status)) {
  SIM_POINTER_OR_RETURN(status);
  SIM_STREAM_OR_RETURN(s, stream);
  if (!simulation().captures.any()) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  return capture_info(stream, per_thread, status, nullptr, nullptr, nullptr, nullptr);
}

SIM_DRIVER_PTSZ(cuStreamGetCaptureInfo_v2,
                (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                 const CUgraphNode** dependencies, std::size_t* count),
                (stream, status, id, graph, dependencies, count)) {
  return capture_info(stream, per_thread, status, id, graph, dependencies, count);
}

SIM_DRIVER_PTSZ(cuStreamGetCaptureInfo_v3,
                (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                 const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                 std::size_t* count),
                (stream, status, id, graph, dependencies, edges, count)) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, per_thread, status, id, graph, dependencies, count);
}

SIM_DRIVER_PTSZ(cuStreamUpdateCaptureDependencies_v2,
                (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                 std::size_t count, unsigned flags),
                (stream, dependencies, edges, count, flags)) {
  SIM_STREAM_OR_RETURN(s, stream);
  Lock lock(the_lock());
  if (s->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) s->capture_tail.clear();
  for (GraphNode* node : nodes_of(dependencies, count)) {
    if (std::find(s->capture_tail.begin(), s->capture_tail.end(), node) == s->capture_tail.end()) {
      s->capture_tail.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode)) {
  SIM_POINTER_OR_RETURN(mode);
  if (*mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int before = t_thread.capture_mode;
  t_thread.capture_mode = *mode;
  *mode = static_cast<CUstreamCaptureMode>(before);
  return CUDA_SUCCESS;
}

// ---- graphs

SIM_DRIVER(cuGraphCreate, (CUgraph * graph, unsigned flags), (graph, flags)) {
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(the_lock());
  *graph = reinterpret_cast<CUgraph>(new_graph());
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphDestroy, (CUgraph graph), (graph)) {
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  delete_graph(g);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphInstantiateWithFlags,
           (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags)) {
  SIM_POINTER_OR_RETURN(exec);
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  GraphExec* made = instantiate(*g);
  *exec = reinterpret_cast<CUgraphExec>(made);
  return made == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuGraphInstantiateWithParams,
                (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters),
                (exec, graph, parameters)) {
  SIM_POINTER_OR_RETURN(parameters);
  const int result = cuGraphInstantiateWithFlags_body(per_thread, exec, graph, parameters->flags);
  parameters->hErrNode_out = nullptr;
  parameters->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

SIM_DRIVER(cuGraphExecDestroy, (CUgraphExec exec), (exec)) {
  GraphExec* e = checked<GraphExec>(exec);
  if (e == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(the_lock());
  e->magic = 0;
  delete e;
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream)) {
  GraphExec* e = checked<GraphExec>(exec);
  if (e == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SIM_STREAM_OR_RETURN(s, stream);
  return launch_graph_exec(*e, *s);
}

SIM_DRIVER_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, stream)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return checked<GraphExec>(exec) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphExecUpdate_v2,
           (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info),
           (exec, graph, info)) {
  GraphExec* e = checked<GraphExec>(exec);
  SIM_GRAPH_OR_RETURN(g, graph);
  if (e == nullptr || info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info = {};
  Lock lock(the_lock());
  const std::unique_ptr<GraphExec> updated(instantiate(*g));
  const bool same = updated != nullptr && updated->steps.size() == e->steps.size() &&
                    std::equal(updated->steps.begin(), updated->steps.end(), e->steps.begin(),
                               [](const auto& a, const auto& b) {
                                 return a.type == b.type && a.after == b.after;
                               });
  if (!same) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  e->steps = updated->steps;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphClone, (CUgraph * clone, CUgraph graph), (clone, graph)) {
  SIM_POINTER_OR_RETURN(clone);
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  Graph* copy = new_graph();
  const auto counterpart = [&](const GraphNode* node) {
    const auto at = std::find_if(g->nodes.begin(), g->nodes.end(),
                                 [&](const auto& n) { return n.get() == node; });
    return copy->nodes[static_cast<std::size_t>(at - g->nodes.begin())].get();
  };
  for (const auto& node : g->nodes) {
    GraphNode* made = copy->add(node->type, {});
    made->operation = node->operation;
    made->event = node->event;
    made->child = node->child;
  }
  for (std::size_t i = 0; i < g->nodes.size(); ++i) {
    for (const GraphNode* before : g->nodes[i]->after) {
      copy->nodes[i]->after.push_back(counterpart(before));
    }
  }
  *clone = reinterpret_cast<CUgraph>(copy);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphDebugDotPrint, (CUgraph graph, const char* path, unsigned flags),
           (graph, path, flags)) {
  SIM_POINTER_OR_RETURN(path);
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  std::FILE* file = std::fopen(path, "we");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  std::fprintf(file, "digraph dot {\n");
  for (const auto& node : g->nodes) {
    const Kernel* kernel = node->operation.kernel;
    std::fprintf(file, "\"%p\" [label=\"%s\"];\n", static_cast<void*>(node.get()),
                 kernel != nullptr ? kernel->name : "");
    for (const GraphNode* before : node->after) {
      std::fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<const void*>(before),
                   static_cast<void*>(node.get()));
    }
  }
  std::fprintf(file, "}\n");
  std::fclose(file);
  return CUDA_SUCCESS;
}

// ---- what is in a graph

SIM_DRIVER(cuGraphGetNodes, (CUgraph graph, CUgraphNode* nodes, std::size_t* count),
           (graph, nodes, count)) {
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  std::vector<GraphNode*> all;
  for (const auto& node : g->nodes) all.push_back(node.get());
  return give_nodes(all, nodes, count);
}

SIM_DRIVER(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode* nodes, std::size_t* count),
           (graph, nodes, count)) {
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  std::vector<GraphNode*> roots;
  for (const auto& node : g->nodes) {
    if (node->after.empty()) roots.push_back(node.get());
  }
  return give_nodes(roots, nodes, count);
}

SIM_DRIVER(cuGraphGetEdges_v2,
           (CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
            std::size_t* count),
           (graph, from, to, data, count)) {
  SIM_POINTER_OR_RETURN(count);
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  std::size_t edges = 0;
  for (const auto& node : g->nodes) {
    for (GraphNode* before : node->after) {
      if (from != nullptr && to != nullptr && edges < *count) {
        from[edges] = handle_of(before);
        to[edges] = handle_of(node.get());
        if (data != nullptr) data[edges] = {};
      }
      ++edges;
    }
  }
  *count = from == nullptr ? edges : std::min(*count, edges);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType* type), (node, type)) {
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = static_cast<CUgraphNodeType>(node_of(node)->type);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphNodeGetDependencies_v2,
           (CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, std::size_t* count),
           (node, nodes, data, count)) {
  SIM_POINTER_OR_RETURN(node);
  Lock lock(the_lock());
  return give_nodes(node_of(node)->after, nodes, count);
}

SIM_DRIVER(cuGraphNodeGetDependentNodes_v2,
           (CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, std::size_t* count),
           (node, nodes, data, count)) {
  SIM_POINTER_OR_RETURN(node);
  Lock lock(the_lock());
  std::vector<GraphNode*> dependents;
  for (const auto& other : node_of(node)->graph->nodes) {
    const auto& after = other->after;
    if (std::find(after.begin(), after.end(), node_of(node)) != after.end()) {
      dependents.push_back(other.get());
    }
  }
  return give_nodes(dependents, nodes, count);
}

SIM_DRIVER(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph* graph), (node, graph)) {
  if (node == nullptr || graph == nullptr || node_of(node)->child == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *graph = reinterpret_cast<CUgraph>(node_of(node)->child);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters),
           (node, parameters)) {
  if (node == nullptr || parameters == nullptr || node_of(node)->type != NodeType::kKernel) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Operation& o = node_of(node)->operation;
  *parameters = {};
  parameters->func = reinterpret_cast<CUfunction>(o.kernel);
  parameters->gridDimX = o.grid.x;
  parameters->gridDimY = o.grid.y;
  parameters->gridDimZ = o.grid.z;
  parameters->blockDimX = o.block.x;
  parameters->blockDimY = o.block.y;
  parameters->blockDimZ = o.block.z;
  parameters->sharedMemBytes = o.shared_bytes;
  return CUDA_SUCCESS;
}

// ---- graphs built by hand

namespace {

int add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
             NodeType type, const Operation& operation, Event* event = nullptr,
             Graph* child = nullptr) {
  SIM_POINTER_OR_RETURN(node);
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  GraphNode* made = g->add(type, nodes_of(dependencies, count));
  made->operation = operation;
  made->event = event;
  made->child = child;
  *node = handle_of(made);
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DRIVER(cuGraphAddKernelNode_v2,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            const CUDA_KERNEL_NODE_PARAMS* p),
           (node, graph, dependencies, count, p)) {
  SIM_POINTER_OR_RETURN(p);
  Kernel* kernel = p->func != nullptr ? checked<Kernel>(p->func) : checked<Kernel>(p->kern);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Operation operation;
  const int result = describe_kernel(*kernel, {p->gridDimX, p->gridDimY, p->gridDimZ},
                                     {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes,
                                     p->kernelParams, operation);
  if (result != CUDA_SUCCESS) return result;
  return add_node(node, graph, dependencies, count, NodeType::kKernel, operation);
}

SIM_DRIVER(cuGraphAddMemcpyNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            const CUDA_MEMCPY3D* p, CUcontext context),
           (node, graph, dependencies, count, p, context)) {
  SIM_POINTER_OR_RETURN(p);
  if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Effect effect;
  effect.type = Effect::Type::kCopy;
  const void* source =
      p->srcMemoryType == CU_MEMORYTYPE_HOST ? p->srcHost : pointer<const void>(p->srcDevice);
  void* destination = p->dstMemoryType == CU_MEMORYTYPE_HOST ? p->dstHost : pointer(p->dstDevice);
  effect.source = static_cast<const std::byte*>(source) + p->srcXInBytes;
  effect.destination = static_cast<std::byte*>(destination) + p->dstXInBytes;
  effect.width = p->WidthInBytes;
  effect.height = p->Height;
  effect.depth = p->Depth;
  effect.source_pitch = p->srcPitch;
  effect.source_slice = p->srcPitch * p->srcHeight;
  effect.destination_pitch = p->dstPitch;
  effect.destination_slice = p->dstPitch * p->dstHeight;
  Operation operation;
  if (const int result = describe_copy(effect, operation)) return result;
  return add_node(node, graph, dependencies, count, NodeType::kCopy, operation);
}

SIM_DRIVER(cuGraphAddMemsetNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            const CUDA_MEMSET_NODE_PARAMS* p, CUcontext context),
           (node, graph, dependencies, count, p, context)) {
  SIM_POINTER_OR_RETURN(p);
  Effect effect;
  effect.type = Effect::Type::kFill;
  effect.destination = pointer<std::byte>(p->dst);
  effect.destination_pitch = p->pitch;
  effect.value = p->value;
  effect.element = static_cast<std::uint8_t>(p->elementSize);
  effect.width = p->width * p->elementSize;
  effect.height = p->height;
  Operation operation;
  if (const int result = describe_fill(effect, operation)) return result;
  return add_node(node, graph, dependencies, count, NodeType::kMemset, operation);
}

SIM_DRIVER(cuGraphAddHostNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            const CUDA_HOST_NODE_PARAMS* p),
           (node, graph, dependencies, count, p)) {
  if (p == nullptr || p->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add_node(node, graph, dependencies, count, NodeType::kHost,
                  describe_host_function(p->fn, p->userData));
}

SIM_DRIVER(cuGraphAddEmptyNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count),
           (node, graph, dependencies, count)) {
  return add_node(node, graph, dependencies, count, NodeType::kEmpty, {});
}

SIM_DRIVER(cuGraphAddChildGraphNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            CUgraph child),
           (node, graph, dependencies, count, child)) {
  // The child is copied, as the driver does.
  CUgraph copy = nullptr;
  if (const int result = cuGraphClone_body(per_thread, &copy, child)) return result;
  return add_node(node, graph, dependencies, count, NodeType::kGraph, {}, nullptr,
                  reinterpret_cast<Graph*>(copy));
}

SIM_DRIVER(cuGraphAddEventRecordNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            CUevent event),
           (node, graph, dependencies, count, event)) {
  SIM_EVENT_OR_RETURN(e, event);
  return add_node(node, graph, dependencies, count, NodeType::kEventRecord, {}, e);
}

SIM_DRIVER(cuGraphAddEventWaitNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
            CUevent event),
           (node, graph, dependencies, count, event)) {
  SIM_EVENT_OR_RETURN(e, event);
  return add_node(node, graph, dependencies, count, NodeType::kWaitEvent, {}, e);
}

SIM_DRIVER(cuGraphAddDependencies_v2,
           (CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
            const CUgraphEdgeData* data, std::size_t count),
           (graph, from, to, data, count)) {
  SIM_GRAPH_OR_RETURN(g, graph);
  Lock lock(the_lock());
  for (std::size_t i = 0; i < count; ++i) node_of(to[i])->after.push_back(node_of(from[i]));
  return CUDA_SUCCESS;
}
