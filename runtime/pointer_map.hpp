// SPDX-License-Identifier: Apache-2.0
//
// Pointer -> 64-bit value, for tables that are read on hot paths and written rarely. Fixed
// capacity, memory is mapped at the first insertion and only touched where used. Reads take no
// lock; writers exclude each other. A full table refuses (the caller says so in the recording).
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime {

template <unsigned kBits>
class PointerMap {
 public:
  static constexpr std::size_t kCapacity = std::size_t{1} << kBits;

  // 0 where nothing is stored.
  std::uint64_t find(const void* key) const noexcept {
    const Entry* entries = entries_.load(std::memory_order_acquire);
    if (entries == nullptr) return 0;
    const auto k = reinterpret_cast<std::uintptr_t>(key);
    for (std::size_t i = slot(k), n = 0; n < kCapacity; ++n, i = (i + 1) & (kCapacity - 1)) {
      const std::uintptr_t stored = entries[i].key.load(std::memory_order_acquire);
      if (stored == k + 1) return entries[i].value.load(std::memory_order_acquire);
      if (stored == 0) return 0;
    }
    return 0;
  }

  // False: full or no memory. value 0 erases.
  bool set(const void* key, std::uint64_t value) noexcept {
    pthread_mutex_lock(&mutex_);
    const bool ok = set_locked(key, value);
    pthread_mutex_unlock(&mutex_);
    return ok;
  }

  // Calls fn(key, value&) for each stored pair, under the lock.
  template <class Fn>
  void for_each(Fn&& fn) noexcept {
    pthread_mutex_lock(&mutex_);
    if (Entry* entries = entries_.load(std::memory_order_relaxed)) {
      for (std::size_t i = 0; i < kCapacity; ++i) {
        const std::uintptr_t stored = entries[i].key.load(std::memory_order_relaxed);
        if (stored == 0) continue;
        std::uint64_t value = entries[i].value.load(std::memory_order_relaxed);
        if (value == 0) continue;
        fn(reinterpret_cast<const void*>(stored - 1), value);
        entries[i].value.store(value, std::memory_order_release);
      }
    }
    pthread_mutex_unlock(&mutex_);
  }

  void lock() noexcept { pthread_mutex_lock(&mutex_); }
  void unlock() noexcept { pthread_mutex_unlock(&mutex_); }

  // Only where no other thread can be inside (a forked child): also makes the mutex whole again.
  void clear_after_fork() noexcept {
    mutex_ = PTHREAD_MUTEX_INITIALIZER;
    if (Entry* entries = entries_.exchange(nullptr)) munmap(entries, sizeof(Entry) * kCapacity);
    used_ = 0;
  }

 private:
  struct Entry {
    std::atomic<std::uintptr_t> key;  // pointer + 1: a null pointer (default stream) is a key too
    std::atomic<std::uint64_t> value;
  };

  static std::size_t slot(std::uintptr_t k) noexcept {
    return static_cast<std::size_t>((k * 0x9e3779b97f4a7c15ull) >> (64 - kBits));
  }

  bool set_locked(const void* key, std::uint64_t value) noexcept {
    Entry* entries = entries_.load(std::memory_order_relaxed);
    if (entries == nullptr) {
      if (value == 0) return true;
      void* p = mmap(nullptr, sizeof(Entry) * kCapacity, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) return false;
      entries = static_cast<Entry*>(p);
      entries_.store(entries, std::memory_order_release);
    }
    const auto k = reinterpret_cast<std::uintptr_t>(key);
    for (std::size_t i = slot(k);; i = (i + 1) & (kCapacity - 1)) {
      const std::uintptr_t stored = entries[i].key.load(std::memory_order_relaxed);
      if (stored == k + 1) {
        entries[i].value.store(value, std::memory_order_release);
        return true;
      }
      if (stored == 0) {
        if (value == 0) return true;
        if (used_ >= kCapacity / 4 * 3) return false;
        ++used_;
        entries[i].value.store(value, std::memory_order_relaxed);
        entries[i].key.store(k + 1, std::memory_order_release);
        return true;
      }
    }
  }

  std::atomic<Entry*> entries_{nullptr};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::size_t used_ = 0;
};

}  // namespace gpubusy::runtime
