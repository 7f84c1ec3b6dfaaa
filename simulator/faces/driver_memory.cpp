// SPDX-License-Identifier: Apache-2.0
//
// The driver: memory, copies, memsets.
#include <cstring>

#include "simulator/core/work.hpp"
#include "simulator/faces/driver_export.hpp"
#include "simulator/faces/driver_handles.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::driver;

namespace {

Effect linear_copy(void* destination, const void* source, std::size_t bytes) {
  Effect effect;
  effect.type = Effect::Type::kCopy;
  effect.destination = static_cast<std::byte*>(destination);
  effect.source = static_cast<const std::byte*>(source);
  effect.width = bytes;
  return effect;
}

Effect rows_to_fill(void* destination, std::size_t pitch, unsigned value, std::uint8_t element,
                    std::size_t elements, std::size_t rows) {
  Effect effect;
  effect.type = Effect::Type::kFill;
  effect.destination = static_cast<std::byte*>(destination);
  effect.destination_pitch = pitch;
  effect.element = element;
  effect.value = value;
  effect.width = elements * element;
  effect.height = rows;
  return effect;
}

std::byte* base_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  return static_cast<std::byte*>(type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host)
                                                            : pointer(device));
}

// Arrays are not simulated.
bool is_linear(CUmemorytype type) { return type != CU_MEMORYTYPE_ARRAY; }

// False: not linear memory.
bool to_effect(const CUDA_MEMCPY2D& p, Effect& effect) {
  if (!is_linear(p.srcMemoryType) || !is_linear(p.dstMemoryType)) return false;
  effect.type = Effect::Type::kCopy;
  effect.source =
      base_of(p.srcMemoryType, p.srcHost, p.srcDevice) + p.srcY * p.srcPitch + p.srcXInBytes;
  effect.destination =
      base_of(p.dstMemoryType, p.dstHost, p.dstDevice) + p.dstY * p.dstPitch + p.dstXInBytes;
  effect.width = p.WidthInBytes;
  effect.height = p.Height;
  effect.source_pitch = p.srcPitch;
  effect.destination_pitch = p.dstPitch;
  return true;
}

template <class Parameters>
bool to_effect_3d(const Parameters& p, Effect& effect) {
  if (!is_linear(p.srcMemoryType) || !is_linear(p.dstMemoryType)) return false;
  effect.type = Effect::Type::kCopy;
  effect.source_pitch = p.srcPitch;
  effect.source_slice = p.srcPitch * p.srcHeight;
  effect.destination_pitch = p.dstPitch;
  effect.destination_slice = p.dstPitch * p.dstHeight;
  effect.source = base_of(p.srcMemoryType, p.srcHost, p.srcDevice) + p.srcXInBytes +
                  p.srcY * effect.source_pitch + p.srcZ * effect.source_slice;
  effect.destination = base_of(p.dstMemoryType, p.dstHost, p.dstDevice) + p.dstXInBytes +
                       p.dstY * effect.destination_pitch + p.dstZ * effect.destination_slice;
  effect.width = p.WidthInBytes;
  effect.height = p.Height;
  effect.depth = p.Depth;
  return true;
}

