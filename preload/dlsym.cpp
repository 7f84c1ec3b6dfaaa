// SPDX-License-Identifier: Apache-2.0
//
// dlsym, so that programs that look CUDA up by name (statically linked cudart, cuBLAS, cuDNN, NCCL,
// Triton) get the hooks. For every other name, and for RTLD_NEXT and RTLD_DEFAULT, it is a tail
// jump: libc finds the caller's library by the return address, and an ordinary forwarding call
// makes libraries find themselves (LLVM OpenMP's ompt_start_tool then loops for ever). dlvsym
// alike.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>

#include "preload/api.hpp"
#include "preload/objects.hpp"
#include "runtime/cupti/client.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/native/rules.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::preload {
namespace {

void* const kLeaveIt = nullptr;                                   // to libc
void* const kNone = reinterpret_cast<void*>(~std::uintptr_t{0});  // null, libc's error is set

// Would the name be found in the global scope, or in the caller's own, if this library were not
// there? If not, libc's error for that is left behind. What libc cannot be made to leave out is a
// weak reference: it is bound to the hook also where there is no CUDA.
bool exists_without_us(ApiId id, const char* name, void* caller) noexcept {
  if (real_dlsym()(RTLD_NEXT, name) != nullptr) return true;
  return caller != nullptr && is_in_scope_of(id, caller);
}

void* handed(ApiId id, void* answer, std::uint8_t way) noexcept {
  if (answer == kHooks[static_cast<std::size_t>(id)]) note_reach(id, way);
  return answer;
}

// The answer for (handle, name).
void* hooked_symbol(void* handle, const char* name, void* caller) noexcept {
  const ApiId id = find_api(name);
  if (id == ApiId::kCount) return kLeaveIt;
  runtime::KeepErrno keep;
  ensure_started();
  const auto index = static_cast<std::size_t>(id);
  // Behind this library RTLD_NEXT does not find it.
  if (handle == RTLD_NEXT && !is_before_us(caller)) return kLeaveIt;
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
    if (!exists_without_us(id, name, caller)) return kNone;
    note_reach(id, recording::kReachDlsym);
    return kLeaveIt;
  }
  void* p = real_dlsym()(handle, name);
  if (p == nullptr) return kLeaveIt;
  if (p == kHooks[index]) {
    if (!exists_without_us(id, name, nullptr)) return kNone;
    note_reach(id, recording::kReachDlsym);
    return p;
  }
  if (runtime::mode() == runtime::Mode::kOff) return p;
  // libcudnn.so.9 finds the functions of its parts by their own names and jumps there: given the
  // hook, which leads to libcudnn.so.9, it would go round for ever. So is any other forwarder.
  if (!is_of_cuda(index)) return p;
  void* answer = hook_for(id, p);
  if (answer == p && index >= kFirstCupti) runtime::cupti::another_library(p);
  return handed(id, answer, recording::kReachDlsym);
}

// The same for (handle, name, version). Our functions have no version, so that libc finds none of
// them for dlvsym: what it would find is looked for instead.
void* hooked_version(void* handle, const char* name, const char* version, void* caller) noexcept {
  const ApiId id = find_api(name);
  if (id == ApiId::kCount || version == nullptr || !is_of_cuda(static_cast<std::size_t>(id))) {
    return kLeaveIt;
  }
  runtime::KeepErrno keep;
  ensure_started();
  if (runtime::mode() == runtime::Mode::kOff) return kLeaveIt;
  void* p = nullptr;
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
    if (handle == RTLD_DEFAULT || is_before_us(caller))
      p = version_in_scope_of(id, version, caller);
  } else {
    p = real_dlvsym()(handle, name, version);
  }
  return p == nullptr ? kLeaveIt : handed(id, hook_for(id, p), recording::kReachDlvsym);
}

void* look_up_for_us(void*, const char* name) noexcept {
  void* p = nullptr;
  for_each_object([&](const Object& o) {
    if (!is_own_code(o.begin)) p = find_function(o, name);
    return p != nullptr;
  });
  return p;
}

}  // namespace
}  // namespace gpubusy::preload

extern "C" [[gnu::used]] void* gpubusy_hooked_symbol(void* handle, const char* name,
                                                     void* caller) noexcept {
  return gpubusy::preload::hooked_symbol(handle, name, caller);
}
extern "C" [[gnu::used]] void* gpubusy_hooked_version(void* handle, const char* name,
                                                      const char* version, void* caller) noexcept {
  return gpubusy::preload::hooked_version(handle, name, version, caller);
}
extern "C" [[gnu::used]] void* gpubusy_real_dlvsym() noexcept {
  return reinterpret_cast<void*>(gpubusy::preload::real_dlvsym());
}
// What dlsym jumps to. The recorder's own look-ups (of the interpreter, in the middle of the
// program's calls) neither wait for the loader nor touch the error that dlerror() will tell.
extern "C" [[gnu::used]] void* gpubusy_real_dlsym(const void* caller) noexcept {
  using namespace gpubusy::preload;
  if (is_own_code(reinterpret_cast<std::uintptr_t>(caller))) {
    return reinterpret_cast<void*>(&look_up_for_us);
  }
  return reinterpret_cast<void*>(real_dlsym());
}

