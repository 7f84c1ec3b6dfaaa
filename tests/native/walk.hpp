// SPDX-License-Identifier: Apache-2.0
//
// What the tests of native stacks share: the calling thread's stack by our walker, and the truth.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>

#include <cstdint>
#include <vector>

#include "runtime/native/walker.hpp"

namespace gpubusy::test {

namespace native = runtime::native;

// `with_find_object`: through _dl_find_object where libc has it, else dl_iterate_phdr only.
inline void use_objects(bool with_find_object,
                        decltype(native::ObjectSource::walk) walk = nullptr) {
  native::ObjectSource source{nullptr, walk};
  if (with_find_object) {
    source.find_object =
        reinterpret_cast<decltype(source.find_object)>(dlsym(RTLD_DEFAULT, "_dl_find_object"));
  }
  native::set_object_source(source);
}

// Signal handlers have one of their own: they may come in the middle of a walk.
inline native::ThreadStack& thread_stack(bool of_handler = false) {
  struct Holder {
    native::ThreadStack* stack = native::ThreadStack::map();
    ~Holder() { native::ThreadStack::unmap(stack); }
  };
  thread_local Holder mine, handlers;
  return of_handler ? *handlers.stack : *mine.stack;
}

struct Walked {
  std::vector<std::uintptr_t> pcs;  // innermost first; the first is in the caller of walk_here()
  std::vector<std::uintptr_t> cfas;
  native::End end = native::End::kOutermost;
};

inline Walked result_of(native::ThreadStack& stack, native::End end) {
  Walked w;
  w.end = end;
  for (int i = stack.count() - 1; i >= 0; --i) {
    w.pcs.push_back(stack.frames()[i].pc);
    w.cfas.push_back(stack.frames()[i].sp);
  }
  return w;
}

[[gnu::noinline]] inline Walked walk_here(bool use_memo = true) {
  native::ThreadStack& stack = thread_stack();
  const native::End end = stack.walk(native::current_registers(), use_memo);
  return result_of(stack, end);
}

// glibc's; the first is in the caller, at another place than ours. It crashes where the stack goes
// on into a greenlet that is no more: `limit` tells how many frames are good.
[[gnu::noinline]] inline std::vector<std::uintptr_t> glibc_here(int limit = 1023) {
  void* frames[1024];
  const int n = backtrace(frames, limit + 1);
  std::vector<std::uintptr_t> out;
  for (int i = 1; i < n; ++i) out.push_back(reinterpret_cast<std::uintptr_t>(frames[i]));
  return out;
}

// Where there is a libunwind (in no scope: it would take over the program's exceptions).
using Backtrace = int (*)(void**, int);
inline Backtrace libunwind_backtrace() {
  static const auto found = [] {
    void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr
                              : reinterpret_cast<Backtrace>(dlsym(library, "unw_backtrace"));
  }();
  return found;
}
[[gnu::noinline]] inline std::vector<std::uintptr_t> libunwind_here() {
  std::vector<std::uintptr_t> out;
  void* frames[1024];
  const int n = libunwind_backtrace()(frames, 1024);
  for (int i = 1; i < n; ++i) out.push_back(reinterpret_cast<std::uintptr_t>(frames[i]));
  return out;
}

// Return addresses as the functions themselves know them.
inline thread_local std::vector<std::uintptr_t> truth;
class Known {
 public:
  explicit Known(void* return_address) {
    truth.push_back(reinterpret_cast<std::uintptr_t>(return_address));
  }
  ~Known() { truth.pop_back(); }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;
};
#define GPUBUSY_KNOWN() const ::gpubusy::test::Known known_frame(__builtin_return_address(0))

}  // namespace gpubusy::test
