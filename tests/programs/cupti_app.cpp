// SPDX-License-Identifier: Apache-2.0
//
// A program that has a profiler of its own, by CUPTI's activity API. Does what its argument says
// and prints, for each session of its profiler, what it got:
//   l  10 launches and a copy, then waits for them      L  the same without waiting
//   r  registers its buffers            t  registers a clock of its own (microseconds)
//   s  session: enables kernels and copies              e  ends it: disables, flushes, prints
//   d  disables without a flush         n  a nested session: enables once more
//   S  subscribes                       U  unsubscribes
//   F  cuptiFinalize                    w  sleeps 20 ms
//   f  flushes without force            p  flushes by force, prints
//   y  waits for the device             x  enables and ends a session in an exit handler
//   a  records launches by function     b  no longer (no kind is enabled for it)
//   z  a copy of no bytes               g  launches a graph of 3,000 kernels 60 times
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>

#include "simulator/fake_kernel.hpp"

GPUBUSY_FAKE_KERNEL(cupti_app_kernel);

namespace {

std::atomic<int> g_kernels{0}, g_copies{0}, g_others{0}, g_strangers{0};
std::set<std::uint8_t*> g_buffers;

void request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  *size = 1 << 14;
  *records = 0;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  g_buffers.insert(*buffer);
}

void complete(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  if (g_buffers.erase(buffer) == 0) {
    ++g_strangers;
    return;
  }
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      ++g_kernels;
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      ++g_copies;
    } else {
      ++g_others;
    }
  }
  std::free(buffer);
}

std::uint64_t microseconds() {
  timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(t.tv_nsec) / 1000;
}

void launch_graphs() {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaStreamCreate(&stream);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 3000; ++i) {
    cudaLaunchKernel(cupti_app_kernel.stub(), 8, 128, nullptr, 0, stream);
  }
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  for (int i = 0; i < 60; ++i) {
    cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
  }
}

void flush_and_print() {
  cuptiActivityFlushAll(1);
  std::printf("kernels %d copies %d others %d strangers %d left %zu\n", g_kernels.exchange(0),
              g_copies.exchange(0), g_others.exchange(0), g_strangers.exchange(0),
              g_buffers.size());
}

void session_at_exit() {
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  for (int i = 0; i < 10; ++i) {
    cudaLaunchKernel(cupti_app_kernel.stub(), 8, 128, nullptr, 0, nullptr);
  }
  cudaDeviceSynchronize();
  cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  flush_and_print();
}

void no_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

}  // namespace

int main(int argc, char** argv) {
  const char* script = argc > 1 ? argv[1] : "lrslel";
  // Before the first CUDA call: exit handlers run in reverse order, so this one behind a tool's
  // own.
  if (std::strchr(script, 'x') != nullptr) std::atexit(session_at_exit);
  void *device = nullptr, *host = nullptr;
  cudaMalloc(&device, 4096);
  cudaMallocHost(&host, 4096);
  CUpti_SubscriberHandle subscriber = nullptr;
  int failed = 0;
  const auto check = [&](const char* what, CUptiResult result) {
    if (result == CUPTI_SUCCESS) return;
    std::printf("%s: %d\n", what, result);
    ++failed;
  };
  for (const char* step = script; *step != '\0'; ++step) {
    switch (*step) {
      case 'l':
      case 'L':
        for (int i = 0; i < 10; ++i) {
          cudaLaunchKernel(cupti_app_kernel.stub(), 8, 128, nullptr, 0, nullptr);
        }
        cudaMemcpyAsync(device, host, 4096, cudaMemcpyHostToDevice, nullptr);
        if (*step == 'l') cudaDeviceSynchronize();
        break;
      case 'r': check("register", cuptiActivityRegisterCallbacks(request, complete)); break;
      case 't': check("clock", cuptiActivityRegisterTimestampCallback(microseconds)); break;
      case 'n':
      case 's':
        check("kernels", cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
        check("copies", cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY));
        break;
      case 'd':
      case 'e':
        check("disable", cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
        check("disable", cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMCPY));
        if (*step == 'e') flush_and_print();
        break;
      case 'p': flush_and_print(); break;
      case 'f': check("flush", cuptiActivityFlushAll(0)); break;
      case 'y': cudaDeviceSynchronize(); break;
      case 'x': break;  // see above
      case 'a':
      case 'b':
        for (const CUpti_CallbackId id : {211u, 505u}) {
          check("function", cuptiActivityEnableRuntimeApi(id, *step == 'a'));
        }
        break;
      case 'g': launch_graphs(); break;
      case 'z': cudaMemcpyAsync(device, host, 0, cudaMemcpyHostToDevice, nullptr); break;
      case 'S': check("subscribe", cuptiSubscribe(&subscriber, no_callback, nullptr)); break;
      case 'U': check("unsubscribe", cuptiUnsubscribe(subscriber)); break;
      case 'F': check("finalize", cuptiFinalize()); break;
      case 'w': usleep(20'000); break;
      default: return 2;
    }
  }
  cudaDeviceSynchronize();
  return failed != 0;
}
