// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/buffers.hpp"

#include <sys/mman.h>

#include <atomic>

namespace gpubusy::runtime::cupti {
namespace {

static_assert(kBuffers == 64);  // a bit each
constexpr std::uint64_t kAllFree = ~std::uint64_t{0};

constinit std::atomic<std::uint8_t*> g_memory{nullptr};
constinit std::atomic<std::uint64_t> g_free{kAllFree};
constinit std::atomic<std::uint64_t> g_full{0};
constinit std::atomic<std::uint64_t> g_touched{0};  // may hold pages
constinit std::atomic<std::uint64_t> g_order{0};
constinit std::atomic<std::uint32_t> g_epoch{0};

struct Info {
  std::atomic<std::size_t> valid{0};
  std::atomic<std::uint64_t> order{0};
  std::atomic<std::uint32_t> epoch{0};
};
constinit Info g_info[kBuffers];

std::size_t index_of(const std::uint8_t* buffer) noexcept {
  return static_cast<std::size_t>(buffer - g_memory.load(std::memory_order_relaxed)) / kBufferBytes;
}

}  // namespace

bool prepare_buffers(std::uint32_t epoch) noexcept {
  g_epoch.store(epoch, std::memory_order_release);
  if (g_memory.load(std::memory_order_acquire) != nullptr) return true;
  void* p = mmap(nullptr, kBuffers * kBufferBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  g_memory.store(static_cast<std::uint8_t*>(p), std::memory_order_release);
  return true;
}

std::uint8_t* take_buffer() noexcept {
  std::uint8_t* memory = g_memory.load(std::memory_order_acquire);
  std::uint64_t free = g_free.load(std::memory_order_relaxed);
  while (memory != nullptr && free != 0) {
    const auto index = static_cast<std::size_t>(__builtin_ctzll(free));
    const std::uint64_t bit = std::uint64_t{1} << index;
    if (!g_free.compare_exchange_weak(free, free & ~bit, std::memory_order_acquire)) continue;
    g_touched.fetch_or(bit, std::memory_order_relaxed);
    g_info[index].epoch.store(g_epoch.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return memory + index * kBufferBytes;
  }
  return nullptr;
}

bool is_our_buffer(const std::uint8_t* buffer) noexcept {
  const std::uint8_t* memory = g_memory.load(std::memory_order_acquire);
  return memory != nullptr && buffer >= memory && buffer < memory + kBuffers * kBufferBytes;
}

void give_back_full(std::uint8_t* buffer, std::size_t valid) noexcept {
  const std::size_t index = index_of(buffer);
  const std::uint64_t bit = std::uint64_t{1} << index;
  if (valid == 0) {
    g_free.fetch_or(bit, std::memory_order_release);
    return;
  }
  g_info[index].valid.store(valid < kBufferBytes ? valid : kBufferBytes, std::memory_order_relaxed);
  g_info[index].order.store(g_order.fetch_add(1, std::memory_order_relaxed),
                            std::memory_order_relaxed);
  g_full.fetch_or(bit, std::memory_order_release);
}

bool any_full_buffer() noexcept { return g_full.load(std::memory_order_relaxed) != 0; }

bool next_full_buffer(FullBuffer& out) noexcept {
  const std::uint64_t full = g_full.load(std::memory_order_acquire);
  if (full == 0) return false;
  std::uint64_t first = ~std::uint64_t{0};
  for (std::size_t i = 0; i < kBuffers; ++i) {
    if ((full >> i & 1) == 0) continue;
    const std::uint64_t order = g_info[i].order.load(std::memory_order_relaxed);
    if (order >= first) continue;
    first = order;
    out.index = i;
  }
  out.data = g_memory.load(std::memory_order_relaxed) + out.index * kBufferBytes;
  out.valid = g_info[out.index].valid.load(std::memory_order_relaxed);
  out.epoch = g_info[out.index].epoch.load(std::memory_order_relaxed);
  return true;
}

void release_buffer(const FullBuffer& buffer) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << buffer.index;
  g_full.fetch_and(~bit, std::memory_order_relaxed);
  g_free.fetch_or(bit, std::memory_order_release);
}

void trim_buffers() noexcept {
  std::uint64_t touched = g_touched.load(std::memory_order_relaxed);
  while (touched != 0) {
    const auto index = static_cast<std::size_t>(__builtin_ctzll(touched));
    const std::uint64_t bit = std::uint64_t{1} << index;
    touched &= ~bit;
    if ((g_free.fetch_and(~bit, std::memory_order_acquire) & bit) == 0) continue;  // in use
    g_touched.fetch_and(~bit, std::memory_order_relaxed);
    madvise(g_memory.load(std::memory_order_relaxed) + index * kBufferBytes, kBufferBytes,
            MADV_DONTNEED);
    g_free.fetch_or(bit, std::memory_order_release);
  }
}

void reclaim_buffers() noexcept {
  g_free.fetch_or(~g_full.load(std::memory_order_acquire), std::memory_order_release);
}

}  // namespace gpubusy::runtime::cupti
