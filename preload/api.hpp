// SPDX-License-Identifier: Apache-2.0
//
// The hook table: one id, name, category and hook address per intercepted function, all made from
// the rows in hooks/*.def.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/hooks/rows.hpp"
#include "recording/format.hpp"
#include "runtime/api_info.hpp"

namespace gpubusy::preload {

enum class ApiId : std::uint16_t {
#define EACH(symbol, category) symbol,
#define HOOK(variants, symbol, category, ...) GPUBUSY_ROW_##variants(EACH, symbol, category)
#define LAUNCH(variants, symbol, ...) GPUBUSY_ROW_##variants(EACH, symbol, Launch)
#define OWN(symbol, category) EACH(symbol, category)
#include "preload/hooks/cuda_runtime.def"
  kRuntimeCount,
  kLastRuntime = kRuntimeCount - 1,
#include "preload/hooks/cuda_driver.def"
  kDriverEnd,
  kLastDriver = kDriverEnd - 1,
// CUPTI's are the last.
#include "preload/hooks/cupti.def"
#undef HOOK
#undef LAUNCH
#undef OWN
#undef EACH
  kCudaCount,
  kLastCuda = kCudaCount - 1,
#define LIBRARY(library, symbol, ...) symbol,
#include "preload/hooks/libraries.def"
#undef LIBRARY
  kCount
};

inline constexpr std::size_t kFirstCupti = static_cast<std::size_t>(ApiId::kDriverEnd);
// A function of CUDA or CUPTI, and not of a library above them.
constexpr bool is_of_cuda(std::size_t index) noexcept {
  return index < static_cast<std::size_t>(ApiId::kCudaCount);
}
inline constexpr std::size_t kApiCount = static_cast<std::size_t>(ApiId::kCount);

extern const runtime::ApiInfo kApis[kApiCount];
extern void* const kHooks[kApiCount];  // addresses of the exported functions

// recording::ReachFlags: how the program was given the hook.
extern constinit std::atomic<std::uint8_t> g_reach[kApiCount];
inline void note_reach(ApiId id, std::uint8_t way) noexcept {
  std::atomic<std::uint8_t>& r = g_reach[static_cast<std::size_t>(id)];
  if ((r.load(std::memory_order_relaxed) & way) == 0) r.fetch_or(way, std::memory_order_relaxed);
}

// The real functions; null until first needed.
extern constinit std::atomic<void*> g_real[kApiCount];

// Where the library begins: from its constructor, or from the first hook that is called, whichever
// is earlier. Constructors of the program's own libraries run before ours.
void ensure_started() noexcept;

// Finds the real function that the caller would have been bound to. Nothing here waits for the
// loader's lock (preload/objects.hpp). nullptr: there is none.
void* resolve(ApiId id, void* caller) noexcept;
// The same, where a wrong answer mixes two runtimes: also sees that a second one was loaded.
void* resolve_for_registration(ApiId id, void* caller) noexcept;
// Is the function there for this caller by its own dependencies, outside of the global scope?
bool is_in_scope_of(ApiId id, const void* caller) noexcept;
// The definition with this version among the program's own libraries and in the caller's
// dependencies; nullptr: there is none.
void* version_in_scope_of(ApiId id, const char* version, const void* caller) noexcept;
// What the driver's library, if it is loaded, exports under this name.
void* find_in_driver(const char* name) noexcept;

// Before a dlclose(): the driver and CUPTI stay loaded once the recorder has functions of them.
void keep_used_libraries() noexcept;
// After a dlclose(): functions of libraries that are gone are looked for again. No other library is
// kept loaded by us.
void forget_unloaded() noexcept;

template <class Function>
[[gnu::always_inline]] inline Function* real(ApiId id) noexcept {
  void* p = g_real[static_cast<std::size_t>(id)].load(std::memory_order_relaxed);
  if (p == nullptr) [[unlikely]]
    p = resolve(id, __builtin_return_address(0));
  return reinterpret_cast<Function*>(p);
}

// The next dlsym after ours: libc's, or that of another preloaded library.
runtime::FindSymbol real_dlsym() noexcept;
using FindVersion = void* (*)(void* handle, const char* name, const char* version);
FindVersion real_dlvsym() noexcept;

// Id of an exported name; kCount: not hooked.
ApiId find_api(const char* name) noexcept;

// The program was given `real` under this name by dlsym: what it shall get instead. `real` itself
// where the hook would lead to another function.
void* hook_for(ApiId id, void* real) noexcept;
// As hook_for, for an answer of the driver that is known to be this function, though perhaps by
// another address than the exported one.
void* hook_for_same(ApiId id, void* real) noexcept;

}  // namespace gpubusy::preload
