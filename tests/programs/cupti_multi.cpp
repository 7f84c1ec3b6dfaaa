// SPDX-License-Identifier: Apache-2.0
//
// A program whose profiler has a subscriber of its own that allows others (CUPTI 13.3 and later).
// Does what its argument says:
//   S  subscribes, registers buffers   U  unsubscribes
//   s  enables kernels and copies      e  disables, flushes, prints what it got
//   l  10 launches and a copy, then waits for them
//   1  the same as s and e with the activities of the whole process: fails beside subscribers
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator/fake_kernel.hpp"

GPUBUSY_FAKE_KERNEL(cupti_multi_kernel);

namespace {

struct Params {  // CUpti_SubscriberParams of 13.2
  std::size_t size;
  const char* name;
  char* old_name;
  std::size_t old_size;
  unsigned char allow_multiple, padding[7];
};
using Handle = CUpti_SubscriberHandle;

int g_kernels, g_copies, g_others;

template <class Function>
Function* find(const char* name) {
  void* p = dlsym(RTLD_DEFAULT, name);
  if (p == nullptr) {
    std::printf("no %s\n", name);
    std::exit(3);
  }
  return reinterpret_cast<Function*>(p);
}

Handle g_subscriber;
CUptiResult (*g_next)(Handle, std::uint8_t*, std::size_t, CUpti_Activity**);

void request(std::uint8_t** buffer, std::size_t* size, std::size_t* records, void*) {
  *size = 1 << 14;
  *records = 0;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
}

void complete(std::uint8_t* buffer, std::size_t, std::size_t valid, void*) {
  CUpti_Activity* record = nullptr;
  while (g_next(g_subscriber, buffer, valid, &record) == CUPTI_SUCCESS) {
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

void no_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

}  // namespace

int main(int, char** argv) {
  auto* subscribe =
      find<CUptiResult(Handle*, CUpti_CallbackFunc, void*, Params*)>("cuptiSubscribe_v2");
  auto* enable = find<CUptiResult(Handle, CUpti_ActivityKind, void*)>("cuptiActivityEnable_v2");
  auto* disable = find<CUptiResult(Handle, CUpti_ActivityKind, void*)>("cuptiActivityDisable_v2");
  auto* registers = find<CUptiResult(Handle, decltype(&request), decltype(&complete))>(
      "cuptiActivityRegisterCallbacks_v2");
  g_next = find<CUptiResult(Handle, std::uint8_t*, std::size_t, CUpti_Activity**)>(
      "cuptiActivityGetNextRecord_v2");
  void *device = nullptr, *host = nullptr;
  cudaMalloc(&device, 4096);
  cudaMallocHost(&host, 4096);
  const auto check = [](const char* what, CUptiResult result) {
    if (result != CUPTI_SUCCESS) std::printf("%s: %d\n", what, result);
  };
  constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY};
  for (const char* step = argv[1]; *step != '\0'; ++step) {
    switch (*step) {
      case 'S': {
        Params params{sizeof params, "cupti_multi", nullptr, 0, 1, {}};
        check("subscribe", subscribe(&g_subscriber, no_callback, nullptr, &params));
        check("register", registers(g_subscriber, request, complete));
        break;
      }
      case 'U': check("unsubscribe", cuptiUnsubscribe(g_subscriber)); break;
      case 's':
        for (const auto kind : kKinds) check("enable", enable(g_subscriber, kind, nullptr));
        break;
      case 'e':
        for (const auto kind : kKinds) check("disable", disable(g_subscriber, kind, nullptr));
        check("flush", cuptiActivityFlushAll(0));
        std::printf("kernels %d copies %d others %d\n", g_kernels, g_copies, g_others);
        g_kernels = g_copies = g_others = 0;
        break;
      case 'l':
        for (int i = 0; i < 10; ++i) {
          cudaLaunchKernel(cupti_multi_kernel.stub(), 8, 128, nullptr, 0, nullptr);
        }
        cudaMemcpyAsync(device, host, 4096, cudaMemcpyHostToDevice, nullptr);
        cudaDeviceSynchronize();
        break;
      case '1': check("process-wide", cuptiActivityEnable(kKinds[0])); break;
      default: return 2;
    }
  }
  return 0;
}
