// SPDX-License-Identifier: Apache-2.0
#include "runtime/native/rules.hpp"

#include <elf.h>
#include <sched.h>
#include <sys/mman.h>

#include "runtime/clock.hpp"

namespace gpubusy::runtime::native {

namespace rules_detail {
constinit std::atomic<Entry*> g_table{nullptr};
constinit std::atomic<std::uint64_t> g_generation{1};
}  // namespace rules_detail

namespace {

using namespace rules_detail;

constexpr std::size_t kEntries = std::size_t{1} << kBits;
// Keys that no pc has. Taken: being written. Void: not the end of a chain, as 0 is.
constexpr std::uint64_t kTaken = ~std::uint64_t{0}, kVoid = 1;
// The zero page holds no code, and user addresses have 47 bits.
constexpr std::uintptr_t kFirstPc = 4096, kEndOfPcs = std::uintptr_t{1} << 47;

void walk_plainly(int (*step)(dl_phdr_info*, std::size_t, void*), void* data) {
  dl_iterate_phdr(step, data);
}
constinit ObjectSource g_source{nullptr, walk_plainly};

constinit std::atomic<int> g_readers{0};  // inside tables that only before_unloading() keeps
// Those of a thread that no signal handler interrupts: they always come out again.
constinit std::atomic<int> g_sure_readers{0};
constinit thread_local bool t_is_sure = false;
constinit std::atomic<int> g_unloading{0};   // dlclose() calls that run
constinit thread_local int t_unloading = 0;  // those of this thread, whose stack they are on
constinit std::atomic<std::uint64_t> g_misses{0}, g_flushes{0}, g_timeouts{0};

// Not below 0: the count may have been reset meanwhile (fork, a reader that was given up).
void leave(std::atomic<int>& count) noexcept {
  int n = count.load(std::memory_order_relaxed);
  while (n > 0 && !count.compare_exchange_weak(n, n - 1, std::memory_order_acq_rel)) {
  }
}

bool is_of(std::uint64_t key, std::uint64_t generation) noexcept {
  return key >> kPcBits == (generation & 0xffff);
}

void keep(Entry* table, std::uint64_t generation, std::uintptr_t pc, Rule rule) noexcept {
  const std::uint64_t key = pc | generation << kPcBits;
  const std::size_t place = place_of(pc);
  Entry* chosen = nullptr;
  std::uint64_t before = 0;
  for (unsigned i = 0; i < kProbes && chosen == nullptr; ++i) {
    Entry& e = table[(place + i) & (kEntries - 1)];
    before = e.key.load(std::memory_order_relaxed);
    if (before == key) return;
    if (before != kTaken && !is_of(before, generation)) chosen = &e;
  }
  if (chosen == nullptr) {  // all in use: the table follows what the program does now
    chosen = &table[place];
    before = chosen->key.load(std::memory_order_relaxed);
    if (before == kTaken) return;
  }
  if (!chosen->key.compare_exchange_strong(before, kTaken, std::memory_order_acq_rel)) return;
  chosen->rule.store(std::bit_cast<std::uint64_t>(rule), std::memory_order_release);
  chosen->key.store(key, std::memory_order_release);
  // What was read before an unloading must not come back when its number comes round again.
  if (g_generation.load(std::memory_order_acquire) != generation) {
    std::uint64_t expected = key;
    chosen->key.compare_exchange_strong(expected, kVoid, std::memory_order_relaxed);
  }
}

void flush() noexcept {
  const std::uint64_t generation = g_generation.fetch_add(1, std::memory_order_acq_rel) + 1;
  g_flushes.fetch_add(1, std::memory_order_relaxed);
  Entry* table = g_table.load(std::memory_order_acquire);
  if ((generation & 0xffff) != 0 || table == nullptr) return;
  // The low bits begin anew.
  for (std::size_t i = 0; i < kEntries; ++i) {
    std::uint64_t key = table[i].key.load(std::memory_order_relaxed);
    if (key > kVoid && key != kTaken) {
      table[i].key.compare_exchange_strong(key, kVoid, std::memory_order_relaxed);
    }
  }
}

// ---- objects -----------------------------------------------------------------------------------

// Segments and .eh_frame_hdr, from program headers.
bool describe(const ElfW(Phdr) * headers, std::size_t count, std::uintptr_t base,
              Image& image) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const ElfW(Phdr)& p = headers[i];
    if (p.p_type == PT_GNU_EH_FRAME) image.header = base + p.p_vaddr;
    if (p.p_type != PT_LOAD || (p.p_flags & PF_R) == 0) continue;
    if (image.range_count == Image::kMaxRanges) continue;
    // Only what comes from the file: tables are not in .bss.
    image.ranges[image.range_count++] = {base + p.p_vaddr, base + p.p_vaddr + p.p_filesz};
  }
  return image.header != 0;
}

