// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/device_properties.hpp"

#include <cuda.h>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {

bool device_attribute(int attribute, int device, int* value) noexcept {
  const auto set = [&](int v) {
    *value = v;
    return true;
  };
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return set(static_cast<int>(simulation().parameters.sm_count));
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return set(9);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return set(0);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return set(1024);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return set(64);
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return set(2147483647);
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return set(65535);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return set(49152);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return set(232448);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return set(static_cast<int>(kSharedPerSm));
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return set(1024);
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return set(65536);
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: return set(32);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return set(2048);
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return set(1980000);
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return set(2619000);
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return set(5120);
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return set(50 << 20);
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: return set(32 << 20);
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: return set(128 << 20);
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT: return set(512);
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return set(device_pci_bus(device));
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return set(3);
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: return set(2);
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return set(1);
    default:
      // Most of the rest are things that a device may lack: textures' limits, multicast, IPC.
      *value = 0;
      return attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX;
  }
}

void device_uuid(int device, char* bytes16) noexcept {
  physical_uuid(simulation().devices[static_cast<std::size_t>(device)]->physical, bytes16);
}

int device_pci_bus(int device) noexcept {
  return 1 + simulation().devices[static_cast<std::size_t>(device)]->physical;
}

int device_at_pci_bus(int bus) noexcept {
  for (const Device* device : simulation().devices) {
    if (1 + device->physical == bus) return device->index;
  }
  return -1;
}

}  // namespace gpubusy::sim
