// SPDX-License-Identifier: Apache-2.0
//
// Clients of CUPTI from 13.3 on: subscribers with activities of their own.
#pragma once

#include <dlfcn.h>

#include <set>

#include "cupti_client.hpp"
#include "simulator/faces/cupti_v2.hpp"

namespace gpubusy::sim::test {

namespace v2 = gpubusy::sim::cupti::v2;

// By name, as a client must that also runs with an older CUPTI. nullptr: it has no such function.
struct V2Api {
#define FUNCTION(name, parameters, arguments) \
  CUptiResult(*name) parameters = reinterpret_cast<decltype(name)>(dlsym(RTLD_DEFAULT, #name));
  GPUBUSY_SIM_CUPTI_V2_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
inline const V2Api& api() {
  static const V2Api api;
  return api;
}

inline void CUPTIAPI ignore_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

inline CUptiResult subscribe_v2(CUpti_SubscriberHandle* handle, const char* name, bool allow_others,
                                char* old_name = nullptr,
                                CUpti_CallbackFunc callback = ignore_callback,
                                void* user_data = nullptr) {
  v2::SubscriberParams params{};
  params.struct_size = sizeof params;
  params.name = name;
  params.old_name = old_name;
  params.old_size = old_name != nullptr ? CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN : 0;
  params.allow_multiple = allow_others ? 1 : 0;
  return cuptiSubscribe_v2(handle, callback, user_data,
                           reinterpret_cast<CUpti_SubscriberParams*>(&params));
}

// Buffer callbacks do not say whose they are, so each client has functions of its own.
template <int kNumber>
struct V2Client {
  static inline std::mutex lock;
  static inline std::set<std::uint8_t*> given;
  static inline std::vector<std::vector<std::uint8_t>> delivered;
  static inline std::size_t buffer_size, max_records;
  static inline bool declines;
  static inline CUpti_SubscriberHandle handle;

  static void reset() {
    const std::lock_guard guard(lock);
    for (std::uint8_t* buffer : given) std::free(buffer);
    given.clear();
    delivered.clear();
    buffer_size = 1 << 16;
    max_records = 0;
    declines = false;
    handle = nullptr;
  }

  static void request(std::uint8_t** buffer, std::size_t* size, std::size_t* records,
                      v2::BufferRequestInfo* info) {
    const std::lock_guard guard(lock);
    EXPECT_EQ(info->struct_size, sizeof *info);
    *buffer = nullptr;
    *size = 0;
    *records = max_records;
    if (declines) return;
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, buffer_size));
    *size = buffer_size;
    given.insert(*buffer);
  }

  static void complete(std::uint8_t* buffer, std::size_t size, std::size_t valid,
                       v2::BufferCompleteInfo* info) {
    const std::lock_guard guard(lock);
    EXPECT_EQ(info->struct_size, sizeof *info);
    EXPECT_EQ(info->layout_count, 0u);
    EXPECT_EQ(size, buffer_size);
    EXPECT_EQ(given.erase(buffer), 1u) << "a buffer of somebody else";
    delivered.emplace_back(buffer, buffer + valid);
    std::free(buffer);
  }

  static void subscribe(const char* name = "test") {
    ASSERT_CUPTI(subscribe_v2(&handle, name, true));
    ASSERT_CUPTI(api().cuptiActivityRegisterCallbacks_v2(handle, request, complete));
  }
  static void enable(std::initializer_list<CUpti_ActivityKind> kinds) {
    for (const auto kind : kinds) {
      EXPECT_CUPTI(api().cuptiActivityEnable_v2(handle, kind, nullptr));
    }
  }
  static void disable(std::initializer_list<CUpti_ActivityKind> kinds) {
    for (const auto kind : kinds) {
      EXPECT_CUPTI(api().cuptiActivityDisable_v2(handle, kind, nullptr));
    }
  }
  static void unsubscribe() {
    EXPECT_CUPTI(cuptiUnsubscribe(handle));
    handle = nullptr;
  }

  template <class T>
  static std::vector<T> records(CUpti_ActivityKind kind) {
    const std::lock_guard guard(lock);
    std::vector<T> found;
    for (auto& buffer : delivered) {
      // Walked by size: the client may have left, and then has no function for it.
      std::size_t at = 0;
      while (at < buffer.size()) {
        const auto* record = reinterpret_cast<const CUpti_Activity*>(buffer.data() + at);
        std::size_t size = 0;
        EXPECT_CUPTI(api().cuptiActivityGetStructSize(record->kind, 0, &size));
        if (size == 0) return found;
        if (record->kind == kind) {
          T copy;
          std::memcpy(&copy, record, sizeof copy);
          found.push_back(copy);
        }
        at += size;
      }
      EXPECT_EQ(at, buffer.size());
    }
    return found;
  }
  static auto kernels() {
    return records<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  }
  static auto copies() { return records<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY); }
  static auto runtime_calls() { return records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME); }
};

}  // namespace gpubusy::sim::test