// The same from the object's first page, where its ELF header is mapped (if it is).
bool describe(const FoundObject& object, Image& image) noexcept {
  constexpr std::size_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(object.map_begin);
  const auto end = reinterpret_cast<std::uintptr_t>(object.map_end);
  if (begin == 0 || end <= begin || object.map == nullptr) return false;
  const auto* elf = reinterpret_cast<const ElfW(Ehdr)*>(begin);
  for (int i = 0; i < SELFMAG; ++i) {
    if (elf->e_ident[i] != ELFMAG[i]) return false;
  }
  if (elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_phentsize != sizeof(ElfW(Phdr)) ||
      elf->e_phoff % alignof(ElfW(Phdr)) != 0 || elf->e_phoff > kPage ||
      elf->e_phnum > (kPage - elf->e_phoff) / sizeof(ElfW(Phdr))) {
    return false;
  }
  if (!describe(reinterpret_cast<const ElfW(Phdr)*>(begin + elf->e_phoff), elf->e_phnum,
                object.map->l_addr, image)) {
    return false;
  }
  for (int i = 0; i < image.range_count; ++i) {
    if (image.ranges[i].begin < begin || image.ranges[i].end > end) return false;
  }
  return image.header == reinterpret_cast<std::uintptr_t>(object.eh_frame_header);
}

// What is asked of the tables of the object at pc.
struct Query {
  void (*read)(const Image& image, std::uintptr_t pc, void* result);
  void* result;
};

// Returns whether there is an object, else there may be one later, or other code.
bool read_while_iterating(std::uintptr_t pc, const Query& query) noexcept {
  struct Search {
    std::uintptr_t pc;
    const Query& query;
    bool has_object = false;
  } search{pc, query};
  g_source.walk(
      [](dl_phdr_info* info, std::size_t, void* data) -> int {
        auto& s = *static_cast<Search*>(data);
        bool inside = false;
        for (std::size_t i = 0; i < info->dlpi_phnum && !inside; ++i) {
          const ElfW(Phdr)& p = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + p.p_vaddr;
          inside = p.p_type == PT_LOAD && s.pc >= begin && s.pc - begin < p.p_memsz;
        }
        if (!inside) return 0;
        s.has_object = true;
        Image image;
        if (describe(info->dlpi_phdr, info->dlpi_phnum, info->dlpi_addr, image)) {
          s.query.read(image, s.pc, s.query.result);
        }
        return 1;
      },
      &search);
  return search.has_object;
}

enum class Reach : std::uint8_t { kNoObject, kObject, kUnloading };

Reach read_tables(std::uintptr_t pc, const Query& query) noexcept {
  if (g_source.find_object != nullptr) {
    // Either before_unloading() sees this reader, or the reader sees that it must not be one.
    std::atomic<int>& readers = t_is_sure ? g_sure_readers : g_readers;
    readers.fetch_add(1, std::memory_order_seq_cst);
    bool done = true;
    Reach reach = Reach::kNoObject;
    if (g_unloading.load(std::memory_order_seq_cst) != t_unloading) {
      reach = Reach::kUnloading;
    } else {
      FoundObject object{};
      Image image;
      if (g_source.find_object(reinterpret_cast<void*>(pc), &object) == 0) {
        done = describe(object, image);
        if (done) {
          reach = Reach::kObject;
          query.read(image, pc, query.result);
        }
      }
    }
    leave(readers);
    if (done) return reach;
  }
  return read_while_iterating(pc, query) ? Reach::kObject : Reach::kNoObject;
}

