// SPDX-License-Identifier: Apache-2.0
//
// A small client of CUPTI: its buffers, and the records that it got.
#pragma once

#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device_test.hpp"

#define ASSERT_CUPTI(call) ASSERT_EQ(call, CUPTI_SUCCESS)
#define EXPECT_CUPTI(call) EXPECT_EQ(call, CUPTI_SUCCESS)

namespace gpubusy::sim::test {

// CUPTI's callbacks know nothing of who registered them, so there is one.
struct Client {
  static inline std::mutex lock;
  static inline std::vector<std::vector<std::uint8_t>> delivered;
  static inline std::size_t buffer_size, max_records;
  static inline int requested, declined;
  static inline bool declines;

  static void CUPTIAPI request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
    const std::lock_guard guard(lock);
    *buffer = nullptr;
    *size = 0;
    *records = max_records;
    ++(declines ? declined : requested);
    if (declines) return;
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, buffer_size));
    *size = buffer_size;
  }

  static void CUPTIAPI complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t size,
                                std::size_t valid) {
    const std::lock_guard guard(lock);
    EXPECT_EQ(size, buffer_size);
    EXPECT_LE(valid, size);
    delivered.emplace_back(buffer, buffer + valid);
    std::free(buffer);
  }

  static void reset() {
    const std::lock_guard guard(lock);
    delivered.clear();
    buffer_size = 1 << 16;
    max_records = 0;
    requested = declined = 0;
    declines = false;
  }

  // All records of the kind, in order of delivery.
  template <class T>
  static std::vector<T> records(CUpti_ActivityKind kind) {
    const std::lock_guard guard(lock);
    std::vector<T> found;
    for (auto& buffer : delivered) {
      CUpti_Activity* record = nullptr;
      CUptiResult result;
      while ((result = cuptiActivityGetNextRecord(buffer.data(), buffer.size(), &record)) ==
             CUPTI_SUCCESS) {
        if (record->kind != kind) continue;
        T copy;
        std::memcpy(&copy, record, sizeof copy);
        found.push_back(copy);
      }
      EXPECT_EQ(result, CUPTI_ERROR_MAX_LIMIT_REACHED);
    }
    return found;
  }
  static auto kernels() {
    return records<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  }
  static auto copies() { return records<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY); }
  static auto runtime_calls() { return records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME); }
  static auto driver_calls() { return records<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_DRIVER); }

  static void enable(std::initializer_list<CUpti_ActivityKind> kinds) {
    EXPECT_CUPTI(cuptiActivityRegisterCallbacks(request, complete));
    for (const CUpti_ActivityKind kind : kinds) EXPECT_CUPTI(cuptiActivityEnable(kind));
  }
  static void synchronise_and_flush() {
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUPTI(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  }
};

inline std::string name_of(const CUpti_ActivityAPI& call) {
  const char* name = nullptr;
  const bool runtime = call.kind == CUPTI_ACTIVITY_KIND_RUNTIME;
  EXPECT_CUPTI(cuptiGetCallbackName(
      runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API, call.cbid, &name));
  return name != nullptr ? name : "";
}

// By correlation id, which is unique for calls of one kind.
inline std::map<std::uint32_t, CUpti_ActivityAPI> by_correlation(
    const std::vector<CUpti_ActivityAPI>& calls) {
  std::map<std::uint32_t, CUpti_ActivityAPI> found;
  for (const CUpti_ActivityAPI& call : calls) {
    EXPECT_TRUE(found.emplace(call.correlationId, call).second);
  }
  return found;
}

class CuptiTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    Client::reset();
  }
  void TearDown() override {
    DeviceTest::TearDown();
    EXPECT_CUPTI(cuptiFinalize());
  }
};

}  // namespace gpubusy::sim::test
