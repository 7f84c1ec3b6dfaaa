// SPDX-License-Identifier: Apache-2.0
//
// Calls a hooked function from places that a stack walker cannot walk. A library, so that Python
// can be below. Each function returns how many calls came through.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

char g_kernel;
volatile int g_calls = 0;
extern "C" void gpubusy_test_launch() {
  const bool fine =
      cudaLaunchKernel(&g_kernel, dim3(1), dim3(1), nullptr, 0, nullptr) == cudaSuccess;
  g_calls = g_calls + fine;
}

#if defined(__x86_64__)
// Code in an anonymous page, without a symbol or unwind table: pushes rbp, loads `frame_pointer`
// (or its own frame's address where that is 0: a frame that is its own caller), calls the launch.
using Code = void (*)();
Code make_code(std::uint64_t frame_pointer) {
  auto* page = static_cast<unsigned char*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  unsigned char* p = page;
  const auto put = [&](std::initializer_list<int> bytes) {
    for (const int b : bytes) *p++ = static_cast<unsigned char>(b);
  };
  const auto put64 = [&](std::uint64_t value) {
    std::memcpy(p, &value, 8);
    p += 8;
  };
  put({0x55});  // push %rbp
  if (frame_pointer != 0) {
    put({0x48, 0xbd});  // movabs $, %rbp
    put64(frame_pointer);
  } else {
    put({0x48, 0x8d, 0x2c, 0x24});  // lea (%rsp), %rbp
    put({0x48, 0x89, 0x2c, 0x24});  // mov %rbp, (%rsp): the saved frame pointer is this frame
  }
  put({0x48, 0xb8});  // movabs $, %rax
  put64(reinterpret_cast<std::uint64_t>(&gpubusy_test_launch));
  put({0xff, 0xd0});  // call *%rax
  put({0x5d});        // pop %rbp
  put({0xc3});        // ret
  mprotect(page, 4096, PROT_READ | PROT_EXEC);
  return reinterpret_cast<Code>(page);
}
// The caller's rbp does not come back from a cycle, so it is kept here; beyond the red zone,
// aligned.
[[gnu::noinline]] void call(Code code) {
  asm volatile(
      "mov %%rsp, %%rbx\n\tsub $128, %%rsp\n\tand $-16, %%rsp\n\tpush %%rbp\n\tpush %%rbx\n\t"
      "call *%0\n\tpop %%rbx\n\tpop %%rbp\n\tmov %%rbx, %%rsp"
      :
      : "r"(code)
      : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0",
        "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
        "xmm12", "xmm13", "xmm14", "xmm15");
}
#endif

int times(int count, void (*call_once)()) {
  g_calls = 0;
  for (int i = 0; i < count; ++i) call_once();
  return g_calls;
}

// Down to the last 6 KiB of the stack.
[[gnu::noinline]] void sink(const char* bottom) {
  volatile char room[256];
  room[0] = 1;
  if (const_cast<const char*>(room) - bottom > 6 * 1024) return sink(bottom), void(room[0]);
  gpubusy_test_launch();
}

}  // namespace

extern "C" {

int garbage_frame_pointer(int count) {
#if defined(__x86_64__)
  static const Code code = make_code(0x4242424242424242);
  return times(count, [] { call(code); });
#else
  return times(count, gpubusy_test_launch);
#endif
}
int frame_pointer_cycle(int count) {
#if defined(__x86_64__)
  static const Code code = make_code(0);
  return times(count, [] { call(code); });
#else
  return times(count, gpubusy_test_launch);
#endif
}

// A thread with a 64 KiB stack, near its guard page.
int small_stack(int count) {
  g_calls = 0;
  static int s_count;
  s_count = count;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 * 1024);
  pthread_t thread;
  const int made = pthread_create(
      &thread, &attributes,
      [](void*) -> void* {
        pthread_attr_t own;
        pthread_getattr_np(pthread_self(), &own);
        void* bottom = nullptr;
        size_t size = 0, guard = 0;
        pthread_attr_getstack(&own, &bottom, &size);
        pthread_attr_getguardsize(&own, &guard);
        pthread_attr_destroy(&own);
        for (int i = 0; i < s_count; ++i) sink(static_cast<char*>(bottom) + guard);
        return nullptr;
      },
      nullptr);
  if (made != 0) return -1;
  pthread_join(thread, nullptr);
  return g_calls;
}

int alternate_stack(int count) {
  alignas(16) static char stack[16 * 1024];
  stack_t mine{}, before{};
  mine.ss_sp = stack;
  mine.ss_size = sizeof stack;
  sigaltstack(&mine, &before);
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) { gpubusy_test_launch(); };
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &action, &old);
  const int calls = times(count, [] { raise(SIGUSR2); });
  sigaction(SIGUSR2, &old, nullptr);
  sigaltstack(&before, nullptr);
  return calls;
}
}
