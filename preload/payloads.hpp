// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary of the hook rows' last columns: from a call's arguments to a record's payload.
// Evaluated after the real call, inside the hook's guard. Out-parameters are only read where the
// pointer is there; a failed call's record carries its result, so their content does not matter.
// The words for what ends (ending_…) stand among a row's arguments or for its stream instead: those
// are evaluated before the real call.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "recording/format.hpp"
#include "runtime/api_info.hpp"
#include "runtime/device_timer.hpp"
#include "runtime/driver.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/kernels.hpp"
#include "runtime/recorder.hpp"
#include "runtime/step_tracker.hpp"
#include "runtime/streams.hpp"

namespace gpubusy::preload {

using recording::AllocPayload;
using recording::CopyDirection;
using recording::CopyPayload;
using recording::GraphLaunchPayload;
using recording::LaunchPayload;
using recording::MemoryKind;
using recording::MemsetPayload;
using recording::SyncPayload;

struct NoPayload {};

enum class Blocking : std::uint8_t { kBlocking = 0, kAsync = 1 };
inline constexpr Blocking kBlocking = Blocking::kBlocking;
inline constexpr Blocking kAsync = Blocking::kAsync;

template <class T>
std::uint64_t address_of(T value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<std::uint64_t>(value);
  } else if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

// Pageable memory is what the driver does not know.
inline MemoryKind memory_kind(std::uint64_t address) noexcept {
  const runtime::Driver* d = runtime::driver();
  if (d == nullptr || d->pointer_get_attributes == nullptr) return MemoryKind::kUnknown;
  // Of memory that it does not know the driver says 0 and no error.
  unsigned type = 0;
  unsigned managed = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&type, &managed};
  if (d->pointer_get_attributes(2, attributes, values, static_cast<CUdeviceptr>(address)) !=
      CUDA_SUCCESS) {
    return MemoryKind::kUnknown;
  }
  if (managed != 0) return MemoryKind::kManaged;
  switch (type) {
    case CU_MEMORYTYPE_HOST: return MemoryKind::kPinned;
    case CU_MEMORYTYPE_DEVICE: return MemoryKind::kDevice;
    case CU_MEMORYTYPE_ARRAY: return MemoryKind::kArray;
    case CU_MEMORYTYPE_UNIFIED: return MemoryKind::kManaged;
    default: return MemoryKind::kPageable;
  }
}

constexpr bool on_host(MemoryKind k) noexcept {
  return k == MemoryKind::kPageable || k == MemoryKind::kPinned;
}

// By what the memory is, not by what the caller called it: with unified addressing the driver goes
// by that too. The stated kind decides where the memory cannot be told (managed, unknown).
inline CopyDirection direction_of(MemoryKind source, MemoryKind destination,
                                  cudaMemcpyKind stated) noexcept {
  const auto by_kind = [&] {
    switch (stated) {
      case cudaMemcpyHostToDevice: return CopyDirection::kHostToDevice;
      case cudaMemcpyDeviceToHost: return CopyDirection::kDeviceToHost;
      case cudaMemcpyDeviceToDevice: return CopyDirection::kDeviceToDevice;
      case cudaMemcpyHostToHost: return CopyDirection::kHostToHost;
      default: return CopyDirection::kUnknown;
    }
  };
  const auto fuzzy = [](MemoryKind k) {
    return k == MemoryKind::kUnknown || k == MemoryKind::kManaged;
  };
  if ((fuzzy(source) || fuzzy(destination)) && stated != cudaMemcpyDefault) return by_kind();
  if (source == MemoryKind::kUnknown || destination == MemoryKind::kUnknown) return by_kind();
  if (on_host(source)) {
    return on_host(destination) ? CopyDirection::kHostToHost : CopyDirection::kHostToDevice;
  }
  return on_host(destination) ? CopyDirection::kDeviceToHost : CopyDirection::kDeviceToDevice;
}

template <class Destination, class Source>
CopyPayload copied(Destination dst, Source src, std::size_t bytes, cudaMemcpyKind stated,
                   Blocking blocking) noexcept {
  CopyPayload p{};
  p.bytes = bytes;
  p.source = address_of(src);
  p.destination = address_of(dst);
  p.source_kind = memory_kind(p.source);
  p.destination_kind = memory_kind(p.destination);
  p.direction = direction_of(p.source_kind, p.destination_kind, stated);
  p.asynchronous = static_cast<std::uint8_t>(blocking);
  p.source_device = p.destination_device = -1;
  return p;
}

