// SPDX-License-Identifier: Apache-2.0
#include "preload/objects.hpp"

#include <pthread.h>
#include <sched.h>

#include <atomic>

#include "runtime/clock.hpp"

extern "C" {
[[gnu::visibility("hidden")]] extern const char __ehdr_start[];
[[gnu::visibility("hidden")]] extern const char _end[];
}

namespace gpubusy::preload {
namespace {

// Our own, since libc's may be a sanitizer's interceptors: ASan looks its real functions up by
// dlsym while it starts, and its strcmp jumps to null until then.
bool same_text(const char* a, const char* b) noexcept {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}
const char* last_slash(const char* path) noexcept {
  const char* found = nullptr;
  for (; *path != '\0'; ++path) {
    if (*path == '/') found = path;
  }
  return found;
}

// The parts of the dynamic section that a look-up needs.
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const std::uint32_t* gnu_hash = nullptr;
  const std::uint32_t* hash = nullptr;
  const ElfW(Half) * versions = nullptr;
  const ElfW(Verdef) * defined = nullptr;
  const ElfW(Verneed) * needed = nullptr;
  const char* soname = nullptr;
};

Tables tables(const Object& object) noexcept {
  Tables t;
  if (object.dynamic == nullptr) return t;
  std::size_t soname = 0;
  // The loader has relocated these addresses in place, except in objects that are read-only (vDSO).
  const auto at = [&](ElfW(Addr) value) {
    return static_cast<std::uintptr_t>(value < object.base ? object.base + value : value);
  };
  for (const ElfW(Dyn)* d = object.dynamic; d->d_tag != DT_NULL; ++d) {
    switch (d->d_tag) {
      case DT_SYMTAB: t.symbols = reinterpret_cast<const ElfW(Sym)*>(at(d->d_un.d_ptr)); break;
      case DT_STRTAB: t.strings = reinterpret_cast<const char*>(at(d->d_un.d_ptr)); break;
      case DT_GNU_HASH:
        t.gnu_hash = reinterpret_cast<const std::uint32_t*>(at(d->d_un.d_ptr));
        break;
      case DT_HASH: t.hash = reinterpret_cast<const std::uint32_t*>(at(d->d_un.d_ptr)); break;
      case DT_VERSYM: t.versions = reinterpret_cast<const ElfW(Half)*>(at(d->d_un.d_ptr)); break;
      case DT_VERDEF: t.defined = reinterpret_cast<const ElfW(Verdef)*>(at(d->d_un.d_ptr)); break;
      case DT_VERNEED: t.needed = reinterpret_cast<const ElfW(Verneed)*>(at(d->d_un.d_ptr)); break;
      case DT_SONAME: soname = d->d_un.d_val; break;
      default: break;
    }
  }
  if (t.strings != nullptr && soname != 0) t.soname = t.strings + soname;
  return t;
}

template <class T>
const T* step(const T* p, std::size_t bytes) noexcept {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p) + bytes);
}

const char* version_name(const Tables& t, unsigned index) noexcept {
  if (index <= VER_NDX_GLOBAL) return nullptr;
  for (const ElfW(Verdef)* v = t.defined; v != nullptr; v = step(v, v->vd_next)) {
    if ((v->vd_ndx & 0x7fff) == index) {
      const auto* aux =
          reinterpret_cast<const ElfW(Verdaux)*>(reinterpret_cast<const char*>(v) + v->vd_aux);
      return t.strings + aux->vda_name;
    }
    if (v->vd_next == 0) break;
  }
  return nullptr;
}

bool matches(const Tables& t, std::uint32_t index, const char* name) noexcept {
  const ElfW(Sym)& s = t.symbols[index];
  const unsigned type = s.st_info & 0xf, bind = s.st_info >> 4;
  if (s.st_shndx == SHN_UNDEF || s.st_value == 0) return false;
  if (type != STT_FUNC && type != STT_NOTYPE && type != STT_OBJECT) return false;
  if (bind != STB_GLOBAL && bind != STB_WEAK && bind != STB_GNU_UNIQUE) return false;
  constexpr unsigned kHidden = 0x8000;  // an old version, for programs linked long ago
  if (t.versions != nullptr && (t.versions[index] & kHidden) != 0) return false;
  return same_text(t.strings + s.st_name, name);
}

