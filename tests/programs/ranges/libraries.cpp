// SPDX-License-Identifier: Apache-2.0
//
// Calls functions with the names of cuDNN's and NCCL's, linked and by dlsym.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>

struct Id {
  char bytes[128];
};
extern "C" {
int cudnnBackendExecute(void*, void*, void*);
int ncclAllReduce(void*, void*, std::size_t, int, int, void*, void*);
int ncclSend(void*, std::size_t, int, int, void*, void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclCommInitRank(void*, int, Id, int);
}

int main() {
  Id id{};
  id.bytes[127] = 40;
  std::printf("init %d\n", ncclCommInitRank(nullptr, 2, id, 2));  // before there is a recording
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 4; ++i) std::printf("%d", cudnnBackendExecute(nullptr, nullptr, nullptr));
    ncclGroupStart();
    ncclAllReduce(nullptr, nullptr, 1000, 7, 0, nullptr, nullptr);  // float32
    ncclSend(nullptr, 10, 9, 1, nullptr, nullptr);                  // bfloat16
    ncclGroupEnd();
    cudaDeviceSynchronize();
  }
  std::printf("\nby name %d, missing %d %d\n", dlsym(RTLD_DEFAULT, "ncclAllReduce") != nullptr,
              dlsym(RTLD_DEFAULT, "ncclCommSplit") != nullptr,
              dlsym(RTLD_DEFAULT, "cudnnCTCLoss") != nullptr);
  void* handle = dlopen("libgpubusy_test_toy_nccl.so", RTLD_NOLOAD | RTLD_LAZY);
  auto* reduce = reinterpret_cast<decltype(&ncclAllReduce)>(
      handle == nullptr ? nullptr : dlsym(handle, "ncclAllReduce"));
  std::printf("of the library %d, missing %d, result %d\n", reduce != nullptr,
              handle != nullptr && dlsym(handle, "ncclBroadcast") != nullptr,
              reduce == nullptr ? -1 : reduce(nullptr, nullptr, 1, 8, 0, nullptr, nullptr));
  std::printf("init %d\n", ncclCommInitRank(nullptr, 2, id, 2));
  return 0;
}
