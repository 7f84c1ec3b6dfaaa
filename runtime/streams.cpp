// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams.hpp"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "runtime/driver.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/pointer_map.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {
namespace {

constexpr std::uint16_t kUnknownFlags = 0xffff;
constexpr std::uint32_t kFirstOwnId = 1u << 20;  // where the driver tells no id (before CUDA 12)

constinit PointerMap<14> g_streams;
constinit PointerMap<14> g_graphs;
constinit PointerMap<10> g_captures;  // stream that is being captured -> its context, or 1
constinit std::atomic<std::uint32_t> g_next_stream{kFirstOwnId};
constinit std::atomic<std::uint32_t> g_next_graph{1};
constinit std::atomic<std::uint32_t> g_other_streams{0};    // one id for all that do not fit
constinit std::atomic<std::uint64_t> g_devices_defined{0};  // bit per ordinal

// A null or "per thread" handle means another stream for each thread and device. Such keys are odd:
// never a real handle.
const void* per_thread_key(std::uint32_t thread_id, std::int16_t device) noexcept {
  return reinterpret_cast<const void*>(std::uintptr_t{thread_id} << 17 |
                                       static_cast<std::uintptr_t>(device + 1) << 1 | 1);
}

const void* map_key(const StreamArgument& stream, std::int16_t device) noexcept {
  const auto handle = reinterpret_cast<std::uintptr_t>(stream.handle);
  if ((stream.per_thread && handle == 0) || handle == 2) {
    const ThreadState* thread = thread_state();
    return per_thread_key(thread == nullptr ? 0 : thread->thread_id, device);
  }
  return stream.handle;
}

// The legacy stream cannot be captured: a null handle is the thread's own here.
const void* capture_key(void* handle) noexcept {
  return map_key({handle, true, true}, current_device());
}

bool is_legacy(const StreamArgument& stream) noexcept {
  const auto handle = reinterpret_cast<std::uintptr_t>(stream.handle);
  return handle == 1 || (handle == 0 && !stream.per_thread);
}

void define_device(std::int16_t ordinal) noexcept {
  const Driver* d = driver();
  if (d == nullptr || ordinal < 0 || ordinal >= 64) return;
  const std::uint64_t bit = std::uint64_t{1} << ordinal;
  if (g_devices_defined.fetch_or(bit) & bit) return;
  recording::DeviceRecord r{};
  r.header.type = recording::RecordType::kDevice;
  r.header.value = static_cast<std::uint32_t>(ordinal);
  // Ordinal = CUdevice for every driver there is.
  const CUdevice device = ordinal;
  const auto attribute = [&](CUdevice_attribute a) -> std::uint32_t {
    int value = 0;
    if (d->device_get_attribute == nullptr ||
        d->device_get_attribute(&value, a, device) != CUDA_SUCCESS) {
      return 0;
    }
    return static_cast<std::uint32_t>(value);
  };
  size_t memory = 0;
  if (d->device_total_mem != nullptr && d->device_total_mem(&memory, device) == CUDA_SUCCESS) {
    r.total_memory = memory;
  }
  r.sm_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  r.compute_major =
      static_cast<std::uint16_t>(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  r.compute_minor =
      static_cast<std::uint16_t>(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  r.max_threads_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  r.max_threads_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  r.registers_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  r.warp_size = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  r.shared_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  r.shared_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  int version = 0;
  if (d->driver_get_version != nullptr && d->driver_get_version(&version) == CUDA_SUCCESS) {
    r.driver_version = static_cast<std::uint32_t>(version);
  }
  char name[256] = {};
  if (d->device_get_name != nullptr) d->device_get_name(name, sizeof name - 1, device);
  const std::size_t length = strnlen(name, sizeof name);
  r.name_bytes = static_cast<std::uint32_t>(length);
  const Part part{name, length};
  definitions().define(&r.header, sizeof r, &part, 1);
}

std::uint32_t other_streams() noexcept {
  std::uint32_t id = g_other_streams.load(std::memory_order_relaxed);
  if (id != 0) return id;
  notice(recording::NoticeKind::kBudget,
         "more streams than can be told apart: the others are counted as one");
  recording::StreamRecord r{};
  r.header.type = recording::RecordType::kStream;
  r.header.value = id = g_next_stream.fetch_add(1, std::memory_order_relaxed);
  r.device = -1;
  r.flags = kUnknownFlags;
  if (!definitions().define(&r.header, sizeof r, nullptr, 0)) return 0;
  g_other_streams.store(id, std::memory_order_relaxed);
  return id;
}

}  // namespace

std::int16_t current_device() noexcept {
  if (t_local.device != 0) return static_cast<std::int16_t>(t_local.device - 1);
  const Driver* d = driver();
  if (d == nullptr || d->ctx_get_device == nullptr) return -1;
  const NoCancel no_cancel;
  CUdevice device = 0;
  if (d->ctx_get_device(&device) != CUDA_SUCCESS) return -1;
  t_local.device = static_cast<std::int16_t>(device + 1);
  define_device(static_cast<std::int16_t>(device));
  return static_cast<std::int16_t>(device);
}

void device_changed() noexcept { t_local.device = 0; }

std::uint32_t stream_id(const StreamArgument& stream, std::int16_t device) noexcept {
  if (!stream.given) return 0;
  const bool legacy = is_legacy(stream);
  const void* key = legacy ? nullptr : map_key(stream, device);
  if (const std::uint64_t id = g_streams.find(key)) return static_cast<std::uint32_t>(id);
  const NoCancel no_cancel;
  if (!g_streams.has_room()) return other_streams();

  const Driver* d = driver();
  recording::StreamRecord r{};
  r.header.type = recording::RecordType::kStream;
  r.handle = reinterpret_cast<std::uint64_t>(stream.handle);
  r.device = device;
  r.flags = kUnknownFlags;
  if (legacy) {
    r.header.value = kDefaultStreamId;
  } else {
    auto handle = static_cast<CUstream>(stream.handle);
    if (stream.per_thread && handle == nullptr) handle = CU_STREAM_PER_THREAD;
    unsigned long long id = 0;
    if (d != nullptr && d->stream_get_id != nullptr &&
        d->stream_get_id(handle, &id) == CUDA_SUCCESS && id > 0 && id < kFirstOwnId) {
      r.header.value = static_cast<std::uint32_t>(id);
    } else {
      r.header.value = g_next_stream.fetch_add(1, std::memory_order_relaxed);
    }
    unsigned flags = 0;
    if (d != nullptr && d->stream_get_flags != nullptr &&
        d->stream_get_flags(handle, &flags) == CUDA_SUCCESS) {
      r.flags = static_cast<std::uint16_t>(flags);
    }
    int priority = 0;
    if (d != nullptr && d->stream_get_priority != nullptr &&
        d->stream_get_priority(handle, &priority) == CUDA_SUCCESS) {
      r.priority = priority;
    }
  }
  if (!definitions().define(&r.header, sizeof r, nullptr, 0)) return 0;
  g_streams.set(key, r.header.value);
  return r.header.value;
}

void forget_stream(void* handle) noexcept {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) return;
  g_streams.set(handle, 0);
  g_captures.set(handle, 0);
}

void forget_streams_of_thread(std::uint32_t thread_id) noexcept {
  constexpr std::int16_t kDevices = 16;
  for (std::int16_t device = -1; device < kDevices; ++device) {
    const void* key = per_thread_key(thread_id, device);
    if (g_streams.find(key) != 0) g_streams.set(key, 0);
  }
}

void forget_streams_of_context(CUcontext context) noexcept {
  // Streams of other contexts are defined again, with the same ids.
  g_streams.for_each([](const void*, std::uint64_t& id) { id = 0; });
  g_captures.for_each([&](const void*, std::uint64_t& owner) {
    if (context == nullptr || owner == reinterpret_cast<std::uint64_t>(context)) owner = 0;
  });
}

void capture_began(void* stream) noexcept {
  const Driver* d = driver();
  CUcontext context = nullptr;
  if (d != nullptr && d->ctx_get_current != nullptr) d->ctx_get_current(&context);
  g_captures.set(capture_key(stream),
                 context == nullptr ? 1 : reinterpret_cast<std::uint64_t>(context));
}
void capture_ended(int result, void* stream) noexcept {
  // Other errors (wrong thread, not the origin stream, a bad argument) leave the capture alive.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
      result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
    g_captures.set(capture_key(stream), 0);
  }
}
bool any_capture() noexcept { return !g_captures.is_empty(); }

