// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_records.hpp"

#include <cstring>

#include <unistd.h>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim::cupti {
namespace {

constexpr std::uint32_t kComputeChannel = 0, kCopyChannel = 12;  // as seen on real systems
constexpr std::uint16_t kRegistersPerThread = 32;

std::uint8_t memory_kind(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kPageable: return CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
    case MemoryKind::kPinned: return CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
    case MemoryKind::kDevice: return CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    case MemoryKind::kManaged: return CUPTI_ACTIVITY_MEMORY_KIND_MANAGED;
    case MemoryKind::kNone: break;
  }
  return CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN;
}

std::uint8_t copy_kind(const Operation& o) {
  if (is_peer_copy(o)) return CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  const bool from_device = o.source_device >= 0, to_device = o.destination_device >= 0;
  if (from_device && to_device) return CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
  if (to_device) return CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  return from_device ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
}

// What all records of device work have, by the same names.
template <class T>
void fill_common(T& record, const Operation& o, const Times& times) {
  record.start = times.device(o.start_ns);
  record.end = times.device(o.end_ns);
  record.deviceId = static_cast<std::uint32_t>(o.device);
  record.contextId = context_id(o.device);
  record.streamId = o.stream_id;
  record.correlationId = o.correlation;
  record.graphId = static_cast<std::uint32_t>(o.graph_id);
  record.graphNodeId = o.node_id;
}

Record kernel(const DeviceWork& work, const Times& times, bool concurrent) {
  const Operation& o = work.operation;
  CUpti_ActivityKernel10 r{};
  r.kind = concurrent ? CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL : CUPTI_ACTIVITY_KIND_KERNEL;
  fill_common(r, o, times);
  r.completed = r.end;
  r.registersPerThread = kRegistersPerThread;
  r.gridX = static_cast<std::int32_t>(o.grid.x);
  r.gridY = static_cast<std::int32_t>(o.grid.y);
  r.gridZ = static_cast<std::int32_t>(o.grid.z);
  r.blockX = static_cast<std::int32_t>(o.block.x);
  r.blockY = static_cast<std::int32_t>(o.block.y);
  r.blockZ = static_cast<std::int32_t>(o.block.z);
  r.dynamicSharedMemory = static_cast<std::int32_t>(o.shared_bytes);
  r.sharedMemoryExecuted = o.shared_bytes;
  r.gridId = static_cast<std::int64_t>(work.number);
  r.name = work.name;
  if (work.queued_ns != 0) r.queued = times.host(work.queued_ns);
  if (work.submitted_ns != 0) r.submitted = times.host(work.submitted_ns);
  r.channelID = kComputeChannel;
  r.channelType = CUPTI_CHANNEL_TYPE_COMPUTE;
  return Record::of(r);
}

Record copy(const DeviceWork& work, const Times& times) {
  const Operation& o = work.operation;
  CUpti_ActivityMemcpy6 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  fill_common(r, o, times);
  r.copyKind = copy_kind(o);
  r.srcKind = memory_kind(o.source_memory);
  r.dstKind = memory_kind(o.destination_memory);
  r.flags = work.is_async ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0;
  r.bytes = o.bytes;
  r.runtimeCorrelationId = o.correlation;
  r.channelID = kCopyChannel;
  r.channelType = CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY;
  r.copyCount = 1;
  return Record::of(r);
}

Record peer_copy(const DeviceWork& work, const Times& times) {
  const Operation& o = work.operation;
  CUpti_ActivityMemcpyPtoP4 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  fill_common(r, o, times);
  r.copyKind = copy_kind(o);
  r.srcKind = memory_kind(o.source_memory);
  r.dstKind = memory_kind(o.destination_memory);
  r.flags = work.is_async ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0;
  r.bytes = o.bytes;
  r.srcDeviceId = static_cast<std::uint32_t>(o.source_device);
  r.srcContextId = context_id(o.source_device);
  r.dstDeviceId = static_cast<std::uint32_t>(o.destination_device);
  r.dstContextId = context_id(o.destination_device);
  r.channelID = kCopyChannel;
  r.channelType = CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY;
  return Record::of(r);
}

Record fill(const DeviceWork& work, const Times& times) {
  const Operation& o = work.operation;
  CUpti_ActivityMemset4 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  fill_common(r, o, times);
  r.value = o.effect.value;
  r.bytes = o.bytes;
  r.flags = work.is_async ? CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC : 0;
  r.memoryKind = memory_kind(o.destination_memory);
  r.channelID = kComputeChannel;
  r.channelType = CUPTI_CHANNEL_TYPE_COMPUTE;
  return Record::of(r);
}

