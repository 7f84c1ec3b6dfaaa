// SPDX-License-Identifier: Apache-2.0
//
// Several threads at once, with everything that makes an operation's end unknown for a while:
// copies that the host makes, host functions, waits between streams, full queues. Nothing may be
// lost, come out of order, or wait for ever.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "device_test.hpp"

GPUBUSY_FAKE_KERNEL(sim_stress);

namespace gpubusy::sim::test {
namespace {

constexpr int kThreads = 4, kRounds = 300;
constexpr size_t kBytes = 256 * 1024;

struct Shared {
  cudaStream_t streams[kThreads];
  std::vector<cudaEvent_t> events;
  std::atomic<int> host_calls{0};
};

void work(Shared& shared, int thread) {
  std::mt19937 random(static_cast<unsigned>(thread));
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  void *device = nullptr, *pinned = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, kBytes));
  ASSERT_CUDA(cudaMallocHost(&pinned, kBytes));
  auto* numbers = static_cast<int*>(pinned);
  cudaStream_t own = shared.streams[thread];
  for (int round = 0; round < kRounds; ++round) {
    switch (below(7)) {
      case 0:
        for (int i = 0; i < 20; ++i) launch(sim_stress, own, dim3(1 + below(2000)));
        break;
      case 1: {
        // What is copied down is what was copied up before, in one stream.
        ASSERT_CUDA(cudaStreamSynchronize(own));
        numbers[0] = round;
        ASSERT_CUDA(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, own));
        std::vector<int> back(kBytes / sizeof(int));
        ASSERT_CUDA(cudaMemcpyAsync(back.data(), device, kBytes, cudaMemcpyDeviceToHost, own));
        ASSERT_EQ(back[0], round);
        break;
      }
      case 2:
        ASSERT_CUDA(cudaLaunchHostFunc(
            own, [](void* calls) { ++*static_cast<std::atomic<int>*>(calls); },
            &shared.host_calls));
        break;
      case 3:
        ASSERT_CUDA(cudaEventRecord(shared.events[static_cast<size_t>(below(8))], own));
        break;
      case 4:
        ASSERT_CUDA(cudaStreamWaitEvent(own, shared.events[static_cast<size_t>(below(8))], 0));
        break;
      case 5:
        ASSERT_CUDA(cudaMemsetAsync(device, round, kBytes, own));
        ASSERT_CUDA(cudaEventSynchronize(shared.events[static_cast<size_t>(below(8))]));
        break;
      case 6:
        ASSERT_CUDA(cudaMemcpyAsync(pinned, device, kBytes, cudaMemcpyDeviceToHost, own));
        if (below(10) == 0) {
          ASSERT_CUDA(cudaDeviceSynchronize());
        }
        break;
    }
  }
  const int calls = shared.host_calls;
  std::atomic<int> last{0};
  ASSERT_CUDA(cudaLaunchHostFunc(
      own, [](void* done) { *static_cast<std::atomic<int>*>(done) = 1; }, &last));
  ASSERT_CUDA(cudaStreamSynchronize(own));
  EXPECT_EQ(last, 1);
  EXPECT_GE(shared.host_calls, calls);
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST_F(DeviceTest, ManyThreads) {
  Shared shared;
  for (cudaStream_t& stream : shared.streams) stream = new_stream(cudaStreamDefault);
  for (int i = 0; i < 8; ++i) {
    cudaEvent_t event = nullptr;
    ASSERT_CUDA(cudaEventCreate(&event));
    shared.events.push_back(event);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, std::ref(shared), i);
  for (std::thread& thread : threads) thread.join();
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (cudaEvent_t event : shared.events) ASSERT_CUDA(cudaEventDestroy(event));
  for (cudaStream_t stream : shared.streams) ASSERT_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace gpubusy::sim::test
