// SPDX-License-Identifier: Apache-2.0
#include "runtime/detached_export.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/keep_errno.hpp"

extern char** environ;

namespace gpubusy::runtime {
namespace {

constexpr std::size_t kStackSize = 64 * 1024;
constexpr std::size_t kMaxEnvironment = 4096;

struct Job {
  char program[PATH_MAX];
  char window[16];
  char* arguments[8];
  char* environment[kMaxEnvironment];
  char* stack;
};

// Both children share our memory until they exec or exit (CLONE_VM | CLONE_VFORK: we are suspended
// meanwhile), so they may only use system calls and their own stacks.
int run_exporter(void* pointer) {
  auto* job = static_cast<Job*>(pointer);
  setsid();
  // Lowest priority: the training must not pay for its trace.
  setpriority(PRIO_PROCESS, 0, 19);
  const int null = open("/dev/null", O_RDWR);
  if (null >= 0) {
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
  }
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 3, ~0u, 0) != 0)
#endif
  {
    for (int fd = 3; fd < 4096; ++fd) close(fd);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(job->program, job->arguments, job->environment);
  _exit(127);
}

int start_and_leave(void* pointer) {
  auto* job = static_cast<Job*>(pointer);
  clone(run_exporter, job->stack + kStackSize, CLONE_VM | CLONE_VFORK, job);
  _exit(0);
}

bool find_program(char* out) noexcept {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&start_export), &info) == 0 || info.dli_fname == nullptr) {
    return false;
  }
  char library[PATH_MAX];
  if (realpath(info.dli_fname, library) == nullptr) return false;
  char* slash = strrchr(library, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  const int n = snprintf(out, PATH_MAX, "%s/../bin/gpubusy", library);
  return n > 0 && n < PATH_MAX && access(out, X_OK) == 0;
}

}  // namespace

bool start_export(const char* recording, std::uint32_t window) noexcept {
  KeepErrno keep;
  const std::size_t job_size = (sizeof(Job) + 4095) & ~std::size_t{4095};
  const std::size_t total = job_size + 2 * kStackSize;
  void* memory =
      mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  auto* job = static_cast<Job*>(memory);
  char* stacks = static_cast<char*>(memory) + job_size;
  bool started = false;
  if (find_program(job->program)) {
    snprintf(job->window, sizeof job->window, "%u", window);
    char* arguments[] = {job->program, const_cast<char*>("export"), const_cast<char*>("--quiet"),
                         const_cast<char*>("--window"), job->window,
                         const_cast<char*>("--"), const_cast<char*>(recording), nullptr};
    memcpy(job->arguments, arguments, sizeof arguments);
    std::size_t kept = 0;
    for (char** e = environ; e != nullptr && *e != nullptr && kept + 1 < kMaxEnvironment; ++e) {
      if (strncmp(*e, "LD_PRELOAD=", 11) == 0 || strncmp(*e, "GPUBUSY_", 8) == 0) continue;
      job->environment[kept++] = *e;
    }
    job->stack = stacks + kStackSize;
    // A handler of the program must not run on a child's stack that shares our memory.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    // Exit signal 0: no SIGCHLD, and only a wait with __WCLONE sees the child.
    const int pid = clone(start_and_leave, stacks + kStackSize, CLONE_VM | CLONE_VFORK, job);
    if (pid > 0) {
      started = true;
      while (waitpid(pid, nullptr, __WCLONE) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  munmap(memory, total);
  return started;
}

}  // namespace gpubusy::runtime
