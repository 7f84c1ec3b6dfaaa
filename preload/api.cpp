// SPDX-License-Identifier: Apache-2.0
#include "preload/api.hpp"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "preload/objects.hpp"
#include "runtime/cupti/library.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::preload {

const runtime::ApiInfo kApis[kApiCount] = {
#define HOOK(variants, symbol, category, ...) GPUBUSY_ROW_##variants(EACH, symbol, category)
#define LAUNCH(variants, symbol, ...) GPUBUSY_ROW_##variants(EACH, symbol, Launch)
#define OWN(symbol, category) EACH(symbol, category)
#define EACH(symbol, category) \
  {#symbol, recording::Category::k##category, recording::Layer::kRuntime},
#include "preload/hooks/cuda_runtime.def"
#undef EACH
#define EACH(symbol, category) \
  {#symbol, recording::Category::k##category, recording::Layer::kDriver},
#include "preload/hooks/cuda_driver.def"
// CUPTI's are the last.
#include "preload/hooks/cupti.def"
#undef EACH
#undef HOOK
#undef LAUNCH
#undef OWN
#define LIBRARY(library, symbol, ...) \
  {#symbol, recording::Category::kContext, recording::Layer::kLibrary},
#include "preload/hooks/libraries.def"
#undef LIBRARY
};

constinit std::atomic<void*> g_real[kApiCount] = {};
constinit std::atomic<std::uint8_t> g_reach[kApiCount] = {};

namespace {

// The objects that the real functions are in. An index into this is also one into
// runtime::g_cuda_code, whose ranges tell which slots are taken; slot 0 is this library.
constexpr std::size_t kProviders = runtime::kCodeRanges;
struct Provider {
  std::atomic<void*> functions[kApiCount];
};
constinit Provider g_providers[kProviders] = {};
// Where different callers are bound to different functions (two versions of libcudart): the one for
// callers of whom nothing is known. g_real is null then, and each call is routed.
constinit std::atomic<void*> g_default[kApiCount] = {};

// Which provider a caller is bound to: page of the caller, api, provider in one word.
constexpr unsigned kCacheBits = 10;
constinit std::atomic<std::uint64_t> g_routes[1u << kCacheBits] = {};

// Objects that were there before any dlopen(): they are the global scope, in this order.
constinit std::atomic<std::size_t> g_startup_objects{0};

std::uint64_t route_key(std::size_t index, std::uintptr_t caller) noexcept {
  return (static_cast<std::uint64_t>(caller) >> 12) << 20 | static_cast<std::uint64_t>(index) << 8;
}
std::atomic<std::uint64_t>& route_slot(std::uint64_t key) noexcept {
  return g_routes[(key * 0x9e3779b97f4a7c15ull) >> (64 - kCacheBits)];
}

// Slot of the object, taken if it has none yet; kProviders: no slot is free.
std::size_t provider_slot(std::uintptr_t begin, std::uintptr_t end) noexcept {
  for (std::size_t i = 1; i < kProviders; ++i) {
    runtime::CodeRange& range = runtime::g_cuda_code[i];
    std::uintptr_t expected = 0;
    if (range.begin.compare_exchange_strong(expected, begin, std::memory_order_acq_rel)) {
      range.end.store(end, std::memory_order_release);
      return i;
    }
    if (expected == begin) return i;
  }
  return kProviders;
}

struct Candidate {
  void* function;
  const char* version;  // null: none
  Object object;
};
constexpr std::size_t kMaxCandidates = 8;

// Every definition of a function but our own, in load order.
std::size_t find_candidates(const char* name, Candidate (&found)[kMaxCandidates]) noexcept {
  std::size_t n = 0;
  for_each_object([&](const Object& o) {
    if (is_own_code(o.begin)) return false;
    const char* version = nullptr;
    if (void* p = find_function(o, name, &version)) found[n++] = {p, version, o};
    return n == kMaxCandidates;
  });
  return n;
}

bool is_startup(const Object& o) noexcept {
  return o.position < g_startup_objects.load(std::memory_order_relaxed);
}

bool same_for_all(const Candidate* c, std::size_t n) noexcept {
  return n == 1 || (is_startup(c[0].object) && c[0].version == nullptr);
}

Object object_at(std::uintptr_t code) noexcept {
  Object found;
  for_each_object([&](const Object& o) {
    if (code < o.begin || code >= o.end) return false;
    found = o;
    return true;
  });
  return found;
}

// How far down in the caller's own dependencies the other object is: itself 0, two levels at most.
constexpr int kNotNeeded = 3;
int distance(const Object& from, const Object& to) noexcept {
  if (from.dynamic == nullptr) return kNotNeeded;
  if (from.begin == to.begin) return 0;
  if (needs(from, to)) return 1;
  bool through = false;
  for_each_object([&](const Object& o) {
    through = needs(from, o) && needs(o, to);
    return through;
  });
  return through ? 2 : kNotNeeded;
}

// As the loader bound the caller: definitions of the program's own libraries come first, then those
// of the caller and of what it needs; versions must agree. Not known from outside: which libraries
// were opened RTLD_GLOBAL later; they count among the rest, in load order.
const Candidate& choose(const Candidate* c, std::size_t n, std::uintptr_t caller,
                        const void* fallback) noexcept {
  const Object from = object_at(caller);
  bool versioned = false;
  bool fits[kMaxCandidates];
  for (std::size_t i = 0; i < n; ++i) {
    fits[i] =
        c[i].version != nullptr && from.dynamic != nullptr && requires_version(from, c[i].version);
    versioned = versioned || fits[i];
  }
  for (std::size_t i = 0; i < n; ++i) fits[i] = fits[i] || !versioned || c[i].version == nullptr;
  const auto first = [&](auto&& condition) -> const Candidate* {
    for (std::size_t i = 0; i < n; ++i) {
      if (fits[i] && condition(c[i])) return &c[i];
    }
    return nullptr;
  };
  const Candidate* found = first([](const Candidate& x) { return is_startup(x.object); });
  for (int d = 0; found == nullptr && d < kNotNeeded; ++d) {
    found = first([&](const Candidate& x) { return distance(from, x.object) == d; });
  }
  if (found == nullptr && !versioned) {
    found = first([&](const Candidate& x) { return x.function == fallback; });
  }
  if (found == nullptr) found = first([](const Candidate&) { return true; });
  return found == nullptr ? c[0] : *found;
}

// What the function is for this caller, from the objects loaded now.
void* look_up(std::size_t index, std::uintptr_t caller) noexcept {
  Candidate c[kMaxCandidates];
  const std::size_t n = find_candidates(kApis[index].name, c);
  if (n == 0) return nullptr;
  if (same_for_all(c, n)) {
    // What else a framework defines under such a name is not CUDA's code.
    if (is_of_cuda(index)) provider_slot(c[0].object.begin, c[0].object.end);
    void* expected = nullptr;
    g_real[index].compare_exchange_strong(expected, c[0].function, std::memory_order_acq_rel);
    return c[0].function;
  }
  const Candidate& chosen = choose(c, n, caller, g_default[index].load(std::memory_order_relaxed));
  void* expected = nullptr;
  g_default[index].compare_exchange_strong(expected, chosen.function, std::memory_order_acq_rel);
  const std::size_t slot =
      is_of_cuda(index) ? provider_slot(chosen.object.begin, chosen.object.end) : kProviders;
  if (slot < kProviders) {
    g_providers[slot].functions[index].store(chosen.function, std::memory_order_release);
    const std::uint64_t key = route_key(index, caller);
    route_slot(key).store(key | slot, std::memory_order_release);
  }
  return chosen.function;
}

// Asked for by a caller that may be bound to another copy than the callers before it.
void split_layer(recording::Layer layer) noexcept {
  for (std::size_t i = 0; i < kApiCount; ++i) {
    if (kApis[i].layer != layer) continue;
    if (void* p = g_real[i].exchange(nullptr, std::memory_order_acq_rel)) {
      g_default[i].store(p, std::memory_order_release);
    }
  }
}

constexpr const char* kDriver = "libcuda.so.1";
constinit std::atomic<bool> g_driver_is_used{false};

// For the recorder's own driver calls. The handle is not needed; without a name: is it loaded?
void* find_for_recorder(void*, const char* name) noexcept {
  if (name != nullptr) {
    void* p = find_in_driver(name);
    if (p != nullptr) g_driver_is_used.store(true, std::memory_order_release);
    return p;
  }
  void* loaded = nullptr;
  for_each_object([&](const Object& o) {
    if (has_name(o, kDriver)) loaded = reinterpret_cast<void*>(o.begin);
    return loaded != nullptr;
  });
  return loaded;
}

// For the recorder: an object is known by where it is mapped.
const void* find_library(const char* symbol, const char** path) noexcept {
  const void* found = nullptr;
  for_each_object([&](const Object& o) {
    if (is_own_code(o.begin) || find_function(o, symbol) == nullptr) return false;
    found = reinterpret_cast<const void*>(o.begin);
    *path = o.path;
    return true;
  });
  return found;
}
void* find_in_library(const void* library, const char* symbol) noexcept {
  void* p = nullptr;
  for_each_object([&](const Object& o) {
    if (reinterpret_cast<const void*>(o.begin) != library) return false;
    p = find_function(o, symbol);
    return true;
  });
  return p;
}
void walk_libraries(WalkStep step, void* data) { walk_objects(step, data); }
constexpr runtime::LibraryFinder kLibraries{find_library, find_in_library, walk_libraries};

// ---- what the recorder asks of the loader (runtime::LoaderView)

std::uint64_t loader_generation() noexcept {
  const LoadCount count = load_count();
  return count.loaded + count.unloaded;
}

bool list_modules(std::size_t first, runtime::ModuleBatch& out) noexcept {
  struct Walk {
    std::size_t first, position, used;
    runtime::ModuleBatch& out;
    bool full;
  } walk{first, 0, 0, out, false};
  out.count = 0;
  walk_objects(
      [](dl_phdr_info* info, std::size_t, void* data) -> int {
        auto& w = *static_cast<Walk*>(data);
        if (w.position++ < w.first) return 0;
        const Object o = object_of(*info, 0);
        const std::size_t length = strlen(o.path);
        const std::size_t room = sizeof w.out.text - w.used;
        if (w.out.count == runtime::ModuleBatch::kMax || (length > room && w.out.count > 0)) {
          w.full = true;
          return 1;
        }
        runtime::ModuleBatch::Module& m = w.out.modules[w.out.count++];
        const std::size_t kept = length < room ? length : room;
        m.begin = o.begin, m.end = o.end, m.base = o.base;
        m.path = w.out.text + w.used;
        m.path_size = static_cast<std::uint16_t>(kept);
        m.cut = kept != length;
        memcpy(w.out.text + w.used, o.path, kept);
        w.used += kept;
        m.build_id_size = static_cast<std::uint8_t>(
            build_id_of(*info, m.build_id, runtime::ModuleBatch::kBuildIdMax));
        return 0;
      },
      &walk);
  return walk.full;
}

// A preload that brings the driver along (the simulated one) does so in every shell and helper.
bool program_has_driver() noexcept {
  Object driver;
  for_each_object([&](const Object& o) {
    if (!has_name(o, kDriver)) return false;
    driver = o;
    return true;
  });
  if (driver.dynamic == nullptr) return false;
  if (!is_startup(driver)) return true;
  // Of the objects that were there at the start, preloads are those that no other of them needs.
  const auto is_preload = [](const Object& o) {
    if (o.position == 0 || !is_startup(o)) return false;
    bool needed = false;
    for_each_object([&](const Object& user) {
      needed = is_startup(user) && needs(user, o);
      return needed;
    });
    return !needed;
  };
  bool needed = false;
  for_each_object([&](const Object& user) {
    needed = needs(user, driver) && !is_preload(user);
    return needed;
  });
  return needed;
}

bool own_path(char* out, std::size_t size) noexcept {
  bool found = false;
  for_each_object([&](const Object& o) {
    if (!is_own_code(o.begin)) return false;
    const std::size_t length = strlen(o.path);
    found = length != 0 && length < size;
    if (found) memcpy(out, o.path, length + 1);
    return true;
  });
  return found;
}

}  // namespace

void* find_in_driver(const char* name) noexcept {
  void* p = nullptr;
  for_each_object([&](const Object& o) {
    if (!has_name(o, kDriver)) return false;
    p = find_function(o, name);
    return true;
  });
  return p;
}

void keep_used_libraries() noexcept {
  static constinit std::atomic<bool> kept_driver{false}, kept_cupti{false};
  // dlopen() takes a reference.
  if (g_driver_is_used.load(std::memory_order_acquire) && !kept_driver.exchange(true)) {
    dlopen(kDriver, RTLD_NOLOAD | RTLD_LAZY);
  }
  const char* cupti = runtime::cupti::path_in_use();
  if (cupti != nullptr && !kept_cupti.exchange(true)) dlopen(cupti, RTLD_NOLOAD | RTLD_LAZY);
}

namespace {

void* next_function_once(std::atomic<void*>& found, const char* name) noexcept {
  void* f = found.load(std::memory_order_acquire);
  if (f == nullptr) [[unlikely]] {
    f = next_function(name);
    found.store(f, std::memory_order_release);
  }
  return f;
}

}  // namespace

runtime::FindSymbol real_dlsym() noexcept {
  static constinit std::atomic<void*> found{nullptr};
  return reinterpret_cast<runtime::FindSymbol>(next_function_once(found, "dlsym"));
}
FindVersion real_dlvsym() noexcept {
  static constinit std::atomic<void*> found{nullptr};
  return reinterpret_cast<FindVersion>(next_function_once(found, "dlvsym"));
}

void ensure_started() noexcept {
  static constinit std::atomic<bool> started{false};
  if (started.load(std::memory_order_acquire) || started.exchange(true)) return;
  keep_forks_out_of_walks();
  std::size_t objects = 0;
  for_each_object([&](const Object&) {
    ++objects;
    return false;
  });
  g_startup_objects.store(objects, std::memory_order_release);
  std::uintptr_t begin, end;
  own_code(begin, end);
  runtime::g_cuda_code[0].end.store(end, std::memory_order_release);
  runtime::g_cuda_code[0].begin.store(begin, std::memory_order_release);
  char library[PATH_MAX] = "", path[PATH_MAX];
  if (getenv("GPUBUSY_OUTPUT") != nullptr && own_path(path, sizeof path) &&
      realpath(path, library) == nullptr) {
    library[0] = '\0';
  }
  runtime::start_up({kApis,
                     kApiCount,
                     find_for_recorder,
                     &kLibraries,
                     g_reach,
                     {loader_generation, list_modules, program_has_driver, own_path},
                     library});
}

void* resolve(ApiId id, void* caller) noexcept {
  const auto index = static_cast<std::size_t>(id);
  const std::uint64_t key = route_key(index, reinterpret_cast<std::uintptr_t>(caller));
  const std::uint64_t route = route_slot(key).load(std::memory_order_acquire);
  if ((route & ~std::uint64_t{0xff}) == key && route != key) {
    if (void* p = g_providers[route & 0xff].functions[index].load(std::memory_order_acquire)) {
      return p;
    }
  }
  runtime::KeepErrno keep;
  ensure_started();
  return look_up(index, reinterpret_cast<std::uintptr_t>(caller));
}

void* resolve_for_registration(ApiId id, void* caller) noexcept {
  static constinit std::atomic<unsigned long long> checked{0};
  const auto index = static_cast<std::size_t>(id);
  ensure_started();
  const unsigned long long loaded = load_count().loaded;
  if (checked.exchange(loaded, std::memory_order_acq_rel) != loaded) {
    Candidate c[kMaxCandidates];
    const std::size_t n = find_candidates(kApis[index].name, c);
    if (n != 0 && !same_for_all(c, n)) split_layer(kApis[index].layer);
  }
  if (void* p = g_real[index].load(std::memory_order_acquire)) return p;
  return resolve(id, caller);
}

bool is_in_scope_of(ApiId id, const void* caller) noexcept {
  Candidate c[kMaxCandidates];
  const std::size_t n = find_candidates(kApis[static_cast<std::size_t>(id)].name, c);
  const Object from = object_at(reinterpret_cast<std::uintptr_t>(caller));
  for (std::size_t i = 0; i < n; ++i) {
    if (distance(from, c[i].object) != kNotNeeded) return true;
  }
  return false;
}

void* version_in_scope_of(ApiId id, const char* version, const void* caller) noexcept {
  Candidate c[kMaxCandidates];
  const std::size_t n = find_candidates(kApis[static_cast<std::size_t>(id)].name, c);
  const Object from = object_at(reinterpret_cast<std::uintptr_t>(caller));
  for (std::size_t i = 0; i < n; ++i) {
    if (c[i].version == nullptr || strcmp(c[i].version, version) != 0) continue;
    if (is_startup(c[i].object) || distance(from, c[i].object) != kNotNeeded) return c[i].function;
  }
  return nullptr;
}

void forget_unloaded() noexcept {
  static constinit std::atomic<unsigned long long> seen{0};
  const unsigned long long unloaded = load_count().unloaded;
  if (seen.exchange(unloaded, std::memory_order_acq_rel) == unloaded) return;
  bool alive[kProviders] = {true};
  for_each_object([&](const Object& o) {
    for (std::size_t i = 1; i < kProviders; ++i) {
      const runtime::CodeRange& range = runtime::g_cuda_code[i];
      if (range.begin.load(std::memory_order_acquire) == o.begin &&
          range.end.load(std::memory_order_acquire) == o.end) {
        alive[i] = true;
      }
    }
    return false;
  });
  for (std::size_t i = 1; i < kProviders; ++i) {
    runtime::CodeRange& range = runtime::g_cuda_code[i];
    const std::uintptr_t begin = range.begin.load(std::memory_order_acquire);
    const std::uintptr_t end = range.end.load(std::memory_order_acquire);
    if (begin == 0 || alive[i]) continue;
    const auto forget = [&](std::atomic<void*>& function) {
      void* p = function.load(std::memory_order_acquire);
      const auto address = reinterpret_cast<std::uintptr_t>(p);
      if (address >= begin && address < end) {
        function.compare_exchange_strong(p, nullptr, std::memory_order_acq_rel);
      }
    };
    for (std::size_t k = 0; k < kApiCount; ++k) {
      forget(g_real[k]);
      forget(g_default[k]);
      g_providers[i].functions[k].store(nullptr, std::memory_order_release);
    }
    for (std::atomic<std::uint64_t>& route : g_routes) route.store(0, std::memory_order_release);
    range.end.store(0, std::memory_order_release);
    range.begin.store(0, std::memory_order_release);
  }
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
  // Not the first that asks decides what is behind the hook, but what callers are bound to.
  void* known = g_real[index].load(std::memory_order_acquire);
  if (known == nullptr) known = resolve(id, nullptr);
  if (known == nullptr) {
    if (!g_real[index].compare_exchange_strong(known, real, std::memory_order_acq_rel)) {
      return known == real ? kHooks[index] : real;
    }
    known = real;
  }
  return known == real ? kHooks[index] : real;
}

void* hook_for_same(ApiId id, void* real) noexcept {
  const auto index = static_cast<std::size_t>(id);
  if (hook_for(id, real) == kHooks[index]) return kHooks[index];
  const void* known = g_real[index].load(std::memory_order_acquire);
  if (known == nullptr) return real;
  for (const runtime::CodeRange& range : runtime::g_cuda_code) {
    const std::uintptr_t begin = range.begin.load(std::memory_order_acquire);
    const std::uintptr_t end = range.end.load(std::memory_order_acquire);
    const auto inside = [&](const void* p) {
      const auto a = reinterpret_cast<std::uintptr_t>(p);
      return begin != 0 && a >= begin && a < end;
    };
    if (inside(known)) return inside(real) ? kHooks[index] : real;
  }
  return real;
}

}  // namespace gpubusy::preload
