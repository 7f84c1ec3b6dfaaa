// SPDX-License-Identifier: Apache-2.0
//
// dlsym, so that programs that look CUDA up by name (statically linked cudart, cuBLAS, cuDNN, NCCL,
// Triton) get the hooks. For every other name, and for RTLD_NEXT and RTLD_DEFAULT, it is a tail
// jump: libc finds the caller's library by the return address, and an ordinary forwarding call
// makes libraries find themselves (LLVM OpenMP's ompt_start_tool then loops for ever).
#include <dlfcn.h>

#include "preload/api.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::preload {
namespace {

// The hook for (handle, name), or nullptr: leave it to libc, whose error text the program may want.
void* hooked_symbol(void* handle, const char* name) noexcept {
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || runtime::mode() == runtime::Mode::kOff) {
    return nullptr;
  }
  const ApiId id = find_api(name);
  if (id == ApiId::kCount) return nullptr;
  runtime::KeepErrno keep;
  return hook_for(id, real_dlsym()(handle, name));
}

}  // namespace
}  // namespace gpubusy::preload

extern "C" [[gnu::used]] void* gpubusy_hooked_symbol(void* handle, const char* name) noexcept {
  return gpubusy::preload::hooked_symbol(handle, name);
}
extern "C" [[gnu::used]] void* gpubusy_real_dlsym() noexcept {
  return reinterpret_cast<void*>(gpubusy::preload::real_dlsym());
}

// Names that begin with "cu" ask hooked_symbol(); its answer is returned, or all registers are put
// back and libc's dlsym is jumped to.
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
  jne 1f
  cmpb $'u', 1(%rsi)
  jne 1f
  call gpubusy_hooked_symbol
  testq %rax, %rax
  jne 2f
1:
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
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  ret
  .cfi_endproc
  .size dlsym, .-dlsym
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
  b.ne 1f
  ldrb w2, [x1, #1]
  cmp w2, #'u'
  b.ne 1f
  bl gpubusy_hooked_symbol
  cbnz x0, 2f
1:
  bl gpubusy_real_dlsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  br x16
2:
  ldp x29, x30, [sp], #32
  ret
  .cfi_endproc
  .size dlsym, .-dlsym
)");
#else
#error "dlsym must be a tail jump: write it for this architecture"
#endif
