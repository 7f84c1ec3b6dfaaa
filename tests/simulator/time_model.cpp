// SPDX-License-Identifier: Apache-2.0
//
// When work runs: order in a stream, overlap between streams, the default streams, engines, the
// bounded queue, events.
#include <atomic>
#include <thread>
#include <vector>

#include "device_test.hpp"

GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_10ms);
GPUBUSY_FAKE_KERNEL(sim_100us);
GPUBUSY_FAKE_KERNEL(sim_waves);

extern "C" {
cudaError_t cudaLaunchKernel_ptsz(const void*, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t cudaEventRecord_ptsz(cudaEvent_t, cudaStream_t);
cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t);
}

namespace gpubusy::sim::test {
namespace {

using TimeModel = DeviceTest;
constexpr double kExact = 0.002;  // ms; a float's resolution and rounding

TEST_F(TimeModel, KernelsOfAStreamRunOneAfterAnother) {
  cudaStream_t stream = new_stream();
  Event before, after;
  launch(sim_10ms, stream);
  before.record(stream);
  launch(sim_1ms, stream);
  launch(sim_1ms, stream);
  after.record(stream);
  EXPECT_NEAR(ms_between(before, after), 2, kExact);
}

TEST_F(TimeModel, TimeGrowsWithTheWavesOfBlocks) {
  cudaStream_t stream = new_stream();
  Event before, after;
  launch(sim_10ms, stream);
  before.record(stream);
  launch(sim_waves, stream, dim3(132 * 8 * 3));
  after.record(stream);
  EXPECT_NEAR(ms_between(before, after), 3, kExact);
}

TEST_F(TimeModel, SmallKernelsOfTwoStreamsOverlap) {
  cudaStream_t a = new_stream(), b = new_stream();
  Event a_before, a_after, b_after;
  launch(sim_10ms, a, kSmallGrid);
  a_before.record(a);
  ASSERT_CUDA(cudaStreamWaitEvent(b, a_before, 0));
  launch(sim_10ms, a, kSmallGrid);
  a_after.record(a);
  launch(sim_10ms, b, kSmallGrid);
  b_after.record(b);
  EXPECT_NEAR(ms_between(a_before, a_after), 10, kExact);
  EXPECT_NEAR(ms_between(a_before, b_after), 10, kExact);
}

TEST_F(TimeModel, FullKernelsOfTwoStreamsDoNotOverlap) {
  cudaStream_t a = new_stream(), b = new_stream();
  Event before, a_after, b_after;
  launch(sim_10ms, a);
  before.record(a);
  ASSERT_CUDA(cudaStreamWaitEvent(b, before, 0));
  launch(sim_10ms, a);
  a_after.record(a);
  launch(sim_10ms, b);
  b_after.record(b);
  EXPECT_NEAR(ms_between(before, a_after), 10, kExact);
  EXPECT_NEAR(ms_between(before, b_after), 20, kExact);
}

TEST_F(TimeModel, HalfFullKernelsShareTheDevice) {
  cudaStream_t streams[3] = {new_stream(), new_stream(), new_stream()};
  const dim3 half(132 * 4);
  Event before, after[3];
  launch(sim_10ms, streams[0]);
  before.record(streams[0]);
  for (int i = 0; i < 3; ++i) {
    ASSERT_CUDA(cudaStreamWaitEvent(streams[i], before, 0));
    launch(sim_1ms, streams[i], half);
    after[i].record(streams[i]);
  }
  EXPECT_NEAR(ms_between(before, after[0]), 1, kExact);
  EXPECT_NEAR(ms_between(before, after[1]), 1, kExact);
  EXPECT_NEAR(ms_between(before, after[2]), 2, kExact);
}

TEST_F(TimeModel, WaitEventOrdersStreams) {
  cudaStream_t a = new_stream(), b = new_stream();
  Event begin, made, used;
  launch(sim_10ms, a, kSmallGrid);
  begin.record(a);
  launch(sim_1ms, a, kSmallGrid);
  made.record(a);
  ASSERT_CUDA(cudaStreamWaitEvent(b, made, 0));
  launch(sim_1ms, b, kSmallGrid);
  used.record(b);
  EXPECT_NEAR(ms_between(begin, used), 2, kExact);
}

TEST_F(TimeModel, WaitingForAnEventNeverRecordedIsNoWait) {
  cudaStream_t stream = new_stream();
  Event never;
  ASSERT_CUDA(cudaStreamWaitEvent(stream, never, 0));
  EXPECT_CUDA(cudaStreamQuery(stream));
  EXPECT_CUDA(cudaEventQuery(never));
}

TEST_F(TimeModel, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  cudaStream_t a = new_stream(cudaStreamDefault), b = new_stream(cudaStreamDefault);
  cudaStream_t apart = new_stream();
  Event begin, a_end, legacy_end, b_end, apart_begin, apart_end;
  launch(sim_10ms, a, kSmallGrid);
  begin.record(a);
  launch(sim_1ms, a, kSmallGrid);
  a_end.record(a);
  launch(sim_1ms, nullptr, kSmallGrid);
  legacy_end.record(nullptr);
  launch(sim_1ms, b, kSmallGrid);
  b_end.record(b);
  launch(sim_1ms, apart, kSmallGrid);
  apart_end.record(apart);
  EXPECT_NEAR(ms_between(begin, a_end), 1, kExact);
  EXPECT_NEAR(ms_between(begin, legacy_end), 2, kExact);
  EXPECT_NEAR(ms_between(begin, b_end), 3, kExact);
  EXPECT_LT(ms_between(begin, apart_end), 0);  // it did not wait for anything
}

TEST_F(TimeModel, PerThreadDefaultStreamsOverlap) {
  Event begin, first, second;
  launch(sim_10ms, nullptr, kSmallGrid);
  begin.record(nullptr);
  const auto work = [](Event& done) {
    EXPECT_CUDA(cudaLaunchKernel_ptsz(sim_1ms.stub(), kSmallGrid, kBlock, nullptr, 0, nullptr));
    EXPECT_CUDA(cudaEventRecord_ptsz(done, nullptr));
    EXPECT_CUDA(cudaStreamSynchronize_ptsz(nullptr));
  };
  std::thread one(work, std::ref(first)), two(work, std::ref(second));
  one.join();
  two.join();
  // They are blocking streams: both come after the legacy stream, not after each other.
  EXPECT_NEAR(ms_between(begin, first), 1, kExact);
  EXPECT_NEAR(ms_between(begin, second), 1, kExact);
}

TEST_F(TimeModel, SynchronizeReturnsWhenTheWorkIsDone) {
  cudaStream_t stream = new_stream();
  Clock clock;
  launch(sim_10ms, stream);
  EXPECT_LT(clock.ms(), 5);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  cudaGetLastError();
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_GE(clock.ms(), 10);
  EXPECT_LT(clock.ms(), 25);
  EXPECT_CUDA(cudaStreamQuery(stream));
}

TEST_F(TimeModel, EventOnAnIdleStreamTakesTheSubmitLatency) {
  cudaStream_t stream = new_stream();
  Event event, end;
  event.record(stream);
  launch(sim_1ms, stream);
  end.record(stream);
  // The kernel starts as late after its call as the event after its own: what is left over is the
  // time between the calls.
  const double ms = ms_between(event, end);
  EXPECT_GE(ms, 1);
  EXPECT_LT(ms, 1.5);
}

TEST_F(TimeModel, ElapsedTimeNeedsBothEventsDone) {
  cudaStream_t stream = new_stream();
  Event begin, end, never;
  begin.record(stream);
  launch(sim_10ms, stream);
  end.record(stream);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, never), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_F(TimeModel, LaunchBlocksWhenTheQueueIsFull) {
  cudaStream_t stream = new_stream();
  launch(sim_100us, stream);
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  Clock clock;
  for (int i = 0; i < 1024; ++i) launch(sim_100us, stream);
  const double filled = clock.ms();
  EXPECT_LT(filled, 60);  // 102 ms of work
  for (int i = 0; i < 200; ++i) launch(sim_100us, stream);
  EXPECT_GE(clock.ms(), 20);  // 200 of them have to be done first
  ASSERT_CUDA(cudaStreamSynchronize(stream));
}

TEST_F(TimeModel, CopiesInBothDirectionsOverlapWithKernels) {
  constexpr size_t kBytes = size_t{8} << 20;
  void *device = nullptr, *host = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, 2 * kBytes));
  ASSERT_CUDA(cudaMallocHost(&host, 2 * kBytes));
  auto* d = static_cast<char*>(device);
  auto* h = static_cast<char*>(host);
  cudaStream_t up = new_stream(), down = new_stream(), compute = new_stream();
  Event begin, up_end, down_end;
  for (int i = 0; i < 10; ++i) launch(sim_10ms, compute);
  begin.record(compute);
  for (int i = 0; i < 5; ++i) launch(sim_10ms, compute);
  ASSERT_CUDA(cudaMemcpyAsync(d, h, kBytes, cudaMemcpyHostToDevice, up));
  ASSERT_CUDA(cudaMemcpyAsync(h + kBytes, d + kBytes, kBytes, cudaMemcpyDeviceToHost, down));
  up_end.record(up);
  down_end.record(down);
  // Neither waits for the kernels.
  EXPECT_LT(ms_between(begin, up_end), 0);
  EXPECT_LT(ms_between(begin, down_end), 0);
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaFreeHost(host));
}

