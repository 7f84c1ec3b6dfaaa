// SPDX-License-Identifier: Apache-2.0
//
// CUPTI from 13.3 on: the activity API of a subscriber. Exported under the simulator's own names;
// cupti_v2_names.cpp has CUPTI's.
#include <algorithm>
#include <cstring>
#include <vector>

#include "simulator/faces/cupti_attributes.hpp"
#include "simulator/faces/cupti_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::cupti;

#define DECLARE(symbol, params, args) extern "C" CUptiResult gpubusy_sim_##symbol params;
GPUBUSY_SIM_CUPTI_V2_FUNCTIONS(DECLARE)
#undef DECLARE

#define SIM_CUPTI_V2(symbol, params, args)                                                   \
  static CUptiResult symbol##_body params;                                                   \
  SIM_EXPORT CUptiResult gpubusy_sim_##symbol params {                                       \
    static constinit ::gpubusy::sim::ApiSite site{::gpubusy::sim::Layer::kLibrary, #symbol}; \
    if (const CUptiResult refused = ::gpubusy::sim::cupti::refusal(site)) [[unlikely]]       \
      return ::gpubusy::sim::cupti::ended(refused);                                          \
    return ::gpubusy::sim::cupti::ended(symbol##_body args);                                 \
  }                                                                                          \
  static CUptiResult symbol##_body params

namespace {

// Whether the subscriber may use functions of this kind.
CUptiResult check(CUpti_SubscriberHandle subscriber) noexcept {
  if (!has_v2()) return CUPTI_ERROR_NOT_SUPPORTED;
  if (!subscribers().is_subscriber(subscriber)) return CUPTI_ERROR_INVALID_PARAMETER;
  return activity().is_in_use() ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}

bool is_api(CUpti_ActivityKind kind) {
  return kind == CUPTI_ACTIVITY_KIND_RUNTIME || kind == CUPTI_ACTIVITY_KIND_DRIVER;
}

const v2::CallbackIdOptions* callback_ids(CUpti_ActivityKind kind,
                                          const v2::ActivityConfig* config) {
  if (config == nullptr || !is_api(kind) || config->struct_size < sizeof *config ||
      config->options == nullptr) {
    return nullptr;
  }
  return static_cast<const v2::ApiOptions*>(config->options)->ids;
}

CUptiResult enable(CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,
                   const v2::ActivityConfig* config) {
  if (const CUptiResult refused = check(subscriber)) return refused;
  if (config != nullptr) {
    if (config->struct_size < offsetof(v2::ActivityConfig, options)) {
      return CUPTI_ERROR_INVALID_PARAMETER;
    }
    if (config->selection.count != 0) {
      log_unimplemented("cupti", "user-defined records");
      return CUPTI_ERROR_NOT_SUPPORTED;
    }
  }
  const bool runtime = kind == CUPTI_ACTIVITY_KIND_RUNTIME;
  const v2::CallbackIdOptions* const some = callback_ids(kind, config);
  if (some != nullptr) {
    if (some->count != 0 && some->ids == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
    for (std::size_t i = 0; i < some->count; ++i) {
      if (callback_name(runtime, some->ids[i]) == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
    }
  }
  Activity& own = *subscriber->activity;
  if (const CUptiResult refused = own.enable(kind)) return refused;
  if (some == nullptr) return CUPTI_SUCCESS;
  for (std::uint32_t id = 0; id <= kMaxCallbackId; ++id) {
    const bool listed =
        std::find(some->ids, some->ids + some->count, id) != some->ids + some->count;
    own.enable_api(runtime, id, listed == (some->allow != 0));
  }
  return CUPTI_SUCCESS;
}

CUptiResult enable_api(CUpti_SubscriberHandle subscriber, bool runtime, CUpti_CallbackId id,
                       bool enabled) {
  if (const CUptiResult refused = check(subscriber)) return refused;
  if (callback_name(runtime, id) == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  subscriber->activity->enable_api(runtime, id, enabled);
  return CUPTI_SUCCESS;
}

template <class T>
CUptiResult put_value(T from, std::size_t* size, void* value) {
  if (*size < sizeof from) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  std::memcpy(value, &from, sizeof from);
  *size = sizeof from;
  return CUPTI_SUCCESS;
}
template <class T>
CUptiResult take_value(T& to, const std::size_t* size, const void* value) {
  if (*size < sizeof to) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  std::memcpy(&to, value, sizeof to);
  return CUPTI_SUCCESS;
}

// What is found in the client's array, `size` in bytes, and how much there is.
template <class T>
CUptiResult put_list(const std::vector<T>& found, T* buffer, const std::uint32_t* size,
                     std::uint32_t* count) {
  *count = static_cast<std::uint32_t>(found.size());
  if (buffer == nullptr || size == nullptr) {
    return buffer == nullptr ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
  }
  std::copy_n(found.begin(), std::min(found.size(), *size / sizeof(T)), buffer);
  return CUPTI_SUCCESS;
}

}  // namespace

// ---- kinds

SIM_CUPTI_V2(cuptiActivityEnable_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,
              v2::ActivityConfig* config),
             (subscriber, kind, config)) {
  return enable(subscriber, kind, config);
}
// The kinds of which it dumps anything are not simulated.
SIM_CUPTI_V2(cuptiActivityEnableAndDump_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,
              v2::ActivityConfig* config),
             (subscriber, kind, config)) {
  return enable(subscriber, kind, config);
}
SIM_CUPTI_V2(cuptiActivityDisable_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,
              v2::ActivityConfig* config),
             (subscriber, kind, config)) {
  if (const CUptiResult refused = check(subscriber)) return refused;
  return subscriber->activity->disable(kind);
}

SIM_CUPTI_V2(cuptiActivityEnableRuntimeApi_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_CallbackId id, uint8_t enable),
             (subscriber, id, enable)) {
  return enable_api(subscriber, true, id, enable != 0);
}
SIM_CUPTI_V2(cuptiActivityEnableDriverApi_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_CallbackId id, uint8_t enable),
             (subscriber, id, enable)) {
  return enable_api(subscriber, false, id, enable != 0);
}

