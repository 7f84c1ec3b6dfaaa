// SPDX-License-Identifier: Apache-2.0
//
// The driver: start, devices, contexts.
#include <cstdio>
#include <cstring>
#include <mutex>

#include "simulator/core/work.hpp"
#include "simulator/faces/device_properties.hpp"
#include "simulator/faces/driver_export.hpp"
#include "simulator/faces/driver_handles.hpp"
#include "simulator/faces/errors.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::driver;

namespace {

CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

std::atomic<std::uint64_t> g_next_context{kMaxDevices + 1};

}  // namespace

SIM_DRIVER(cuInit, (unsigned flags), (flags)) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (simulation().devices.empty()) return CUDA_ERROR_NO_DEVICE;
  simulation().initialised.store(true);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDriverGetVersion, (int* version), (version)) {
  SIM_POINTER_OR_RETURN(version);
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

// ---- devices

SIM_DRIVER(cuDeviceGetCount, (int* count), (count)) {
  SIM_POINTER_OR_RETURN(count);
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  *count = static_cast<int>(simulation().devices.size());
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal)) {
  SIM_POINTER_OR_RETURN(device);
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  if (device_at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetName, (char* name, int length, CUdevice device), (name, length, device)) {
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<std::size_t>(length), "%s",
           simulation().parameters.device_name.c_str());
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceTotalMem_v2, (std::size_t * bytes, CUdevice device), (bytes, device)) {
  SIM_POINTER_OR_RETURN(bytes);
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = simulation().memory_bytes;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device),
           (value, attribute, device)) {
  SIM_POINTER_OR_RETURN(value);
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return device_attribute(attribute, device, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_DRIVER(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), (uuid, device)) {
  SIM_POINTER_OR_RETURN(uuid);
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  device_uuid(device, uuid->bytes);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device)) {
  return cuDeviceGetUuid_body(per_thread, uuid, device);
}

SIM_DRIVER(cuDeviceGetPCIBusId, (char* id, int length, CUdevice device), (id, length, device)) {
  if (id == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (device_at(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", device_pci_bus(device));
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetByPCIBusId, (CUdevice * device, const char* id), (device, id)) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (device == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) < 2) return CUDA_ERROR_INVALID_VALUE;
  *device = device_at_pci_bus(static_cast<int>(bus));
  return *device < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer), (can, device, peer)) {
  SIM_POINTER_OR_RETURN(can);
  if (device_at(device) == nullptr || device_at(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetP2PAttribute,
           (int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination),
           (value, attribute, source, destination)) {
  SIM_POINTER_OR_RETURN(value);
  if (device_at(source) == nullptr || device_at(destination) == nullptr || source == destination) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device)) {
  SIM_POINTER_OR_RETURN(pool);
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *pool = reinterpret_cast<CUmemoryPool>(&d->default_pool);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device)) {
  return cuDeviceGetDefaultMemPool_body(per_thread, pool, device);
}

// ---- contexts

SIM_DRIVER(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device)) {
  SIM_POINTER_OR_RETURN(context);
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  d->primary_references.fetch_add(1);
  ensure_primary_context(*d);
  *context = handle_of(&d->primary);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device)) {
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (d->primary_references.load() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  d->primary_references.fetch_sub(1);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device)) {
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return synchronize_device(*d);
}

SIM_DRIVER(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), (device, flags)) {
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  d->primary.flags = flags;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned* flags, int* active),
           (device, flags, active)) {
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = d->primary.flags;
  if (active != nullptr) *active = d->has_context.load();
  return CUDA_SUCCESS;
}

static int create_context(CUcontext* context, unsigned flags, CUdevice device) {
  SIM_POINTER_OR_RETURN(context);
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  Device* d = device_at(device);
  if (d == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (t_thread.stack_depth >= 16) return CUDA_ERROR_OUT_OF_MEMORY;
  ensure_primary_context(*d);
  auto* made = new Context;
  made->device = d;
  made->flags = flags;
  made->id = g_next_context.fetch_add(1);
  t_thread.stack[t_thread.stack_depth++] = t_thread.current;
  t_thread.current = made;
  *context = handle_of(made);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device),
           (context, flags, device)) {
  return create_context(context, flags, device);
}