Record synchronisation(const Synchronisation& s, const Times& times) {
  CUpti_ActivitySynchronization2 r{};
  r.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  switch (s.kind) {
    case SyncEvent::Kind::kEvent:
      r.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE;
      break;
    case SyncEvent::Kind::kStreamWaitEvent:
      r.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
      break;
    case SyncEvent::Kind::kStream:
      r.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
      break;
    case SyncEvent::Kind::kContext:
      r.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE;
      break;
  }
  r.start = times.host(s.start_ns);
  r.end = times.host(s.end_ns);
  r.correlationId = s.correlation;
  r.contextId = s.context;
  r.streamId = s.stream;
  r.cudaEventId = s.event;
  r.cudaEventSyncId = s.event_sync;
  r.returnValue = s.result;
  return Record::of(r);
}

Record overhead(const Overhead& o, const Times& times) {
  CUpti_ActivityOverhead3 r{};
  r.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  r.overheadKind = o.kind;
  r.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
  r.objectId.pt.processId = static_cast<std::uint32_t>(getpid());
  r.objectId.pt.threadId = o.thread;
  r.start = times.host(o.start_ns);
  r.end = times.host(o.end_ns);
  r.correlationId = o.correlation;
  return Record::of(r);
}

Record event_record(const EventRecord& e, const Times&) {
  CUpti_ActivityCudaEvent2 r{};
  r.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  r.correlationId = e.correlation;
  r.contextId = e.context;
  r.streamId = e.stream;
  r.eventId = e.event;
  r.deviceId = e.device;
  r.cudaEventSyncId = e.event_sync;
  return Record::of(r);
}

}  // namespace

std::uint32_t context_id(int device) noexcept {
  const auto& devices = simulation().devices;
  if (device < 0 || device >= static_cast<int>(devices.size())) return 0;
  return static_cast<std::uint32_t>(devices[static_cast<std::size_t>(device)]->primary.id);
}

bool is_peer_copy(const Operation& o) noexcept {
  return o.kind == OpKind::kCopy && o.source_device >= 0 && o.destination_device >= 0 &&
         o.source_device != o.destination_device;
}

CUpti_ActivityKind kind_of(const Operation& o) noexcept {
  switch (o.kind) {
    case OpKind::kKernel: return CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    case OpKind::kCopy:
      return is_peer_copy(o) ? CUPTI_ACTIVITY_KIND_MEMCPY2 : CUPTI_ACTIVITY_KIND_MEMCPY;
    case OpKind::kMemset: return CUPTI_ACTIVITY_KIND_MEMSET;
    case OpKind::kHostFunction:
    case OpKind::kEmpty: break;
  }
  return CUPTI_ACTIVITY_KIND_INVALID;
}

std::uint64_t end_of(const Unfinished& item) {
  struct {
    std::uint64_t operator()(const DeviceWork& w) const { return w.operation.end_ns; }
    std::uint64_t operator()(const Synchronisation& s) const { return s.end_ns; }
    std::uint64_t operator()(const Overhead& o) const { return o.end_ns; }
    std::uint64_t operator()(const EventRecord& e) const { return e.end_ns; }
  } end;
  return std::visit(end, item);
}

Record make_record(const Unfinished& item, const Times& times, bool concurrent_kernels) {
  struct Maker {
    const Times& times;
    bool concurrent;
    Record operator()(const DeviceWork& w) const {
      if (w.operation.kind == OpKind::kKernel) return kernel(w, times, concurrent);
      if (w.operation.kind == OpKind::kMemset) return fill(w, times);
      return is_peer_copy(w.operation) ? peer_copy(w, times) : copy(w, times);
    }
    Record operator()(const Synchronisation& s) const { return synchronisation(s, times); }
    Record operator()(const Overhead& o) const { return overhead(o, times); }
    Record operator()(const EventRecord& e) const { return event_record(e, times); }
  };
  return std::visit(Maker{times, concurrent_kernels}, item);
}

std::size_t record_size(std::uint32_t kind) noexcept {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(CUpti_ActivityCudaEvent2);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return sizeof(CUpti_ActivityOverhead3);
    default: return 0;
  }
}

CUptiResult next_record(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) noexcept {
  if (buffer == nullptr || record == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const auto kind_at = [](const void* place) {
    std::uint32_t kind;
    std::memcpy(&kind, place, sizeof kind);
    return kind;
  };
  auto* next = buffer;
  if (*record != nullptr) {
    const std::size_t size = record_size(kind_at(*record));
    if (size == 0) return CUPTI_ERROR_INVALID_KIND;
    next = reinterpret_cast<std::uint8_t*>(*record) + size;
  }
  const std::size_t left =
      next >= buffer + valid ? 0 : static_cast<std::size_t>(buffer + valid - next);
  if (left < sizeof(std::uint32_t)) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  const std::size_t size = record_size(kind_at(next));
  if (size == 0) return CUPTI_ERROR_INVALID_KIND;
  if (left < size) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

}  // namespace gpubusy::sim::cupti