int copy(CUstream stream, bool per_thread, const Effect& effect, bool synchronous) {
  SIM_STREAM_OR_RETURN(s, stream);
  if (effect.bytes() != 0 && (effect.source == nullptr || effect.destination == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy_memory(*s, effect, synchronous);
}

int fill(CUstream stream, bool per_thread, const Effect& effect, bool synchronous) {
  SIM_STREAM_OR_RETURN(s, stream);
  return fill_memory(*s, effect, synchronous);
}

bool knows_device(CUdeviceptr address) {
  return simulation().memory.find(pointer(address)).size != 0;
}

}  // namespace

// ---- allocation

SIM_DRIVER(cuMemGetInfo_v2, (std::size_t * free_bytes, std::size_t* total), (free_bytes, total)) {
  SIM_CONTEXT_OR_RETURN();
  // What a context takes for itself.
  constexpr std::size_t kContextBytes = std::size_t{500} << 20;
  const std::size_t size = simulation().memory_bytes;
  const std::size_t used = simulation().memory.used(t_thread.current->device->index) +
                           (size > 4 * kContextBytes ? kContextBytes : 0);
  if (free_bytes != nullptr) *free_bytes = used < size ? size - used : 0;
  if (total != nullptr) *total = size;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemAlloc_v2, (CUdeviceptr * address, std::size_t bytes), (address, bytes)) {
  SIM_CONTEXT_OR_RETURN();
  return allocate_device(reinterpret_cast<void**>(address), bytes, MemoryKind::kDevice,
                         *t_thread.current->device);
}

SIM_DRIVER(cuMemAllocPitch_v2,
           (CUdeviceptr * address, std::size_t* pitch, std::size_t width, std::size_t height,
            unsigned element),
           (address, pitch, width, height, element)) {
  SIM_POINTER_OR_RETURN(pitch);
  SIM_CONTEXT_OR_RETURN();
  *pitch = (width + 511) / 512 * 512;
  return allocate_device(reinterpret_cast<void**>(address), *pitch * height, MemoryKind::kDevice,
                         *t_thread.current->device);
}

SIM_DRIVER(cuMemAllocManaged, (CUdeviceptr * address, std::size_t bytes, unsigned flags),
           (address, bytes, flags)) {
  SIM_CONTEXT_OR_RETURN();
  return allocate_device(reinterpret_cast<void**>(address), bytes, MemoryKind::kManaged,
                         *t_thread.current->device);
}

SIM_DRIVER(cuMemFree_v2, (CUdeviceptr address), (address)) { return free_device(pointer(address)); }

SIM_DRIVER_PTSZ(cuMemAllocAsync, (CUdeviceptr * address, std::size_t bytes, CUstream stream),
                (address, bytes, stream)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return allocate_stream_ordered(reinterpret_cast<void**>(address), bytes, *s);
}

SIM_DRIVER_PTSZ(cuMemAllocFromPoolAsync,
                (CUdeviceptr * address, std::size_t bytes, CUmemoryPool pool, CUstream stream),
                (address, bytes, pool, stream)) {
  return cuMemAllocAsync_body(per_thread, address, bytes, stream);
}

SIM_DRIVER_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), (address, stream)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return free_stream_ordered(pointer(address), *s);
}

SIM_DRIVER(cuMemPoolTrimTo, (CUmemoryPool pool, std::size_t keep), (pool, keep)) {
  SIM_CONTEXT_OR_RETURN();
  simulation().memory.trim_pool(t_thread.current->device->index, keep);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value),
           (pool, attribute, value)) {
  SIM_POINTER_OR_RETURN(value);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value),
           (pool, attribute, value)) {
  SIM_POINTER_OR_RETURN(value);
  SIM_CONTEXT_OR_RETURN();
  const int device = t_thread.current->device->index;
  const Memory& memory = simulation().memory;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = memory.used(device) + memory.pooled_reserved(device);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = memory.used(device);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = 0;
      return CUDA_SUCCESS;
    default:
      *static_cast<int*>(value) = 1;  // the reuse policies, all on
      return CUDA_SUCCESS;
  }
}

SIM_DRIVER(cuMemPoolSetAccess,
           (CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count),
           (pool, access, count)) {
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemHostAlloc, (void** address, std::size_t bytes, unsigned flags),
           (address, bytes, flags)) {
  SIM_CONTEXT_OR_RETURN();
  return allocate_host(address, bytes, flags);
}

SIM_DRIVER(cuMemAllocHost_v2, (void** address, std::size_t bytes), (address, bytes)) {
  SIM_CONTEXT_OR_RETURN();
  return allocate_host(address, bytes, 0);
}

SIM_DRIVER(cuMemFreeHost, (void* address), (address)) { return free_host(address); }

SIM_DRIVER(cuMemHostRegister_v2, (void* address, std::size_t bytes, unsigned flags),
           (address, bytes, flags)) {
  SIM_CONTEXT_OR_RETURN();
  return register_host(address, bytes, flags);
}

SIM_DRIVER(cuMemHostUnregister, (void* address), (address)) { return unregister_host(address); }

SIM_DRIVER(cuMemHostGetDevicePointer_v2, (CUdeviceptr * device, void* host, unsigned flags),
           (device, host, flags)) {
  SIM_POINTER_OR_RETURN(device);
  if (simulation().memory.find(host).kind != MemoryKind::kPinned) return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemHostGetFlags, (unsigned* flags, void* host), (flags, host)) {
  SIM_POINTER_OR_RETURN(flags);
  const Allocation allocation = simulation().memory.find(host);
  if (allocation.kind != MemoryKind::kPinned) return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation.flags;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemGetAddressRange_v2, (CUdeviceptr * base, std::size_t* bytes, CUdeviceptr address),
           (base, bytes, address)) {
  const Allocation allocation = simulation().memory.find(pointer(address));
  if (allocation.size == 0) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation.base;
  if (bytes != nullptr) *bytes = allocation.size;
  return CUDA_SUCCESS;
}