SIM_DRIVER(cuCtxCreate_v4,
           (CUcontext * context, CUctxCreateParams* parameters, unsigned flags, CUdevice device),
           (context, parameters, flags, device)) {
  if (parameters != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return create_context(context, flags, device);
}

SIM_DRIVER(cuCtxDestroy_v2, (CUcontext context), (context)) {
  Context* c = checked<Context>(context);
  if (c == nullptr || c->is_primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (t_thread.current == c) {
    t_thread.current = t_thread.stack_depth > 0 ? t_thread.stack[--t_thread.stack_depth] : nullptr;
  }
  c->magic = 0;  // not freed: another thread may still hold it
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetCurrent, (CUcontext * context), (context)) {
  SIM_POINTER_OR_RETURN(context);
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = handle_of(t_thread.current);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxSetCurrent, (CUcontext context), (context)) {
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  Context* c = checked<Context>(context);
  if (context != nullptr && c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  t_thread.current = c;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxPushCurrent_v2, (CUcontext context), (context)) {
  Context* c = checked<Context>(context);
  if (c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (t_thread.stack_depth >= 16) return CUDA_ERROR_OUT_OF_MEMORY;
  t_thread.stack[t_thread.stack_depth++] = t_thread.current;
  t_thread.current = c;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxPopCurrent_v2, (CUcontext * context), (context)) {
  SIM_CONTEXT_OR_RETURN();
  if (context != nullptr) *context = handle_of(t_thread.current);
  t_thread.current = t_thread.stack_depth > 0 ? t_thread.stack[--t_thread.stack_depth] : nullptr;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetDevice, (CUdevice * device), (device)) {
  SIM_POINTER_OR_RETURN(device);
  SIM_CONTEXT_OR_RETURN();
  *device = t_thread.current->device->index;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetDevice_v2, (CUdevice * device, CUcontext context), (device, context)) {
  SIM_POINTER_OR_RETURN(device);
  Context* c = context == nullptr ? t_thread.current : checked<Context>(context);
  if (c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = c->device->index;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetId, (CUcontext context, unsigned long long* id), (context, id)) {
  SIM_POINTER_OR_RETURN(id);
  Context* c = context == nullptr ? t_thread.current : checked<Context>(context);
  if (c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = c->id;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetFlags, (unsigned* flags), (flags)) {
  SIM_POINTER_OR_RETURN(flags);
  SIM_CONTEXT_OR_RETURN();
  *flags = t_thread.current->flags;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetApiVersion, (CUcontext context, unsigned* version), (context, version)) {
  SIM_POINTER_OR_RETURN(version);
  if (context != nullptr && checked<Context>(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxGetStreamPriorityRange, (int* least, int* greatest), (least, greatest)) {
  SIM_CONTEXT_OR_RETURN();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxSynchronize, (), ()) {
  SIM_CONTEXT_OR_RETURN();
  return synchronize_device(*t_thread.current->device);
}

SIM_DRIVER(cuCtxSynchronize_v2, (CUcontext context), (context)) {
  Context* c = context == nullptr ? t_thread.current : checked<Context>(context);
  if (c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return synchronize_device(*c->device);
}

SIM_DRIVER(cuCtxSetLimit, (CUlimit limit, std::size_t value), (limit, value)) {
  SIM_CONTEXT_OR_RETURN();
  return CUDA_SUCCESS;  // nothing here depends on a limit
}

SIM_DRIVER(cuCtxGetLimit, (std::size_t * value, CUlimit limit), (value, limit)) {
  SIM_POINTER_OR_RETURN(value);
  SIM_CONTEXT_OR_RETURN();
  switch (limit) {
    case CU_LIMIT_STACK_SIZE: *value = 1024; break;
    case CU_LIMIT_PRINTF_FIFO_SIZE: *value = 1 << 20; break;
    case CU_LIMIT_MALLOC_HEAP_SIZE: *value = 8 << 20; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags), (peer, flags)) {
  SIM_CONTEXT_OR_RETURN();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return checked<Context>(peer) == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

SIM_DRIVER(cuCtxDisablePeerAccess, (CUcontext peer), (peer)) {
  return checked<Context>(peer) == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

SIM_DRIVER(cuProfilerStart, (), ()) { return CUDA_SUCCESS; }
SIM_DRIVER(cuProfilerStop, (), ()) { return CUDA_SUCCESS; }

// ---- errors

SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  SIM_POINTER_OR_RETURN(text);
  *text = error_name(error, true) == nullptr ? nullptr : error_text(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  SIM_POINTER_OR_RETURN(name);
  *name = error_name(error, true);
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