TEST_F(TimeModel, HostFunctionBlocksItsStreamAlone) {
  cudaStream_t stream = new_stream(), other = new_stream();
  Event begin, end, other_end;
  static std::atomic<bool> ran;
  ran = false;
  launch(sim_1ms, stream, kSmallGrid);
  begin.record(stream);
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream,
      [](void*) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ran = true;
      },
      nullptr));
  launch(sim_1ms, stream, kSmallGrid);
  end.record(stream);
  launch(sim_1ms, other, kSmallGrid);
  other_end.record(other);
  EXPECT_LT(ms_between(begin, other_end), 10);
  EXPECT_FALSE(ran);
  EXPECT_GE(ms_between(begin, end), 21);
  EXPECT_TRUE(ran);
}

TEST_F(TimeModel, HostFunctionsRunInOrder) {
  cudaStream_t stream = new_stream();
  static std::vector<int> order;
  order.clear();
  for (int i = 0; i < 50; ++i) {
    ASSERT_CUDA(cudaLaunchHostFunc(
        stream, [](void* n) { order.push_back(static_cast<int>(reinterpret_cast<intptr_t>(n))); },
        reinterpret_cast<void*>(static_cast<intptr_t>(i))));
  }
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  ASSERT_EQ(order.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(TimeModel, LaunchIsCheap) {
  cudaStream_t stream = new_stream();
  launch(sim_1ms, stream);
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    Clock clock;
    for (int i = 0; i < 500; ++i) {
      cudaLaunchKernel(sim_100us.stub(), kFullGrid, kBlock, nullptr, 0, stream);
    }
    best = std::min(best, clock.ms() * 1e6 / 500);
  }
  RecordProperty("ns_per_launch", static_cast<int>(best));
  printf("%.0f ns per launch\n", best);
  EXPECT_LT(best, 2500);  // far above what it takes, for slow and busy machines
}

}  // namespace
}  // namespace gpubusy::sim::test
