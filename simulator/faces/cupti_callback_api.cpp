// SPDX-License-Identifier: Apache-2.0
//
// CUPTI: the callback API, versions, errors, and the ids of the driver's objects.
#include <algorithm>
#include <cstring>

#include "simulator/faces/cupti_export.hpp"
#include "simulator/faces/driver_handles.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::cupti;

namespace {

bool is_domain(CUpti_CallbackDomain domain) {
  return domain > CUPTI_CB_DOMAIN_INVALID && domain < CUPTI_CB_DOMAIN_SIZE;
}

bool is_callback(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  switch (domain) {
    case CUPTI_CB_DOMAIN_DRIVER_API: return callback_name(false, id) != nullptr;
    case CUPTI_CB_DOMAIN_RUNTIME_API: return callback_name(true, id) != nullptr;
    case CUPTI_CB_DOMAIN_RESOURCE: return id < CUPTI_CBID_RESOURCE_SIZE;
    case CUPTI_CB_DOMAIN_SYNCHRONIZE: return id < CUPTI_CBID_SYNCHRONIZE_SIZE;
    case CUPTI_CB_DOMAIN_NVTX: return id <= kMaxCallbackId;
    case CUPTI_CB_DOMAIN_STATE: return id < CUPTI_CBID_STATE_SIZE;
    default: return false;
  }
}

void enable_domain(CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain, bool enable) {
  for (auto& callback : subscriber->enabled[domain]) callback.store(enable);
}

}  // namespace

// ---- subscription