bool may_be_code(std::uintptr_t pc) noexcept { return pc >= kFirstPc && pc < kEndOfPcs; }

}  // namespace

namespace rules_detail {

Entry* map_table() noexcept {
  void* p = mmap(nullptr, kEntries * sizeof(Entry), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  Entry* expected = nullptr;
  auto* fresh = static_cast<Entry*>(p);  // zeroed is the empty state
  if (g_table.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return fresh;
  munmap(p, kEntries * sizeof(Entry));
  return expected;
}

[[gnu::noinline, gnu::cold]] Rule read_rule(Entry* table, std::uint64_t generation,
                                            std::uintptr_t pc) noexcept {
  Rule rule;
  if (!may_be_code(pc)) return rule;
  g_misses.fetch_add(1, std::memory_order_relaxed);
  const Reach reach = read_tables(pc, {[](const Image& image, std::uintptr_t at, void* result) {
                                         *static_cast<Rule*>(result) = find_rule(image, at);
                                       },
                                       &rule});
  if (reach == Reach::kUnloading) rule.type = RuleType::kUnread;
  // While something is being unloaded, what was read may be void by the time it is kept.
  if (reach == Reach::kObject && table != nullptr &&
      g_unloading.load(std::memory_order_acquire) == 0) {
    keep(table, generation, pc, rule);
  }
  return rule;
}

}  // namespace rules_detail

CodeSpan span_of(std::uintptr_t pc) noexcept {
  CodeSpan span;
  if (may_be_code(pc)) {
    read_tables(pc, {[](const Image& image, std::uintptr_t at, void* result) {
                       *static_cast<CodeSpan*>(result) = find_span(image, at);
                     },
                     &span});
  }
  return span;
}

void set_object_source(const ObjectSource& source) noexcept {
  g_source = source;
  if (g_source.walk == nullptr) g_source.walk = walk_plainly;
}

bool finds_objects_without_lock() noexcept { return g_source.find_object != nullptr; }

namespace {

// Those that do not come out in time were left by a longjmp out of a signal handler, most likely:
// not waited for again.
void wait_for(std::atomic<int>& readers, std::uint64_t patience_ns) noexcept {
  if (readers.load(std::memory_order_seq_cst) == 0) return;
  const std::uint64_t end = now_ns() + patience_ns;
  while (readers.load(std::memory_order_acquire) > 0) {
    if (now_ns() >= end) {
      readers.store(0, std::memory_order_relaxed);
      g_timeouts.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    sched_yield();
  }
}

}  // namespace

void before_unloading() noexcept {
  constexpr std::uint64_t kPatienceNs = 10'000'000, kSurePatienceNs = 1'000'000'000;
  ++t_unloading;
  g_unloading.fetch_add(1, std::memory_order_seq_cst);
  wait_for(g_readers, kPatienceNs);
  // A quota or a page of a slow file system may hold it up for long, and what it reads must not go
  // away under it.
  wait_for(g_sure_readers, kSurePatienceNs);
}

void after_unloading(bool unloaded) noexcept {
  if (unloaded) flush();
  leave(g_unloading);
  if (t_unloading > 0) --t_unloading;
}

void read_surely() noexcept { t_is_sure = true; }

void rules_after_fork() noexcept {
  g_sure_readers.store(0, std::memory_order_relaxed);
  g_readers.store(0, std::memory_order_relaxed);
  g_unloading.store(t_unloading, std::memory_order_relaxed);
}

RuleCounts rule_counts() noexcept {
  return {g_misses.load(std::memory_order_relaxed), g_flushes.load(std::memory_order_relaxed),
          g_timeouts.load(std::memory_order_relaxed)};
}

}  // namespace gpubusy::runtime::native
