// SPDX-License-Identifier: Apache-2.0
//
// The runtime: memory, copies, memsets. Arrays and textures are not simulated.
#include "simulator/faces/runtime_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::runtime;

namespace {

bool is_device_memory(const void* pointer) { return simulation().memory.find(pointer).size != 0; }

// The directions that a program names must fit the memory, as far as that is known.
bool fits(cudaMemcpyKind kind, const void* destination, const void* source) {
  switch (kind) {
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return true;
    case cudaMemcpyHostToDevice: return is_device_memory(destination);
    case cudaMemcpyDeviceToHost: return is_device_memory(source);
    case cudaMemcpyDeviceToDevice: return is_device_memory(destination) && is_device_memory(source);
  }
  return false;
}

Result copy(const DriverTable& driver, void* destination, const void* source, size_t bytes,
            cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (!fits(kind, destination, source)) return cudaErrorInvalidValue;
  switch (kind) {
    case cudaMemcpyHostToDevice: return driver.cuMemcpyHtoD(address(destination), source, bytes);
    case cudaMemcpyDeviceToHost: return driver.cuMemcpyDtoH(destination, address(source), bytes);
    case cudaMemcpyDeviceToDevice:
      return driver.cuMemcpyDtoD(address(destination), address(source), bytes);
    default: return driver.cuMemcpy(address(destination), address(source), bytes);
  }
}

Result copy_async(const DriverTable& driver, void* destination, const void* source, size_t bytes,
                  cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (!fits(kind, destination, source)) return cudaErrorInvalidValue;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return driver.cuMemcpyHtoDAsync(address(destination), source, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return driver.cuMemcpyDtoHAsync(destination, address(source), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return driver.cuMemcpyDtoDAsync(address(destination), address(source), bytes, stream);
    default: return driver.cuMemcpyAsync(address(destination), address(source), bytes, stream);
  }
}

CUDA_MEMCPY2D plane(void* destination, size_t destination_pitch, const void* source,
                    size_t source_pitch, size_t width, size_t height) {
  CUDA_MEMCPY2D p{};
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  p.srcDevice = address(source);
  p.srcPitch = source_pitch;
  p.dstDevice = address(destination);
  p.dstPitch = destination_pitch;
  p.WidthInBytes = width;
  p.Height = height;
  return p;
}

template <class Parameters, class From>
Parameters volume(const From& from) {
  Parameters p{};
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  p.srcDevice = address(from.srcPtr.ptr);
  p.srcPitch = from.srcPtr.pitch;
  p.srcHeight = from.srcPtr.ysize;
  p.srcXInBytes = from.srcPos.x;
  p.srcY = from.srcPos.y;
  p.srcZ = from.srcPos.z;
  p.dstDevice = address(from.dstPtr.ptr);
  p.dstPitch = from.dstPtr.pitch;
  p.dstHeight = from.dstPtr.ysize;
  p.dstXInBytes = from.dstPos.x;
  p.dstY = from.dstPos.y;
  p.dstZ = from.dstPos.z;
  p.WidthInBytes = from.extent.width;
  p.Height = from.extent.height;
  p.Depth = from.extent.depth;
  return p;
}

CUcontext context_of(int device) {
  auto& devices = simulation().devices;
  return device >= 0 && device < static_cast<int>(devices.size())
             ? reinterpret_cast<CUcontext>(&devices[device]->primary)
             : nullptr;
}

// A __device__ variable's memory on the current device; nullptr: no such variable.
std::byte* symbol_memory(const void* symbol) {
  Registry::Variable* variable = registry().find_variable(symbol);
  if (variable == nullptr) return nullptr;
  const int device = t_thread.current->device->index;
  void*& memory = variable->device_memory[device];
  if (memory == nullptr) {
    memory = simulation().memory.allocate(variable->size, MemoryKind::kDevice, device, 0, false);
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

// ---- allocation

SIM_RUNTIME(cudaMemGetInfo, (size_t * free_bytes, size_t* total), (free_bytes, total)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemGetInfo(free_bytes, total);
}

SIM_RUNTIME(cudaMalloc, (void** pointer, size_t bytes), (pointer, bytes)) {
  SIM_ENSURE_CONTEXT();
  if (pointer == nullptr) return cudaErrorInvalidValue;
  if (bytes == 0) {
    *pointer = nullptr;
    return cudaSuccess;
  }
  return driver_table(false).cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), bytes);
}

SIM_RUNTIME(cudaMallocPitch, (void** pointer, size_t* pitch, size_t width, size_t height),
            (pointer, pitch, width, height)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(pointer), pitch, width,
                                             height, 4);
}

SIM_RUNTIME(cudaMalloc3D, (cudaPitchedPtr * pitched, cudaExtent extent), (pitched, extent)) {
  SIM_ENSURE_CONTEXT();
  if (pitched == nullptr) return cudaErrorInvalidValue;
  pitched->xsize = extent.width;
  pitched->ysize = extent.height;
  return driver_table(false).cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(&pitched->ptr),
                                             &pitched->pitch, extent.width,
                                             extent.height * extent.depth, 4);
}