SIM_CUPTI_V2(cuptiActivityGetEnabledKinds,
             (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind* buffer, uint32_t* size,
              uint32_t* count),
             (subscriber, buffer, size, count)) {
  if (count == nullptr || (subscriber != nullptr && !subscribers().is_subscriber(subscriber))) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  std::vector<CUpti_ActivityKind> kinds;
  for (int i = 1; i < CUPTI_ACTIVITY_KIND_COUNT; ++i) {
    const auto kind = static_cast<CUpti_ActivityKind>(i);
    bool enabled = false;
    if (subscriber != nullptr) {
      enabled = subscriber->activity != nullptr && subscriber->activity->is_enabled(kind);
    } else {
      enabled = activity().is_enabled(kind);
      subscribers().for_each_activity(
          [&](const Activity& own, int) { enabled = enabled || own.is_enabled(kind); });
    }
    if (enabled) kinds.push_back(kind);
  }
  return put_list(kinds, buffer, size, count);
}

SIM_CUPTI_V2(cuptiGetEnabledCallbacks,
             (CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
              CUpti_CallbackId* buffer, uint32_t* size, uint32_t* count),
             (subscriber, domain, buffer, size, count)) {
  if (count == nullptr || domain <= CUPTI_CB_DOMAIN_INVALID || domain >= CUPTI_CB_DOMAIN_SIZE ||
      (subscriber != nullptr && !subscribers().is_subscriber(subscriber))) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  std::vector<CUpti_CallbackId> ids;
  for (std::uint32_t id = 0; id <= kMaxCallbackId; ++id) {
    const bool enabled = subscriber != nullptr ? subscriber->enabled[domain][id].load()
                                               : subscribers().any_enabled(domain, id);
    if (enabled) ids.push_back(id);
  }
  return put_list(ids, buffer, size, count);
}

// ---- buffers