template <class Destination, class Source>
CopyPayload copied_peer(Destination dst, int dst_device, Source src, int src_device,
                        std::size_t bytes, Blocking blocking) noexcept {
  CopyPayload p = copied(dst, src, bytes, cudaMemcpyDeviceToDevice, blocking);
  p.direction = CopyDirection::kPeerToPeer;
  p.source_device = static_cast<std::int16_t>(src_device);
  p.destination_device = static_cast<std::int16_t>(dst_device);
  return p;
}

inline CopyPayload copied_with_device_side(std::uint64_t host, bool host_is_source,
                                           MemoryKind device_kind, std::size_t bytes,
                                           cudaMemcpyKind stated, Blocking blocking) noexcept {
  CopyPayload p{};
  p.bytes = bytes;
  (host_is_source ? p.source : p.destination) = host;
  p.source_kind = host_is_source ? memory_kind(host) : device_kind;
  p.destination_kind = host_is_source ? device_kind : memory_kind(host);
  p.direction = direction_of(p.source_kind, p.destination_kind, stated);
  p.asynchronous = static_cast<std::uint8_t>(blocking);
  p.source_device = p.destination_device = -1;
  return p;
}

inline CopyPayload copied_to_symbol(const void* src, std::size_t bytes, cudaMemcpyKind stated,
                                    Blocking blocking) noexcept {
  return copied_with_device_side(address_of(src), true, MemoryKind::kDevice, bytes, stated,
                                 blocking);
}
inline CopyPayload copied_from_symbol(void* dst, std::size_t bytes, cudaMemcpyKind stated,
                                      Blocking blocking) noexcept {
  return copied_with_device_side(address_of(dst), false, MemoryKind::kDevice, bytes, stated,
                                 blocking);
}
template <class Source>
CopyPayload copied_to_array(Source src, std::size_t bytes, cudaMemcpyKind stated,
                            Blocking blocking) noexcept {
  return copied_with_device_side(address_of(src), true, MemoryKind::kArray, bytes, stated,
                                 blocking);
}
template <class Destination>
CopyPayload copied_from_array(Destination dst, std::size_t bytes, cudaMemcpyKind stated,
                              Blocking blocking) noexcept {
  return copied_with_device_side(address_of(dst), false, MemoryKind::kArray, bytes, stated,
                                 blocking);
}

inline CopyPayload copied_between_arrays(std::size_t bytes, Blocking blocking) noexcept {
  CopyPayload p{};
  p.bytes = bytes;
  p.source_kind = p.destination_kind = MemoryKind::kArray;
  p.direction = CopyDirection::kDeviceToDevice;
  p.asynchronous = static_cast<std::uint8_t>(blocking);
  p.source_device = p.destination_device = -1;
  return p;
}

// Where an array takes part, width counts elements whose size the parameters do not tell: the bytes
// are then a lower bound.
template <class Parameters>
CopyPayload copied_3d_runtime(const Parameters* q, cudaMemcpyKind stated,
                              Blocking blocking) noexcept {
  if (q == nullptr) return CopyPayload{};
  CopyPayload p = copied(q->dstPtr.ptr, q->srcPtr.ptr,
                         q->extent.width * q->extent.height * q->extent.depth, stated, blocking);
  if (q->srcArray != nullptr) p.source_kind = MemoryKind::kArray;
  if (q->dstArray != nullptr) p.destination_kind = MemoryKind::kArray;
  p.direction = direction_of(p.source_kind, p.destination_kind, stated);
  return p;
}
inline CopyPayload copied_3d(const cudaMemcpy3DParms* q, Blocking blocking) noexcept {
  return copied_3d_runtime(q, q == nullptr ? cudaMemcpyDefault : q->kind, blocking);
}
inline CopyPayload copied_3d_peer(const cudaMemcpy3DPeerParms* q, Blocking blocking) noexcept {
  CopyPayload p = copied_3d_runtime(q, cudaMemcpyDeviceToDevice, blocking);
  p.direction = CopyDirection::kPeerToPeer;
  if (q != nullptr) {
    p.source_device = static_cast<std::int16_t>(q->srcDevice);
    p.destination_device = static_cast<std::int16_t>(q->dstDevice);
  }
  return p;
}