std::uint32_t find_by_gnu_hash(const Tables& t, const char* name) noexcept {
  std::uint32_t h = 5381;
  for (const char* p = name; *p != '\0'; ++p) h = h * 33 + static_cast<unsigned char>(*p);
  const std::uint32_t buckets = t.gnu_hash[0], first = t.gnu_hash[1], words = t.gnu_hash[2],
                      shift = t.gnu_hash[3];
  if (buckets == 0 || words == 0) return 0;
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(t.gnu_hash + 4);
  constexpr unsigned kBits = sizeof(ElfW(Addr)) * 8;
  const ElfW(Addr) word = bloom[(h / kBits) % words];
  if (((word >> (h % kBits)) & (word >> ((h >> shift) % kBits)) & 1) == 0) return 0;
  const auto* bucket = reinterpret_cast<const std::uint32_t*>(bloom + words);
  const std::uint32_t* chain = bucket + buckets;
  std::uint32_t i = bucket[h % buckets];
  if (i < first) return 0;
  for (;; ++i) {
    const std::uint32_t stored = chain[i - first];
    if ((stored | 1) == (h | 1) && matches(t, i, name)) return i;
    if ((stored & 1) != 0) return 0;
  }
}

std::uint32_t find_by_hash(const Tables& t, const char* name) noexcept {
  for (std::uint32_t i = 1; i < t.hash[1]; ++i) {
    if (matches(t, i, name)) return i;
  }
  return 0;
}

// No mutex: a thread inside somebody else's dl_iterate_phdr may call us while one of ours waits for
// it to end. So nobody waits long here; in the worst case a fork is not kept out.
constinit std::atomic<int> g_walks{0};
constinit std::atomic<bool> g_forking{false};
constexpr std::uint64_t kPatienceNs = 50'000'000;

template <class Condition>
void wait_until(Condition&& condition) noexcept {
  if (condition()) return;
  const std::uint64_t end = runtime::now_ns() + kPatienceNs;
  while (!condition() && runtime::now_ns() < end) sched_yield();
}

void before_fork() {
  g_forking.store(true);
  wait_until([] { return g_walks.load() <= 0; });
}
void after_fork_in_parent() { g_forking.store(false); }
void after_fork_in_child() {
  g_walks.store(0);
  g_forking.store(false);
}

// libc's own: programs replace dl_iterate_phdr, so that exceptions take no lock, and a replacement
// looks libc's up by dlsym at its first use, which would lead back to us. The link map is read
// without a lock up to libc alone: what is loaded at the start stays where it is.
using Iterate = int (*)(WalkStep, void*);
Iterate libc_iterate() noexcept {
  static constinit std::atomic<Iterate> known{nullptr};
  Iterate f = known.load(std::memory_order_acquire);
  if (f != nullptr) return f;
  for (const link_map* m = _r_debug.r_map; m != nullptr && f == nullptr; m = m->l_next) {
    Object o;
    o.base = m->l_addr;
    o.dynamic = m->l_ld;
    o.path = m->l_name;
    if (has_name(o, "libc.so.6")) {
      f = reinterpret_cast<Iterate>(find_function(o, "dl_iterate_phdr"));
    }
  }
  if (f == nullptr) f = &dl_iterate_phdr;
  known.store(f, std::memory_order_release);
  return f;
}

}  // namespace

void walk_objects(WalkStep step, void* data) noexcept {
  g_walks.fetch_add(1);
  if (g_forking.load()) [[unlikely]] {
    g_walks.fetch_sub(1);
    wait_until([] { return !g_forking.load(); });
    g_walks.fetch_add(1);
  }
  libc_iterate()(step, data);
  g_walks.fetch_sub(1);
}

