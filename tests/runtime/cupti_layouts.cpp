// SPDX-License-Identifier: Apache-2.0
//
// The beginnings of CUPTI's records, as declared in runtime/cupti/abi.hpp, against CUPTI's own
// header: every version of a record that it still has, from CUDA 11.0 on.
#include <cupti.h>

#include <cstddef>
#include <utility>

#include "runtime/cupti/abi.hpp"

#pragma GCC diagnostic ignored "-Winvalid-offsetof"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wenum-compare"

namespace gpubusy::runtime::cupti {
namespace {

#define SAME(Ours, our_field, Theirs, their_field)                           \
  static_assert(offsetof(Ours, our_field) == offsetof(Theirs, their_field)); \
  static_assert(sizeof(Ours::our_field) == sizeof(std::declval<Theirs>().their_field))

#define SAME_KERNEL(Theirs)                                           \
  SAME(KernelRecord, kind, Theirs, kind);                             \
  SAME(KernelRecord, registers, Theirs, registersPerThread);          \
  SAME(KernelRecord, start, Theirs, start);                           \
  SAME(KernelRecord, end, Theirs, end);                               \
  SAME(KernelRecord, device, Theirs, deviceId);                       \
  SAME(KernelRecord, context, Theirs, contextId);                     \
  SAME(KernelRecord, stream, Theirs, streamId);                       \
  SAME(KernelRecord, grid[0], Theirs, gridX);                         \
  SAME(KernelRecord, grid[2], Theirs, gridZ);                         \
  SAME(KernelRecord, block[0], Theirs, blockX);                       \
  SAME(KernelRecord, static_shared, Theirs, staticSharedMemory);      \
  SAME(KernelRecord, dynamic_shared, Theirs, dynamicSharedMemory);    \
  SAME(KernelRecord, local_per_thread, Theirs, localMemoryPerThread); \
  SAME(KernelRecord, correlation, Theirs, correlationId);             \
  SAME(KernelRecord, name, Theirs, name);                             \
  SAME(KernelRecord, graph_node, Theirs, graphNodeId)
SAME_KERNEL(CUpti_ActivityKernel5);
SAME_KERNEL(CUpti_ActivityKernel6);
SAME_KERNEL(CUpti_ActivityKernel7);
SAME_KERNEL(CUpti_ActivityKernel8);
SAME_KERNEL(CUpti_ActivityKernel9);
SAME_KERNEL(CUpti_ActivityKernel10);
SAME(KernelRecord, graph, CUpti_ActivityKernel6, graphId);
SAME(KernelRecord, graph, CUpti_ActivityKernel8, graphId);
SAME(KernelRecord, graph, CUpti_ActivityKernel10, graphId);

#define SAME_COPY(Ours, Theirs)                   \
  SAME(Ours, copy_kind, Theirs, copyKind);        \
  SAME(Ours, source_kind, Theirs, srcKind);       \
  SAME(Ours, destination_kind, Theirs, dstKind);  \
  SAME(Ours, flags, Theirs, flags);               \
  SAME(Ours, bytes, Theirs, bytes);               \
  SAME(Ours, start, Theirs, start);               \
  SAME(Ours, end, Theirs, end);                   \
  SAME(Ours, device, Theirs, deviceId);           \
  SAME(Ours, context, Theirs, contextId);         \
  SAME(Ours, stream, Theirs, streamId);           \
  SAME(Ours, correlation, Theirs, correlationId); \
  SAME(Ours, graph_node, Theirs, graphNodeId)
SAME_COPY(MemcpyRecord, CUpti_ActivityMemcpy4);
SAME_COPY(MemcpyRecord, CUpti_ActivityMemcpy5);
SAME_COPY(MemcpyRecord, CUpti_ActivityMemcpy6);
SAME(MemcpyRecord, graph, CUpti_ActivityMemcpy5, graphId);
SAME(MemcpyRecord, graph, CUpti_ActivityMemcpy6, graphId);
SAME_COPY(MemcpyPeerRecord, CUpti_ActivityMemcpyPtoP3);
SAME_COPY(MemcpyPeerRecord, CUpti_ActivityMemcpyPtoP4);
SAME(MemcpyPeerRecord, source_device, CUpti_ActivityMemcpyPtoP4, srcDeviceId);
SAME(MemcpyPeerRecord, destination_device, CUpti_ActivityMemcpyPtoP4, dstDeviceId);
SAME(MemcpyPeerRecord, graph, CUpti_ActivityMemcpyPtoP4, graphId);

#define SAME_MEMSET(Theirs)                               \
  SAME(MemsetRecord, value, Theirs, value);               \
  SAME(MemsetRecord, bytes, Theirs, bytes);               \
  SAME(MemsetRecord, start, Theirs, start);               \
  SAME(MemsetRecord, end, Theirs, end);                   \
  SAME(MemsetRecord, device, Theirs, deviceId);           \
  SAME(MemsetRecord, stream, Theirs, streamId);           \
  SAME(MemsetRecord, correlation, Theirs, correlationId); \
  SAME(MemsetRecord, graph_node, Theirs, graphNodeId)
SAME_MEMSET(CUpti_ActivityMemset3);
SAME_MEMSET(CUpti_ActivityMemset4);
SAME(MemsetRecord, graph, CUpti_ActivityMemset4, graphId);

SAME(ApiRecord, callback_id, CUpti_ActivityAPI, cbid);
SAME(ApiRecord, start, CUpti_ActivityAPI, start);
SAME(ApiRecord, end, CUpti_ActivityAPI, end);
SAME(ApiRecord, thread, CUpti_ActivityAPI, threadId);
SAME(ApiRecord, correlation, CUpti_ActivityAPI, correlationId);
SAME(ApiRecord, result, CUpti_ActivityAPI, returnValue);

SAME(ExternalCorrelationRecord, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME(ExternalCorrelationRecord, external_id, CUpti_ActivityExternalCorrelation, externalId);
SAME(ExternalCorrelationRecord, correlation, CUpti_ActivityExternalCorrelation, correlationId);

#define SAME_OVERHEAD(Theirs)                                 \
  SAME(OverheadRecord, overhead_kind, Theirs, overheadKind);  \
  SAME(OverheadRecord, object_kind, Theirs, objectKind);      \
  SAME(OverheadRecord, thread, Theirs, objectId.pt.threadId); \
  SAME(OverheadRecord, start, Theirs, start);                 \
  SAME(OverheadRecord, end, Theirs, end)
SAME_OVERHEAD(CUpti_ActivityOverhead);
SAME_OVERHEAD(CUpti_ActivityOverhead2);
SAME_OVERHEAD(CUpti_ActivityOverhead3);

static_assert(kMemcpy == CUPTI_ACTIVITY_KIND_MEMCPY && kMemset == CUPTI_ACTIVITY_KIND_MEMSET);
static_assert(kKernel == CUPTI_ACTIVITY_KIND_KERNEL && kDriver == CUPTI_ACTIVITY_KIND_DRIVER);
static_assert(kRuntime == CUPTI_ACTIVITY_KIND_RUNTIME);
static_assert(kConcurrentKernel == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(kOverhead == CUPTI_ACTIVITY_KIND_OVERHEAD);
static_assert(kMemcpyPeer == CUPTI_ACTIVITY_KIND_MEMCPY2);
static_assert(kExternalCorrelation == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
static_assert(kFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
static_assert(kCopyAsync == CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC);
static_assert(kOurExternalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2);
static_assert(kDomainDriver == CUPTI_CB_DOMAIN_DRIVER_API);
static_assert(kDomainRuntime == CUPTI_CB_DOMAIN_RUNTIME_API);
static_assert(kObjectThread == CUPTI_ACTIVITY_OBJECT_THREAD);
static_assert(kInsufficientPrivileges == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
static_assert(kMultipleSubscribers == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
static_assert(kNotInitialized == CUPTI_ERROR_NOT_INITIALIZED);
// Newer headers have the next member too.
static_assert(kOldParamsSize == sizeof(CUpti_SubscriberParams) ||
              sizeof(SubscriberParams) == sizeof(CUpti_SubscriberParams));
static_assert(kOldNameSize == CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN);

}  // namespace
}  // namespace gpubusy::runtime::cupti
