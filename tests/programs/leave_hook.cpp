// SPDX-License-Identifier: Apache-2.0
//
// Leaves a hook in every way but a return: exception, longjmp, thread cancellation. Afterwards
// calls must still be intercepted: prints "alive <live exception objects> <caught> <cancelled>".
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <setjmp.h>
#include <unistd.h>

#include <cstdio>

namespace {

int g_live = 0;
struct Thrown {
  Thrown() { ++g_live; }
  Thrown(const Thrown&) { ++g_live; }
  ~Thrown() { --g_live; }
};

jmp_buf g_jump;

void throws(void*) { throw Thrown{}; }
void jumps(void*) { longjmp(g_jump, 1); }
void waits(void*) {
  for (;;) pause();
}

void kernel() {}

void launch() {
  cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
}

void* cancelled_thread(void*) {
  launch();
  cudaLaunchHostFunc(nullptr, waits, nullptr);
  return nullptr;
}

}  // namespace

int main() {
  constexpr int kTimes = 100000;
  int caught = 0;
  for (int i = 0; i < kTimes; ++i) {
    try {
      cudaLaunchHostFunc(nullptr, throws, nullptr);
    } catch (const Thrown&) {
      ++caught;
    }
  }
  launch();  // intercepted again?
  pthread_t thread;
  pthread_create(&thread, nullptr, cancelled_thread, nullptr);
  usleep(50000);
  pthread_cancel(thread);
  void* result = nullptr;
  pthread_join(thread, &result);
  launch();
  std::printf("alive %d %d %d\n", g_live, caught, result == PTHREAD_CANCELED);
  std::fflush(stdout);
  // A longjmp runs no destructors: the hook cannot know that it was left. The program must live.
  if (setjmp(g_jump) == 0) cudaLaunchHostFunc(nullptr, jumps, nullptr);
  launch();
  std::printf("end\n");
}
