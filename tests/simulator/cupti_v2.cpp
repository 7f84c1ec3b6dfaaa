// SPDX-License-Identifier: Apache-2.0
//
// Several subscribers, each with its own activities, as CUPTI from 13.3 on has them. Each suite
// runs with its parameters (cupti_tests.cmake).
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "cupti_v2_client.hpp"

GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_100us);

namespace gpubusy::sim::test {
namespace {

using A = V2Client<0>;
using B = V2Client<1>;
using C = V2Client<2>;

constexpr auto kKernel = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
constexpr auto kConflict = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;

class CuptiV2 : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    Client::reset();
    A::reset();
    B::reset();
    C::reset();
  }
  void TearDown() override {
    DeviceTest::TearDown();
    for (const auto handle : {A::handle, B::handle, C::handle}) {
      if (handle == nullptr) continue;
      EXPECT_CUPTI(cuptiUnsubscribe(handle));
    }
    EXPECT_CUPTI(cuptiFinalize());
  }
};
using CuptiV2Forbidden = CuptiV2;
using CuptiV2WrongClock = CuptiV2;
using CuptiV2Missing = CuptiTest;

void synchronise_and_flush() {
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_CUPTI(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
}

void launches(int count) {
  for (int i = 0; i < count; ++i) launch(sim_100us, nullptr, kSmallGrid);
}

template <class Records>
std::multiset<std::uint32_t> correlations(const Records& records) {
  std::multiset<std::uint32_t> found;
  for (const auto& record : records) found.insert(record.correlationId);
  return found;
}

template <class Records>
void expect_each_once(const Records& records) {
  const auto ids = correlations(records);
  EXPECT_EQ(std::set<std::uint32_t>(ids.begin(), ids.end()).size(), ids.size());
}

// ---- all records, once

struct Step {
  char client;  // 'a', 'b'
  bool begins;
};

TEST_F(CuptiV2, EachGetsAllOfItsOwnWhoeverComesAndGoes) {
  const std::vector<std::vector<Step>> orders = {
      {{'a', true}, {'b', true}, {'a', false}, {'b', false}},
      {{'a', true}, {'b', true}, {'b', false}, {'a', false}},
      {{'a', true}, {'a', false}, {'b', true}, {'b', false}},
      {{'b', true}, {'a', true}, {'a', false}, {'b', false}},
  };
  for (const auto& order : orders) {
    A::reset();
    B::reset();
    A::subscribe("a");
    B::subscribe("b");
    std::size_t expected_a = 0, expected_b = 0, batch = 3;
    bool a = false, b = false;
    launches(2);
    for (const Step& step : order) {
      const auto kinds = {kKernel, CUPTI_ACTIVITY_KIND_RUNTIME};
      (step.client == 'a' ? a : b) = step.begins;
      if (step.client == 'a') {
        step.begins ? A::enable(kinds) : A::disable(kinds);
      } else {
        step.begins ? B::enable(kinds) : B::disable(kinds);
      }
      launches(static_cast<int>(batch));
      if (a) expected_a += batch;
      if (b) expected_b += batch;
      batch += 2;
    }
    synchronise_and_flush();
    EXPECT_EQ(A::kernels().size(), expected_a);
    EXPECT_EQ(B::kernels().size(), expected_b);
    expect_each_once(A::kernels());
    expect_each_once(B::kernels());
    // What both saw is the same.
    std::map<std::uint32_t, CUpti_ActivityKernel10> of_a;
    for (const auto& kernel : A::kernels()) of_a[kernel.correlationId] = kernel;
    for (const auto& kernel : B::kernels()) {
      const auto same = of_a.find(kernel.correlationId);
      if (same == of_a.end()) continue;
      EXPECT_NEAR(static_cast<double>(static_cast<std::int64_t>(kernel.start - same->second.start)),
                  0, 2000);
      EXPECT_EQ(kernel.end - kernel.start, same->second.end - same->second.start);
      EXPECT_EQ(kernel.gridId, same->second.gridId);
      EXPECT_STREQ(kernel.name, same->second.name);
    }
    // Each kernel's launch is there too.
    const auto calls_a = correlations(A::runtime_calls());
    for (const auto id : correlations(A::kernels())) EXPECT_EQ(calls_a.count(id), 1u);
    const auto calls_b = correlations(B::runtime_calls());
    for (const auto id : correlations(B::kernels())) EXPECT_EQ(calls_b.count(id), 1u);
    A::unsubscribe();
    B::unsubscribe();
  }
}

TEST_F(CuptiV2, KindsAreOfOne) {
  A::subscribe();
  B::subscribe();
  A::enable({kKernel});
  B::enable({CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_RUNTIME});
  void* memory = nullptr;
  ASSERT_CUDA(cudaMalloc(&memory, 1024));
  char data[1024] = {};
  ASSERT_CUDA(cudaMemcpy(memory, data, sizeof data, cudaMemcpyHostToDevice));
  launch(sim_100us, nullptr);
  synchronise_and_flush();
  ASSERT_CUDA(cudaFree(memory));
  EXPECT_EQ(A::kernels().size(), 1u);
  EXPECT_TRUE(A::copies().empty());
  EXPECT_TRUE(A::runtime_calls().empty());
  EXPECT_TRUE(B::kernels().empty());
  EXPECT_EQ(B::copies().size(), 1u);
  EXPECT_GE(B::runtime_calls().size(), 3u);

  CUpti_ActivityKind kinds[4] = {};
  std::uint32_t size = sizeof kinds, count = 0;
  ASSERT_CUPTI(api().cuptiActivityGetEnabledKinds(A::handle, kinds, &size, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(kinds[0], kKernel);
  ASSERT_CUPTI(api().cuptiActivityGetEnabledKinds(nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(api().cuptiActivityGetEnabledKinds(A::handle, kinds, nullptr, &count),
            CUPTI_ERROR_INVALID_PARAMETER);
}

TEST_F(CuptiV2, ExternalIdsAreOfOne) {
  const auto custom = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
  const auto kinds = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME,
                      kKernel};
  A::subscribe();
  B::subscribe();
  C::subscribe();
  A::enable(kinds);
  B::enable(kinds);
  C::enable(kinds);
  ASSERT_CUPTI(api().cuptiActivityPushExternalCorrelationId_v2(A::handle, custom, 11));
  ASSERT_CUPTI(api().cuptiActivityPushExternalCorrelationId_v2(B::handle, custom, 22));
  launch(sim_100us, nullptr);
  std::uint64_t last = 0;
  ASSERT_CUPTI(api().cuptiActivityPopExternalCorrelationId_v2(A::handle, custom, &last));
  EXPECT_EQ(last, 11u);
  EXPECT_EQ(api().cuptiActivityPopExternalCorrelationId_v2(A::handle, custom, &last),
            CUPTI_ERROR_QUEUE_EMPTY);
  EXPECT_EQ(api().cuptiActivityPopExternalCorrelationId_v2(C::handle, custom, &last),
            CUPTI_ERROR_QUEUE_EMPTY);
  launch(sim_100us, nullptr);
  ASSERT_CUPTI(api().cuptiActivityPopExternalCorrelationId_v2(B::handle, custom, &last));
  EXPECT_EQ(last, 22u);
  synchronise_and_flush();

  using Pair = std::pair<std::uint32_t, std::uint64_t>;
  const auto kernels = A::kernels();
  ASSERT_EQ(kernels.size(), 2u);
  const auto ids = [](const auto& records) {
    std::vector<Pair> found;
    for (const auto& r : records) found.emplace_back(r.correlationId, r.externalId);
    return found;
  };
  using Record = CUpti_ActivityExternalCorrelation;
  constexpr auto kKind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  EXPECT_EQ(ids(A::records<Record>(kKind)), (std::vector<Pair>{{kernels[0].correlationId, 11}}));
  EXPECT_EQ(ids(B::records<Record>(kKind)),
            (std::vector<Pair>{{kernels[0].correlationId, 22}, {kernels[1].correlationId, 22}}));
  EXPECT_TRUE(C::records<Record>(kKind).empty());
}

struct CallsAtItsEnd {
  bool used = false;
  ~CallsAtItsEnd() { EXPECT_CUDA(cudaGetLastError()); }
};
thread_local CallsAtItsEnd t_calls_at_its_end;

// Calls go on when the ids of a thread, which were there later than other things, are gone.
TEST_F(CuptiV2, ExternalIdsEndWithTheirThread) {
  A::subscribe();
  A::enable({CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME});
  std::thread([] {
    t_calls_at_its_end.used = true;
    EXPECT_CUPTI(api().cuptiActivityPushExternalCorrelationId_v2(
        A::handle, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 11));
    EXPECT_CUDA(cudaGetLastError());
  }).join();
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(A::runtime_calls().size(), 2u);
  EXPECT_EQ(A::records<CUpti_ActivityExternalCorrelation>(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)
                .size(),
            1u);
}

// ---- clocks

constexpr std::uint64_t kAheadNs = 3'600'000'000'000;
std::uint64_t CUPTIAPI clock_an_hour_ahead() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec) + kAheadNs;
}

TEST_F(CuptiV2, ClocksAreOfOne) {
  A::subscribe();
  B::subscribe();
  CUpti_TimestampCallbackFunc clock = clock_an_hour_ahead;
  std::size_t size = sizeof clock;
  const auto attribute = static_cast<CUpti_ActivityAttribute>(v2::kTimestampCallback);
  ASSERT_CUPTI(api().cuptiActivitySetAttribute_v2(A::handle, attribute, &size, &clock));
  clock = nullptr;
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(A::handle, attribute, &size, &clock));
  EXPECT_EQ(clock, clock_an_hour_ahead);
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(B::handle, attribute, &size, &clock));
  EXPECT_EQ(clock, nullptr);
  std::uint64_t of_a = 0, of_b = 0;
  ASSERT_CUPTI(api().cuptiGetTimestamp_v2(A::handle, &of_a));
  ASSERT_CUPTI(api().cuptiGetTimestamp_v2(B::handle, &of_b));
  EXPECT_NEAR(static_cast<double>(of_a) - static_cast<double>(of_b), static_cast<double>(kAheadNs),
              1e7);

  A::enable({kKernel, CUPTI_ACTIVITY_KIND_RUNTIME});
  B::enable({kKernel, CUPTI_ACTIVITY_KIND_RUNTIME});
  for (int i = 0; i < 5; ++i) launch(sim_1ms, nullptr);
  synchronise_and_flush();
  const auto kernels_a = A::kernels(), kernels_b = B::kernels();
  ASSERT_EQ(kernels_a.size(), 5u);
  ASSERT_EQ(kernels_b.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(static_cast<double>(kernels_a[i].start - kernels_b[i].start - kAheadNs + 20'000),
                20'000, 20'000);
  }
  const auto calls_a = by_correlation(A::runtime_calls());
  const auto calls_b = by_correlation(B::runtime_calls());
  for (const auto& kernel : kernels_a) {
    EXPECT_NEAR(static_cast<double>(calls_a.at(kernel.correlationId).start) -
                    static_cast<double>(calls_b.at(kernel.correlationId).start),
                static_cast<double>(kAheadNs), 1e6);
  }
}

// The device's clock is wrong alike for all, whenever they come.
TEST_F(CuptiV2WrongClock, ForAllAlike) {
  A::subscribe();
  A::enable({kKernel});
  launch(sim_100us, nullptr);
  const timespec pause{0, 50'000'000};
  nanosleep(&pause, nullptr);
  B::subscribe();
  B::enable({kKernel});
  launch(sim_100us, nullptr);
  synchronise_and_flush();
  ASSERT_EQ(A::kernels().size(), 2u);
  ASSERT_EQ(B::kernels().size(), 1u);
  EXPECT_NEAR(
      static_cast<double>(A::kernels()[1].start) - static_cast<double>(B::kernels()[0].start), 0,
      20'000);
}

// ---- buffers

TEST_F(CuptiV2, BuffersNeverCross) {
  A::max_records = 1;
  A::buffer_size = 1024;
  B::buffer_size = 4096;
  A::subscribe();
  B::subscribe();
  A::enable({kKernel, CUPTI_ACTIVITY_KIND_RUNTIME});
  B::enable({kKernel});
  for (int i = 0; i < 40; ++i) launch(sim_100us, nullptr);
  synchronise_and_flush();
  EXPECT_EQ(A::kernels().size(), 40u);
  EXPECT_EQ(B::kernels().size(), 40u);
  EXPECT_EQ(A::delivered.size(), 40u + A::runtime_calls().size());
  EXPECT_EQ(B::delivered.size(), 3u);  // 18 kernels each
  EXPECT_TRUE(A::given.empty());
  EXPECT_TRUE(B::given.empty());

  // Read as CUPTI says.
  std::size_t found = 0;
  for (auto& buffer : B::delivered) {
    CUpti_Activity* record = nullptr;
    while (api().cuptiActivityGetNextRecord_v2(B::handle, buffer.data(), buffer.size(), &record) ==
           CUPTI_SUCCESS) {
      ++found;
    }
  }
  EXPECT_EQ(found, 40u);
  CUpti_Activity* record = nullptr;
  EXPECT_EQ(api().cuptiActivityGetNextRecord_v2(nullptr, B::delivered[0].data(), 8, &record),
            CUPTI_ERROR_INVALID_PARAMETER);
}

TEST_F(CuptiV2, DropsAreOfOne) {
  A::declines = true;
  A::subscribe();
  B::subscribe();
  A::enable({kKernel});
  B::enable({kKernel});
  launches(5);
  synchronise_and_flush();
  EXPECT_TRUE(A::kernels().empty());
  EXPECT_EQ(B::kernels().size(), 5u);
  std::size_t dropped = 0;
  ASSERT_CUPTI(api().cuptiActivityGetNumDroppedRecords_v2(B::handle, nullptr, 0, &dropped));
  EXPECT_EQ(dropped, 0u);
  ASSERT_CUPTI(api().cuptiActivityGetNumDroppedRecords_v2(A::handle, nullptr, 0, &dropped));
  EXPECT_EQ(dropped, 5u);
  ASSERT_CUPTI(api().cuptiActivityGetNumDroppedRecords_v2(A::handle, nullptr, 0, &dropped));
  EXPECT_EQ(dropped, 0u);
}

TEST_F(CuptiV2, FlushPeriodIsForAll) {
  A::max_records = B::max_records = 1;
  A::subscribe();
  B::subscribe();
  A::enable({kKernel});
  B::enable({kKernel});
  ASSERT_CUPTI(cuptiActivityFlushPeriod(5));
  for (int i = 0; i < 3; ++i) launch(sim_1ms, nullptr);
  const Clock waited;
  while (waited.ms() < 5000 && (A::kernels().size() < 2 || B::kernels().size() < 2)) {
    const timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  // The last one's buffer is full only when there is another record.
  EXPECT_EQ(A::kernels().size(), 2u);
  EXPECT_EQ(B::kernels().size(), 2u);
  ASSERT_CUPTI(cuptiActivityFlushPeriod(0));
}

TEST_F(CuptiV2, WhoLeavesLeavesTheOthers) {
  A::subscribe();
  B::subscribe();
  A::enable({kKernel});
  B::enable({kKernel});
  launches(3);
  synchronise_and_flush();
  const CUpti_SubscriberHandle gone = B::handle;
  B::unsubscribe();
  launches(4);
  synchronise_and_flush();
  EXPECT_EQ(A::kernels().size(), 7u);
  EXPECT_EQ(B::kernels().size(), 3u);
  std::uint64_t number = 0;
  CUpti_Activity* record = nullptr;
  EXPECT_EQ(api().cuptiActivityEnable_v2(gone, kKernel, nullptr), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(api().cuptiGetTimestamp_v2(gone, &number), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(api().cuptiActivityGetNextRecord_v2(gone, B::delivered[0].data(),
                                                B::delivered[0].size(), &record),
            CUPTI_ERROR_INVALID_PARAMETER);
  // Somebody new takes nothing over.
  B::subscribe();
  launches(1);
  synchronise_and_flush();
  EXPECT_EQ(B::kernels().size(), 3u);
  EXPECT_EQ(A::kernels().size(), 8u);
}

TEST_F(CuptiV2, CallbacksAreOfOne) {
  static int calls_a, calls_b;  // counted until the test is torn down
  calls_a = calls_b = 0;
  const auto count = [](void* user_data, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {
    ++*static_cast<int*>(user_data);
  };
  ASSERT_CUPTI(subscribe_v2(&A::handle, "a", true, nullptr, count, &calls_a));
  ASSERT_CUPTI(subscribe_v2(&B::handle, "b", true, nullptr, count, &calls_b));
  ASSERT_CUPTI(cuptiEnableDomain(1, A::handle, CUPTI_CB_DOMAIN_RUNTIME_API));
  ASSERT_CUPTI(cuptiEnableCallback(1, B::handle, CUPTI_CB_DOMAIN_DRIVER_API,
                                   CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(calls_a, 2);
  EXPECT_EQ(calls_b, 0);
  CUpti_CallbackId ids[2] = {};
  std::uint32_t size = sizeof ids, found = 0;
  ASSERT_CUPTI(
      api().cuptiGetEnabledCallbacks(B::handle, CUPTI_CB_DOMAIN_DRIVER_API, ids, &size, &found));
  EXPECT_EQ(found, 1u);
  EXPECT_EQ(ids[0], static_cast<CUpti_CallbackId>(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
}

TEST_F(CuptiV2, SomeCallsOnly) {
  constexpr auto kRuntime = CUPTI_ACTIVITY_KIND_RUNTIME;
  A::subscribe();
  B::subscribe();
  C::subscribe();
  CUpti_CallbackId listed[] = {CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000};
  v2::CallbackIdOptions ids{sizeof ids, listed, 1, 1};
  v2::ApiOptions options{sizeof options, &ids};
  v2::ActivityConfig config{sizeof config, {}, &options};
  ASSERT_CUPTI(api().cuptiActivityEnable_v2(A::handle, kRuntime, &config));
  ids.allow = 0;
  ASSERT_CUPTI(api().cuptiActivityEnable_v2(B::handle, kRuntime, &config));
  ASSERT_CUPTI(api().cuptiActivityEnableRuntimeApi_v2(C::handle, listed[0], 1));
  launch(sim_100us, nullptr);
  synchronise_and_flush();
  ASSERT_EQ(A::runtime_calls().size(), 1u);
  EXPECT_EQ(name_of(A::runtime_calls()[0]), "cudaLaunchKernel_v7000");
  ASSERT_EQ(B::runtime_calls().size(), 1u);
  EXPECT_EQ(name_of(B::runtime_calls()[0]), "cudaDeviceSynchronize_v3020");
  EXPECT_EQ(C::runtime_calls().size(), 1u);
}

// ---- who may be there together

TEST_F(CuptiV2, OldAndNewFunctionsDoNotMix) {
  char old_name[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = {};
  A::subscribe("the first");
  CUpti_SubscriberHandle other = nullptr;
  EXPECT_EQ(cuptiSubscribe(&other, ignore_callback, nullptr), kConflict);
  EXPECT_EQ(subscribe_v2(&other, "alone", false, old_name), kConflict);
  EXPECT_STREQ(old_name, "CUPTI for the first");
  // Who does not know the field does not allow others.
  v2::SubscriberParams params{};
  params.struct_size = v2::kOldParamsSize;
  params.allow_multiple = 1;
  EXPECT_EQ(cuptiSubscribe_v2(&other, ignore_callback, nullptr,
                              reinterpret_cast<CUpti_SubscriberParams*>(&params)),
            kConflict);
  old_name[0] = '\0';
  ASSERT_CUPTI(subscribe_v2(&B::handle, "the second", true, old_name));
  EXPECT_STREQ(old_name, "CUPTI for the first");

  std::uint64_t number = 0;
  std::size_t size = sizeof number;
  EXPECT_EQ(cuptiActivityEnable(kKernel), kConflict);
  EXPECT_EQ(cuptiActivityDisable(kKernel), kConflict);
  EXPECT_EQ(cuptiActivityRegisterCallbacks(Client::request, Client::complete), kConflict);
  EXPECT_EQ(cuptiGetTimestamp(&number), kConflict);
  EXPECT_EQ(cuptiActivityRegisterTimestampCallback(clock_an_hour_ahead), kConflict);
  EXPECT_EQ(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 1),
            kConflict);
  EXPECT_EQ(cuptiActivityGetNumDroppedRecords(nullptr, 0, &size), kConflict);
  EXPECT_EQ(cuptiActivityGetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size, &number),
            kConflict);
  EXPECT_EQ(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM), kConflict);
  EXPECT_EQ(cuptiActivityEnableLatencyTimestamps(1), kConflict);

  // Nothing of it reached anybody.
  A::enable({kKernel});
  launches(2);
  synchronise_and_flush();
  EXPECT_EQ(A::kernels().size(), 2u);
  EXPECT_TRUE(Client::delivered.empty());
  A::unsubscribe();
  B::unsubscribe();
  // With the last of them the rule is gone.
  ASSERT_CUPTI(cuptiSubscribe(&other, ignore_callback, nullptr));
  EXPECT_EQ(subscribe_v2(&A::handle, "a", true, old_name), kConflict);
  EXPECT_STREQ(old_name, "CUPTI for unknown");
  ASSERT_CUPTI(cuptiUnsubscribe(other));
}

TEST_F(CuptiV2, OldFunctionsKeepNewSubscribersOut) {
  Client::enable({kKernel});
  EXPECT_EQ(subscribe_v2(&A::handle, "a", true), kConflict);
  EXPECT_EQ(A::handle, nullptr);
  ASSERT_CUPTI(subscribe_v2(&A::handle, "a", false));
  EXPECT_EQ(api().cuptiActivityEnable_v2(A::handle, kKernel, nullptr), kConflict);
  launches(2);
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::kernels().size(), 2u);
  A::unsubscribe();
  ASSERT_CUPTI(cuptiActivityDisable(kKernel));
  EXPECT_EQ(subscribe_v2(&A::handle, "a", true), kConflict);
  ASSERT_CUPTI(cuptiFinalize());
  ASSERT_CUPTI(subscribe_v2(&A::handle, "a", true));
}

// One that allows no others, by either function, has the new functions too.
TEST_F(CuptiV2, OneAloneMayUseTheNewFunctions) {
  ASSERT_CUPTI(cuptiSubscribe(&A::handle, ignore_callback, nullptr));
  ASSERT_CUPTI(api().cuptiActivityRegisterCallbacks_v2(A::handle, A::request, A::complete));
  A::enable({kKernel});
  EXPECT_EQ(subscribe_v2(&B::handle, "b", true), kConflict);
  EXPECT_EQ(cuptiActivityEnable(kKernel), kConflict);
  launches(2);
  synchronise_and_flush();
  EXPECT_EQ(A::kernels().size(), 2u);
}

TEST_F(CuptiV2, AsManyAsThereIsRoom) {
  std::vector<CUpti_SubscriberHandle> handles(8);
  for (auto& handle : handles) ASSERT_CUPTI(subscribe_v2(&handle, "one of many", true));
  CUpti_SubscriberHandle other = nullptr;
  EXPECT_EQ(subscribe_v2(&other, "one more", true), kConflict);
  // It is not one's to end for all.
  ASSERT_CUPTI(cuptiFinalize());
  for (const auto handle : handles) EXPECT_CUPTI(cuptiUnsubscribe(handle));
}

TEST_F(CuptiV2, Attributes) {
  const auto state = static_cast<CUpti_ActivityAttribute>(v2::kMultipleSubscriberState);
  const auto user_defined = static_cast<CUpti_ActivityAttribute>(v2::kUserDefinedRecords);
  const auto launch_attributes = static_cast<CUpti_ActivityAttribute>(v2::kLaunchAttributes);
  std::uint8_t flag = 0;
  std::uint8_t running = 1;
  std::size_t size = 1;
  ASSERT_CUPTI(api().cuptiIsTracingSessionRunning(&running));
  EXPECT_EQ(running, 0);
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(nullptr, state, &size, &flag));
  EXPECT_EQ(flag, 2);
  ASSERT_CUPTI(subscribe_v2(&A::handle, "alone", false));
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(A::handle, state, &size, &flag));
  EXPECT_EQ(flag, 0);
  A::unsubscribe();
  A::subscribe();
  B::subscribe();
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(nullptr, state, &size, &flag));
  EXPECT_EQ(flag, 1);
  ASSERT_CUPTI(api().cuptiIsTracingSessionRunning(&running));
  EXPECT_EQ(running, 1);
  EXPECT_EQ(api().cuptiActivitySetAttribute_v2(A::handle, state, &size, &flag),
            CUPTI_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(api().cuptiActivitySetAttribute_v2(A::handle, user_defined, &size, &flag),
            CUPTI_ERROR_NOT_SUPPORTED);
  ASSERT_CUPTI(api().cuptiActivitySetAttribute_v2(A::handle, launch_attributes, &size, &flag));
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(B::handle, launch_attributes, &size, &flag));
  EXPECT_EQ(flag, 0);
  ASSERT_CUPTI(api().cuptiActivityGetAttribute_v2(A::handle, launch_attributes, &size, &flag));
  EXPECT_EQ(flag, 1);
  EXPECT_EQ(api().cuptiActivityGetAttribute_v2(
                A::handle, static_cast<CUpti_ActivityAttribute>(v2::kAttributes), &size, &flag),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(api().cuptiActivityGetAttribute_v2(
                A::handle, static_cast<CUpti_ActivityAttribute>(v2::kThreadIdType), &size, &flag),
            CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT);

  int field = 0;
  v2::ActivityConfig config{sizeof config, {sizeof config.selection, 1, &field}, nullptr};
  EXPECT_EQ(api().cuptiActivityEnable_v2(A::handle, kKernel, &config), CUPTI_ERROR_NOT_SUPPORTED);
  config.struct_size = 0;
  EXPECT_EQ(api().cuptiActivityEnable_v2(A::handle, kKernel, &config),
            CUPTI_ERROR_INVALID_PARAMETER);
  std::size_t record_size = 0;
  ASSERT_CUPTI(api().cuptiActivityGetStructSize(kKernel, 0, &record_size));
  EXPECT_EQ(record_size, sizeof(CUpti_ActivityKernel10));
  EXPECT_EQ(api().cuptiActivityGetStructSize(kKernel, 120000, &record_size),
            CUPTI_ERROR_NOT_SUPPORTED);
  std::uint32_t version = 0;
  EXPECT_CUPTI(cuptiGetVersion(&version));
  EXPECT_EQ(version, v2::kApiVersion);
}

TEST_F(CuptiV2, ThreadIdsAreOfOne) {
  A::subscribe();
  B::subscribe();
  auto type = CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM;
  std::size_t size = sizeof type;
  ASSERT_CUPTI(api().cuptiActivitySetAttribute_v2(
      A::handle, static_cast<CUpti_ActivityAttribute>(v2::kThreadIdType), &size, &type));
  A::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  B::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  synchronise_and_flush();
  ASSERT_EQ(A::runtime_calls().size(), 1u);
  ASSERT_EQ(B::runtime_calls().size(), 1u);
  EXPECT_EQ(A::runtime_calls()[0].threadId, static_cast<std::uint32_t>(gettid()));
  EXPECT_EQ(B::runtime_calls()[0].threadId, static_cast<std::uint32_t>(pthread_self()));
}

TEST_F(CuptiV2, EventIdsAreTheSameForAll) {
  Event early, late;
  A::subscribe();
  A::enable({CUPTI_ACTIVITY_KIND_CUDA_EVENT});
  early.record(nullptr);
  B::subscribe();
  B::enable({CUPTI_ACTIVITY_KIND_CUDA_EVENT});
  late.record(nullptr);
  early.record(nullptr);
  synchronise_and_flush();
  constexpr auto kKind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  const auto of_a = A::records<CUpti_ActivityCudaEvent2>(kKind);
  const auto of_b = B::records<CUpti_ActivityCudaEvent2>(kKind);
  ASSERT_EQ(of_a.size(), 3u);
  ASSERT_EQ(of_b.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(of_a[i + 1].eventId, of_b[i].eventId);
    EXPECT_EQ(of_a[i + 1].cudaEventSyncId, of_b[i].cudaEventSyncId);
  }
  EXPECT_EQ(of_a[0].eventId, of_a[2].eventId);
}

// ---- processes and threads

TEST_F(CuptiV2, AForkedChildStartsWithNobody) {
  A::subscribe();
  B::subscribe();
  A::enable({kKernel});
  B::enable({kKernel});
  launches(1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::uint8_t running = 1;
    CUpti_SubscriberHandle own = nullptr;
    const bool good = api().cuptiIsTracingSessionRunning(&running) == CUPTI_SUCCESS &&
                      running == 0 &&
                      api().cuptiActivityEnable_v2(A::handle, kKernel, nullptr) ==
                          CUPTI_ERROR_INVALID_PARAMETER &&
                      subscribe_v2(&own, "of the child", true) == CUPTI_SUCCESS &&
                      api().cuptiActivityEnable_v2(own, kKernel, nullptr) == CUPTI_SUCCESS &&
                      cuptiUnsubscribe(own) == CUPTI_SUCCESS;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  launches(1);
  synchronise_and_flush();
  EXPECT_EQ(A::kernels().size(), 2u);
  EXPECT_EQ(B::kernels().size(), 2u);
}

TEST_F(CuptiV2, ThreadsAndComingAndGoing) {
  constexpr int kThreads = 4, kLaunches = 300;
  A::max_records = 7;
  A::subscribe();
  B::subscribe();
  A::enable({kKernel, CUPTI_ACTIVITY_KIND_RUNTIME});
  B::enable({kKernel});
  std::atomic<bool> done{false};
  std::thread visitor([&] {
    while (!done.load()) {
      C::subscribe();
      C::enable({kKernel, CUPTI_ACTIVITY_KIND_RUNTIME});
      EXPECT_CUPTI(cuptiActivityFlushAll(0));
      C::unsubscribe();
    }
  });
  std::vector<std::thread> workers;
  for (int i = 0; i < kThreads; ++i) {
    workers.emplace_back([] {
      EXPECT_CUDA(cudaSetDevice(0));
      const cudaStream_t stream = new_stream();
      for (int n = 0; n < kLaunches; ++n) launch(sim_100us, stream, kSmallGrid);
      EXPECT_CUDA(cudaStreamSynchronize(stream));
      EXPECT_CUDA(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& worker : workers) worker.join();
  done.store(true);
  visitor.join();
  synchronise_and_flush();
  EXPECT_EQ(A::kernels().size(), static_cast<std::size_t>(kThreads * kLaunches));
  EXPECT_EQ(B::kernels().size(), static_cast<std::size_t>(kThreads * kLaunches));
  expect_each_once(A::kernels());
  EXPECT_EQ(correlations(A::kernels()), correlations(B::kernels()));
  // Those of the visitor are each there once at most.
  expect_each_once(C::kernels());
}

TEST_F(CuptiV2Forbidden, IsRefused) {
  A::subscribe();
  EXPECT_EQ(api().cuptiActivityEnable_v2(A::handle, kKernel, nullptr),
            CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  launches(1);
  synchronise_and_flush();
  EXPECT_TRUE(A::delivered.empty());
}

// ---- without it

TEST_F(CuptiV2Missing, HasNoSuchFunctions) {
#define EXPECT_MISSING(name, parameters, arguments) EXPECT_EQ(api().name, nullptr) << #name;
  GPUBUSY_SIM_CUPTI_V2_FUNCTIONS(EXPECT_MISSING)
  void* library = dlopen("libcupti.so.13", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  EXPECT_EQ(dlsym(library, "cuptiActivityEnable_v2"), nullptr);
  EXPECT_NE(dlsym(library, "cuptiSubscribe_v2"), nullptr);
  dlclose(library);
  // And does not look at a field that it does not know.
  CUpti_SubscriberHandle first = nullptr, second = nullptr;
  ASSERT_CUPTI(subscribe_v2(&first, "a", true));
  EXPECT_EQ(subscribe_v2(&second, "b", true), kConflict);
  Client::enable({kKernel});
  launches(1);
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::kernels().size(), 1u);
  ASSERT_CUPTI(cuptiUnsubscribe(first));
}

}  // namespace
}  // namespace gpubusy::sim::test