SIM_DRIVER_PTSZ(cuMemPrefetchAsync_v2,
                (CUdeviceptr address, std::size_t bytes, CUmemLocation location, unsigned flags,
                 CUstream stream),
                (address, bytes, location, flags, stream)) {
  SIM_STREAM_OR_RETURN(s, stream);
  return knows_device(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_DRIVER(cuMemAdvise_v2,
           (CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUmemLocation location),
           (address, bytes, advice, location)) {
  return knows_device(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- what a pointer is

namespace {

// As the driver: false for memory that it does not know.
bool pointer_attribute(CUpointer_attribute attribute, CUdeviceptr address, void* value) {
  const Allocation a = simulation().memory.find(pointer(address));
  const bool known = a.size != 0;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) =
          known ? reinterpret_cast<CUcontext>(&simulation().devices[a.device]->primary) : nullptr;
      return known;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = !known                          ? 0
                                       : a.kind == MemoryKind::kPinned ? CU_MEMORYTYPE_HOST
                                                                       : CU_MEMORYTYPE_DEVICE;
      return known;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = known ? address : 0;
      return known;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<void**>(value) =
          known && a.kind != MemoryKind::kDevice ? pointer(address) : nullptr;
      return known && a.kind != MemoryKind::kDevice;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(value) = a.id;
      return known;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(value) = known && a.kind == MemoryKind::kManaged;
      return known;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = known ? a.device : -2;
      return known;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<void**>(value) = reinterpret_cast<void*>(a.base);
      return known;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(value) = a.size; return known;
    case CU_POINTER_ATTRIBUTE_MAPPED: *static_cast<int*>(value) = known; return known;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<int*>(value) = 0;
      return known;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(value) = 0;
      return known;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<void**>(value) =
          known && a.is_pooled ? &simulation().devices[a.device]->default_pool : nullptr;
      return known;
    default: return false;
  }
}

}  // namespace

SIM_DRIVER(cuPointerGetAttribute, (void* value, CUpointer_attribute attribute, CUdeviceptr address),
           (value, attribute, address)) {
  SIM_POINTER_OR_RETURN(value);
  return pointer_attribute(attribute, address, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_DRIVER(cuPointerGetAttributes,
           (unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address),
           (count, attributes, values, address)) {
  if (attributes == nullptr || values == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Unlike the singular one it answers for unknown memory too, with nulls.
  for (unsigned i = 0; i < count; ++i) pointer_attribute(attributes[i], address, values[i]);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuPointerSetAttribute,
           (const void* value, CUpointer_attribute attribute, CUdeviceptr address),
           (value, attribute, address)) {
  SIM_POINTER_OR_RETURN(value);
  return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && knows_device(address)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// ---- copies

#define SIM_COPY(name, async_name, destination_type, source_type, to, from)                    \
  SIM_DRIVER_PTDS(name, (destination_type destination, source_type source, std::size_t bytes), \
                  (destination, source, bytes)) {                                              \
    return copy(nullptr, per_thread, linear_copy(to, from, bytes), true);                      \
  }                                                                                            \
  SIM_DRIVER_PTSZ(                                                                             \
      async_name,                                                                              \
      (destination_type destination, source_type source, std::size_t bytes, CUstream stream),  \
      (destination, source, bytes, stream)) {                                                  \
    return copy(stream, per_thread, linear_copy(to, from, bytes), false);                      \
  }

SIM_COPY(cuMemcpy, cuMemcpyAsync, CUdeviceptr, CUdeviceptr, pointer(destination), pointer(source))
SIM_COPY(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*, pointer(destination),
         source)
SIM_COPY(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, destination, pointer(source))
SIM_COPY(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, pointer(destination),
         pointer(source))
#undef SIM_COPY

SIM_DRIVER_PTDS(cuMemcpyPeer,
                (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
                 CUcontext source_context, std::size_t bytes),
                (destination, destination_context, source, source_context, bytes)) {
  return copy(nullptr, per_thread, linear_copy(pointer(destination), pointer(source), bytes), true);
}

SIM_DRIVER_PTSZ(cuMemcpyPeerAsync,
                (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
                 CUcontext source_context, std::size_t bytes, CUstream stream),
                (destination, destination_context, source, source_context, bytes, stream)) {
  return copy(stream, per_thread, linear_copy(pointer(destination), pointer(source), bytes), false);
}

SIM_DRIVER_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* parameters), (parameters)) {
  SIM_POINTER_OR_RETURN(parameters);
  Effect effect;
  if (!to_effect(*parameters, effect)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(nullptr, per_thread, effect, true);
}

SIM_DRIVER_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* parameters), (parameters)) {
  return cuMemcpy2D_v2_body(per_thread, parameters);
}

SIM_DRIVER_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* parameters, CUstream stream),
                (parameters, stream)) {
  SIM_POINTER_OR_RETURN(parameters);
  Effect effect;
  if (!to_effect(*parameters, effect)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(stream, per_thread, effect, false);
}

SIM_DRIVER_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* parameters), (parameters)) {
  SIM_POINTER_OR_RETURN(parameters);
  Effect effect;
  if (!to_effect_3d(*parameters, effect)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(nullptr, per_thread, effect, true);
}

SIM_DRIVER_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* parameters, CUstream stream),
                (parameters, stream)) {
  SIM_POINTER_OR_RETURN(parameters);
  Effect effect;
  if (!to_effect_3d(*parameters, effect)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(stream, per_thread, effect, false);
}

SIM_DRIVER_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER* parameters), (parameters)) {
  SIM_POINTER_OR_RETURN(parameters);
  Effect effect;
  if (!to_effect_3d(*parameters, effect)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(nullptr, per_thread, effect, true);
}

SIM_DRIVER_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER* parameters, CUstream stream),
                (parameters, stream)) {
  SIM_POINTER_OR_RETURN(parameters);
  Effect effect;
  if (!to_effect_3d(*parameters, effect)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(stream, per_thread, effect, false);
}

// Copies of a batch are done in their order here; the driver may do them at once.
SIM_DRIVER_PTSZ(cuMemcpyBatchAsync_v2,
                (CUdeviceptr * destinations, CUdeviceptr* sources, std::size_t* sizes,
                 std::size_t count, CUmemcpyAttributes* attributes, std::size_t* indices,
                 std::size_t attribute_count, CUstream stream),
                (destinations, sources, sizes, count, attributes, indices, attribute_count,
                 stream)) {
  if (destinations == nullptr || sources == nullptr || sizes == nullptr || count == 0 ||
      stream == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const int result =
        copy(stream, per_thread,
             linear_copy(pointer(destinations[i]), pointer(sources[i]), sizes[i]), false);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// Of CUDA 12.8, which also told which copy was refused.
SIM_DRIVER_PTSZ(cuMemcpyBatchAsync,
                (CUdeviceptr * destinations, CUdeviceptr* sources, std::size_t* sizes,
                 std::size_t count, CUmemcpyAttributes* attributes, std::size_t* indices,
                 std::size_t attribute_count, std::size_t* failed, CUstream stream),
                (destinations, sources, sizes, count, attributes, indices, attribute_count, failed,
                 stream)) {
  const int result = cuMemcpyBatchAsync_v2_body(per_thread, destinations, sources, sizes, count,
                                                attributes, indices, attribute_count, stream);
  if (result != CUDA_SUCCESS && failed != nullptr) *failed = ~std::size_t{0};
  return result;
}

// ---- memsets

#define SIM_FILL(sync_name, async_name, sync_2d_name, async_2d_name, value_type)                   \
  SIM_DRIVER_PTDS(sync_name, (CUdeviceptr address, value_type value, std::size_t count),           \
                  (address, value, count)) {                                                       \
    return fill(nullptr, per_thread,                                                               \
                rows_to_fill(pointer(address), 0, value, sizeof value, count, 1), true);           \
  }                                                                                                \
  SIM_DRIVER_PTSZ(async_name,                                                                      \
                  (CUdeviceptr address, value_type value, std::size_t count, CUstream stream),     \
                  (address, value, count, stream)) {                                               \
    return fill(stream, per_thread,                                                                \
                rows_to_fill(pointer(address), 0, value, sizeof value, count, 1), false);          \
  }                                                                                                \
  SIM_DRIVER_PTDS(sync_2d_name,                                                                    \
                  (CUdeviceptr address, std::size_t pitch, value_type value, std::size_t width,    \
                   std::size_t height),                                                            \
                  (address, pitch, value, width, height)) {                                        \
    return fill(nullptr, per_thread,                                                               \
                rows_to_fill(pointer(address), pitch, value, sizeof value, width, height), true);  \
  }                                                                                                \
  SIM_DRIVER_PTSZ(async_2d_name,                                                                   \
                  (CUdeviceptr address, std::size_t pitch, value_type value, std::size_t width,    \
                   std::size_t height, CUstream stream),                                           \
                  (address, pitch, value, width, height, stream)) {                                \
    return fill(stream, per_thread,                                                                \
                rows_to_fill(pointer(address), pitch, value, sizeof value, width, height), false); \
  }

SIM_FILL(cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char)
SIM_FILL(cuMemsetD16_v2, cuMemsetD16Async, cuMemsetD2D16_v2, cuMemsetD2D16Async, unsigned short)
SIM_FILL(cuMemsetD32_v2, cuMemsetD32Async, cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned)
#undef SIM_FILL
