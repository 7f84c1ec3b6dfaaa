// SPDX-License-Identifier: Apache-2.0
//
// Asks the driver for old and new versions of functions, as different runtimes do, and calls them.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return std::puts(dlerror()), 3;
  using Ask = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  const auto ask = reinterpret_cast<Ask>(dlsym(driver, "cuGetProcAddress_v2"));
  const auto get = [&](const char* name, int version, cuuint64_t flags) {
    void* p = nullptr;
    CUdriverProcAddressQueryResult status;
    const CUresult result = ask(name, &p, version, flags, &status);
    std::printf("%s %d: %d %d\n", name, version, result, static_cast<int>(status));
    return p;
  };
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  using Begin1 = CUresult (*)(CUstream);
  using Begin2 = CUresult (*)(CUstream, CUstreamCaptureMode);
  const auto begin_1 = reinterpret_cast<Begin1>(get("cuStreamBeginCapture", 10000, 0));
  const auto begin_2 = reinterpret_cast<Begin2>(get("cuStreamBeginCapture", 12000, 0));
  const auto begin_2p = reinterpret_cast<Begin2>(get("cuStreamBeginCapture", 12000, kPerThread));
  const auto sync_2 = reinterpret_cast<CUresult (*)(CUcontext)>(get("cuCtxSynchronize", 13000, 0));
  const auto sync_1 = reinterpret_cast<CUresult (*)()>(get("cuCtxSynchronize", 12000, 0));
  const auto alloc =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(get("cuMemAlloc", 12000, kPerThread));
  get("cuNoSuchFunction", 12000, 0);
  std::printf("%d %d %d\n", begin_1(nullptr), begin_2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
              begin_2p(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  std::printf("%d %d\n", sync_1(), sync_2(reinterpret_cast<CUcontext>(&driver)));
  CUdeviceptr p = 0;
  for (int i = 0; i < 5; ++i) alloc(&p, 7);
  std::printf("%llu\n", static_cast<unsigned long long>(p));
}
