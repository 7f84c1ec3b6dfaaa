// SPDX-License-Identifier: Apache-2.0
//
// export_unseen [subreaper]: ends a window without the launcher and looks for traces of the
// exporter in its own life: children, SIGCHLD, the signal mask, a pipe that somebody keeps open.
// Prints what it saw.
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace {

volatile sig_atomic_t g_sigchld = 0;
void on_sigchld(int) { g_sigchld = g_sigchld + 1; }

void kernel() {}

}  // namespace

int main(int count, char**) {
  if (count > 1) prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGCHLD, on_sigchld);
  int ends[2];
  if (pipe(ends) != 0) return 1;  // not close-on-exec: a child would inherit it
  for (int step = 0; step < 20; ++step) {
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
    cudaDeviceSynchronize();
    // The last device times of a window are waited for: a later step starts its trace.
    if (step == 15) usleep(2200000);
  }
  close(ends[1]);
  // End of file at once, or somebody else holds the writing end.
  char byte;
  const ssize_t n = read(ends[0], &byte, 1);
  const pid_t child = waitpid(-1, nullptr, WNOHANG);
  const int error = errno;
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  std::printf("eof %d child %d echild %d sigchld %d blocked %d\n", n == 0, static_cast<int>(child),
              error == ECHILD, static_cast<int>(g_sigchld), sigismember(&mask, SIGTERM));
}
