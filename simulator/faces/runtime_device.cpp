// SPDX-License-Identifier: Apache-2.0
//
// The runtime: devices, errors, versions.
#include <cstdio>
#include <cstring>

#include "simulator/faces/device_properties.hpp"
#include "simulator/faces/errors.hpp"
#include "simulator/faces/runtime_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::runtime;

namespace gpubusy::sim::runtime {

int make_context_current() noexcept {
  const DriverTable& driver = driver_table(false);
  if (driver.cuInit == nullptr) return cudaErrorInsufficientDriver;
  if (const CUresult result = driver.cuInit(0)) return result;
  CUcontext context = nullptr;
  if (const CUresult result = driver.cuDevicePrimaryCtxRetain(&context, t_thread.runtime_device)) {
    return result;
  }
  return driver.cuCtxSetCurrent(context);
}

}  // namespace gpubusy::sim::runtime

namespace {

// Looking at devices needs the driver's start but no context.
int start_driver() {
  if (simulation().initialised.load(std::memory_order_relaxed)) return cudaSuccess;
  const DriverTable& driver = driver_table(false);
  return driver.cuInit == nullptr ? static_cast<int>(cudaErrorInsufficientDriver)
                                  : static_cast<int>(driver.cuInit(0));
}

bool is_device(int device) {
  return device >= 0 && device < static_cast<int>(simulation().devices.size());
}

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  device_attribute(which, device, &value);
  return value;
}

}  // namespace

SIM_RUNTIME(cudaGetDeviceCount, (int* count), (count)) {
  if (count == nullptr) return cudaErrorInvalidValue;
  *count = 0;
  if (const int result = start_driver()) return result;
  return driver_table(false).cuDeviceGetCount(count);
}

SIM_RUNTIME(cudaGetDevice, (int* device), (device)) {
  if (device == nullptr) return cudaErrorInvalidValue;
  *device = t_thread.current != nullptr ? t_thread.current->device->index : t_thread.runtime_device;
  return cudaSuccess;
}

SIM_RUNTIME(cudaSetDevice, (int device), (device)) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  if (t_thread.current != nullptr && t_thread.current->is_primary &&
      t_thread.current->device->index == device) {
    t_thread.runtime_device = device;
    return cudaSuccess;
  }
  const int before = t_thread.runtime_device;
  t_thread.runtime_device = device;
  const int result = make_context_current();
  if (result != 0) t_thread.runtime_device = before;
  return result;
}

SIM_RUNTIME(cudaInitDevice, (int device, unsigned device_flags, unsigned flags),
            (device, device_flags, flags)) {
  return is_device(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

SIM_RUNTIME(cudaSetDeviceFlags, (unsigned flags), (flags)) { return cudaSuccess; }

SIM_RUNTIME(cudaGetDeviceFlags, (unsigned* flags), (flags)) {
  if (flags == nullptr) return cudaErrorInvalidValue;
  *flags = cudaDeviceScheduleAuto;
  return cudaSuccess;
}

SIM_RUNTIME(cudaSetValidDevices, (int* devices, int count), (devices, count)) {
  return cudaSuccess;
}

SIM_RUNTIME(cudaChooseDevice, (int* device, const cudaDeviceProp* properties),
            (device, properties)) {
  if (device == nullptr) return cudaErrorInvalidValue;
  *device = 0;
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceSynchronize, (), ()) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuCtxSynchronize();
}

SIM_RUNTIME(cudaDeviceReset, (), ()) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuDevicePrimaryCtxReset(t_thread.current->device->index);
}

