// SPDX-License-Identifier: Apache-2.0
//
// A longjmp out of a hook, then 1,000 launches from deeper down the stack.
#include <cuda_runtime_api.h>
#include <setjmp.h>

#include <cstdio>

namespace {

jmp_buf g_jump;
char g_kernel;
void jump(void*) { longjmp(g_jump, 1); }
void launch() { cudaLaunchKernel(&g_kernel, dim3(1), dim3(1), nullptr, 0, nullptr); }
void callback(void*) { launch(); }

[[gnu::noinline]] int launch_deep(int n) {
  volatile char room[512];
  room[0] = static_cast<char>(n);
  if (n != 0) return launch_deep(n - 1) + room[0];
  launch();
  return 0;
}

}  // namespace

int main() {
  if (setjmp(g_jump) == 0) cudaLaunchHostFunc(nullptr, jump, nullptr);
  for (int i = 0; i < 1000; ++i) launch_deep(20);
  // A callback's own call, and what comes after it.
  cudaLaunchHostFunc(nullptr, callback, nullptr);
  launch();
  std::puts("done");
}