bool is_capturing(const StreamArgument& stream) noexcept {
  const Driver* d = driver();
  if (d == nullptr) return false;
  auto* ask = stream.per_thread ? d->stream_is_capturing_ptsz : d->stream_is_capturing;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (ask == nullptr) return false;
  // The legacy stream answers with an error while another stream captures: not captured itself.
  if (ask(static_cast<CUstream>(stream.handle), &status) != CUDA_SUCCESS) return false;
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

namespace {

void count_nodes(const Driver& d, CUgraph graph, recording::GraphRecord& r, int depth) noexcept {
  size_t n = 0;
  if (depth > 4 || d.graph_get_nodes(graph, nullptr, &n) != CUDA_SUCCESS || n == 0) return;
  auto* nodes = static_cast<CUgraphNode*>(malloc(n * sizeof(CUgraphNode)));  // cold: instantiation
  if (nodes == nullptr) return;
  if (d.graph_get_nodes(graph, nodes, &n) == CUDA_SUCCESS) {
    for (size_t i = 0; i < n; ++i) {
      CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
      if (d.graph_node_get_type(nodes[i], &type) != CUDA_SUCCESS) continue;
      CUgraph child = nullptr;
      switch (type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: ++r.kernels; break;
        case CU_GRAPH_NODE_TYPE_MEMCPY: ++r.copies; break;
        case CU_GRAPH_NODE_TYPE_MEMSET: ++r.memsets; break;
        case CU_GRAPH_NODE_TYPE_GRAPH:
          if (d.graph_child_get_graph != nullptr &&
              d.graph_child_get_graph(nodes[i], &child) == CUDA_SUCCESS) {
            count_nodes(d, child, r, depth + 1);
          }
          break;
        default: ++r.others; break;
      }
    }
  }
  free(nodes);
}

}  // namespace

void graph_instantiated(void* graph_exec, void* graph) noexcept {
  const Driver* d = driver();
  if (d == nullptr || graph_exec == nullptr || d->graph_get_nodes == nullptr ||
      d->graph_node_get_type == nullptr) {
    return;
  }
  recording::GraphRecord r{};
  r.header.type = recording::RecordType::kGraph;
  r.header.value = g_next_graph.fetch_add(1, std::memory_order_relaxed);
  r.graph_exec = reinterpret_cast<std::uint64_t>(graph_exec);
  count_nodes(*d, static_cast<CUgraph>(graph), r, 0);
  if (definitions().define(&r.header, sizeof r, nullptr, 0)) {
    g_graphs.set(graph_exec, r.header.value);
  }
}

void forget_graph(void* graph_exec) noexcept { g_graphs.set(graph_exec, 0); }

std::uint32_t graph_id(void* graph_exec) noexcept {
  return static_cast<std::uint32_t>(g_graphs.find(graph_exec));
}

void forget_streams_after_fork() noexcept {
  g_streams.clear_after_fork();
  g_graphs.clear_after_fork();
  g_captures.clear_after_fork();
  g_other_streams.store(0);
  g_devices_defined.store(0);
}

}  // namespace gpubusy::runtime