SIM_RUNTIME(cudaGetDeviceProperties, (cudaDeviceProp * properties, int device),
            (properties, device)) {
  if (properties == nullptr) return cudaErrorInvalidValue;
  if (const int result = start_driver()) return result;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const auto get = [device](CUdevice_attribute which) { return attribute(which, device); };
  cudaDeviceProp& p = *properties;
  p = {};
  snprintf(p.name, sizeof p.name, "%s", simulation().parameters.device_name.c_str());
  device_uuid(device, p.uuid.bytes);
  p.totalGlobalMem = simulation().memory_bytes;
  p.sharedMemPerBlock = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  p.regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  p.warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  p.memPitch = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_PITCH));
  p.maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  p.maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  p.maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  p.maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  p.maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  p.maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  p.maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  p.totalConstMem = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY));
  p.major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  p.minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  p.textureAlignment = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
  p.texturePitchAlignment = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT));
  p.surfaceAlignment = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT));
  p.multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  p.canMapHostMemory = get(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  p.concurrentKernels = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
  p.ECCEnabled = get(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  p.pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  p.asyncEngineCount = get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  p.unifiedAddressing = get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  p.memoryBusWidth = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  p.l2CacheSize = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  p.persistingL2CacheMaxSize = get(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
  p.maxThreadsPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  p.streamPrioritiesSupported = get(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
  p.globalL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED);
  p.localL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED);
  p.sharedMemPerMultiprocessor =
      static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  p.regsPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  p.managedMemory = get(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  p.concurrentManagedAccess = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
  p.computePreemptionSupported = get(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED);
  p.canUseHostPointerForRegisteredMem =
      get(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  p.cooperativeLaunch = get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  p.sharedMemPerBlockOptin =
      static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  p.maxBlocksPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  p.accessPolicyMaxWindowSize = get(CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE);
  p.reservedSharedMemPerBlock =
      static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK));
  p.hostRegisterSupported = get(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  p.memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  p.clusterLaunch = get(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr which, int device),
            (value, which, device)) {
  if (value == nullptr) return cudaErrorInvalidValue;
  if (const int result = start_driver()) return result;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  // The runtime's attributes have the driver's numbers.
  return device_attribute(which, device, value) ? cudaSuccess : cudaErrorInvalidValue;
}

SIM_RUNTIME(cudaDeviceGetPCIBusId, (char* id, int length, int device), (id, length, device)) {
  if (id == nullptr || length <= 0) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  snprintf(id, static_cast<size_t>(length), "0000:%02X:00.0", device_pci_bus(device));
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceGetByPCIBusId, (int* device, const char* id), (device, id)) {
  unsigned domain = 0, bus = 0;
  if (device == nullptr || id == nullptr || sscanf(id, "%x:%x", &domain, &bus) != 2) {
    return cudaErrorInvalidValue;
  }
  *device = device_at_pci_bus(static_cast<int>(bus));
  return *device < 0 ? cudaErrorInvalidDevice : cudaSuccess;
}

SIM_RUNTIME(cudaDeviceCanAccessPeer, (int* can, int device, int peer), (can, device, peer)) {
  if (can == nullptr) return cudaErrorInvalidValue;
  if (!is_device(device) || !is_device(peer)) return cudaErrorInvalidDevice;
  *can = device != peer;
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), (peer, flags)) {
  return is_device(peer) ? cudaSuccess : cudaErrorInvalidDevice;
}

SIM_RUNTIME(cudaDeviceDisablePeerAccess, (int peer), (peer)) {
  return is_device(peer) ? cudaSuccess : cudaErrorInvalidDevice;
}

SIM_RUNTIME(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest), (least, greatest)) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceGetLimit, (size_t * value, cudaLimit limit), (value, limit)) {
  if (value == nullptr) return cudaErrorInvalidValue;
  *value = limit == cudaLimitStackSize ? 1024 : 8 << 20;
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceSetLimit, (cudaLimit limit, size_t value), (limit, value)) {
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceGetCacheConfig, (cudaFuncCache * config), (config)) {
  if (config == nullptr) return cudaErrorInvalidValue;
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}

SIM_RUNTIME(cudaDeviceSetCacheConfig, (cudaFuncCache config), (config)) { return cudaSuccess; }

SIM_RUNTIME(cudaCtxResetPersistingL2Cache, (), ()) { return cudaSuccess; }

SIM_RUNTIME(cudaDriverGetVersion, (int* version), (version)) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = kDriverVersion;
  return cudaSuccess;
}

SIM_RUNTIME(cudaRuntimeGetVersion, (int* version), (version)) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

SIM_RUNTIME(cudaProfilerStart, (), ()) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuProfilerStart();
}
SIM_RUNTIME(cudaProfilerStop, (), ()) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuProfilerStop();
}

// ---- the driver's functions, for the program

namespace {

Result entry_point(const char* symbol, void** function, int version, unsigned long long flags,
                   bool per_thread, cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
  if (flags == cudaEnableDefault && per_thread) flags = cudaEnablePerThreadDefaultStream;
  const DriverTable& driver = driver_table(per_thread);
  if (driver.cuGetProcAddress == nullptr) return cudaErrorInsufficientDriver;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result = driver.cuGetProcAddress(symbol, function, version, flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  // Not found is an answer, not an error, to a caller that asks for the status.
  if (result == CUDA_ERROR_NOT_FOUND && status != nullptr) return cudaSuccess;
  return result;
}

}  // namespace

SIM_RUNTIME_PTSZ(cudaGetDriverEntryPointByVersion,
                 (const char* symbol, void** function, unsigned version, unsigned long long flags,
                  cudaDriverEntryPointQueryResult* status),
                 (symbol, function, version, flags, status)) {
  return entry_point(symbol, function, static_cast<int>(version), flags, per_thread, status);
}

SIM_RUNTIME_PTSZ(cudaGetDriverEntryPoint,
                 (const char* symbol, void** function, unsigned long long flags,
                  cudaDriverEntryPointQueryResult* status),
                 (symbol, function, flags, status)) {
  return entry_point(symbol, function, CUDART_VERSION, flags, per_thread, status);
}

// ---- errors

SIM_EXPORT const char* cudaGetErrorName(cudaError_t error) {
  const char* name = error_name(error, false);
  return name != nullptr ? name : "unrecognized error code";
}

SIM_EXPORT const char* cudaGetErrorString(cudaError_t error) { return error_text(error); }

// These do not set the error that they tell, and work in a forked child too.
static int take_last_error(bool) {
  const int error = t_thread.last_error;
  t_thread.last_error = 0;
  return error;
}
static int look_at_last_error(bool) { return t_thread.last_error; }
static cudaError_t as_is(int error) { return static_cast<cudaError_t>(error); }
SIM_ENTRY(kRuntime, cudaError_t, as_is, cudaGetLastError, take_last_error, (), (), false, true)
SIM_ENTRY(kRuntime, cudaError_t, as_is, cudaPeekAtLastError, look_at_last_error, (), (), false,
          true)