SIM_RUNTIME(cudaMallocManaged, (void** pointer, size_t bytes, unsigned flags),
            (pointer, bytes, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(pointer), bytes,
                                               flags);
}

SIM_RUNTIME(cudaFree, (void* pointer), (pointer)) {
  SIM_ENSURE_CONTEXT();  // cudaFree(nullptr) is how programs start the runtime
  if (pointer == nullptr) return cudaSuccess;
  return driver_table(false).cuMemFree(address(pointer));
}

SIM_RUNTIME_PTSZ(cudaMallocAsync, (void** pointer, size_t bytes, cudaStream_t stream),
                 (pointer, bytes, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, stream);
}

SIM_RUNTIME_PTSZ(cudaMallocFromPoolAsync,
                 (void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
                 (pointer, bytes, pool, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, pool, stream);
}

SIM_RUNTIME_PTSZ(cudaFreeAsync, (void* pointer, cudaStream_t stream), (pointer, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread).cuMemFreeAsync(address(pointer), stream);
}

SIM_RUNTIME(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device), (pool, device)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuDeviceGetDefaultMemPool(pool, device);
}

SIM_RUNTIME(cudaDeviceGetMemPool, (cudaMemPool_t * pool, int device), (pool, device)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuDeviceGetDefaultMemPool(pool, device);
}

SIM_RUNTIME(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), (pool, keep)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemPoolTrimTo(pool, keep);
}

SIM_RUNTIME(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value),
            (pool, attribute, value)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemPoolSetAttribute(
      pool, static_cast<CUmemPool_attribute>(attribute), value);
}

SIM_RUNTIME(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value),
            (pool, attribute, value)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemPoolGetAttribute(
      pool, static_cast<CUmemPool_attribute>(attribute), value);
}

SIM_RUNTIME(cudaMemPoolSetAccess,
            (cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t count),
            (pool, access, count)) {
  return cudaSuccess;
}