// Driver descriptors say what each side is.
template <class Parameters>
CopyPayload copied_by_descriptor(const Parameters* q, std::size_t bytes,
                                 Blocking blocking) noexcept {
  const auto side = [](CUmemorytype type, const void* host, CUdeviceptr device, MemoryKind& kind) {
    const std::uint64_t address = type == CU_MEMORYTYPE_HOST ? address_of(host) : device;
    kind = type == CU_MEMORYTYPE_ARRAY    ? MemoryKind::kArray
           : type == CU_MEMORYTYPE_DEVICE ? MemoryKind::kDevice
                                          : memory_kind(address);
    return address;
  };
  CopyPayload p{};
  p.bytes = bytes;
  p.source = side(q->srcMemoryType, q->srcHost, q->srcDevice, p.source_kind);
  p.destination = side(q->dstMemoryType, q->dstHost, q->dstDevice, p.destination_kind);
  p.direction = direction_of(p.source_kind, p.destination_kind, cudaMemcpyDefault);
  p.asynchronous = static_cast<std::uint8_t>(blocking);
  p.source_device = p.destination_device = -1;
  return p;
}
inline CopyPayload copied_2d(const CUDA_MEMCPY2D* q, Blocking blocking) noexcept {
  return q == nullptr ? CopyPayload{}
                      : copied_by_descriptor(q, q->WidthInBytes * q->Height, blocking);
}
inline CopyPayload copied_3d(const CUDA_MEMCPY3D* q, Blocking blocking) noexcept {
  return q == nullptr ? CopyPayload{}
                      : copied_by_descriptor(q, q->WidthInBytes * q->Height * q->Depth, blocking);
}

inline CopyPayload copied_3d_peer(const CUDA_MEMCPY3D_PEER* q, Blocking blocking) noexcept {
  if (q == nullptr) return CopyPayload{};
  CopyPayload p = copied_by_descriptor(q, q->WidthInBytes * q->Height * q->Depth, blocking);
  p.direction = CopyDirection::kPeerToPeer;
  return p;
}

// Of a batch: all its bytes; ends, kinds and direction are those of the first copy, and the
// direction is unknown where the others differ in it. Every end would cost a question to the
// driver, so that of a long batch only the begin is looked at.
inline constexpr std::size_t kBatchLooks = 8;
inline CopyPayload copied_batch(const CUdeviceptr* dst, const CUdeviceptr* src,
                                const std::size_t* sizes, std::size_t count) noexcept {
  CopyPayload p{};
  if (dst == nullptr || src == nullptr || sizes == nullptr || count == 0) return p;
  p = copied(dst[0], src[0], sizes[0], cudaMemcpyDefault, kAsync);
  for (std::size_t i = 1; i < count; ++i) {
    p.bytes += sizes[i];
    if (i >= kBatchLooks || p.direction == CopyDirection::kUnknown) continue;
    const CopyDirection other =
        direction_of(memory_kind(src[i]), memory_kind(dst[i]), cudaMemcpyDefault);
    if (other != p.direction) p.direction = CopyDirection::kUnknown;
  }
  return p;
}
// As the driver has it since CUDA 12.8. Where an array takes part, the bytes are a lower bound.
struct BatchCopy {
  struct Operand {
    static constexpr unsigned kPointer = 1;
    unsigned type;
    union {
      struct {
        CUdeviceptr ptr;
        std::size_t row_length, layer_height;
        int location[2];
      } linear;
      struct {
        CUarray array;
        std::size_t offset[3];
      } array;
    };
  };
  Operand source, destination;
  std::size_t width, height, depth;
  unsigned order, flags;
};
#if CUDA_VERSION >= 12080
static_assert(sizeof(BatchCopy) == sizeof(CUDA_MEMCPY3D_BATCH_OP));
#endif
inline CopyPayload copied_batch(const BatchCopy* copies, std::size_t count) noexcept {
  CopyPayload p{};
  if (copies == nullptr || count == 0) return p;
  const auto kind = [](const BatchCopy::Operand& o) {
    return o.type == BatchCopy::Operand::kPointer ? memory_kind(o.linear.ptr) : MemoryKind::kArray;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const BatchCopy& c = copies[i];
    p.bytes += c.width * c.height * c.depth;
    if (i >= kBatchLooks) continue;
    const MemoryKind from = kind(c.source), to = kind(c.destination);
    const CopyDirection direction = direction_of(from, to, cudaMemcpyDefault);
    if (i == 0) {
      if (c.source.type == BatchCopy::Operand::kPointer) p.source = c.source.linear.ptr;
      if (c.destination.type == BatchCopy::Operand::kPointer) {
        p.destination = c.destination.linear.ptr;
      }
      p.source_kind = from;
      p.destination_kind = to;
      p.direction = direction;
    } else if (direction != p.direction) {
      p.direction = CopyDirection::kUnknown;
    }
  }
  p.asynchronous = 1;
  p.source_device = p.destination_device = -1;
  return p;
}

