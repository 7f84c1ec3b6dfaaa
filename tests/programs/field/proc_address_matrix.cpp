// SPDX-License-Identifier: Apache-2.0
//
// What a statically linked CUDA runtime does at its start, in every combination of version, flags
// and status pointer: names asked of cuGetProcAddress, itself among them. Each pointer is used
// once. Prints the answers, and how often the device was asked for memory and launches.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

using Ask = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
using AskOld = CUresult (*)(const char*, void**, int, cuuint64_t);

void* const kUntouched = reinterpret_cast<void*>(0x1230);
constexpr int kUntouchedStatus = 77;

template <class Function>
Function* get(Ask ask, const char* name) {
  void* p = nullptr;
  ask(name, &p, CUDA_VERSION, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
  return reinterpret_cast<Function*>(p);
}

}  // namespace

int main() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return std::puts(dlerror()), 3;
  const auto ask = reinterpret_cast<Ask>(dlsym(driver, "cuGetProcAddress_v2"));
  CUcontext context = nullptr;
  CUlibrary code = nullptr;
  CUkernel kernel = nullptr;
  if (get<decltype(cuInit)>(ask, "cuInit")(0) != CUDA_SUCCESS) return 4;
  get<decltype(cuDevicePrimaryCtxRetain)>(ask, "cuDevicePrimaryCtxRetain")(&context, 0);
  get<decltype(cuCtxSetCurrent)>(ask, "cuCtxSetCurrent")(context);
  get<decltype(cuLibraryLoadData)>(ask, "cuLibraryLoadData")(&code, "image", nullptr, nullptr, 0,
                                                             nullptr, nullptr, 0);
  get<decltype(cuLibraryGetKernel)>(ask, "cuLibraryGetKernel")(&kernel, code, "field_kernel");

  int allocations = 0, launches = 0, unstable = 0;
  for (const int version : {11030, 12000, 13000}) {
    for (const cuuint64_t flags : {0, 1, 2}) {
      for (const bool with_status : {true, false}) {
        for (const char* name : {"cuGetProcAddress", "cuMemAlloc", "cuMemFree", "cuLaunchKernel",
                                 "cuNoSuchFunction"}) {
          void *p = kUntouched, *again = kUntouched;
          auto status = static_cast<CUdriverProcAddressQueryResult>(kUntouchedStatus);
          const CUresult result = ask(name, &p, version, flags, with_status ? &status : nullptr);
          ask(name, &again, version, flags, nullptr);
          unstable += p != again;
          std::printf("%s %d %d %d: %d %d %s\n", name, version, static_cast<int>(flags),
                      with_status, result, static_cast<int>(status),
                      p == nullptr      ? "null"
                      : p == kUntouched ? "untouched"
                                        : "pointer");
          if (p == nullptr || p == kUntouched) continue;
          if (strcmp(name, "cuGetProcAddress") == 0) {
            // Its older form has no status. What it hands out must work as well.
            void* alloc = nullptr;
            if (version < 12000) {
              reinterpret_cast<AskOld>(p)("cuMemAlloc", &alloc, version, flags);
            } else {
              reinterpret_cast<Ask>(p)("cuMemAlloc", &alloc, version, flags, nullptr);
            }
            CUdeviceptr memory = 0;
            allocations += reinterpret_cast<decltype(&cuMemAlloc_v2)>(alloc)(&memory, 512) == 0;
          } else if (strcmp(name, "cuMemAlloc") == 0) {
            CUdeviceptr memory = 0;
            allocations += reinterpret_cast<decltype(&cuMemAlloc_v2)>(p)(&memory, 512) == 0;
          } else if (strcmp(name, "cuLaunchKernel") == 0) {
            launches += reinterpret_cast<decltype(&cuLaunchKernel)>(p)(
                            reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr,
                            nullptr, nullptr) == 0;
          }
        }
      }
    }
  }
  std::printf("allocations %d launches %d unstable %d\n", allocations, launches, unstable);
}
