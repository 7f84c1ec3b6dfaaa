// SPDX-License-Identifier: Apache-2.0
//
// Windows end while signals rain on the process group. Prints in how many other processes a handler
// of the program ran (in its memory).
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

namespace {

pid_t g_me = 0;
volatile sig_atomic_t g_foreign = 0;
void on_signal(int) {
  if (syscall(SYS_getpid) != g_me) g_foreign = g_foreign + 1;
}
void kernel() {}

}  // namespace

int main() {
  setpgid(0, 0);
  g_me = static_cast<pid_t>(syscall(SYS_getpid));
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  const pid_t storm = fork();
  if (storm == 0) {
    signal(SIGUSR1, SIG_IGN);
    while (getppid() == g_me) kill(-g_me, SIGUSR1);
    _exit(0);
  }
  timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
    cudaDeviceSynchronize();
    usleep(10000);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec - begin.tv_sec < 4);
  kill(storm, SIGKILL);
  waitpid(storm, nullptr, 0);
  std::printf("handlers elsewhere %d\n", static_cast<int>(g_foreign));
}
