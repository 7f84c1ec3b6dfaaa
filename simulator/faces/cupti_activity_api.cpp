// SPDX-License-Identifier: Apache-2.0
//
// CUPTI: the activity API of the client that has no subscriber of its own, and what is common to
// all.
#include <cstring>

#include "simulator/faces/cupti_attributes.hpp"
#include "simulator/faces/cupti_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::cupti;

namespace {

// The two kinds of functions must not be used together.
CUptiResult v2_conflict() noexcept {
  return has_v2() && subscribers().any_own_activity()
             ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
             : CUPTI_SUCCESS;
}

}  // namespace

// A function that CUPTI 13.3 has again for a subscriber.
#define SIM_CUPTI_V1(symbol, params, args)                       \
  static CUptiResult symbol##_v1 params;                         \
  SIM_CUPTI(symbol, params, args) {                              \
    if (const CUptiResult conflict = v2_conflict()) [[unlikely]] \
      return conflict;                                           \
    return symbol##_v1 args;                                     \
  }                                                              \
  static CUptiResult symbol##_v1 params

// ---- kinds

SIM_CUPTI_V1(cuptiActivityEnable, (CUpti_ActivityKind kind), (kind)) {
  return activity().enable(kind);
}
SIM_CUPTI_V1(cuptiActivityDisable, (CUpti_ActivityKind kind), (kind)) {
  return activity().disable(kind);
}
// A kind is enabled for all contexts or for none.
SIM_CUPTI_V1(cuptiActivityEnableContext, (CUcontext context, CUpti_ActivityKind kind),
             (context, kind)) {
  return context == nullptr ? CUPTI_ERROR_INVALID_CONTEXT : activity().enable(kind);
}
SIM_CUPTI_V1(cuptiActivityDisableContext, (CUcontext context, CUpti_ActivityKind kind),
             (context, kind)) {
  return context == nullptr ? CUPTI_ERROR_INVALID_CONTEXT : activity().disable(kind);
}
SIM_CUPTI_V1(cuptiActivityEnableAndDump, (CUpti_ActivityKind kind), (kind)) {
  return activity().enable(kind);
}

SIM_CUPTI_V1(cuptiActivityEnableRuntimeApi, (CUpti_CallbackId id, uint8_t enable), (id, enable)) {
  if (callback_name(true, id) == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().enable_api(true, id, enable != 0);
  return CUPTI_SUCCESS;
}
SIM_CUPTI_V1(cuptiActivityEnableDriverApi, (CUpti_CallbackId id, uint8_t enable), (id, enable)) {
  if (callback_name(false, id) == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().enable_api(false, id, enable != 0);
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V1(cuptiActivityEnableLatencyTimestamps, (uint8_t enable), (enable)) {
  activity().set_latency_timestamps(enable != 0);
  return CUPTI_SUCCESS;
}
// Nothing is simulated that these could add to a record.
SIM_CUPTI_V1(cuptiActivityEnableLaunchAttributes, (uint8_t enable), (enable)) {
  return CUPTI_SUCCESS;
}
SIM_CUPTI_V1(cuptiActivityEnableCudaEventDeviceTimestamps, (uint8_t enable), (enable)) {
  return CUPTI_SUCCESS;
}
SIM_CUPTI_V1(cuptiActivityEnableAllSyncRecords, (uint8_t enable), (enable)) {
  return CUPTI_SUCCESS;
}
SIM_CUPTI_V1(cuptiActivityEnableDeviceGraph, (uint8_t enable), (enable)) { return CUPTI_SUCCESS; }
SIM_CUPTI_V1(cuptiActivityEnableAllocationSource, (uint8_t enable), (enable)) {
  return CUPTI_SUCCESS;
}

// ---- buffers

SIM_CUPTI_V1(cuptiActivityRegisterCallbacks,
             (CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete),
             (request, complete)) {
  if (request == nullptr || complete == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().set_in_use();
  activity().buffers.set_callbacks(request, complete);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiActivityFlushAll, (uint32_t flag), (flag)) {
  bool any = activity().buffers.has_callbacks();
  subscribers().for_each_activity([&](Activity& a, int) { any |= a.buffers.has_callbacks(); });
  if (!any) return CUPTI_ERROR_INVALID_OPERATION;
  flush_all((flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0);
  return CUPTI_SUCCESS;
}
SIM_CUPTI(cuptiActivityFlush, (CUcontext context, uint32_t stream, uint32_t flag),
          (context, stream, flag)) {
  return cuptiActivityFlushAll_body(flag);
}
SIM_CUPTI(cuptiActivityFlushPeriod, (uint32_t ms), (ms)) {
  set_flush_period(ms);
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V1(cuptiActivityGetNumDroppedRecords,
             (CUcontext context, uint32_t stream, size_t* dropped), (context, stream, dropped)) {
  if (dropped == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *dropped = activity().buffers.take_dropped();
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V1(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, CUpti_Activity** record),
             (buffer, valid, record)) {
  return next_record(buffer, valid, record);
}

SIM_CUPTI_V1(cuptiActivitySetAttribute,
             (CUpti_ActivityAttribute attribute, size_t* size, void* value),
             (attribute, size, value)) {
  return common_attributes().set(attribute, size, value);
}
SIM_CUPTI_V1(cuptiActivityGetAttribute,
             (CUpti_ActivityAttribute attribute, size_t* size, void* value),
             (attribute, size, value)) {
  return common_attributes().get(attribute, size, value);
}

// ---- times and ids

SIM_CUPTI_V1(cuptiGetTimestamp, (uint64_t * timestamp), (timestamp)) {
  if (timestamp == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *timestamp = activity().timestamp();
  return CUPTI_SUCCESS;
}
SIM_CUPTI_V1(cuptiActivityRegisterTimestampCallback, (CUpti_TimestampCallbackFunc clock), (clock)) {
  if (clock == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  activity().set_client_clock(clock);
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V1(cuptiActivityPushExternalCorrelationId,
             (CUpti_ExternalCorrelationKind kind, uint64_t id), (kind, id)) {
  return activity().push_external(kind, id);
}
SIM_CUPTI_V1(cuptiActivityPopExternalCorrelationId,
             (CUpti_ExternalCorrelationKind kind, uint64_t* id), (kind, id)) {
  return activity().pop_external(kind, id);
}

SIM_CUPTI_V1(cuptiSetThreadIdType, (CUpti_ActivityThreadIdType type), (type)) {
  if (type < CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT || type >= CUPTI_ACTIVITY_THREAD_ID_TYPE_SIZE) {
    return CUPTI_ERROR_NOT_SUPPORTED;
  }
  activity().set_system_thread_ids(type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  return CUPTI_SUCCESS;
}
SIM_CUPTI_V1(cuptiGetThreadIdType, (CUpti_ActivityThreadIdType * type), (type)) {
  if (type == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *type = activity().has_system_thread_ids() ? CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM
                                             : CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiFinalize, (), ()) {
  // One tool does not take it away from the others.
  if (has_v2() && subscribers().count() > 1) return CUPTI_SUCCESS;
  subscribers().unsubscribe_all();
  set_flush_period(0);
  activity().reset();
  return CUPTI_SUCCESS;
}