void keep_forks_out_of_walks() noexcept {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

Object object_of(const dl_phdr_info& info, std::size_t position) noexcept {
  Object o;
  o.base = info.dlpi_addr;
  o.path = info.dlpi_name == nullptr ? "" : info.dlpi_name;
  o.position = position;
  o.begin = ~std::uintptr_t{0};
  for (unsigned i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info.dlpi_phdr[i];
    const std::uintptr_t start = info.dlpi_addr + p.p_vaddr;
    if (p.p_type == PT_DYNAMIC) o.dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
    if (p.p_type != PT_LOAD) continue;
    if (start < o.begin) o.begin = start;
    if (start + p.p_memsz > o.end) o.end = start + p.p_memsz;
  }
  return o;
}

std::size_t build_id_of(const dl_phdr_info& info, unsigned char* out, std::size_t room) noexcept {
  const auto is_mapped = [&](const ElfW(Phdr) & note) {
    for (unsigned i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr)& p = info.dlpi_phdr[i];
      if (p.p_type == PT_LOAD && (p.p_flags & PF_R) != 0 && note.p_vaddr >= p.p_vaddr &&
          note.p_vaddr + note.p_memsz <= p.p_vaddr + p.p_filesz) {
        return true;
      }
    }
    return false;
  };
  for (unsigned i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info.dlpi_phdr[i];
    if (p.p_type != PT_NOTE || !is_mapped(p)) continue;
    const std::size_t align = p.p_align == 8 ? 8 : 4;
    const auto round = [&](std::size_t n) { return (n + align - 1) & ~(align - 1); };
    const auto* const begin = reinterpret_cast<const unsigned char*>(info.dlpi_addr + p.p_vaddr);
    for (std::size_t at = 0; at + sizeof(ElfW(Nhdr)) <= p.p_memsz;) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(begin + at);
      const std::size_t name = at + sizeof *note;
      const std::size_t description = name + round(note->n_namesz);
      const std::size_t end = description + round(note->n_descsz);
      if (description + note->n_descsz > p.p_memsz || end <= at) break;
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && begin[name] == 'G' &&
          begin[name + 1] == 'N' && begin[name + 2] == 'U') {
        const std::size_t size = note->n_descsz < room ? note->n_descsz : room;
        for (std::size_t k = 0; k < size; ++k) out[k] = begin[description + k];
        return size;
      }
      at = end;
    }
  }
  return 0;
}

LoadCount load_count() noexcept {
  LoadCount count;
  walk_objects(
      [](dl_phdr_info* info, std::size_t, void* data) -> int {
        *static_cast<LoadCount*>(data) = {info->dlpi_adds, info->dlpi_subs};
        return 1;
      },
      &count);
  return count;
}

void* find_function(const Object& object, const char* name, const char** version) noexcept {
  const Tables t = tables(object);
  if (t.symbols == nullptr || t.strings == nullptr) return nullptr;
  const std::uint32_t i = t.gnu_hash != nullptr ? find_by_gnu_hash(t, name)
                          : t.hash != nullptr   ? find_by_hash(t, name)
                                                : 0;
  if (i == 0) return nullptr;
  if (version != nullptr) {
    *version = t.versions == nullptr ? nullptr : version_name(t, t.versions[i] & 0x7fff);
  }
  return reinterpret_cast<void*>(object.base + t.symbols[i].st_value);
}

bool requires_version(const Object& object, const char* version) noexcept {
  const Tables t = tables(object);
  if (t.strings == nullptr) return false;
  for (const ElfW(Verneed)* n = t.needed; n != nullptr; n = step(n, n->vn_next)) {
    const auto* aux =
        reinterpret_cast<const ElfW(Vernaux)*>(reinterpret_cast<const char*>(n) + n->vn_aux);
    for (unsigned i = 0; i < n->vn_cnt; ++i, aux = step(aux, aux->vna_next)) {
      if (same_text(t.strings + aux->vna_name, version)) return true;
    }
    if (n->vn_next == 0) break;
  }
  return false;
}

bool has_name(const Object& object, const char* name) noexcept {
  const char* slash = last_slash(object.path);
  if (same_text(slash == nullptr ? object.path : slash + 1, name)) return true;
  const char* soname = tables(object).soname;
  return same_text(object.path, name) || (soname != nullptr && same_text(soname, name));
}

bool needs(const Object& object, const Object& other) noexcept {
  const Tables t = tables(object);
  if (t.strings == nullptr) return false;
  for (const ElfW(Dyn)* d = object.dynamic; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_NEEDED && has_name(other, t.strings + d->d_un.d_val)) return true;
  }
  return false;
}

void* next_function(const char* name) noexcept {
  void* found = nullptr;
  bool after = false;
  for_each_object([&](const Object& o) {
    if (after) found = find_function(o, name);
    after = after || is_own_code(o.begin);
    return found != nullptr;
  });
  return found;
}

bool is_before_us(const void* code) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(code);
  bool before = false;
  for_each_object([&](const Object& o) {
    before = address >= o.begin && address < o.end;
    return before || is_own_code(o.begin);
  });
  return before;
}

void own_code(std::uintptr_t& begin, std::uintptr_t& end) noexcept {
  begin = reinterpret_cast<std::uintptr_t>(__ehdr_start);
  end = reinterpret_cast<std::uintptr_t>(_end);
}

bool is_own_code(std::uintptr_t address) noexcept {
  std::uintptr_t begin, end;
  own_code(begin, end);
  return address >= begin && address < end;
}

}  // namespace gpubusy::preload
