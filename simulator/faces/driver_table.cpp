// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/driver_table.hpp"

#include <dlfcn.h>

#include <atomic>

namespace gpubusy::sim {
namespace {

constexpr int kTodaysVersion = CUDA_VERSION;

using GetProcAddress = CUresult(const char*, void**, int, cuuint64_t,
                                CUdriverProcAddressQueryResult*);

// Where the driver lacks a function, as an older one would.
CUresult missing() { return CUDA_ERROR_NOT_FOUND; }

template <class Function>
void set(Function& member, void* found) {
  member = found != nullptr ? reinterpret_cast<Function>(found)
                            : reinterpret_cast<Function>(reinterpret_cast<void*>(&missing));
}

}  // namespace

void DriverTable::resolve(bool per_thread) noexcept {
  *this = {};
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return;
  auto* first = reinterpret_cast<GetProcAddress*>(dlsym(library, "cuGetProcAddress_v2"));
  if (first == nullptr) return;
  // The one that the driver itself names, since that may be another (a tool's).
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  if (first("cuGetProcAddress", &found, kTodaysVersion, 0, &status) != CUDA_SUCCESS) return;
  auto* get = reinterpret_cast<GetProcAddress*>(found);
  const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                      : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
#define DRIVER_FUNCTION_OF(name, version)      \
  found = nullptr;                             \
  get(#name, &found, version, flags, &status); \
  set(this->name, found);
#define DRIVER_FUNCTION(name)                         \
  found = nullptr;                                    \
  get(#name, &found, kTodaysVersion, flags, &status); \
  set(this->name, found);
#include "simulator/faces/driver_table.def"
#undef DRIVER_FUNCTION
#undef DRIVER_FUNCTION_OF
}

const DriverTable& driver_table(bool per_thread) noexcept {
  // Not function-local: a guard would be looked at in every call. Two threads that come at once
  // write the same values.
  static constinit DriverTable tables[2]{};
  static constinit std::atomic<bool> resolved[2]{};
  const int index = per_thread ? 1 : 0;
  if (!resolved[index].load(std::memory_order_acquire)) [[unlikely]] {
    DriverTable table;
    table.resolve(per_thread);
    tables[index] = table;
    resolved[index].store(true, std::memory_order_release);
  }
  return tables[index];
}

}  // namespace gpubusy::sim
