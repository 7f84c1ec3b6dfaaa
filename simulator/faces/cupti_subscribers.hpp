// SPDX-License-Identifier: Apache-2.0
//
// CUPTI's subscribers: who is told of API calls and resources while they happen.
#pragma once

#include <cupti.h>

#include <atomic>
#include <mutex>

#include "simulator/core/observer.hpp"
#include "simulator/faces/cupti_names.hpp"

// CUPTI's own name for it. Never freed: a thread may be calling back while it is unsubscribed.
struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback = nullptr;
  void* user_data = nullptr;
  char name[64] = {};
  std::atomic<bool> is_subscribed{true};
  std::atomic<bool> enabled[CUPTI_CB_DOMAIN_SIZE][gpubusy::sim::cupti::kMaxCallbackId + 1] = {};
};

namespace gpubusy::sim::cupti {

inline constexpr int kMaxSubscribers = 4;

class Subscribers {
 public:
  // `old_name`: of who has the subscription; at least `old_size` bytes, or nullptr.
  CUptiResult subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback,
                        void* user_data, const char* name, char* old_name, std::size_t old_size);
  CUptiResult unsubscribe(CUpti_SubscriberHandle handle);
  void unsubscribe_all();
  bool is_subscriber(CUpti_SubscriberHandle handle) const noexcept;
  // Somebody wants to be called back.
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