SIM_CUPTI(cuptiSubscribe,
          (CUpti_SubscriberHandle * subscriber, CUpti_CallbackFunc callback, void* user_data),
          (subscriber, callback, user_data)) {
  if (subscriber == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  return subscribers().subscribe(subscriber, callback, user_data, {});
}

SIM_CUPTI(cuptiSubscribe_v2,
          (CUpti_SubscriberHandle * subscriber, CUpti_CallbackFunc callback, void* user_data,
           CUpti_SubscriberParams* params),
          (subscriber, callback, user_data, params)) {
  if (subscriber == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  v2::SubscriberParams known{};
  if (params != nullptr) {
    if (params->structSize < v2::kOldParamsSize) return CUPTI_ERROR_INVALID_PARAMETER;
    std::memcpy(&known, params, std::min(params->structSize, sizeof known));
  }
  return subscribers().subscribe(subscriber, callback, user_data, known);
}

SIM_CUPTI(cuptiUnsubscribe, (CUpti_SubscriberHandle subscriber), (subscriber)) {
  return subscribers().unsubscribe(subscriber);
}

SIM_CUPTI(cuptiEnableCallback,
          (uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
           CUpti_CallbackId id),
          (enable, subscriber, domain, id)) {
  if (!subscribers().is_subscriber(subscriber) || !is_callback(domain, id)) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  subscriber->enabled[domain][id].store(enable != 0);
  update_observer();
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiEnableDomain,
          (uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain),
          (enable, subscriber, domain)) {
  if (!subscribers().is_subscriber(subscriber) || !is_domain(domain)) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  enable_domain(subscriber, domain, enable != 0);
  update_observer();
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiEnableAllDomains, (uint32_t enable, CUpti_SubscriberHandle subscriber),
          (enable, subscriber)) {
  if (!subscribers().is_subscriber(subscriber)) return CUPTI_ERROR_INVALID_PARAMETER;
  for (int domain = 1; domain < CUPTI_CB_DOMAIN_SIZE; ++domain) {
    enable_domain(subscriber, static_cast<CUpti_CallbackDomain>(domain), enable != 0);
  }
  update_observer();
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetCallbackState,
          (uint32_t * enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
           CUpti_CallbackId id),
          (enable, subscriber, domain, id)) {
  if (enable == nullptr || !subscribers().is_subscriber(subscriber) || !is_callback(domain, id)) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  *enable = subscriber->enabled[domain][id].load() ? 1 : 0;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiSupportedDomains, (size_t * count, CUpti_DomainTable* table), (count, table)) {
  static CUpti_CallbackDomain domains[] = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API,
                                           CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CB_DOMAIN_SYNCHRONIZE};
  if (count == nullptr || table == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *count = std::size(domains);
  *table = domains;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetCallbackName, (CUpti_CallbackDomain domain, uint32_t id, const char** name),
          (domain, id, name)) {
  if (name == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *name = nullptr;
  if (domain == CUPTI_CB_DOMAIN_RUNTIME_API || domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    *name = callback_name(domain == CUPTI_CB_DOMAIN_RUNTIME_API, id);
  }
  return *name == nullptr ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}

// ---- version and errors

SIM_CUPTI(cuptiGetVersion, (uint32_t * version), (version)) {
  if (version == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = has_v2() ? v2::kApiVersion : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetResultString, (CUptiResult result, const char** text), (result, text)) {
  if (text == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const char* name = result_name(result);
  *text = name != nullptr ? name : "<unknown>";
  return name != nullptr ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

SIM_CUPTI(cuptiGetErrorMessage, (CUptiResult result, const char** text), (result, text)) {
  if (text == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const char* name = result_name(result);
  *text = name != nullptr ? name : "<unknown>";
  return CUPTI_SUCCESS;
}

// Takes no part in `fail`: it would report itself.
SIM_EXPORT CUptiResult cuptiGetLastError() {
  const CUptiResult last = t_last_error;
  t_last_error = CUPTI_SUCCESS;
  return last;
}

// ---- ids

SIM_CUPTI(cuptiGetContextId, (CUcontext context, uint32_t* id), (context, id)) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const Context* c = driver::checked<Context>(context);
  if (c == nullptr) return CUPTI_ERROR_INVALID_CONTEXT;
  *id = static_cast<std::uint32_t>(c->id);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetStreamIdEx,
          (CUcontext context, CUstream stream, uint8_t per_thread, uint32_t* id),
          (context, stream, per_thread, id)) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const Context* c = context == nullptr ? nullptr : driver::checked<Context>(context);
  if (context != nullptr && c == nullptr) return CUPTI_ERROR_INVALID_CONTEXT;
  const Stream* s = resolve_stream(stream, per_thread != 0);
  if (s == nullptr || (c != nullptr && s->device != c->device)) return CUPTI_ERROR_INVALID_STREAM;
  *id = s->id;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetStreamId, (CUcontext context, CUstream stream, uint32_t* id),
          (context, stream, id)) {
  return cuptiGetStreamIdEx_body(context, stream, 0, id);
}

SIM_CUPTI(cuptiGetDeviceId, (CUcontext context, uint32_t* id), (context, id)) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const Context* c = context == nullptr ? t_thread.current : driver::checked<Context>(context);
  if (c == nullptr) return CUPTI_ERROR_INVALID_DEVICE;
  *id = static_cast<std::uint32_t>(c->device->index);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetGraphId, (CUgraph graph, uint32_t* id), (graph, id)) {
  const Graph* g = driver::checked<Graph>(graph);
  if (id == nullptr || g == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = static_cast<std::uint32_t>(g->id);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetGraphExecId, (CUgraphExec exec, uint32_t* id), (exec, id)) {
  const GraphExec* e = driver::checked<GraphExec>(exec);
  if (id == nullptr || e == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = static_cast<std::uint32_t>(e->graph_id);
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiGetGraphNodeId, (CUgraphNode node, uint64_t* id), (node, id)) {
  if (id == nullptr || node == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = reinterpret_cast<const GraphNode*>(node)->id;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiDeviceSupported, (CUdevice device, int* support), (device, support)) {
  if (support == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (driver::device_at(device) == nullptr) return CUPTI_ERROR_INVALID_DEVICE;
  *support = 1;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiComputeCapabilitySupported, (int major, int minor, int* support),
          (major, minor, support)) {
  if (support == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *support = 1;
  return CUPTI_SUCCESS;
}

SIM_CUPTI(cuptiDeviceVirtualizationMode, (CUdevice device, CUpti_DeviceVirtualizationMode* mode),
          (device, mode)) {
  if (mode == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (driver::device_at(device) == nullptr) return CUPTI_ERROR_INVALID_DEVICE;
  *mode = CUPTI_DEVICE_VIRTUALIZATION_MODE_NONE;
  return CUPTI_SUCCESS;
}