SIM_CUPTI_V2(cuptiActivityRegisterCallbacks_v2,
             (CUpti_SubscriberHandle subscriber, v2::BufferRequest request,
              v2::BufferComplete complete),
             (subscriber, request, complete)) {
  if (request == nullptr || complete == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (const CUptiResult refused = check(subscriber)) return refused;
  subscriber->activity->set_in_use();
  subscriber->activity->buffers.set_callbacks(request, complete);
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V2(cuptiActivityGetNextRecord_v2,
             (CUpti_SubscriberHandle subscriber, uint8_t* buffer, size_t valid,
              CUpti_Activity** record),
             (subscriber, buffer, valid, record)) {
  if (const CUptiResult refused = check(subscriber)) return refused;
  return next_record(buffer, valid, record);
}

SIM_CUPTI_V2(cuptiActivityGetNumDroppedRecords_v2,
             (CUpti_SubscriberHandle subscriber, CUcontext context, uint32_t stream,
              size_t* dropped),
             (subscriber, context, stream, dropped)) {
  if (dropped == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (const CUptiResult refused = check(subscriber)) return refused;
  *dropped = subscriber->activity->buffers.take_dropped();
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V2(cuptiActivityGetStructSize, (CUpti_ActivityKind kind, uint32_t version, size_t* size),
             (kind, version, size)) {
  if (size == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (version != 0 && version < 130000) return CUPTI_ERROR_NOT_SUPPORTED;
  const std::size_t known = record_size(static_cast<std::uint32_t>(kind));
  if (known == 0) return CUPTI_ERROR_INVALID_KIND;
  *size = known;
  return CUPTI_SUCCESS;
}

// ---- attributes

SIM_CUPTI_V2(cuptiActivitySetAttribute_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ActivityAttribute attribute, size_t* size,
              void* value),
             (subscriber, attribute, size, value)) {
  if (size == nullptr || value == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  std::uint8_t flag = 0;
  // The process's, which may be set before there is a subscriber.
  switch (static_cast<int>(attribute)) {
    case v2::kHardwareEvents:
    case v2::kGraphTrace:
      if (const CUptiResult refused = take_value(flag, size, value)) return refused;
      return flag == 0 ? CUPTI_SUCCESS : CUPTI_ERROR_NOT_SUPPORTED;
    case v2::kMultipleSubscriberState: return CUPTI_ERROR_NOT_SUPPORTED;
  }
  if (const CUptiResult refused = check(subscriber)) return refused;
  Activity& own = *subscriber->activity;
  switch (static_cast<int>(attribute)) {
    case v2::kUserDefinedRecords:
      if (const CUptiResult refused = take_value(flag, size, value)) return refused;
      return flag == 0 ? CUPTI_SUCCESS : CUPTI_ERROR_NOT_SUPPORTED;
    case v2::kLatencyTimestamps:
      if (const CUptiResult refused = take_value(flag, size, value)) return refused;
      own.set_latency_timestamps(flag != 0);
      return CUPTI_SUCCESS;
    case v2::kThreadIdType: {
      CUpti_ActivityThreadIdType type;
      if (const CUptiResult refused = take_value(type, size, value)) return refused;
      if (type < CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT ||
          type >= CUPTI_ACTIVITY_THREAD_ID_TYPE_SIZE) {
        return CUPTI_ERROR_INVALID_PARAMETER;
      }
      own.set_system_thread_ids(type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
      return CUPTI_SUCCESS;
    }
    case v2::kTimestampCallback: {
      CUpti_TimestampCallbackFunc clock;
      if (const CUptiResult refused = take_value(clock, size, value)) return refused;
      own.set_client_clock(clock);
      return CUPTI_SUCCESS;
    }
  }
  Attributes& kept = static_cast<int>(attribute) < kCommonAttributes ? common_attributes()
                                                                     : subscriber->attributes;
  return kept.set(attribute, size, value);
}

SIM_CUPTI_V2(cuptiActivityGetAttribute_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ActivityAttribute attribute, size_t* size,
              void* value),
             (subscriber, attribute, size, value)) {
  if (size == nullptr || value == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  switch (static_cast<int>(attribute)) {
    case v2::kHardwareEvents:
    case v2::kGraphTrace: return put_value(std::uint8_t{0}, size, value);
    case v2::kMultipleSubscriberState:
      return put_value(static_cast<std::uint8_t>(subscribers().state()), size, value);
  }
  if (const CUptiResult refused = check(subscriber)) return refused;
  const Activity& own = *subscriber->activity;
  switch (static_cast<int>(attribute)) {
    case v2::kUserDefinedRecords: return put_value(std::uint8_t{0}, size, value);
    case v2::kLatencyTimestamps:
      return put_value(static_cast<std::uint8_t>(own.has_latency_timestamps()), size, value);
    case v2::kThreadIdType:
      return put_value(own.has_system_thread_ids() ? CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM
                                                   : CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT,
                       size, value);
    case v2::kTimestampCallback: return put_value(own.client_clock(), size, value);
  }
  Attributes& kept = static_cast<int>(attribute) < kCommonAttributes ? common_attributes()
                                                                     : subscriber->attributes;
  return kept.get(attribute, size, value);
}

// ---- times, ids, sessions

SIM_CUPTI_V2(cuptiGetTimestamp_v2, (CUpti_SubscriberHandle subscriber, uint64_t* timestamp),
             (subscriber, timestamp)) {
  if (timestamp == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (const CUptiResult refused = check(subscriber)) return refused;
  *timestamp = subscriber->activity->timestamp();
  return CUPTI_SUCCESS;
}

SIM_CUPTI_V2(cuptiActivityPushExternalCorrelationId_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ExternalCorrelationKind kind, uint64_t id),
             (subscriber, kind, id)) {
  if (const CUptiResult refused = check(subscriber)) return refused;
  return subscriber->activity->push_external(kind, id);
}
SIM_CUPTI_V2(cuptiActivityPopExternalCorrelationId_v2,
             (CUpti_SubscriberHandle subscriber, CUpti_ExternalCorrelationKind kind, uint64_t* id),
             (subscriber, kind, id)) {
  if (const CUptiResult refused = check(subscriber)) return refused;
  return subscriber->activity->pop_external(kind, id);
}

SIM_CUPTI_V2(cuptiIsTracingSessionRunning, (uint8_t * running), (running)) {
  if (running == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *running = subscribers().count() != 0 || activity().is_in_use();
  return CUPTI_SUCCESS;
}
