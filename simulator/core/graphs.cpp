// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/graphs.hpp"

#include <cuda.h>

#include <algorithm>
#include <unordered_map>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {
namespace {

std::uint64_t g_next_graph = 1;

void add_unique(std::vector<GraphNode*>& nodes, const std::vector<GraphNode*>& more) {
  for (GraphNode* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

NodeType node_type(OpKind kind) {
  switch (kind) {
    case OpKind::kKernel: return NodeType::kKernel;
    case OpKind::kCopy: return NodeType::kCopy;
    case OpKind::kMemset: return NodeType::kMemset;
    case OpKind::kHostFunction: return NodeType::kHost;
    case OpKind::kEmpty: break;
  }
  return NodeType::kEmpty;
}

// Appends the nodes of `graph`; those without predecessors come after `before`. Returns the leaves.
bool flatten(const Graph& graph, const std::vector<std::uint32_t>& before,
             std::vector<GraphExec::Step>& steps, std::vector<std::uint32_t>& leaves) {
  std::unordered_map<const GraphNode*, std::vector<std::uint32_t>> done;
  std::vector<const GraphNode*> remaining;
  for (const auto& node : graph.nodes) remaining.push_back(node.get());
  std::unordered_map<const GraphNode*, bool> has_successor;
  while (!remaining.empty()) {
    const std::size_t count = remaining.size();
    std::vector<const GraphNode*> later;
    for (const GraphNode* node : remaining) {
      const bool ready = std::all_of(node->after.begin(), node->after.end(),
                                     [&](const GraphNode* n) { return done.contains(n); });
      if (!ready) {
        later.push_back(node);
        continue;
      }
      std::vector<std::uint32_t> after;
      for (const GraphNode* predecessor : node->after) {
        has_successor[predecessor] = true;
        const auto& ends = done[predecessor];
        after.insert(after.end(), ends.begin(), ends.end());
      }
      if (node->after.empty()) after = before;
      if (node->child != nullptr) {
        std::vector<std::uint32_t> child_leaves;
        if (!flatten(*node->child, after, steps, child_leaves)) return false;
        done[node] = child_leaves.empty() ? after : child_leaves;
        continue;
      }
      GraphExec::Step step{node->type, node->operation, node->event, std::move(after), false};
      step.operation.graph_id = graph.id;
      step.operation.node_id = node->id;
      done[node] = {static_cast<std::uint32_t>(steps.size())};
      steps.push_back(std::move(step));
    }
    if (later.size() == count) return false;
    remaining = std::move(later);
  }
  for (const auto& node : graph.nodes) {
    if (has_successor.contains(node.get())) continue;
    const auto& ends = done[node.get()];
    leaves.insert(leaves.end(), ends.begin(), ends.end());
  }
  return true;
}

}  // namespace

GraphNode* Graph::add(NodeType type, std::vector<GraphNode*> after) {
  auto node = std::make_unique<GraphNode>();
  node->type = type;
  node->after = std::move(after);
  node->graph = this;
  // As CUPTI does: the graph's number and the node's in it.
  node->id = id << 32 | (nodes.size() + 1);
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

Graph* new_graph() {
  auto* graph = new Graph;
  graph->id = g_next_graph++;
  return graph;
}

void delete_graph(Graph* graph) {
  graph->magic = 0;
  delete graph;
}

GraphExec* instantiate(const Graph& graph) {
  auto exec = std::make_unique<GraphExec>();
  exec->graph_id = graph.id;
  std::vector<std::uint32_t> leaves;
  if (!flatten(graph, {}, exec->steps, leaves)) return nullptr;
  for (const std::uint32_t leaf : leaves) exec->steps[leaf].is_leaf = true;
  return exec.release();
}

void launch_graph(GraphExec& exec, Stream& stream, std::uint32_t correlation) {
  Simulation& s = simulation();
  const Fence base = stream_fence(stream);
  const std::uint64_t earliest = now_ns() + s.graph_latency_ns;
  std::vector<Fence> done(exec.steps.size());
  Fence end;
  for (std::size_t i = 0; i < exec.steps.size(); ++i) {
    const GraphExec::Step& step = exec.steps[i];
    Fence after;
    if (step.after.empty()) after = base;
    for (const std::uint32_t index : step.after) after.add(done[index]);
    if (step.type == NodeType::kEventRecord) {
      step.event->recorded = true;
      step.event->capture_id = 0;
      step.event->when = after;
      step.event->when.at_least(earliest);
      done[i] = std::move(after);
    } else if (step.type == NodeType::kWaitEvent) {
      if (step.event->recorded) after.add(step.event->when);
      done[i] = std::move(after);
    } else if (step.operation.kind == OpKind::kEmpty) {
      done[i] = std::move(after);
    } else {
      Operation operation = step.operation;
      operation.device = static_cast<std::int16_t>(stream.device->index);
      operation.stream_id = stream.id;
      operation.correlation = correlation;
      if (operation.kind == OpKind::kKernel) s.launches.fetch_add(1, std::memory_order_relaxed);
      done[i] = s.scheduler.submit(operation, after, earliest);
    }
    if (step.is_leaf) end.add(done[i]);
  }
  if (exec.steps.empty()) end = base;
  stream.tail = std::move(end);
  stream.in_flight.push_back(stream.tail);
}

// ---- capture

Capture* Captures::find(std::uint64_t id) noexcept {
  for (const auto& capture : active_) {
    if (capture->id == id) return capture.get();
  }
  return nullptr;
}

int Captures::begin(Stream& stream, CaptureMode mode, Graph* graph, std::vector<GraphNode*> after) {
  if (stream.is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_unique<Capture>();
  capture->id = next_id_++;
  capture->graph = graph != nullptr ? graph : new_graph();
  capture->mode = mode;
  capture->origin = &stream;
  capture->thread = thread_id();
  capture->streams.push_back(&stream);
  stream.capture = capture.get();
  stream.capture_tail = std::move(after);
  active_.push_back(std::move(capture));
  count_.store(static_cast<int>(active_.size()), std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void Captures::leave(Capture& capture) {
  for (Stream* stream : capture.streams) {
    if (stream->capture != &capture) continue;
    stream->capture = nullptr;
    stream->capture_tail.clear();
  }
  std::erase_if(active_, [&](const auto& c) { return c.get() == &capture; });
  count_.store(static_cast<int>(active_.size()), std::memory_order_relaxed);
}

int Captures::end(Stream& stream, Graph** graph) {
  if (stream.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  Capture& capture = *stream.capture;
  *graph = nullptr;
  if (capture.origin != &stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture.mode != CaptureMode::kRelaxed && capture.thread != thread_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  int result = CUDA_SUCCESS;
  if (capture.invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else {
    // Every forked stream's work must lead back to the origin.
    std::vector<GraphNode*> reached = stream.capture_tail;
    for (std::size_t i = 0; i < reached.size(); ++i) {
      const std::vector<GraphNode*> after = reached[i]->after;
      add_unique(reached, after);
    }
    for (const Stream* other : capture.streams) {
      if (other->capture != &capture) continue;
      for (GraphNode* node : other->capture_tail) {
        if (std::find(reached.begin(), reached.end(), node) == reached.end()) {
          result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        }
      }
    }
  }
  if (result == CUDA_SUCCESS) {
    *graph = capture.graph;
  } else {
    delete_graph(capture.graph);
  }
  leave(capture);
  return result;
}

int Captures::join(Stream& stream, const Event& event) {
  Capture* capture = find(event.capture_id);
  if (capture == nullptr) return CUDA_SUCCESS;  // that capture is over; nothing to wait for
  if (stream.capture != nullptr && stream.capture != capture) {
    capture->invalidated = stream.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream.is_legacy) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream.capture == nullptr) {
    stream.capture = capture;
    stream.capture_tail.clear();
    capture->streams.push_back(&stream);
  }
  add_unique(stream.capture_tail, event.capture_nodes);
  return CUDA_SUCCESS;
}

int Captures::add(Stream& stream, const Operation& operation) {
  Capture& capture = *stream.capture;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  GraphNode* node = capture.graph->add(node_type(operation.kind), stream.capture_tail);
  node->operation = operation;
  stream.capture_tail.assign(1, node);
  return CUDA_SUCCESS;
}

int Captures::add_event_node(Stream& stream, Event& event, bool record) {
  Capture& capture = *stream.capture;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  GraphNode* node = capture.graph->add(record ? NodeType::kEventRecord : NodeType::kWaitEvent,
                                       stream.capture_tail);
  node->event = &event;
  stream.capture_tail.assign(1, node);
  return CUDA_SUCCESS;
}

int Captures::not_while_capturing(Capture& capture) noexcept {
  capture.invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

int Captures::check_unsafe() noexcept {
  if (!any()) return CUDA_SUCCESS;
  const auto thread_mode = static_cast<CaptureMode>(t_thread.capture_mode);
  if (thread_mode == CaptureMode::kRelaxed) return CUDA_SUCCESS;
  int result = CUDA_SUCCESS;
  std::lock_guard lock(simulation().scheduler.mutex);
  for (const auto& capture : active_) {
    if (capture->mode == CaptureMode::kRelaxed) continue;
    const bool own = capture->thread == thread_id();
    const bool others =
        thread_mode == CaptureMode::kGlobal && capture->mode == CaptureMode::kGlobal;
    if (own || others) result = not_while_capturing(*capture);
  }
  return result;
}

int Captures::check_legacy(const Stream& legacy) noexcept {
  int result = CUDA_SUCCESS;
  for (const auto& capture : active_) {
    for (const Stream* stream : capture->streams) {
      if (stream->capture == capture.get() && stream->is_blocking() &&
          stream->device == legacy.device) {
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
    }
  }
  return result;
}

}  // namespace gpubusy::sim
