// SPDX-License-Identifier: Apache-2.0
//
// What the simulator's parameters make of CUPTI. Each suite runs in a process with its parameters
// (CMakeLists.txt).
#include <algorithm>

#include "cupti_client.hpp"

GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_10ms);

namespace gpubusy::sim::test {
namespace {

using CuptiForbiddenSubscription = CuptiTest;
using CuptiForbiddenActivity = CuptiTest;
using CuptiHeldByATool = CuptiTest;
using CuptiManySubscribers = CuptiTest;
using CuptiWrongClock = CuptiTest;
using CuptiUnfinished = CuptiTest;
using CuptiNestedDriver = CuptiTest;
using CuptiOldLaunches = CuptiTest;

void CUPTIAPI count_callback(void* user_data, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {
  ++*static_cast<int*>(user_data);
}

TEST_F(CuptiForbiddenSubscription, IsRefused) {
  CUpti_SubscriberHandle subscriber = nullptr;
  int calls = 0;
  EXPECT_EQ(cuptiSubscribe(&subscriber, count_callback, &calls),
            CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(cuptiGetLastError(), CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(subscriber, nullptr);
}

TEST_F(CuptiForbiddenActivity, IsRefused) {
  ASSERT_CUPTI(cuptiActivityRegisterCallbacks(Client::request, Client::complete));
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
            CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  launch(sim_1ms, nullptr);
  Client::synchronise_and_flush();
  EXPECT_TRUE(Client::delivered.empty());
}

TEST_F(CuptiHeldByATool, NamesTheTool) {
  CUpti_SubscriberHandle subscriber = nullptr;
  char old_name[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = {};
  CUpti_SubscriberParams params{};
  params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  params.oldSubscriberName = old_name;
  params.oldSubscriberSize = sizeof old_name;
  int calls = 0;
  EXPECT_EQ(cuptiSubscribe_v2(&subscriber, count_callback, &calls, &params),
            CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_STREQ(old_name, "Some Tool");
}

TEST_F(CuptiManySubscribers, EachIsTold) {
  CUpti_SubscriberHandle first = nullptr, second = nullptr, third = nullptr;
  static int first_calls = 0, second_calls = 0;  // counted until the test is torn down
  ASSERT_CUPTI(cuptiSubscribe(&first, count_callback, &first_calls));
  ASSERT_CUPTI(cuptiSubscribe(&second, count_callback, &second_calls));
  EXPECT_EQ(cuptiSubscribe(&third, count_callback, nullptr),
            CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  ASSERT_CUPTI(cuptiEnableDomain(1, first, CUPTI_CB_DOMAIN_RUNTIME_API));
  ASSERT_CUPTI(cuptiEnableDomain(1, second, CUPTI_CB_DOMAIN_DRIVER_API));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(first_calls, 2);
  EXPECT_EQ(second_calls, 2);
}

// 100 ms late, 1 % fast, and 50 ms more from the first half second on.
TEST_F(CuptiWrongClock, OffsetDriftAndJump) {
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME});
  std::uint64_t start = 0;
  ASSERT_CUPTI(cuptiGetTimestamp(&start));
  launch(sim_10ms, nullptr);
  ASSERT_CUDA(cudaDeviceSynchronize());
  const timespec pause{0, 600'000'000};
  nanosleep(&pause, nullptr);
  launch(sim_10ms, nullptr);
  Client::synchronise_and_flush();
  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 2u);
  const auto calls = by_correlation(Client::runtime_calls());
  const auto error_ms = [&](const CUpti_ActivityKernel10& kernel) {
    const auto& call = calls.at(kernel.correlationId);
    return (static_cast<double>(kernel.start) - static_cast<double>(call.start)) / 1e6;
  };
  EXPECT_NEAR(error_ms(kernels[0]), -100, 5);
  const double elapsed_ms =
      (static_cast<double>(calls.at(kernels[1].correlationId).start) - static_cast<double>(start)) /
      1e6;
  EXPECT_NEAR(error_ms(kernels[1]), -100 + 0.01 * elapsed_ms - 50, 5);
  EXPECT_NEAR(static_cast<double>(kernels[0].end - kernels[0].start) / 1e6, 10.1, 0.01);
}

TEST_F(CuptiUnfinished, ComeWithoutTimesIfForced) {
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  launch(sim_10ms, nullptr);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_TRUE(Client::kernels().empty());
  ASSERT_CUPTI(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  ASSERT_EQ(Client::kernels().size(), 1u);
  EXPECT_EQ(Client::kernels()[0].start, 0u);
  EXPECT_EQ(Client::kernels()[0].end, 0u);
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::kernels().size(), 1u);
}

TEST_F(CuptiNestedDriver, HasTheSameId) {
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER});
  launch(sim_1ms, nullptr);
  Client::synchronise_and_flush();
  const auto runtime = by_correlation(Client::runtime_calls());
  const auto driver = Client::driver_calls();
  const auto inner = std::find_if(driver.begin(), driver.end(), [](const auto& call) {
    return name_of(call) == "cuLaunchKernel";
  });
  ASSERT_NE(inner, driver.end());
  const auto& outer = runtime.at(inner->correlationId);
  EXPECT_EQ(name_of(outer), "cudaLaunchKernel_v7000");
  EXPECT_LE(outer.start, inner->start);
  EXPECT_LE(inner->end, outer.end);
}

TEST_F(CuptiOldLaunches, HaveTheOldName) {
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  cudaKernel_t kernel = nullptr;
  ASSERT_CUDA(__cudaGetKernel(&kernel, sim_1ms.stub()));
  ASSERT_CUDA(__cudaLaunchKernel(kernel, kSmallGrid, kBlock, nullptr, 0, nullptr));
  Client::synchronise_and_flush();
  ASSERT_FALSE(Client::runtime_calls().empty());
  EXPECT_EQ(name_of(Client::runtime_calls()[0]), "cudaLaunchKernel_v7000");
}

}  // namespace
}  // namespace gpubusy::sim::test
