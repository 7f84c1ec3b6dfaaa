// SPDX-License-Identifier: Apache-2.0
#include "preload/api.hpp"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "runtime/keep_errno.hpp"

namespace gpubusy::preload {

const runtime::ApiInfo kApis[kApiCount] = {
#define HOOK(variants, symbol, category, ...) GPUBUSY_ROW_##variants(EACH, symbol, category)
#define LAUNCH(variants, symbol, ...) GPUBUSY_ROW_##variants(EACH, symbol, Launch)
#define OWN(symbol, category) EACH(symbol, category)
#define EACH(symbol, category) {#symbol, recording::Category::k##category, recording::Layer::kRuntime},
#include "preload/hooks/cuda_runtime.def"
#undef EACH
#define EACH(symbol, category) {#symbol, recording::Category::k##category, recording::Layer::kDriver},
#include "preload/hooks/cuda_driver.def"
#undef EACH
#undef HOOK
#undef LAUNCH
#undef OWN
};

constinit std::atomic<void*> g_real[kApiCount] = {};

namespace {

void* find_in(const char* library, const char* name) noexcept {
  // NOLOAD takes a reference; it is kept, so that the function stays where it is.
  void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  return handle == nullptr ? nullptr : real_dlsym()(handle, name);
}

}  // namespace

runtime::FindSymbol real_dlsym() noexcept {
  static constinit std::atomic<runtime::FindSymbol> found{nullptr};
  runtime::FindSymbol f = found.load(std::memory_order_acquire);
  if (f != nullptr) [[likely]] return f;
  // dlvsym is not hooked. 2.34: dlsym moved into libc; before, it is libdl's.
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    f = reinterpret_cast<runtime::FindSymbol>(dlvsym(RTLD_NEXT, "dlsym", version));
    if (f != nullptr) break;
  }
  found.store(f, std::memory_order_release);
  return f;
}

void* resolve(ApiId id, void* caller) noexcept {
  runtime::KeepErrno keep;
  const auto index = static_cast<std::size_t>(id);
  const char* name = kApis[index].name;
  const runtime::FindSymbol find = real_dlsym();
  if (find == nullptr) return nullptr;
  void* p = find(RTLD_NEXT, name);
  if (p == nullptr) {
    Dl_info info{};
    link_map* map = nullptr;
    if (dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 &&
        map != nullptr && map->l_name != nullptr && map->l_name[0] != '\0') {
      p = find_in(map->l_name, name);
    }
  }
  const char* const runtime_libraries[] = {"libcudart.so.13", "libcudart.so.12",
                                           "libcudart.so.11.0"};
  const char* const driver_libraries[] = {"libcuda.so.1"};
  if (kApis[index].layer == recording::Layer::kRuntime) {
    for (const char* library : runtime_libraries) {
      if (p == nullptr || p == kHooks[index]) p = find_in(library, name);
    }
  } else {
    for (const char* library : driver_libraries) {
      if (p == nullptr || p == kHooks[index]) p = find_in(library, name);
    }
  }
  dlerror();  // what was not found on the way is not the program's error
  if (p == kHooks[index]) p = nullptr;
  void* expected = nullptr;
  if (p != nullptr) g_real[index].compare_exchange_strong(expected, p, std::memory_order_acq_rel);
  return g_real[index].load(std::memory_order_acquire);
}

ApiId find_api(const char* name) noexcept {
  for (std::size_t i = 0; i < kApiCount; ++i) {
    if (strcmp(kApis[i].name, name) == 0) return static_cast<ApiId>(i);
  }
  return ApiId::kCount;
}

void* hook_for(ApiId id, void* real) noexcept {
  const auto index = static_cast<std::size_t>(id);
  if (real == nullptr || real == kHooks[index]) return real;
  void* expected = nullptr;
  if (g_real[index].compare_exchange_strong(expected, real, std::memory_order_acq_rel) ||
      expected == real) {
    return kHooks[index];
  }
  return real;
}

}  // namespace gpubusy::preload
