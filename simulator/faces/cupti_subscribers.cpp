// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_subscribers.hpp"

#include <stdio.h>

#include "simulator/core/api_call.hpp"
#include "simulator/faces/cupti_client.hpp"
#include "simulator/faces/cupti_observer.hpp"

namespace gpubusy::sim::cupti {
namespace {

CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

}  // namespace

CUptiResult Subscribers::subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback,
                                   void* user_data, const v2::SubscriberParams& params) {
  const Parameters& p = simulation().parameters;
  const char* holder = p.cupti_holder.empty() ? nullptr : p.cupti_holder.c_str();
  // A library that does not know the field does not look at it.
  const bool allows_others =
      has_v2() && params.struct_size > v2::kOldParamsSize && params.allow_multiple != 0;
  std::lock_guard lock(lock_);
  int free = -1, taken = 0;
  bool others_allowed = allows_others;
  for (int i = kMaxSubscribers - 1; i >= 0; --i) {
    const CUpti_SubscriberHandle other = subscribers_[i].load();
    if (other == nullptr) {
      free = i;
    } else {
      ++taken;
      others_allowed = other->allows_others;
      if (holder == nullptr) holder = other->name;
    }
  }
  if (params.old_name != nullptr && holder != nullptr) {
    snprintf(params.old_name, params.old_size, "%s", holder);
  }
  const int most = allows_others ? kMaxSubscribers : static_cast<int>(p.cupti_subscribers);
  if (!p.cupti_holder.empty() || taken >= most || others_allowed != allows_others ||
      (allows_others && activity().is_in_use())) {
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  }
  auto* subscriber = new CUpti_Subscriber_st;
  subscriber->callback = callback;
  subscriber->user_data = user_data;
  snprintf(subscriber->name, sizeof subscriber->name, "CUPTI for %s",
           params.name != nullptr ? params.name : "unknown");
  subscriber->allows_others = allows_others;
  if (has_v2()) subscriber->activity = std::make_unique<Activity>(common());
  subscribers_[free].store(subscriber);
  *handle = subscriber;
  return CUPTI_SUCCESS;
}

bool Subscribers::is_subscriber(CUpti_SubscriberHandle handle) const noexcept {
  for (const auto& subscriber : subscribers_) {
    if (handle != nullptr && subscriber.load() == handle) return true;
  }
  return false;
}

CUptiResult Subscribers::unsubscribe(CUpti_SubscriberHandle handle) {
  {
    std::lock_guard lock(lock_);
    if (!is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
    for (auto& subscriber : subscribers_) {
      if (subscriber.load() == handle) subscriber.store(nullptr);
    }
  }
  if (handle->activity != nullptr) handle->activity->reset();
  update_observer();
  return CUPTI_SUCCESS;
}

void Subscribers::unsubscribe_all() {
  for (auto& subscriber : subscribers_) {
    if (const CUpti_SubscriberHandle handle = subscriber.load()) unsubscribe(handle);
  }
}

int Subscribers::count() const noexcept {
  int count = 0;
  for (const auto& subscriber : subscribers_) count += subscriber.load() != nullptr;
  return count;
}

int Subscribers::state() const noexcept {
  for (const auto& subscriber : subscribers_) {
    const CUpti_SubscriberHandle handle = subscriber.load();
    if (handle != nullptr) return handle->allows_others ? 1 : 0;
  }
  return 2;
}

bool Subscribers::any_own_activity() const noexcept {
  for (const auto& subscriber : subscribers_) {
    const CUpti_SubscriberHandle handle = subscriber.load();
    if (handle == nullptr || handle->activity == nullptr) continue;
    if (handle->allows_others || handle->activity->is_in_use()) return true;
  }
  return false;
}

bool Subscribers::any_enabled(CUpti_CallbackDomain domain, std::uint32_t id) const noexcept {
  for (const auto& subscriber : subscribers_) {
    const CUpti_SubscriberHandle handle = subscriber.load();
    if (handle != nullptr && handle->enabled[domain][id].load()) return true;
  }
  return false;
}

bool Subscribers::any_enabled() const noexcept {
  for (const auto& subscriber : subscribers_) {
    const CUpti_SubscriberHandle handle = subscriber.load();
    if (handle == nullptr) continue;
    if (handle->activity != nullptr && handle->activity->any_enabled()) return true;
    for (const auto& domain : handle->enabled) {
      for (const auto& callback : domain) {
        if (callback.load(std::memory_order_relaxed)) return true;
      }
    }
  }
  return false;
}

void Subscribers::on_call(const CallEvent& call, std::uint32_t callback_id, bool is_end,
                          std::uint64_t* correlation_data) {
  const CUpti_CallbackDomain domain =
      call.layer == Layer::kRuntime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API;
  for (int i = 0; i < kMaxSubscribers; ++i) {
    const CUpti_SubscriberHandle subscriber = subscribers_[i].load(std::memory_order_acquire);
    if (subscriber == nullptr || !subscriber->enabled[domain][callback_id].load()) continue;
    int result = call.result;
    CUpti_CallbackData data{};
    data.callbackSite = is_end ? CUPTI_API_EXIT : CUPTI_API_ENTER;
    data.functionName = call.site->name;
    data.functionReturnValue = is_end ? &result : nullptr;
    data.context = handle_of(t_thread.current);
    if (t_thread.current != nullptr) {
      data.contextUid = static_cast<std::uint32_t>(t_thread.current->id);
    }
    data.correlationData = &correlation_data[i];
    data.correlationId = call.correlation;
    const InClient in_client;
    subscriber->callback(subscriber->user_data, domain, callback_id, &data);
  }
}

void Subscribers::call_back(CUpti_CallbackDomain domain, std::uint32_t id, const void* data) {
  for (auto& slot : subscribers_) {
    const CUpti_SubscriberHandle subscriber = slot.load(std::memory_order_acquire);
    if (subscriber == nullptr || !subscriber->enabled[domain][id].load()) continue;
    const InClient in_client;
    subscriber->callback(subscriber->user_data, domain, id, data);
  }
}

void Subscribers::on_resource(ResourceEvent what, Context* context, Stream* stream) {
  CUpti_ResourceData data{};
  data.context = handle_of(context);
  data.resourceHandle.stream = reinterpret_cast<CUstream>(stream);
  switch (what) {
    case ResourceEvent::kContextCreated:
      call_back(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED, &data);
      break;
    case ResourceEvent::kStreamCreated:
      call_back(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_STREAM_CREATED, &data);
      break;
    case ResourceEvent::kStreamDestroyed:
      call_back(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, &data);
      break;
  }
}

void Subscribers::on_synchronised(const SyncEvent& sync) {
  CUpti_SynchronizeData data{};
  data.context = handle_of(&simulation().devices[static_cast<std::size_t>(sync.device)]->primary);
  data.stream = reinterpret_cast<CUstream>(const_cast<Stream*>(sync.stream));
  if (sync.kind == SyncEvent::Kind::kStream) {
    call_back(CUPTI_CB_DOMAIN_SYNCHRONIZE, CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED, &data);
  } else if (sync.kind == SyncEvent::Kind::kContext) {
    call_back(CUPTI_CB_DOMAIN_SYNCHRONIZE, CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED, &data);
  }
}

}  // namespace gpubusy::sim::cupti
