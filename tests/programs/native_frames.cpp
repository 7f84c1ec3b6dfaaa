// SPDX-License-Identifier: Apache-2.0
//
// native_frames DIRECTORY: launches kernels from stacks that it knows, and prints for each launch
// the return addresses that must be in its native stack, innermost first. Libraries in DIRECTORY
// come and go at one address with frames of different sizes.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

std::vector<void*> g_known;  // outermost first
struct Known {
  explicit Known(void* address) { g_known.push_back(address); }
  ~Known() { g_known.pop_back(); }
};
#define KNOWN() const Known known(__builtin_return_address(0))

void kernel() {}

[[gnu::noinline]] void launch() {
  KNOWN();
  cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
  std::printf("launch");
  for (std::size_t i = g_known.size(); i-- > 0;) std::printf(" %p", g_known[i]);
  std::printf("\n");
}

[[gnu::noinline]] void recurse(int depth) {
  KNOWN();
  if (depth == 0) {
    launch();
  } else {
    recurse(depth - 1);
  }
  asm volatile("" ::: "memory");
}

void from_libraries(const std::string& directory) {
  for (int i = 0; i < 6; ++i) {
    const std::string path =
        directory + (i % 2 == 0 ? "/libgpubusy_native_a.so" : "/libgpubusy_native_b.so");
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (library == nullptr) abort();
    reinterpret_cast<void (*)(void (*)())>(dlsym(library, "gpubusy_test_call"))([] {
      KNOWN();
      launch();
      asm volatile("" ::: "memory");
    });
    dlclose(library);
  }
}

ucontext_t g_main, g_fiber;

}  // namespace

int main(int, char** arguments) {
  for (int depth : {1, 30, 1, 2}) recurse(depth);
  from_libraries(arguments[1]);
  std::thread([] { recurse(3); }).join();
  // A fiber, and a signal handler on a stack of its own.
  static char stack[1 << 18];
  getcontext(&g_fiber);
  g_fiber.uc_stack.ss_sp = stack;
  g_fiber.uc_stack.ss_size = sizeof stack;
  g_fiber.uc_link = &g_main;
  makecontext(
      &g_fiber, [] { recurse(4); }, 0);
  swapcontext(&g_main, &g_fiber);
  static char signal_stack[1 << 16];
  const stack_t alternate{signal_stack, 0, sizeof signal_stack};
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_handler = [](int) { recurse(2); };
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
  raise(SIGUSR1);
  // At the end of an exception.
  struct AtEnd {
    ~AtEnd() { recurse(5); }
  };
  try {
    AtEnd at_end;
    throw 1;
  } catch (int) {
  }
}
