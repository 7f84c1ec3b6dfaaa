// SPDX-License-Identifier: Apache-2.0
//
// NVML: which devices there are and how full their memory is. torch counts devices by it where it
// can, so that a fork stays possible, and needs it for expandable segments. Its header is in no
// wheel; the declarations here are its binary interface.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "simulator/core/simulation.hpp"
#include "simulator/faces/device_properties.hpp"
#include "simulator/faces/export.hpp"

using namespace gpubusy::sim;

namespace {

enum Status : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
};

// A physical device's number and 1: NVML does not look at CUDA_VISIBLE_DEVICES.
using Handle = std::uintptr_t;

struct MemoryInfo {
  unsigned long long total, free, used;
};

int device_count() { return static_cast<int>(simulation().parameters.devices); }

int give(const std::string& text, char* out, unsigned size) {
  if (out == nullptr) return kInvalidArgument;
  if (text.size() >= size) return kInsufficientSize;
  memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

int handle_of(int index, Handle* handle) {
  if (handle == nullptr || index < 0 || index >= device_count()) return kInvalidArgument;
  *handle = static_cast<Handle>(index) + 1;
  return kSuccess;
}

int physical_of(Handle device) { return static_cast<int>(device) - 1; }

int version_text(char* out, unsigned size) { return give("580.00.sim", out, size); }

int index_by_bus(const char* id) {
  unsigned domain = 0, bus = 0;
  if (id == nullptr || sscanf(id, "%x:%x", &domain, &bus) != 2) return -1;
  return static_cast<int>(bus) - 1;
}

}  // namespace

#define SIM_NVML SIM_EXPORT int

SIM_NVML nvmlInit() { return kSuccess; }
SIM_NVML nvmlInit_v2() { return kSuccess; }
SIM_NVML nvmlInitWithFlags(unsigned) { return kSuccess; }
SIM_NVML nvmlShutdown() { return kSuccess; }
SIM_EXPORT const char* nvmlErrorString(int status) {
  return status == kSuccess        ? "Success"
         : status == kNotSupported ? "Not Supported"
                                   : "Invalid Argument";
}

SIM_NVML nvmlSystemGetDriverVersion(char* text, unsigned size) { return version_text(text, size); }
SIM_NVML nvmlSystemGetNVMLVersion(char* text, unsigned size) { return version_text(text, size); }
SIM_NVML nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = kDriverVersion;
  return kSuccess;
}
SIM_NVML nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = kDriverVersion;
  return kSuccess;
}

SIM_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(device_count());
  return kSuccess;
}
SIM_NVML nvmlDeviceGetCount(unsigned* count) {
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(device_count());
  return kSuccess;
}
SIM_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  return handle_of(static_cast<int>(index), handle);
}
SIM_NVML nvmlDeviceGetHandleByIndex(unsigned index, Handle* handle) {
  return handle_of(static_cast<int>(index), handle);
}
SIM_NVML nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* handle) {
  return handle_of(index_by_bus(id), handle);
}
SIM_NVML nvmlDeviceGetHandleByPciBusId(const char* id, Handle* handle) {
  return handle_of(index_by_bus(id), handle);
}
SIM_NVML nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  if (uuid == nullptr) return kInvalidArgument;
  for (int i = 0; i < device_count(); ++i) {
    if (physical_uuid_text(i) == uuid) return handle_of(i, handle);
  }
  return kNotFound;
}

SIM_NVML nvmlDeviceGetIndex(Handle device, unsigned* index) {
  if (device == 0 || index == nullptr) return kInvalidArgument;
  *index = static_cast<unsigned>(physical_of(device));
  return kSuccess;
}
SIM_NVML nvmlDeviceGetUUID(Handle device, char* text, unsigned size) {
  return device == 0 ? kInvalidArgument : give(physical_uuid_text(physical_of(device)), text, size);
}
SIM_NVML nvmlDeviceGetName(Handle device, char* text, unsigned size) {
  return device == 0 ? kInvalidArgument : give(simulation().parameters.device_name, text, size);
}
SIM_NVML nvmlDeviceGetMemoryInfo(Handle device, MemoryInfo* info) {
  if (device == 0 || info == nullptr) return kInvalidArgument;
  // Of this process alone: nothing is shared between simulated machines.
  info->total = simulation().memory_bytes;
  info->used = 0;
  for (const Device* visible : simulation().devices) {
    if (visible->physical == physical_of(device)) {
      info->used = simulation().memory.used(visible->index);
    }
  }
  info->free = info->total - info->used;
  return kSuccess;
}
SIM_NVML nvmlDeviceGetComputeRunningProcesses(Handle, unsigned* count, void*) {
  if (count == nullptr) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}

// A structure that tells its own size; all zeros: the device is in no fabric.
SIM_NVML nvmlDeviceGetGpuFabricInfoV(Handle device, unsigned* info) {
  if (device == 0 || info == nullptr) return kInvalidArgument;
  const std::size_t size = *info & 0xffffffu;
  if (size < sizeof *info || size > 256) return kInvalidArgument;
  memset(info + 1, 0, size - sizeof *info);
  return kSuccess;
}

SIM_NVML nvmlDeviceGetUtilizationRates(Handle, void*) { return kNotSupported; }
SIM_NVML nvmlDeviceGetPowerUsage(Handle, unsigned*) { return kNotSupported; }
SIM_NVML nvmlDeviceGetTemperature(Handle, int, unsigned*) { return kNotSupported; }
SIM_NVML nvmlDeviceGetClockInfo(Handle, int, unsigned*) { return kNotSupported; }
SIM_NVML nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) { return kNotSupported; }
SIM_NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return kNotSupported; }
SIM_NVML nvmlDeviceGetP2PStatus(Handle, Handle, int, int*) { return kNotSupported; }
