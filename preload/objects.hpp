// SPDX-License-Identifier: Apache-2.0
//
// The loaded ELF objects, read without the loader's lock. dlopen() holds that lock while it runs
// constructors, and a constructor may wait for a thread whose first CUDA call ends up here: dlsym,
// dladdr or dlopen in a hook would then wait for ever. dl_iterate_phdr takes another lock, which is
// never held while code of the program runs.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>

namespace gpubusy::preload {

struct Object {
  std::uintptr_t base = 0;            // load bias
  std::uintptr_t begin = 0, end = 0;  // its mapped addresses
  const ElfW(Dyn) * dynamic = nullptr;
  const char* path = "";     // "" for the program itself
  std::size_t position = 0;  // in load order
};

// How often objects were loaded and unloaded so far.
struct LoadCount {
  unsigned long long loaded = 0, unloaded = 0;
  bool operator==(const LoadCount&) const noexcept = default;
};

Object object_of(const dl_phdr_info& info, std::size_t position) noexcept;

// The object's NT_GNU_BUILD_ID, as far as it fits; returns its size, 0: there is none.
std::size_t build_id_of(const dl_phdr_info& info, unsigned char* out, std::size_t room) noexcept;
LoadCount load_count() noexcept;

using WalkStep = int (*)(dl_phdr_info*, std::size_t, void*);
// dl_iterate_phdr, but no fork falls into it.
void walk_objects(WalkStep step, void* data) noexcept;
// Once per process, before a second thread may fork: libc does not make dl_iterate_phdr's lock
// whole in a forked child, so that a child of a fork at the wrong moment would hang in its first
// look-up.
void keep_forks_out_of_walks() noexcept;

// Calls fn(object) in load order until it returns true. The objects stay loaded meanwhile.
template <class Fn>
void for_each_object(Fn&& fn) noexcept {
  struct Walk {
    Fn& fn;
    std::size_t position;
  } walk{fn, 0};
  walk_objects(
      [](dl_phdr_info* info, std::size_t, void* data) -> int {
        auto& w = *static_cast<Walk*>(data);
        return w.fn(object_of(*info, w.position++)) ? 1 : 0;
      },
      &walk);
}

// The function (or object) that the object itself defines under this name (its default version),
// else nullptr. `version` gets the version's name, nullptr where the definition has none.
void* find_function(const Object& object, const char* name,
                    const char** version = nullptr) noexcept;

// Was the object linked against symbols of this version?
bool requires_version(const Object& object, const char* version) noexcept;
// Does it need (DT_NEEDED) the other one?
bool needs(const Object& object, const Object& other) noexcept;

// Is it loaded under this name (DT_SONAME or file name), as dlopen(name, RTLD_NOLOAD) would find
// it?
bool has_name(const Object& object, const char* name) noexcept;

// The next definition after this library's own, in load order: what dlsym(RTLD_NEXT) finds for the
// functions of libc that this library defines itself.
void* next_function(const char* name) noexcept;

// Is this code of an object that was loaded before this library?
bool is_before_us(const void* code) noexcept;

// This library's own addresses.
bool is_own_code(std::uintptr_t address) noexcept;
void own_code(std::uintptr_t& begin, std::uintptr_t& end) noexcept;

}  // namespace gpubusy::preload
