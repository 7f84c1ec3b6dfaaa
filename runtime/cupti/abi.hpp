// SPDX-License-Identifier: Apache-2.0
//
// CUPTI's activity API as far as it is used, declared here: one binary serves CUDA 11.8 to 13.x,
// and CUPTI's own headers only know one. Records are given by their beginnings, which have been the
// same since ActivityKernel5 (CUDA 11.0), newer ones append; tests/runtime/cupti_layouts.cpp holds
// them against CUPTI's headers. A client steps with cuptiActivityGetNextRecord, never by these
// sizes.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime::cupti {

using Result = int;  // CUptiResult
inline constexpr Result kSuccess = 0;
inline constexpr Result kNoMoreRecords = 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
inline constexpr Result kNotInitialized = 15;
inline constexpr Result kInsufficientPrivileges = 35;
inline constexpr Result kMultipleSubscribers = 39;

enum Kind : std::uint32_t {  // CUpti_ActivityKind
  kMemcpy = 1,
  kMemset = 2,
  kKernel = 3,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,
  kOverhead = 17,
  kMemcpyPeer = 22,
  kExternalCorrelation = 39,
};
inline constexpr std::uint32_t kFlushForced = 1;
inline constexpr std::uint32_t kCopyAsync = 1;  // CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC
// PyTorch has CUSTOM0 and CUSTOM1.
inline constexpr std::uint32_t kOurExternalKind = 5;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2
// Others may use that kind too: our ids bear a mark.
inline constexpr std::uint64_t kExternalMark = std::uint64_t{0x67707562} << 32;  // "gpub"
constexpr std::uint64_t our_external_id(std::uint32_t correlation) noexcept {
  return kExternalMark | correlation;
}
constexpr bool is_our_external_id(std::uint64_t id) noexcept {
  return (id & ~std::uint64_t{0xffffffff}) == kExternalMark;
}
inline constexpr std::uint32_t kDomainDriver = 1;  // CUpti_CallbackDomain
inline constexpr std::uint32_t kDomainRuntime = 2;

struct Record {
  std::uint32_t kind;
};

struct KernelRecord {
  std::uint32_t kind;
  std::uint8_t cache_config, shared_memory_config;
  std::uint16_t registers;
  std::uint32_t partitioned_cache[2];
  std::uint64_t start, end, completed;
  std::uint32_t device, context, stream;
  std::int32_t grid[3], block[3];
  std::int32_t static_shared, dynamic_shared;
  std::uint32_t local_per_thread, local_total;
  std::uint32_t correlation;
  std::int64_t grid_id;
  const char* name;
  void* reserved;
  std::uint64_t queued, submitted;
  std::uint8_t launch_type, carveout_requested, carveout, padding;
  std::uint32_t shared_executed;
  std::uint64_t graph_node;
  std::uint32_t shared_limit;
  std::uint32_t graph;
};

struct MemcpyRecord {
  std::uint32_t kind;
  std::uint8_t copy_kind, source_kind, destination_kind, flags;
  std::uint64_t bytes, start, end;
  std::uint32_t device, context, stream, correlation, runtime_correlation, padding;
  void* reserved;
  std::uint64_t graph_node;
  std::uint32_t graph;
};

struct MemcpyPeerRecord {
  std::uint32_t kind;
  std::uint8_t copy_kind, source_kind, destination_kind, flags;
  std::uint64_t bytes, start, end;
  std::uint32_t device, context, stream;
  std::uint32_t source_device, source_context, destination_device, destination_context;
  std::uint32_t correlation;
  void* reserved;
  std::uint64_t graph_node;
  std::uint32_t graph;
};

struct MemsetRecord {
  std::uint32_t kind;
  std::uint32_t value;
  std::uint64_t bytes, start, end;
  std::uint32_t device, context, stream, correlation;
  std::uint16_t flags, memory_kind;
  std::uint32_t padding;
  void* reserved;
  std::uint64_t graph_node;
  std::uint32_t graph;
};

struct ApiRecord {
  std::uint32_t kind;
  std::uint32_t callback_id;
  std::uint64_t start, end;
  std::uint32_t process, thread, correlation, result;
};

struct ExternalCorrelationRecord {
  std::uint32_t kind;
  std::uint32_t external_kind;
  std::uint64_t external_id;
  std::uint32_t correlation, reserved;
};

struct OverheadRecord {
  std::uint32_t kind;
  std::uint32_t overhead_kind;
  std::uint32_t object_kind;              // CUpti_ActivityObjectKind: 2 is a thread
  std::uint32_t process, thread, unused;  // CUpti_ActivityObjectKindId of a thread
  std::uint64_t start, end;
};
inline constexpr std::uint32_t kObjectThread = 2;

using BufferRequest = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records);
using BufferComplete = void (*)(CUcontext, std::uint32_t stream, std::uint8_t* buffer,
                                std::size_t size, std::size_t valid);
using Timestamp = std::uint64_t (*)();
using Callback = void (*)(void* user, std::uint32_t domain, std::uint32_t id, const void* data);
using Subscriber = void*;

struct SubscriberParams {  // CUpti_SubscriberParams
  std::size_t size;
  const char* name;
  char* old_name;
  std::size_t old_name_size;
  // from 13.2 on, if `size` says that it is there
  std::uint8_t allow_multiple;
  std::uint8_t padding[7];
};
inline constexpr std::size_t kOldParamsSize = offsetof(SubscriberParams, allow_multiple);
// Of each subscriber's own, from 13.3 on; the last parameter is not used.
using SubscriberBufferRequest = void (*)(std::uint8_t** buffer, std::size_t* size,
                                         std::size_t* max_records, void* info);
using SubscriberBufferComplete = void (*)(std::uint8_t* buffer, std::size_t size, std::size_t valid,
                                          void* info);
inline constexpr std::size_t kOldNameSize = 64;

}  // namespace gpubusy::runtime::cupti
