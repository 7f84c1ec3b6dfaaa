// SPDX-License-Identifier: Apache-2.0
//
// The client's buffers: when they are asked for, filled and given back, and what is lost without.
#include <thread>

#include "cupti_client.hpp"

GPUBUSY_FAKE_KERNEL(sim_100us);

namespace gpubusy::sim::test {
namespace {

using CuptiBuffers = CuptiTest;

std::size_t dropped() {
  std::size_t count = 99;
  EXPECT_CUPTI(cuptiActivityGetNumDroppedRecords(nullptr, 0, &count));
  return count;
}

void make_calls(int count) {
  int device = 0;
  for (int i = 0; i < count; ++i) EXPECT_CUDA(cudaGetDevice(&device));
}

TEST_F(CuptiBuffers, NoneWithoutARecord) {
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  make_calls(3);
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::requested, 0);
  EXPECT_TRUE(Client::delivered.empty());
}

TEST_F(CuptiBuffers, AskedForAtTheFirstRecordGivenBackWhenFull) {
  Client::buffer_size = 10 * sizeof(CUpti_ActivityAPI) + 8;
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  make_calls(1);
  EXPECT_EQ(Client::requested, 1);
  make_calls(9);
  EXPECT_TRUE(Client::delivered.empty());
  make_calls(1);
  EXPECT_EQ(Client::delivered.size(), 1u);
  EXPECT_EQ(Client::runtime_calls().size(), 10u);
  make_calls(14);
  EXPECT_EQ(Client::delivered.size(), 2u);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(Client::runtime_calls().size(), 25u);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(Client::delivered.size(), 3u);  // nothing new: nothing given back
  EXPECT_EQ(dropped(), 0u);
}

TEST_F(CuptiBuffers, NoMoreRecordsThanAllowed) {
  Client::max_records = 4;
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  make_calls(10);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  ASSERT_EQ(Client::delivered.size(), 3u);
  EXPECT_EQ(Client::delivered[0].size(), 4 * sizeof(CUpti_ActivityAPI));
  EXPECT_EQ(Client::delivered[2].size(), 2 * sizeof(CUpti_ActivityAPI));
}

TEST_F(CuptiBuffers, WithoutABufferRecordsAreCounted) {
  Client::declines = true;
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  make_calls(5);
  EXPECT_GE(Client::declined, 1);
  EXPECT_EQ(dropped(), 5u);
  EXPECT_EQ(dropped(), 0u);  // since the last time it was asked
  Client::declines = false;
  make_calls(2);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(Client::runtime_calls().size(), 2u);
  EXPECT_EQ(dropped(), 0u);
}

TEST_F(CuptiBuffers, TooSmallForOneRecord) {
  Client::buffer_size = sizeof(CUpti_ActivityAPI) - 8;
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  make_calls(3);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(dropped(), 3u);
  EXPECT_TRUE(Client::runtime_calls().empty());
}

TEST_F(CuptiBuffers, ManyThreads) {
  Client::buffer_size = 1000;
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  constexpr int kThreads = 4, kLaunches = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < kLaunches; ++k) launch(sim_100us, nullptr, kSmallGrid);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Client::synchronise_and_flush();
  const auto kernels = Client::kernels();
  EXPECT_EQ(kernels.size(), static_cast<std::size_t>(kThreads * kLaunches));
  const auto calls = by_correlation(Client::runtime_calls());
  for (const auto& kernel : kernels) EXPECT_EQ(calls.count(kernel.correlationId), 1u);
  EXPECT_EQ(dropped(), 0u);
}

TEST_F(CuptiBuffers, PeriodicFlushGivesFullBuffersOnly) {
  Client::buffer_size = 2 * sizeof(CUpti_ActivityKernel10);
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  ASSERT_CUPTI(cuptiActivityFlushPeriod(1));
  for (int i = 0; i < 5; ++i) launch(sim_100us, nullptr);
  std::size_t count = 0;
  for (int i = 0; i < 2000 && count < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    count = Client::kernels().size();  // with no call that would deliver them
  }
  EXPECT_EQ(count, 4u);
}

struct Second {
  static inline int requested, completed;
  static void CUPTIAPI request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
    ++requested;
    Client::request(buffer, size, records);
  }
  static void CUPTIAPI complete(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                                std::size_t size, std::size_t valid) {
    ++completed;
    Client::complete(context, stream, buffer, size, valid);
  }
};

TEST_F(CuptiBuffers, WhoRegistersLastGetsEverything) {
  EXPECT_EQ(cuptiActivityRegisterCallbacks(nullptr, Client::complete),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiActivityFlushAll(0), CUPTI_ERROR_INVALID_OPERATION);
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  make_calls(1);
  ASSERT_CUPTI(cuptiActivityRegisterCallbacks(Second::request, Second::complete));
  make_calls(1);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  make_calls(1);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(Client::runtime_calls().size(), 3u);
  // The first buffer is the first client's, and goes to the second.
  EXPECT_EQ(Second::completed, 2);
  EXPECT_EQ(Second::requested, 1);
}

TEST_F(CuptiBuffers, ReadingABuffer) {
  alignas(8) std::uint8_t buffer[256] = {};
  CUpti_Activity* record = nullptr;
  EXPECT_EQ(cuptiActivityGetNextRecord(nullptr, 8, &record), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, 0, &record), CUPTI_ERROR_MAX_LIMIT_REACHED);
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, 256, &record), CUPTI_ERROR_INVALID_KIND);
  buffer[0] = CUPTI_ACTIVITY_KIND_RUNTIME;
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, sizeof(CUpti_ActivityAPI) - 1, &record),
            CUPTI_ERROR_MAX_LIMIT_REACHED);
  EXPECT_CUPTI(cuptiActivityGetNextRecord(buffer, sizeof(CUpti_ActivityAPI), &record));
  EXPECT_EQ(static_cast<void*>(record), buffer);
  EXPECT_EQ(cuptiActivityGetNextRecord(buffer, sizeof(CUpti_ActivityAPI), &record),
            CUPTI_ERROR_MAX_LIMIT_REACHED);
}

TEST_F(CuptiBuffers, Attributes) {
  std::size_t size = sizeof(std::size_t), value = 1 << 20;
  const auto attribute = CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE;
  ASSERT_CUPTI(cuptiActivitySetAttribute(attribute, &size, &value));
  value = 0;
  ASSERT_CUPTI(cuptiActivityGetAttribute(attribute, &size, &value));
  EXPECT_EQ(value, 1u << 20);
  size = 4;
  EXPECT_EQ(cuptiActivityGetAttribute(attribute, &size, &value),
            CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT);
  EXPECT_EQ(cuptiActivitySetAttribute(attribute, nullptr, &value), CUPTI_ERROR_INVALID_PARAMETER);
}

}  // namespace
}  // namespace gpubusy::sim::test
