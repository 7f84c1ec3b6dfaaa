// SPDX-License-Identifier: Apache-2.0
//
// CUPTI's subscribers: who is told of API calls and resources while they happen, and, from 13.3 on,
// has activities of its own.
#pragma once

#include <cupti.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "simulator/core/observer.hpp"
#include "simulator/faces/cupti_activity.hpp"
#include "simulator/faces/cupti_attributes.hpp"
#include "simulator/faces/cupti_names.hpp"

// CUPTI's own name for it. Never freed: a thread may be calling back while it is unsubscribed.
struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback = nullptr;
  void* user_data = nullptr;
  char name[64] = {};
  bool allows_others = false;
  std::unique_ptr<gpubusy::sim::cupti::Activity> activity;  // nullptr: CUPTI before 13.3
  gpubusy::sim::cupti::Attributes attributes;
  std::atomic<bool> enabled[CUPTI_CB_DOMAIN_SIZE][gpubusy::sim::cupti::kMaxCallbackId + 1] = {};
};

namespace gpubusy::sim::cupti {

inline constexpr int kMaxSubscribers = 8;

class Subscribers {
 public:
  // `params`: what cuptiSubscribe_v2 got, nothing: cuptiSubscribe. `struct_size` is right.
  CUptiResult subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback,
                        void* user_data, const v2::SubscriberParams& params);
  CUptiResult unsubscribe(CUpti_SubscriberHandle handle);
  void unsubscribe_all();
  int count() const noexcept;
  // As CUPTI_ACTIVITY_ATTR_MULTIPLE_SUBSCRIBER_STATE: 0 and 1 as the first one said, 2: nobody did.
  int state() const noexcept;
  // Some subscriber has, or may have, activities of its own.
  bool any_own_activity() const noexcept;
  // `f(activity, index)` for each subscriber's own, with an index from 1 on.
  template <class F>
  void for_each_activity(F&& f) const {
    for (int i = 0; i < kMaxSubscribers; ++i) {
      const CUpti_SubscriberHandle handle = subscribers_[i].load(std::memory_order_acquire);
      if (handle != nullptr && handle->activity != nullptr) f(*handle->activity, i + 1);
    }
  }
  bool is_subscriber(CUpti_SubscriberHandle handle) const noexcept;
  bool any_enabled(CUpti_CallbackDomain domain, std::uint32_t id) const noexcept;
  // Somebody wants to be called back, or records of its own.
  bool any_enabled() const noexcept;

  // `correlation_data`: kMaxSubscribers numbers that live from a call's start to its end.
  void on_call(const CallEvent& call, std::uint32_t callback_id, bool is_end,
               std::uint64_t* correlation_data);
  void on_resource(ResourceEvent what, Context* context, Stream* stream);
  void on_synchronised(const SyncEvent& sync);

 private:
  void call_back(CUpti_CallbackDomain domain, std::uint32_t id, const void* data);

  std::mutex lock_;
  std::atomic<CUpti_SubscriberHandle> subscribers_[kMaxSubscribers] = {};
};

}  // namespace gpubusy::sim::cupti
