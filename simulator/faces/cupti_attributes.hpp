// SPDX-License-Identifier: Apache-2.0
//
// Activity attributes that are kept for whoever asks; none changes what is simulated. Thread-safe.
#pragma once

#include <mutex>

#include "simulator/faces/cupti_v2.hpp"

namespace gpubusy::sim::cupti {

class Attributes {
 public:
  // As cuptiActivitySetAttribute and cuptiActivityGetAttribute.
  CUptiResult set(int attribute, std::size_t* size, const void* value);
  CUptiResult get(int attribute, std::size_t* size, void* value);

 private:
  struct Kept {
    std::size_t size;  // 0: not kept
    std::uint64_t value;
  };
  Kept* find(int attribute);

  std::mutex lock_;
  Kept kept_[v2::kAttributes] = {
      {sizeof(std::size_t), 3200 * 1024},  // DEVICE_BUFFER_SIZE
      {sizeof(std::size_t), 8 << 20},      // DEVICE_BUFFER_SIZE_CDP
      {sizeof(std::size_t), 250},          // DEVICE_BUFFER_POOL_LIMIT
      {sizeof(std::size_t), 25000},        // PROFILING_SEMAPHORE_POOL_SIZE
      {sizeof(std::size_t), 250},          // PROFILING_SEMAPHORE_POOL_LIMIT
      {sizeof(std::uint8_t), 0},           // ZEROED_OUT_ACTIVITY_BUFFER
      {sizeof(std::size_t), 3},            // DEVICE_BUFFER_PRE_ALLOCATE_VALUE
      {sizeof(std::size_t), 3},            // PROFILING_SEMAPHORE_PRE_ALLOCATE_VALUE
      {sizeof(std::uint8_t), 0},           // MEM_ALLOCATION_TYPE_HOST_PINNED
      {sizeof(std::uint8_t), 0},           // PER_THREAD_ACTIVITY_BUFFER
      {sizeof(std::size_t), 8 << 20},      // DEVICE_BUFFER_SIZE_DEVICE_GRAPHS
      {},                                  // kUserDefinedRecords
      {},                                  // kMultipleSubscriberState
      {},                                  // kHardwareEvents
      {sizeof(std::uint8_t), 0},           // kAllocationSource
      {},                                  // kLatencyTimestamps
      {sizeof(std::uint8_t), 0},           // kAllSyncRecords
      {sizeof(std::uint8_t), 0},           // kEventDeviceTimestamps
      {sizeof(std::uint8_t), 0},           // kLaunchAttributes
      {sizeof(std::uint8_t), 0},           // kDeviceGraphs
      {},                                  // kGraphTrace
      {},                                  // kThreadIdType
      {},                                  // kTimestampCallback
      {sizeof(std::uint8_t), 0},           // kGraphicsMode
      {sizeof(std::size_t), 128},          // kHardwareEventsSize
  };
};

// Those that are the process's: the ones that CUPTI 13.0 has.
inline constexpr int kCommonAttributes = 11;
Attributes& common_attributes() noexcept;

}  // namespace gpubusy::sim::cupti
