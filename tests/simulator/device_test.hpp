// SPDX-License-Identifier: Apache-2.0
//
// Helpers for tests that drive the simulated device through the public interfaces alone. Kernel
// times come from kernel_times.txt. Host delays do not matter where work is queued behind a kernel
// that is still running, so times are exact there.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>

#include "simulator/fake_kernel.hpp"

#define ASSERT_CUDA(call) ASSERT_EQ(static_cast<int>(call), 0) << #call
#define EXPECT_CUDA(call) EXPECT_EQ(static_cast<int>(call), 0) << #call

namespace gpubusy::sim::test {

inline constexpr dim3 kSmallGrid{1, 1, 1};
inline constexpr dim3 kFullGrid{132 * 8, 1, 1};  // one wave of blocks of 256 threads
inline constexpr dim3 kBlock{256, 1, 1};

inline void launch(const FakeKernel& kernel, cudaStream_t stream, dim3 grid = kFullGrid) {
  EXPECT_CUDA(cudaLaunchKernel(kernel.stub(), grid, kBlock, nullptr, 0, stream));
}

inline cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

class Event {
 public:
  Event() { EXPECT_CUDA(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { EXPECT_CUDA(cudaEventRecord(event_, stream)); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

inline double ms_between(const Event& start, const Event& end) {
  float ms = -1;
  EXPECT_CUDA(cudaEventSynchronize(start));
  EXPECT_CUDA(cudaEventSynchronize(end));
  EXPECT_CUDA(cudaEventElapsedTime(&ms, start, end));
  return ms;
}

class Clock {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_CUDA(cudaFree(nullptr)); }
  void TearDown() override {
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUDA(cudaGetLastError());
  }
};

}  // namespace gpubusy::sim::test
