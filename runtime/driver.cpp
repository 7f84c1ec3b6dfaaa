// SPDX-License-Identifier: Apache-2.0
#include "runtime/driver.hpp"

#include <atomic>

#include "runtime/keep_errno.hpp"
#include "runtime/no_cancel.hpp"

namespace gpubusy::runtime {
namespace {

constinit std::atomic<FindSymbol> g_find{nullptr};
constinit Driver g_driver{};
constinit std::atomic<const Driver*> g_ready{nullptr};
constinit std::atomic<bool> g_looking{false};
constinit std::atomic<std::uint32_t> g_asked{0};

// A failed look-up costs microseconds. The driver comes with the program's first real CUDA call or
// not at all (a CUDA runtime of somebody's own), so keep asking, but rarely.
constexpr std::uint32_t kAskAlways = 16;
constexpr std::uint32_t kAskEvery = 1024;

}  // namespace

void set_symbol_finder(FindSymbol find) noexcept { g_find.store(find, std::memory_order_release); }
FindSymbol symbol_finder() noexcept { return g_find.load(std::memory_order_acquire); }

const Driver* driver() noexcept {
  if (const Driver* d = g_ready.load(std::memory_order_acquire)) [[likely]]
    return d;
  const FindSymbol find = symbol_finder();
  // Not an atomic increment: a lost count does no harm, and this is on the path of each call.
  const std::uint32_t asked = g_asked.load(std::memory_order_relaxed);
  g_asked.store(asked + 1, std::memory_order_relaxed);
  if (asked > kAskAlways && asked % kAskEvery != 0) return nullptr;
  if (find == nullptr || g_looking.exchange(true)) return g_ready.load(std::memory_order_acquire);
  KeepErrno keep;
  const NoCancel no_cancel;
  // Never by dlopen: another thread may hold the loader's lock and wait for this one.
  if (find(nullptr, nullptr) != nullptr) {
#define GPUBUSY_LOOK_UP(member, symbol, ...) \
  g_driver.member = reinterpret_cast<decltype(g_driver.member)>(find(nullptr, symbol));
    GPUBUSY_DRIVER_FUNCTIONS(GPUBUSY_LOOK_UP)
#undef GPUBUSY_LOOK_UP
    g_ready.store(&g_driver, std::memory_order_release);
  }
  g_looking.store(false);
  return g_ready.load(std::memory_order_acquire);
}

// Another thread of the parent may have been looking; what was found stays where it is.
void forget_driver_search_after_fork() noexcept { g_looking.store(false); }

}  // namespace gpubusy::runtime
