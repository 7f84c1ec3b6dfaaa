// SPDX-License-Identifier: Apache-2.0
//
// The rules of the code that is loaded now, by pc. Known ones come out of a table that all threads
// share and no one locks; the others are read from the object's own tables, which cannot be
// unmapped meanwhile: dlclose() waits for readers (a few µs, bounded), and while it runs no other
// thread reads. Unloading makes all known rules void. Memory: 1 MiB, mapped at the first use.
//
// With _dl_find_object nothing here takes a lock, and signal handlers may come at any time;
// without, and for objects whose first page is not their ELF header, unknown rules are read inside
// dl_iterate_phdr, which takes libc's. Thread-safe. Reading an unknown rule may touch pages of a
// library for the first time. errno may change.
#pragma once

#include <link.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/native/cfi.hpp"

namespace gpubusy::runtime::native {

// dlfcn.h has it since glibc 2.35 only; this is its ABI.
struct FoundObject {
  unsigned long long flags;
  void* map_begin;
  void* map_end;
  link_map* map;
  void* eh_frame_header;
  unsigned long long reserved[7];
};

// How loaded objects are found. `find_object` is glibc's _dl_find_object, nullptr where there is
// none; `walk` is dl_iterate_phdr in a form that forks do not fall into.
struct ObjectSource {
  int (*find_object)(void* pc, FoundObject* result);
  void (*walk)(int (*step)(dl_phdr_info*, std::size_t, void*), void* data);
};
// Before the first use, or again with other functions while nobody uses them.
void set_object_source(const ObjectSource& source) noexcept;

// Whether unknown rules are read without libc's lock (but for odd objects).
bool finds_objects_without_lock() noexcept;

// Round each dlclose(), in its thread: the first returns when no thread is inside an object's
// tables any more, or after 10 ms; 1 s for a thread that has called read_surely().
void before_unloading() noexcept;
// The calling thread leaves no tables by a longjmp: it runs no signal handlers.
void read_surely() noexcept;
// `unloaded`: anything is gone.
void after_unloading(bool unloaded) noexcept;
// In the child of a fork, where this is the only thread.
void rules_after_fork() noexcept;

// Of the function at pc, read from its object's tables at each call (some 1 µs); empty where there
// is none, and while another thread unloads a library.
CodeSpan span_of(std::uintptr_t pc) noexcept;

struct RuleCounts {
  std::uint64_t misses;    // rules that were read from an object's tables
  std::uint64_t flushes;   // times that all became void
  std::uint64_t timeouts;  // before_unloading() gave up waiting
};
RuleCounts rule_counts() noexcept;

namespace rules_detail {

struct Entry {
  std::atomic<std::uint64_t> key;  // pc and, above it, the generation's low bits
  std::atomic<std::uint64_t> rule;
};
inline constexpr unsigned kBits = 16, kProbes = 8;
inline constexpr unsigned kPcBits = 48;

extern constinit std::atomic<Entry*> g_table;
extern constinit std::atomic<std::uint64_t> g_generation;

Entry* map_table() noexcept;
Rule read_rule(Entry* table, std::uint64_t generation, std::uintptr_t pc) noexcept;

inline std::size_t place_of(std::uintptr_t pc) noexcept {
  return static_cast<std::size_t>(pc * 0x9e3779b97f4a7c15ull >> (64 - kBits));
}

}  // namespace rules_detail

// For the length of one walk.
class Rules {
 public:
  Rules() noexcept
      : table_(rules_detail::g_table.load(std::memory_order_acquire)),
        generation_(rules_detail::g_generation.load(std::memory_order_acquire)) {
    if (table_ == nullptr) [[unlikely]]
      table_ = rules_detail::map_table();
  }

  // Rules and memos of another generation say nothing.
  std::uint64_t generation() const noexcept { return generation_; }

  [[gnu::always_inline]] Rule of(std::uintptr_t pc) const noexcept {
    using namespace rules_detail;
    const std::uint64_t key = pc | generation_ << kPcBits;
    if (table_ != nullptr) [[likely]] {
      const std::size_t place = place_of(pc);
      for (unsigned i = 0; i < kProbes; ++i) {
        const Entry& e = table_[(place + i) & ((1u << kBits) - 1)];
        const std::uint64_t found = e.key.load(std::memory_order_acquire);
        if (found == key) [[likely]] {
          // An entry may be taken over between the two loads.
          const std::uint64_t rule = e.rule.load(std::memory_order_acquire);
          if (e.key.load(std::memory_order_relaxed) == key) return std::bit_cast<Rule>(rule);
          break;
        }
        if (found == 0) break;
      }
    }
    return read_rule(table_, generation_, pc);
  }

 private:
  rules_detail::Entry* table_;
  std::uint64_t generation_;
};

}  // namespace gpubusy::runtime::native
