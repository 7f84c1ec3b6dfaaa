// SPDX-License-Identifier: Apache-2.0
//
// Graphs, and their capture from streams. The scheduler's mutex guards all of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/core/scheduler.hpp"

namespace gpubusy::sim {

struct Stream;
struct Event;
struct Graph;

enum class NodeType : std::uint8_t {  // as CUgraphNodeType
  kKernel = 0,
  kCopy = 1,
  kMemset = 2,
  kHost = 3,
  kGraph = 4,
  kEmpty = 5,
  kWaitEvent = 6,
  kEventRecord = 7,
  kMemAlloc = 10,
  kMemFree = 11,
};

struct GraphNode {
  NodeType type = NodeType::kEmpty;
  Operation operation;
  std::vector<GraphNode*> after;
  Graph* graph = nullptr;
  Graph* child = nullptr;
  Event* event = nullptr;
  std::uint64_t id = 0;
};

struct Graph {
  static constexpr std::uint32_t kMagic = 0x67726170u;
  std::uint32_t magic = kMagic;
  std::uint64_t id = 0;
  std::vector<std::unique_ptr<GraphNode>> nodes;

  GraphNode* add(NodeType type, std::vector<GraphNode*> after);
};

struct GraphExec {
  static constexpr std::uint32_t kMagic = 0x67657865u;
  struct Step {
    NodeType type;
    Operation operation;
    Event* event;
    std::vector<std::uint32_t> after;  // indices of earlier steps
    bool is_leaf;
  };
  std::uint32_t magic = kMagic;
  std::uint64_t graph_id = 0;
  std::vector<Step> steps;  // in an order that dependencies allow
};

Graph* new_graph();
void delete_graph(Graph* graph);
// nullptr: the graph has a cycle.
GraphExec* instantiate(const Graph& graph);
void launch_graph(GraphExec& exec, Stream& stream, std::uint32_t correlation);

enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

struct Capture {
  std::uint64_t id = 0;
  Graph* graph = nullptr;
  CaptureMode mode = CaptureMode::kGlobal;
  Stream* origin = nullptr;
  std::uint32_t thread = 0;
  bool invalidated = false;
  std::vector<Stream*> streams;  // the origin first
};

// Results are CUresult values.
class Captures {
 public:
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  int begin(Stream& stream, CaptureMode mode, Graph* graph, std::vector<GraphNode*> after);
  int end(Stream& stream, Graph** graph);
  // The stream waits for an event recorded in a capture: it joins that.
  int join(Stream& stream, const Event& event);
  // The operation becomes a node; `stream` is capturing.
  int add(Stream& stream, const Operation& operation);
  int add_event_node(Stream& stream, Event& event, bool record);

  // Before a call that is not safe while a stream is captured. 0, or an error that ends captures.
  int check_unsafe() noexcept;
  // Before work in the legacy stream, which would wait for blocking streams being captured.
  int check_legacy(const Stream& legacy) noexcept;
  // A call that a stream or event under capture does not allow.
  int not_while_capturing(Capture& capture) noexcept;
  Capture* find(std::uint64_t id) noexcept;

 private:
  void leave(Capture& capture);
  std::atomic<int> count_{0};
  std::vector<std::unique_ptr<Capture>> active_;
  std::uint64_t next_id_ = 1;
};

}  // namespace gpubusy::sim
