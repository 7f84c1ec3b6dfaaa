// SPDX-License-Identifier: Apache-2.0
//
// CUPTI: the activity API.
#include <cstring>

#include "simulator/faces/cupti_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::cupti;

namespace {

// Attributes are kept for whoever asks; none changes what is simulated.
struct Attribute {
  std::size_t size;
  std::uint64_t value;
};
constexpr int kAttributes = 11;
std::mutex g_attributes_lock;
Attribute g_attributes[kAttributes] = {
    {sizeof(std::size_t), 3200 * 1024},  // DEVICE_BUFFER_SIZE
    {sizeof(std::size_t), 8 << 20},      // DEVICE_BUFFER_SIZE_CDP
    {sizeof(std::size_t), 250},          // DEVICE_BUFFER_POOL_LIMIT
    {sizeof(std::size_t), 25000},        // PROFILING_SEMAPHORE_POOL_SIZE
    {sizeof(std::size_t), 250},          // PROFILING_SEMAPHORE_POOL_LIMIT
    {sizeof(std::uint8_t), 0},           // ZEROED_OUT_ACTIVITY_BUFFER
    {sizeof(std::size_t), 3},            // DEVICE_BUFFER_PRE_ALLOCATE_VALUE
    {sizeof(std::size_t), 3},            // PROFILING_SEMAPHORE_PRE_ALLOCATE_VALUE
    {sizeof(std::uint8_t), 0},           // MEM_ALLOCATION_TYPE_HOST_PINNED
    {sizeof(std::uint8_t), 0},           // PER_THREAD_ACTIVITY_BUFFER
    {sizeof(std::size_t), 8 << 20},      // DEVICE_BUFFER_SIZE_DEVICE_GRAPHS
};

bool is_attribute(CUpti_ActivityAttribute attribute) {
  return static_cast<int>(attribute) >= 0 && static_cast<int>(attribute) < kAttributes;
}

}  // namespace

// ---- kinds

SIM_CUPTI(cuptiActivityEnable, (CUpti_ActivityKind kind), (kind)) {
  return activity().enable(kind);
}
SIM_CUPTI(cuptiActivityDisable, (CUpti_ActivityKind kind), (kind)) {
  return activity().disable(kind);
}
// A kind is enabled for all contexts or for none.
SIM_CUPTI(cuptiActivityEnableContext, (CUcontext context, CUpti_ActivityKind kind),
          (context, kind)) {
  return context == nullptr ? CUPTI_ERROR_INVALID_CONTEXT : activity().enable(kind);
}
SIM_CUPTI(cuptiActivityDisableContext, (CUcontext context, CUpti_ActivityKind kind),
          (context, kind)) {
  return context == nullptr ? CUPTI_ERROR_INVALID_CONTEXT : activity().disable(kind);
}
SIM_CUPTI(cuptiActivityEnableAndDump, (CUpti_ActivityKind kind), (kind)) {
  return activity().enable(kind);
}

SIM_CUPTI(cuptiActivityEnableRuntimeApi, (CUpti_CallbackId id, uint8_t enable), (id, enable)) {
  if (callback_name(true, id) == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().enable_api(true, id, enable != 0);
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiActivityEnableDriverApi, (CUpti_CallbackId id, uint8_t enable), (id, enable)) {
  if (callback_name(false, id) == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().enable_api(false, id, enable != 0);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiActivityEnableLatencyTimestamps, (uint8_t enable), (enable)) {
  activity().set_latency_timestamps(enable != 0);
  return CUPTI_SUCCESS;
}
// Nothing is simulated that these could add to a record.
SIM_CUPTI(cuptiActivityEnableLaunchAttributes, (uint8_t enable), (enable)) { return CUPTI_SUCCESS; }
SIM_CUPTI(cuptiActivityEnableCudaEventDeviceTimestamps, (uint8_t enable), (enable)) {
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiActivityEnableAllSyncRecords, (uint8_t enable), (enable)) { return CUPTI_SUCCESS; }
SIM_CUPTI(cuptiActivityEnableDeviceGraph, (uint8_t enable), (enable)) { return CUPTI_SUCCESS; }
SIM_CUPTI(cuptiActivityEnableAllocationSource, (uint8_t enable), (enable)) { return CUPTI_SUCCESS; }

// ---- buffers

SIM_CUPTI(cuptiActivityRegisterCallbacks,
          (CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete),
          (request, complete)) {
  if (request == nullptr || complete == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().buffers.set_callbacks(request, complete);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiActivityFlushAll, (uint32_t flag), (flag)) {
  if (!activity().buffers.has_callbacks()) return CUPTI_ERROR_INVALID_OPERATION;
  activity().flush((flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0);
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiActivityFlush, (CUcontext context, uint32_t stream, uint32_t flag),
          (context, stream, flag)) {
  return cuptiActivityFlushAll_body(flag);
}
SIM_CUPTI(cuptiActivityFlushPeriod, (uint32_t ms), (ms)) {
  activity().set_flush_period(ms);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiActivityGetNumDroppedRecords, (CUcontext context, uint32_t stream, size_t* dropped),
          (context, stream, dropped)) {
  if (dropped == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *dropped = activity().buffers.take_dropped();
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, CUpti_Activity** record),
          (buffer, valid, record)) {
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

SIM_CUPTI(cuptiActivitySetAttribute, (CUpti_ActivityAttribute attribute, size_t* size, void* value),
          (attribute, size, value)) {
  if (size == nullptr || value == nullptr || !is_attribute(attribute)) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  std::lock_guard lock(g_attributes_lock);
  Attribute& kept = g_attributes[attribute];
  if (*size < kept.size) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  kept.value = 0;
  std::memcpy(&kept.value, value, kept.size);
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiActivityGetAttribute, (CUpti_ActivityAttribute attribute, size_t* size, void* value),
          (attribute, size, value)) {
  if (size == nullptr || value == nullptr || !is_attribute(attribute)) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  std::lock_guard lock(g_attributes_lock);
  const Attribute& kept = g_attributes[attribute];
  if (*size < kept.size) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  std::memcpy(value, &kept.value, kept.size);
  *size = kept.size;
  return CUPTI_SUCCESS;
}

// ---- times and ids

SIM_CUPTI(cuptiGetTimestamp, (uint64_t * timestamp), (timestamp)) {
  if (timestamp == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *timestamp = activity().timestamp();
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiActivityRegisterTimestampCallback, (CUpti_TimestampCallbackFunc clock), (clock)) {
  if (clock == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().set_client_clock(clock);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiActivityPushExternalCorrelationId, (CUpti_ExternalCorrelationKind kind, uint64_t id),
          (kind, id)) {
  return push_external(kind, id);
}
SIM_CUPTI(cuptiActivityPopExternalCorrelationId, (CUpti_ExternalCorrelationKind kind, uint64_t* id),
          (kind, id)) {
  return pop_external(kind, id);
}

SIM_CUPTI(cuptiSetThreadIdType, (CUpti_ActivityThreadIdType type), (type)) {
  if (type < CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT || type >= CUPTI_ACTIVITY_THREAD_ID_TYPE_SIZE) {
    return CUPTI_ERROR_NOT_SUPPORTED;
  }
  activity().set_system_thread_ids(type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiGetThreadIdType, (CUpti_ActivityThreadIdType * type), (type)) {
  if (type == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *type = activity().has_system_thread_ids() ? CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM
                                             : CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiFinalize, (), ()) {
  subscribers().unsubscribe_all();
  activity().reset();
  return CUPTI_SUCCESS;
}
