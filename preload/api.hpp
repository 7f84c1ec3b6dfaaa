// SPDX-License-Identifier: Apache-2.0
//
// The hook table: one id, name, category and hook address per intercepted function, all made from
// the rows in hooks/*.def.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/api_info.hpp"

namespace gpubusy::preload {

// Row macros expand to one entry per exported symbol. EACH(symbol, category, per_thread) is what a
// user of this header defines before including hooks/expand.hpp's rows.
#define GPUBUSY_ROW_P(EACH, symbol, category) EACH(symbol, category)
#define GPUBUSY_ROW_U(EACH, symbol, category) EACH(symbol, category)
#define GPUBUSY_ROW_Z(EACH, symbol, category) EACH(symbol, category) EACH(symbol##_ptsz, category)
#define GPUBUSY_ROW_ZU(EACH, symbol, category) EACH(symbol, category) EACH(symbol##_ptsz, category)
#define GPUBUSY_ROW_D(EACH, symbol, category) EACH(symbol, category) EACH(symbol##_ptds, category)

enum class ApiId : std::uint16_t {
#define EACH(symbol, category) symbol,
#define HOOK(variants, symbol, category, ...) GPUBUSY_ROW_##variants(EACH, symbol, category)
#define LAUNCH(variants, symbol, ...) GPUBUSY_ROW_##variants(EACH, symbol, Launch)
#define OWN(symbol, category) EACH(symbol, category)
#include "preload/hooks/cuda_runtime.def"
  kRuntimeCount,
  kLastRuntime = kRuntimeCount - 1,
#include "preload/hooks/cuda_driver.def"
#undef HOOK
#undef LAUNCH
#undef OWN
#undef EACH
  kCount
};

inline constexpr std::size_t kApiCount = static_cast<std::size_t>(ApiId::kCount);

extern const runtime::ApiInfo kApis[kApiCount];
extern void* const kHooks[kApiCount];  // addresses of the exported functions

// The real functions; null until first needed.
extern constinit std::atomic<void*> g_real[kApiCount];

// Finds the real function as the program itself would have: next in the global scope, else in the
// scope of the caller's own dependencies (libraries loaded RTLD_LOCAL), else in a CUDA library that
// is loaded. nullptr: there is none.
void* resolve(ApiId id, void* caller) noexcept;

template <class Function>
[[gnu::always_inline]] inline Function* real(ApiId id) noexcept {
  void* p = g_real[static_cast<std::size_t>(id)].load(std::memory_order_relaxed);
  if (p == nullptr) [[unlikely]] p = resolve(id, __builtin_return_address(0));
  return reinterpret_cast<Function*>(p);
}

// libc's dlsym, not ours.
runtime::FindSymbol real_dlsym() noexcept;

// Id of an exported name; kCount: not hooked.
ApiId find_api(const char* name) noexcept;

// The program was given `real` under this name by dlsym or cuGetProcAddress: what it shall get
// instead. `real` itself where another function of that name is already behind the hook.
void* hook_for(ApiId id, void* real) noexcept;

}  // namespace gpubusy::preload