SIM_RUNTIME(cudaHostAlloc, (void** pointer, size_t bytes, unsigned flags),
            (pointer, bytes, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemHostAlloc(pointer, bytes, flags);
}

SIM_RUNTIME(cudaMallocHost, (void** pointer, size_t bytes), (pointer, bytes)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemAllocHost(pointer, bytes);
}

SIM_RUNTIME(cudaFreeHost, (void* pointer), (pointer)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemFreeHost(pointer);
}

SIM_RUNTIME(cudaHostRegister, (void* pointer, size_t bytes, unsigned flags),
            (pointer, bytes, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemHostRegister(pointer, bytes, flags);
}

SIM_RUNTIME(cudaHostUnregister, (void* pointer), (pointer)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemHostUnregister(pointer);
}

SIM_RUNTIME(cudaHostGetDevicePointer, (void** device, void* host, unsigned flags),
            (device, host, flags)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemHostGetDevicePointer(reinterpret_cast<CUdeviceptr*>(device), host,
                                                       flags);
}

SIM_RUNTIME(cudaHostGetFlags, (unsigned* flags, void* host), (flags, host)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuMemHostGetFlags(flags, host);
}

SIM_RUNTIME(cudaPointerGetAttributes, (cudaPointerAttributes * attributes, const void* pointer),
            (attributes, pointer)) {
  if (attributes == nullptr) return cudaErrorInvalidValue;
  const Allocation allocation = simulation().memory.find(pointer);
  *attributes = {};
  auto* own = const_cast<void*>(pointer);
  switch (allocation.kind) {
    case MemoryKind::kDevice: attributes->type = cudaMemoryTypeDevice; break;
    case MemoryKind::kManaged: attributes->type = cudaMemoryTypeManaged; break;
    case MemoryKind::kPinned: attributes->type = cudaMemoryTypeHost; break;
    default:
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = own;
      return cudaSuccess;
  }
  attributes->device = allocation.device;
  attributes->devicePointer = own;
  attributes->hostPointer = allocation.kind == MemoryKind::kDevice ? nullptr : own;
  return cudaSuccess;
}

SIM_RUNTIME_PTSZ(cudaMemPrefetchAsync,
                 (const void* pointer, size_t bytes, cudaMemLocation location, unsigned flags,
                  cudaStream_t stream),
                 (pointer, bytes, location, flags, stream)) {
  SIM_ENSURE_CONTEXT();
  const CUmemLocation where{static_cast<CUmemLocationType>(location.type), {location.id}};
  return driver_table(per_thread).cuMemPrefetchAsync(address(pointer), bytes, where, flags, stream);
}

SIM_RUNTIME(cudaMemAdvise,
            (const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation location),
            (pointer, bytes, advice, location)) {
  SIM_ENSURE_CONTEXT();
  const CUmemLocation where{static_cast<CUmemLocationType>(location.type), {location.id}};
  return driver_table(false).cuMemAdvise(address(pointer), bytes, static_cast<CUmem_advise>(advice),
                                         where);
}

// ---- copies

SIM_RUNTIME_PTDS(cudaMemcpy,
                 (void* destination, const void* source, size_t bytes, cudaMemcpyKind kind),
                 (destination, source, bytes, kind)) {
  SIM_ENSURE_CONTEXT();
  return copy(driver_table(per_thread), destination, source, bytes, kind);
}

SIM_RUNTIME_PTSZ(cudaMemcpyAsync,
                 (void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                  cudaStream_t stream),
                 (destination, source, bytes, kind, stream)) {
  SIM_ENSURE_CONTEXT();
  return copy_async(driver_table(per_thread), destination, source, bytes, kind, stream);
}

SIM_RUNTIME(cudaMemcpyPeer,
            (void* destination, int destination_device, const void* source, int source_device,
             size_t bytes),
            (destination, destination_device, source, source_device, bytes)) {
  SIM_ENSURE_CONTEXT();
  if (context_of(destination_device) == nullptr || context_of(source_device) == nullptr) {
    return cudaErrorInvalidDevice;
  }
  return driver_table(false).cuMemcpyPeer(address(destination), context_of(destination_device),
                                          address(source), context_of(source_device), bytes);
}

SIM_RUNTIME(cudaMemcpyPeerAsync,
            (void* destination, int destination_device, const void* source, int source_device,
             size_t bytes, cudaStream_t stream),
            (destination, destination_device, source, source_device, bytes, stream)) {
  SIM_ENSURE_CONTEXT();
  if (context_of(destination_device) == nullptr || context_of(source_device) == nullptr) {
    return cudaErrorInvalidDevice;
  }
  return driver_table(false).cuMemcpyPeerAsync(address(destination), context_of(destination_device),
                                               address(source), context_of(source_device), bytes,
                                               stream);
}

SIM_RUNTIME_PTDS(cudaMemcpy2D,
                 (void* destination, size_t destination_pitch, const void* source,
                  size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind),
                 (destination, destination_pitch, source, source_pitch, width, height, kind)) {
  SIM_ENSURE_CONTEXT();
  if (!fits(kind, destination, source)) return cudaErrorInvalidValue;
  const CUDA_MEMCPY2D p =
      plane(destination, destination_pitch, source, source_pitch, width, height);
  return driver_table(per_thread).cuMemcpy2D(&p);
}

SIM_RUNTIME_PTSZ(cudaMemcpy2DAsync,
                 (void* destination, size_t destination_pitch, const void* source,
                  size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                  cudaStream_t stream),
                 (destination, destination_pitch, source, source_pitch, width, height, kind,
                  stream)) {
  SIM_ENSURE_CONTEXT();
  if (!fits(kind, destination, source)) return cudaErrorInvalidValue;
  const CUDA_MEMCPY2D p =
      plane(destination, destination_pitch, source, source_pitch, width, height);
  return driver_table(per_thread).cuMemcpy2DAsync(&p, stream);
}

SIM_RUNTIME_PTDS(cudaMemcpy3D, (const cudaMemcpy3DParms* p), (p)) {
  SIM_ENSURE_CONTEXT();
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return cudaErrorNotSupported;
  const auto parameters = volume<CUDA_MEMCPY3D>(*p);
  return driver_table(per_thread).cuMemcpy3D(&parameters);
}

SIM_RUNTIME_PTSZ(cudaMemcpy3DAsync, (const cudaMemcpy3DParms* p, cudaStream_t stream),
                 (p, stream)) {
  SIM_ENSURE_CONTEXT();
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return cudaErrorNotSupported;
  const auto parameters = volume<CUDA_MEMCPY3D>(*p);
  return driver_table(per_thread).cuMemcpy3DAsync(&parameters, stream);
}

SIM_RUNTIME_PTDS(cudaMemcpy3DPeer, (const cudaMemcpy3DPeerParms* p), (p)) {
  SIM_ENSURE_CONTEXT();
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return cudaErrorNotSupported;
  const auto parameters = volume<CUDA_MEMCPY3D_PEER>(*p);
  return driver_table(per_thread).cuMemcpy3DPeer(&parameters);
}

SIM_RUNTIME_PTSZ(cudaMemcpy3DPeerAsync, (const cudaMemcpy3DPeerParms* p, cudaStream_t stream),
                 (p, stream)) {
  SIM_ENSURE_CONTEXT();
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) return cudaErrorNotSupported;
  const auto parameters = volume<CUDA_MEMCPY3D_PEER>(*p);
  return driver_table(per_thread).cuMemcpy3DPeerAsync(&parameters, stream);
}

// ---- symbols

SIM_RUNTIME(cudaGetSymbolAddress, (void** pointer, const void* symbol), (pointer, symbol)) {
  SIM_ENSURE_CONTEXT();
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = symbol_memory(symbol);
  return *pointer == nullptr ? cudaErrorInvalidSymbol : cudaSuccess;
}

SIM_RUNTIME(cudaGetSymbolSize, (size_t * bytes, const void* symbol), (bytes, symbol)) {
  const Registry::Variable* variable = registry().find_variable(symbol);
  if (bytes == nullptr || variable == nullptr) return cudaErrorInvalidSymbol;
  *bytes = variable->size;
  return cudaSuccess;
}

SIM_RUNTIME_PTDS(cudaMemcpyToSymbol,
                 (const void* symbol, const void* source, size_t bytes, size_t offset,
                  cudaMemcpyKind kind),
                 (symbol, source, bytes, offset, kind)) {
  SIM_ENSURE_CONTEXT();
  std::byte* memory = symbol_memory(symbol);
  if (memory == nullptr) return cudaErrorInvalidSymbol;
  return copy(driver_table(per_thread), memory + offset, source, bytes, kind);
}

SIM_RUNTIME_PTSZ(cudaMemcpyToSymbolAsync,
                 (const void* symbol, const void* source, size_t bytes, size_t offset,
                  cudaMemcpyKind kind, cudaStream_t stream),
                 (symbol, source, bytes, offset, kind, stream)) {
  SIM_ENSURE_CONTEXT();
  std::byte* memory = symbol_memory(symbol);
  if (memory == nullptr) return cudaErrorInvalidSymbol;
  return copy_async(driver_table(per_thread), memory + offset, source, bytes, kind, stream);
}

SIM_RUNTIME_PTDS(cudaMemcpyFromSymbol,
                 (void* destination, const void* symbol, size_t bytes, size_t offset,
                  cudaMemcpyKind kind),
                 (destination, symbol, bytes, offset, kind)) {
  SIM_ENSURE_CONTEXT();
  const std::byte* memory = symbol_memory(symbol);
  if (memory == nullptr) return cudaErrorInvalidSymbol;
  return copy(driver_table(per_thread), destination, memory + offset, bytes, kind);
}

SIM_RUNTIME_PTSZ(cudaMemcpyFromSymbolAsync,
                 (void* destination, const void* symbol, size_t bytes, size_t offset,
                  cudaMemcpyKind kind, cudaStream_t stream),
                 (destination, symbol, bytes, offset, kind, stream)) {
  SIM_ENSURE_CONTEXT();
  const std::byte* memory = symbol_memory(symbol);
  if (memory == nullptr) return cudaErrorInvalidSymbol;
  return copy_async(driver_table(per_thread), destination, memory + offset, bytes, kind, stream);
}

// ---- memsets

SIM_RUNTIME_PTDS(cudaMemset, (void* pointer, int value, size_t bytes), (pointer, value, bytes)) {
  SIM_ENSURE_CONTEXT();
  if (bytes == 0) return cudaSuccess;
  return driver_table(per_thread)
      .cuMemsetD8(address(pointer), static_cast<unsigned char>(value), bytes);
}

SIM_RUNTIME_PTSZ(cudaMemsetAsync, (void* pointer, int value, size_t bytes, cudaStream_t stream),
                 (pointer, value, bytes, stream)) {
  SIM_ENSURE_CONTEXT();
  if (bytes == 0) return cudaSuccess;
  return driver_table(per_thread)
      .cuMemsetD8Async(address(pointer), static_cast<unsigned char>(value), bytes, stream);
}

SIM_RUNTIME_PTDS(cudaMemset2D,
                 (void* pointer, size_t pitch, int value, size_t width, size_t height),
                 (pointer, pitch, value, width, height)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuMemsetD2D8(address(pointer), pitch, static_cast<unsigned char>(value), width, height);
}

SIM_RUNTIME_PTSZ(cudaMemset2DAsync,
                 (void* pointer, size_t pitch, int value, size_t width, size_t height,
                  cudaStream_t stream),
                 (pointer, pitch, value, width, height, stream)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(per_thread)
      .cuMemsetD2D8Async(address(pointer), pitch, static_cast<unsigned char>(value), width, height,
                         stream);
}

SIM_RUNTIME_PTDS(cudaMemset3D, (cudaPitchedPtr pitched, int value, cudaExtent extent),
                 (pitched, value, extent)) {
  SIM_ENSURE_CONTEXT();
  if (pitched.ysize != extent.height && extent.depth > 1) return cudaErrorNotSupported;
  return driver_table(per_thread)
      .cuMemsetD2D8(address(pitched.ptr), pitched.pitch, static_cast<unsigned char>(value),
                    extent.width, extent.height * extent.depth);
}

SIM_RUNTIME_PTSZ(cudaMemset3DAsync,
                 (cudaPitchedPtr pitched, int value, cudaExtent extent, cudaStream_t stream),
                 (pitched, value, extent, stream)) {
  SIM_ENSURE_CONTEXT();
  if (pitched.ysize != extent.height && extent.depth > 1) return cudaErrorNotSupported;
  return driver_table(per_thread)
      .cuMemsetD2D8Async(address(pitched.ptr), pitched.pitch, static_cast<unsigned char>(value),
                         extent.width, extent.height * extent.depth, stream);
}
