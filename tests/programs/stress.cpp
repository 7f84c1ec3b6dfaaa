// SPDX-License-Identifier: Apache-2.0
//
// 4 threads use the device in every way at once, each in a stream of its own, behind a graph that
// was captured before. Deterministic in what it asks for. argv[1]: rounds per thread.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "simulator/fake_kernel.hpp"

GPUBUSY_FAKE_KERNEL(stress_small);
GPUBUSY_FAKE_KERNEL(stress_large);
GPUBUSY_FAKE_KERNEL(stress_in_graph);

namespace {

constexpr size_t kBytes = 1 << 16;
std::atomic<int> g_bad{0};
std::atomic<int> g_callbacks{0};

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  ++g_bad;
  std::fprintf(stderr, "%s: %d\n", what, static_cast<int>(result));
}
#define CHECK(call) check(call, #call)

void callback(void*) { ++g_callbacks; }

void work(int thread, int rounds) {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void *device = nullptr, *other = nullptr, *pinned = nullptr;
  CHECK(cudaMalloc(&device, kBytes));
  CHECK(cudaMallocAsync(&other, kBytes, stream));
  CHECK(cudaHostAlloc(&pinned, kBytes, 0));
  std::vector<char> pageable(kBytes), registered(kBytes);
  CHECK(cudaHostRegister(registered.data(), kBytes, 0));
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreate(&event));
  cudaKernel_t kernel = nullptr;
  CHECK(__cudaGetKernel(&kernel, stress_large.stub()));
  for (int i = 0; i < rounds; ++i) {
    CHECK(cudaLaunchKernel(stress_small.stub(), dim3(4), dim3(128), nullptr, 0, stream));
    CHECK(
        cudaLaunchCooperativeKernel(stress_large.stub(), dim3(64), dim3(256), nullptr, 0, stream));
    CHECK(__cudaLaunchKernel(kernel, dim3(1, 2, 3), dim3(8, 4, 2), nullptr, 64, stream));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(16);
    config.blockDim = dim3(64);
    config.stream = stream;
    CHECK(cudaLaunchKernelExC(&config, stress_small.stub(), nullptr));
    const size_t bytes = 256 * static_cast<size_t>(1 + thread);
    CHECK(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(registered.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(device, pageable.data(), 2 * bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(other, device, 3 * bytes, cudaMemcpyDefault, stream));
    CHECK(cudaMemcpy2DAsync(device, 512, pinned, 512, 256, 4, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(device, 1, 4 * bytes, stream));
    CHECK(cudaEventRecord(event, stream));
    if (i % 10 == 0) {
      CHECK(cudaMemcpy(pageable.data(), device, bytes, cudaMemcpyDeviceToHost));
      CHECK(cudaMemset(other, 0, bytes));
      CHECK(cudaLaunchHostFunc(stream, callback, nullptr));
      CHECK(cudaStreamSynchronize(stream));
    }
    // Fails, and must fail: a launch that the device does not take is no device work.
    if (cudaLaunchKernel(stress_small.stub(), dim3(1), dim3(4096), nullptr, 0, stream) ==
        cudaSuccess) {
      ++g_bad;
    }
    cudaGetLastError();
  }
  CHECK(cudaEventSynchronize(event));
  CHECK(cudaFreeAsync(other, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaHostUnregister(registered.data()));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFree(device));
  CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 5; ++i) {
    CHECK(cudaLaunchKernel(stress_in_graph.stub(), dim3(2), dim3(32), nullptr, 0, stream));
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t, rounds);
  for (int i = 0; i < 20; ++i) CHECK(cudaGraphLaunch(exec, stream));
  for (auto& t : threads) t.join();
  CHECK(cudaDeviceSynchronize());
  std::printf("bad %d callbacks %d\n", g_bad.load(), g_callbacks.load());
  return g_bad == 0 ? 0 : 1;
}