// dlclose, because a real function may go with its library. Libraries are not kept loaded, all but
// the driver: a program may count on their end, and on a fresh start when it loads them again. Here
// the loader may be asked: the program is about to do so itself.
extern "C" [[gnu::visibility("default")]] int dlclose(void* handle) {
  static constinit std::atomic<void*> found{nullptr};
  void* f = found.load(std::memory_order_acquire);
  if (f == nullptr) {
    f = gpubusy::preload::next_function("dlclose");
    found.store(f, std::memory_order_release);
  }
  gpubusy::preload::keep_used_libraries();
  // Unwind rules of an object that goes must not be applied to one that comes to the same place.
  static constinit std::atomic<unsigned long long> seen{0};
  const unsigned long long before = gpubusy::preload::load_count().unloaded;
  gpubusy::runtime::native::before_unloading();
  const int result = reinterpret_cast<int (*)(void*)>(f)(handle);
  gpubusy::runtime::KeepErrno keep;
  const unsigned long long after = gpubusy::preload::load_count().unloaded;
  const bool missed = seen.exchange(after) != before;  // libc has unloaded something by itself
  gpubusy::runtime::native::after_unloading(after != before || missed);
  gpubusy::preload::forget_unloaded();
  return result;
}

// Names that begin with "cu" or "nc" (NCCL) ask hooked_symbol() or hooked_version(); the answer is
// returned (-1: null), or all registers are put back and libc's function is jumped to.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  testq %rsi, %rsi
  je 1f
  cmpb $'c', (%rsi)
  jne 4f
  cmpb $'u', 1(%rsi)
  jne 1f
  jmp 5f
4:
  cmpb $'n', (%rsi)
  jne 1f
  cmpb $'c', 1(%rsi)
  jne 1f
5:
  movq 24(%rsp), %rdx
  call gpubusy_hooked_symbol
  testq %rax, %rax
  jne 2f
1:
  movq 24(%rsp), %rdi
  call gpubusy_real_dlsym
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_adjust_cfa_offset 24
2:
  cmpq $-1, %rax
  jne 3f
  xorl %eax, %eax
3:
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  ret
  .cfi_endproc
  .size dlsym, .-dlsym

  .globl dlvsym
  .type dlvsym, @function
dlvsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  testq %rsi, %rsi
  je 1f
  cmpb $'c', (%rsi)
  jne 1f
  cmpb $'u', 1(%rsi)
  jne 1f
  movq 24(%rsp), %rcx
  call gpubusy_hooked_version
  testq %rax, %rax
  jne 2f
1:
  call gpubusy_real_dlvsym
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_adjust_cfa_offset 24
2:
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  ret
  .cfi_endproc
  .size dlvsym, .-dlvsym
)");
#elif defined(__aarch64__)
// Not run on hardware yet.
asm(R"(
  .text
  .globl dlsym
  .type dlsym, %function
dlsym:
  .cfi_startproc
  stp x29, x30, [sp, #-32]!
  stp x0, x1, [sp, #16]
  mov x29, sp
  cbz x1, 1f
  ldrb w2, [x1]
  cmp w2, #'c'
  b.ne 4f
  ldrb w2, [x1, #1]
  cmp w2, #'u'
  b.ne 1f
  b 5f
4:
  cmp w2, #'n'
  b.ne 1f
  ldrb w2, [x1, #1]
  cmp w2, #'c'
  b.ne 1f
5:
  mov x2, x30
  bl gpubusy_hooked_symbol
  cbnz x0, 2f
1:
  ldr x0, [sp, #8]
  bl gpubusy_real_dlsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  br x16
2:
  cmn x0, #1
  csel x0, xzr, x0, eq
  ldp x29, x30, [sp], #32
  ret
  .cfi_endproc
  .size dlsym, .-dlsym

  .globl dlvsym
  .type dlvsym, %function
dlvsym:
  .cfi_startproc
  stp x29, x30, [sp, #-48]!
  stp x0, x1, [sp, #16]
  str x2, [sp, #32]
  mov x29, sp
  cbz x1, 1f
  ldrb w3, [x1]
  cmp w3, #'c'
  b.ne 1f
  ldrb w3, [x1, #1]
  cmp w3, #'u'
  b.ne 1f
  mov x3, x30
  bl gpubusy_hooked_version
  cbnz x0, 2f
1:
  bl gpubusy_real_dlvsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldr x2, [sp, #32]
  ldp x29, x30, [sp], #48
  br x16
2:
  ldp x29, x30, [sp], #48
  ret
  .cfi_endproc
  .size dlvsym, .-dlvsym
)");
#else
#error "dlsym must be a tail jump: write it for this architecture"
#endif
