// SPDX-License-Identifier: Apache-2.0
//
// What CUPTI 13.5 has and the headers of 13.0 do not declare: the functions that take a subscriber,
// their structures and attributes. Layouts are CUPTI's; names are this project's where the headers
// of the build may be newer and have CUPTI's own.
#pragma once

#include <cupti.h>

#include <cstddef>
#include <cstdint>

namespace gpubusy::sim::cupti::v2 {

inline constexpr std::uint32_t kApiVersion = 130500;

// Of cuptiSubscribe_v2. What is older ends before the last number; structSize tells.
struct SubscriberParams {
  std::size_t struct_size;
  const char* name;
  char* old_name;
  std::size_t old_size;
  std::uint8_t allow_multiple;
  std::uint8_t padding[7];
};
static_assert(sizeof(SubscriberParams) == 40);
inline constexpr std::size_t kOldParamsSize = offsetof(SubscriberParams, allow_multiple);

struct FieldSelection {
  std::size_t struct_size;
  std::size_t count;
  int* fields;
};
struct CallbackIdOptions {
  std::size_t struct_size;
  CUpti_CallbackId* ids;
  std::size_t count;
  std::uint8_t allow;  // 1: only these, 0: all but these
};
struct ApiOptions {
  std::size_t struct_size;
  CallbackIdOptions* ids;
};
struct ActivityConfig {
  std::size_t struct_size;
  FieldSelection selection;
  void* options;  // ApiOptions, for RUNTIME and DRIVER
};
static_assert(sizeof(ActivityConfig) == 40);

struct BufferRequestInfo {
  std::size_t struct_size;
};
struct BufferCompleteInfo {
  std::size_t struct_size;
  std::uint64_t thread;
  void** layouts;
  std::size_t layout_count;
};
static_assert(sizeof(BufferCompleteInfo) == 32);
using BufferRequest = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records,
                               BufferRequestInfo* info);
using BufferComplete = void (*)(std::uint8_t* buffer, std::size_t size, std::size_t valid,
                                BufferCompleteInfo* info);

// Beyond those of 13.0. Values are uint8_t where nothing else is said.
enum Attribute {
  kUserDefinedRecords = 11,
  kMultipleSubscriberState = 12,
  kHardwareEvents = 13,
  kAllocationSource = 14,
  kLatencyTimestamps = 15,
  kAllSyncRecords = 16,
  kEventDeviceTimestamps = 17,
  kLaunchAttributes = 18,
  kDeviceGraphs = 19,
  kGraphTrace = 20,
  kThreadIdType = 21,       // CUpti_ActivityThreadIdType
  kTimestampCallback = 22,  // CUpti_TimestampCallbackFunc
  kGraphicsMode = 23,
  kHardwareEventsSize = 24,  // size_t
  kAttributes = 25,
};

}  // namespace gpubusy::sim::cupti::v2

// F(name, parameters, arguments): the functions that CUPTI before 13.3 does not have.
#define GPUBUSY_SIM_CUPTI_V2_FUNCTIONS(F)                                                          \
  F(cuptiActivityEnable_v2,                                                                        \
    (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,                                   \
     gpubusy::sim::cupti::v2::ActivityConfig * config),                                            \
    (subscriber, kind, config))                                                                    \
  F(cuptiActivityDisable_v2,                                                                       \
    (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,                                   \
     gpubusy::sim::cupti::v2::ActivityConfig * config),                                            \
    (subscriber, kind, config))                                                                    \
  F(cuptiActivityEnableAndDump_v2,                                                                 \
    (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,                                   \
     gpubusy::sim::cupti::v2::ActivityConfig * config),                                            \
    (subscriber, kind, config))                                                                    \
  F(cuptiActivityEnableRuntimeApi_v2,                                                              \
    (CUpti_SubscriberHandle subscriber, CUpti_CallbackId id, uint8_t enable),                      \
    (subscriber, id, enable))                                                                      \
  F(cuptiActivityEnableDriverApi_v2,                                                               \
    (CUpti_SubscriberHandle subscriber, CUpti_CallbackId id, uint8_t enable),                      \
    (subscriber, id, enable))                                                                      \
  F(cuptiActivityRegisterCallbacks_v2,                                                             \
    (CUpti_SubscriberHandle subscriber, gpubusy::sim::cupti::v2::BufferRequest request,            \
     gpubusy::sim::cupti::v2::BufferComplete complete),                                            \
    (subscriber, request, complete))                                                               \
  F(cuptiActivityGetNextRecord_v2,                                                                 \
    (CUpti_SubscriberHandle subscriber, uint8_t * buffer, size_t valid, CUpti_Activity * *record), \
    (subscriber, buffer, valid, record))                                                           \
  F(cuptiActivityGetNumDroppedRecords_v2,                                                          \
    (CUpti_SubscriberHandle subscriber, CUcontext context, uint32_t stream, size_t * dropped),     \
    (subscriber, context, stream, dropped))                                                        \
  F(cuptiActivityGetAttribute_v2,                                                                  \
    (CUpti_SubscriberHandle subscriber, CUpti_ActivityAttribute attribute, size_t * size,          \
     void* value),                                                                                 \
    (subscriber, attribute, size, value))                                                          \
  F(cuptiActivitySetAttribute_v2,                                                                  \
    (CUpti_SubscriberHandle subscriber, CUpti_ActivityAttribute attribute, size_t * size,          \
     void* value),                                                                                 \
    (subscriber, attribute, size, value))                                                          \
  F(cuptiActivityPushExternalCorrelationId_v2,                                                     \
    (CUpti_SubscriberHandle subscriber, CUpti_ExternalCorrelationKind kind, uint64_t id),          \
    (subscriber, kind, id))                                                                        \
  F(cuptiActivityPopExternalCorrelationId_v2,                                                      \
    (CUpti_SubscriberHandle subscriber, CUpti_ExternalCorrelationKind kind, uint64_t * id),        \
    (subscriber, kind, id))                                                                        \
  F(cuptiGetTimestamp_v2, (CUpti_SubscriberHandle subscriber, uint64_t * timestamp),               \
    (subscriber, timestamp))                                                                       \
  F(cuptiActivityGetEnabledKinds,                                                                  \
    (CUpti_SubscriberHandle subscriber, CUpti_ActivityKind * buffer, uint32_t * size,              \
     uint32_t * count),                                                                            \
    (subscriber, buffer, size, count))                                                             \
  F(cuptiGetEnabledCallbacks,                                                                      \
    (CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain, CUpti_CallbackId * buffer,    \
     uint32_t * size, uint32_t * count),                                                           \
    (subscriber, domain, buffer, size, count))                                                     \
  F(cuptiActivityGetStructSize, (CUpti_ActivityKind kind, uint32_t version, size_t * size),        \
    (kind, version, size))                                                                         \
  F(cuptiIsTracingSessionRunning, (uint8_t * running), (running))
