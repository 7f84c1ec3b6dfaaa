// SPDX-License-Identifier: Apache-2.0
//
// Pointer -> 64-bit value, for tables that are read on hot paths and written rarely. Fixed
// capacity, memory is mapped at the first insertion and only touched where used. Reads take no
// lock; writers exclude each other. The place of an erased key serves the next new one. A full
// table refuses: the caller asks has_room() and says so in the recording.
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
  static constexpr std::size_t kLimit = kCapacity / 4 * 3;  // stored values

  // 0 where nothing is stored.
  std::uint64_t find(const void* key) const noexcept {
    const Entry* entries = entries_.load(std::memory_order_acquire);
    if (entries == nullptr) return 0;
    const auto k = reinterpret_cast<std::uintptr_t>(key);
    for (std::size_t i = slot(k), n = 0; n < kCapacity; ++n, i = (i + 1) & (kCapacity - 1)) {
      const std::uintptr_t stored = entries[i].key.load(std::memory_order_acquire);
      if (stored == k + 1) {
        const std::uint64_t value = entries[i].value.load(std::memory_order_acquire);
        // The place may have gone to another key meanwhile; then this one was erased.
        return entries[i].key.load(std::memory_order_relaxed) == k + 1 ? value : 0;
      }
      if (stored == 0) return 0;
    }
    return 0;
  }

  bool is_empty() const noexcept { return live_.load(std::memory_order_relaxed) == 0; }
  bool has_room() const noexcept { return live_.load(std::memory_order_relaxed) < kLimit; }

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
        if (value == 0) count(-1);
      }
      for (std::size_t i = 0; i < kCapacity; ++i) free_places(entries, i);
    }
    pthread_mutex_unlock(&mutex_);
  }

  void lock() noexcept { pthread_mutex_lock(&mutex_); }
  void unlock() noexcept { pthread_mutex_unlock(&mutex_); }

  // Only where no other thread can be inside (a forked child).
  void reset_lock_after_fork() noexcept { mutex_ = PTHREAD_MUTEX_INITIALIZER; }
  void clear_after_fork() noexcept {
    reset_lock_after_fork();
    if (Entry* entries = entries_.exchange(nullptr)) munmap(entries, sizeof(Entry) * kCapacity);
    used_ = 0;
    live_.store(0, std::memory_order_relaxed);
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
    Entry* place = nullptr;
    for (std::size_t i = slot(k), n = 0; n < kCapacity; ++n, i = (i + 1) & (kCapacity - 1)) {
      Entry& e = entries[i];
      const std::uintptr_t stored = e.key.load(std::memory_order_relaxed);
      if (stored == k + 1) {
        const std::uint64_t before = e.value.exchange(value, std::memory_order_acq_rel);
        count((value != 0) - (before != 0));
        if (value == 0) free_places(entries, i);
        return true;
      }
      if (stored == 0) {
        if (place == nullptr && used_ < kMaxUsed) place = &e;
        break;
      }
      if (place == nullptr && e.value.load(std::memory_order_relaxed) == 0) place = &e;
    }
    if (value == 0) return true;
    if (place == nullptr || !has_room()) return false;
    if (place->key.load(std::memory_order_relaxed) == 0) ++used_;
    count(1);
    // The key first: whoever reads the value for the place's earlier key then finds it changed.
    place->key.store(k + 1, std::memory_order_release);
    place->value.store(value, std::memory_order_release);
    return true;
  }

  // A place that was erased must stay taken only while keys that were pushed past it lie behind.
  void free_places(Entry* entries, std::size_t i) noexcept {
    if (entries[(i + 1) & (kCapacity - 1)].key.load(std::memory_order_relaxed) != 0) return;
    while (entries[i].key.load(std::memory_order_relaxed) != 0 &&
           entries[i].value.load(std::memory_order_relaxed) == 0) {
      entries[i].key.store(0, std::memory_order_release);
      --used_;
      i = (i - 1) & (kCapacity - 1);
    }
  }

  void count(int difference) noexcept {
    live_.store(live_.load(std::memory_order_relaxed) + static_cast<std::size_t>(difference),
                std::memory_order_relaxed);
  }

  static constexpr std::size_t kMaxUsed = kCapacity / 16 * 15;  // places, erased keys among them
  std::atomic<Entry*> entries_{nullptr};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::size_t used_ = 0;
  std::atomic<std::size_t> live_{0};
};

}  // namespace gpubusy::runtime
