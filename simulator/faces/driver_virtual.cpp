// SPDX-License-Identifier: Apache-2.0
//
// The driver: address space and memory apart from each other, which torch's expandable segments
// use. A handle is an amount of memory on a device; mapping one twice gives two memories, not one.
#include <map>
#include <mutex>

#include "simulator/core/work.hpp"
#include "simulator/faces/driver_export.hpp"
#include "simulator/faces/driver_handles.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::driver;

namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

struct PhysicalMemory {
  static constexpr std::uint32_t kMagic = 0x7068796du;
  std::uint32_t magic = kMagic;
  int references = 1;  // the handle itself, and each mapping
  int device = 0;
  std::size_t size = 0;
};

// Mapped pieces, to know whose memory an unmapping gives back. The memory's own lock is enough for
// the address space; this one is for the references.
std::mutex g_lock;
std::map<std::uintptr_t, PhysicalMemory*>& mapped() {
  static auto* pieces = new std::map<std::uintptr_t, PhysicalMemory*>;
  return *pieces;
}

void drop(PhysicalMemory* memory) {
  if (--memory->references > 0) return;
  memory->magic = 0;
  simulation().memory.account(memory->device, -static_cast<std::ptrdiff_t>(memory->size));
  delete memory;
}

}  // namespace

SIM_DRIVER(cuMemGetAllocationGranularity,
           (std::size_t * granularity, const CUmemAllocationProp* properties,
            CUmemAllocationGranularity_flags option),
           (granularity, properties, option)) {
  SIM_POINTER_OR_RETURN(granularity);
  SIM_POINTER_OR_RETURN(properties);
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemAddressReserve,
           (CUdeviceptr * address, std::size_t size, std::size_t alignment, CUdeviceptr wanted,
            unsigned long long flags),
           (address, size, alignment, wanted, flags)) {
  if (address == nullptr || size == 0 || size % kGranularity != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* base = simulation().memory.reserve_range(size, alignment > 0 ? alignment : kGranularity);
  *address = reinterpret_cast<CUdeviceptr>(base);
  return base == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_DRIVER(cuMemAddressFree, (CUdeviceptr address, std::size_t size), (address, size)) {
  return simulation().memory.release_range(pointer(address), size) ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
}

SIM_DRIVER(cuMemCreate,
           (CUmemGenericAllocationHandle * handle, std::size_t size,
            const CUmemAllocationProp* properties, unsigned long long flags),
           (handle, size, properties, flags)) {
  if (handle == nullptr || properties == nullptr || size == 0 || size % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Memory that could be shared may be asked for (torch always does); sharing it is not simulated.
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Device* device = device_at(properties->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Simulation& s = simulation();
  if (const int result = s.captures.check_unsafe()) return result;
  static LoggedName logged;
  spend(static_cast<std::uint64_t>(s.parameters.malloc_us * 1000), logged, "device allocation");
  const double limit = s.parameters.fail_alloc_bytes;
  if ((limit > 0 && static_cast<double>(size) >= limit) ||
      s.memory.used(device->index) + size > s.memory_bytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto* memory = new PhysicalMemory;
  memory->device = device->index;
  memory->size = size;
  s.memory.account(device->index, static_cast<std::ptrdiff_t>(size));
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(memory);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle)) {
  auto* memory = checked<PhysicalMemory>(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(g_lock);
  drop(memory);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemMap,
           (CUdeviceptr address, std::size_t size, std::size_t offset,
            CUmemGenericAllocationHandle handle, unsigned long long flags),
           (address, size, offset, handle, flags)) {
  auto* memory = checked<PhysicalMemory>(handle);
  if (memory == nullptr || offset != 0 || size > memory->size || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(g_lock);
  if (mapped().contains(address) ||
      !simulation().memory.map_in_range(pointer(address), size, memory->device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++memory->references;
  mapped()[address] = memory;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemUnmap, (CUdeviceptr address, std::size_t size), (address, size)) {
  std::lock_guard lock(g_lock);
  const auto first = mapped().lower_bound(address);
  if (first == mapped().end() || first->first != address) return CUDA_ERROR_INVALID_VALUE;
  // Nothing may use it any more.
  Device* device = device_at(first->second->device);
  if (const int result = synchronize_device(*device)) return result;
  if (!simulation().memory.unmap_in_range(pointer(address), size)) return CUDA_ERROR_INVALID_VALUE;
  for (auto piece = first; piece != mapped().end() && piece->first < address + size;) {
    drop(piece->second);
    piece = mapped().erase(piece);
  }
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuMemSetAccess,
           (CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
            std::size_t count),
           (address, size, access, count)) {
  SIM_POINTER_OR_RETURN(access);
  return simulation().memory.find(pointer(address)).is_range ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

SIM_DRIVER(cuMemGetAccess,
           (unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address),
           (flags, location, address)) {
  SIM_POINTER_OR_RETURN(flags);
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