template <class Destination>
MemsetPayload filled(Destination dst, unsigned pattern, std::size_t bytes,
                     Blocking blocking) noexcept {
  MemsetPayload p{};
  p.bytes = bytes;
  p.destination = address_of(dst);
  p.pattern = pattern;
  p.asynchronous = static_cast<std::uint8_t>(blocking);
  return p;
}

template <class Handle>
SyncPayload waited(Handle handle) noexcept {
  return {address_of(handle), 0};
}
template <class Handle, class Other>
SyncPayload waited(Handle handle, Other other) noexcept {
  return {address_of(handle), address_of(other)};
}
template <class Handle>
SyncPayload made(Handle* handle) noexcept {
  return {handle == nullptr ? 0 : address_of(*handle), 0};
}
template <class Stream>
Stream ending_stream(Stream stream) noexcept {
  runtime::forget_stream(reinterpret_cast<void*>(stream));
  return stream;
}

template <class Pointer>
AllocPayload allocated(Pointer* ptr, std::size_t bytes) noexcept {
  return {ptr == nullptr ? 0 : address_of(*ptr), bytes};
}
// What an array holds; its layout and padding are the driver's secret. 0: a format of unknown size.
inline std::size_t array_bytes(std::size_t element, cudaExtent e, unsigned levels) noexcept {
  std::size_t sum = 0;
  const auto at_least_one = [](std::size_t n) { return n == 0 ? 1 : n; };
  for (unsigned i = 0; i < levels && i < 32; ++i) {
    sum += element * at_least_one(e.width >> i) * at_least_one(e.height >> i) *
           at_least_one(e.depth >> i);
  }
  return sum;
}
inline std::size_t array_bytes(const cudaChannelFormatDesc* f, cudaExtent e,
                               unsigned levels) noexcept {
  return f == nullptr
             ? 0
             : array_bytes(static_cast<std::size_t>(f->x + f->y + f->z + f->w) / 8, e, levels);
}
inline std::size_t element_bytes(CUarray_format format, unsigned channels) noexcept {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return channels * std::size_t{2};
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return channels * std::size_t{4};
    default: return 0;
  }
}
inline std::size_t array_bytes(const CUDA_ARRAY_DESCRIPTOR* d) noexcept {
  return d == nullptr ? 0
                      : array_bytes(element_bytes(d->Format, d->NumChannels),
                                    cudaExtent{d->Width, d->Height, 0}, 1);
}
inline std::size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned levels) noexcept {
  return d == nullptr ? 0
                      : array_bytes(element_bytes(d->Format, d->NumChannels),
                                    cudaExtent{d->Width, d->Height, d->Depth}, levels);
}
inline AllocPayload allocated_3d(const cudaPitchedPtr* p, cudaExtent e) noexcept {
  return p == nullptr ? AllocPayload{}
                      : AllocPayload{address_of(p->ptr), p->pitch * e.height * e.depth};
}
inline AllocPayload registered(void* ptr, std::size_t bytes) noexcept {
  return {address_of(ptr), bytes};
}
template <class Pointer>
AllocPayload freed(Pointer ptr) noexcept {
  return {address_of(ptr), 0};
}

template <class Exec>
GraphLaunchPayload graph_launched(Exec exec) noexcept {
  return {address_of(exec), runtime::graph_id(exec), 0};
}
template <class Exec>
Exec ending_graph(Exec exec) noexcept {
  runtime::forget_graph(reinterpret_cast<void*>(exec));
  runtime::steps_forget_graph(exec);
  return exec;
}
template <class Stream>
SyncPayload capture_began(int result, Stream stream) noexcept {
  if (result == 0) runtime::capture_began(reinterpret_cast<void*>(stream));
  return {address_of(stream), 0};
}
template <class Stream, class Graph>
SyncPayload capture_ended(int result, Stream stream, const Graph* graph) noexcept {
  runtime::capture_ended(result, reinterpret_cast<void*>(stream));
  runtime::steps_saw_capture_end(result == 0 && graph != nullptr ? *graph : nullptr);
  return {address_of(stream), 0};
}
template <class Exec, class Graph>
NoPayload instantiated(int result, Exec* exec, Graph graph) noexcept {
  if (result == 0 && exec != nullptr) {
    runtime::graph_instantiated(*exec, graph);
    runtime::steps_saw_instantiation(*exec, graph);
  }
  return {};
}
inline NoPayload unloaded() noexcept {
  runtime::forget_driver_kernels();
  return {};
}
inline void forget_context(CUcontext context, int device) noexcept {
  const runtime::KeepErrno keep;
  runtime::forget_context(context, device);
  runtime::forget_streams_of_context(context);
}
inline void ending_context(CUcontext context) noexcept {
  if (context != nullptr) forget_context(context, -1);
}
inline void ending_context_of(CUdevice device) noexcept { forget_context(nullptr, device); }
inline void ending_current_context() noexcept {
  // Without one the runtime may still reset that of its current device, which it does not tell.
  const runtime::Driver* d = runtime::driver();
  CUcontext context = nullptr;
  if (d != nullptr && d->ctx_get_current != nullptr) d->ctx_get_current(&context);
  forget_context(context, -1);
}
inline NoPayload device_set() noexcept {
  runtime::device_changed();
  return {};
}
inline NoPayload profiler_called(bool starts) noexcept {
  runtime::capture_by_profiler(starts);
  return {};
}
inline NoPayload nothing() noexcept { return {}; }

struct Shape {
  dim3 grid, block;
  std::size_t shared;
};
// A null configuration is the program's error and the real call's to report.
inline Shape shape(const cudaLaunchConfig_t* c) noexcept {
  return c == nullptr ? Shape{} : Shape{c->gridDim, c->blockDim, c->dynamicSmemBytes};
}
inline Shape shape(const CUlaunchConfig* c) noexcept {
  return c == nullptr ? Shape{}
                      : Shape{dim3(c->gridDimX, c->gridDimY, c->gridDimZ),
                              dim3(c->blockDimX, c->blockDimY, c->blockDimZ), c->sharedMemBytes};
}
inline cudaStream_t stream_of(const cudaLaunchConfig_t* c) noexcept {
  return c == nullptr ? nullptr : c->stream;
}
inline CUstream stream_of(const CUlaunchConfig* c) noexcept {
  return c == nullptr ? nullptr : c->hStream;
}

// Launches on several devices at once: as the driver and the runtime (until CUDA 12) have them.
struct LaunchList {
  CUfunction function;
  unsigned grid[3], block[3], shared;
  CUstream stream;
  void** parameters;
};
struct RuntimeLaunchList {
  void* function;
  dim3 grid, block;
  void** parameters;
  std::size_t shared;
  cudaStream_t stream;
};
template <class List>
auto first_function(const List* list, unsigned count) noexcept {
  return list == nullptr || count == 0 ? nullptr : list->function;
}
template <class List>
auto first_stream(const List* list, unsigned count) noexcept {
  return list == nullptr || count == 0 ? nullptr : list->stream;
}
inline Shape first_shape(const LaunchList* l, unsigned count) noexcept {
  return l == nullptr || count == 0 ? Shape{}
                                    : Shape{dim3(l->grid[0], l->grid[1], l->grid[2]),
                                            dim3(l->block[0], l->block[1], l->block[2]), l->shared};
}
inline Shape first_shape(const RuntimeLaunchList* l, unsigned count) noexcept {
  return l == nullptr || count == 0 ? Shape{} : Shape{l->grid, l->block, l->shared};
}

template <class Function>
LaunchPayload launched(Function function, recording::Layer layer, const Shape& s) noexcept {
  LaunchPayload p{};
  p.kernel = runtime::kernel_id(reinterpret_cast<const void*>(function), layer);
  p.shared_bytes = static_cast<std::uint32_t>(s.shared);
  p.grid_x = s.grid.x;
  p.grid_y = static_cast<std::uint16_t>(s.grid.y), p.grid_z = static_cast<std::uint16_t>(s.grid.z);
  p.block_x = static_cast<std::uint16_t>(s.block.x);
  p.block_y = static_cast<std::uint16_t>(s.block.y);
  p.block_z = static_cast<std::uint16_t>(s.block.z);
  return p;
}

}  // namespace gpubusy::preload
