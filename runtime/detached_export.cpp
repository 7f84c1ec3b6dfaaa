// SPDX-License-Identifier: Apache-2.0
#include "runtime/detached_export.hpp"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/keep_errno.hpp"

extern char** environ;

namespace gpubusy::runtime {
namespace {

constexpr std::size_t kStackSize = 64 * 1024;
constexpr std::size_t kMaxEnvironment = 4096;
constexpr std::size_t kAffinityWords = 128;  // 8,192 processors

struct Job {
  char program[PATH_MAX];
  char windows[32];
  char* arguments[8];
  char* environment[kMaxEnvironment];
  char* stack;
  mode_t umask;
  bool leave_directory;
  // Written by the children; we are suspended until they exec or exit.
  int exporter;  // its process id
  int error;     // why it could not be started
};

// The processors that the user gave the process. Later the program may bind its threads; an
// exporter bound to the core of the training would share it.
constinit unsigned long g_affinity[kAffinityWords] = {};
constinit long g_affinity_bytes = 0;

__attribute__((constructor)) void keep_affinity() {
  const char* output = getenv("GPUBUSY_OUTPUT");
  if (output == nullptr || output[0] == '\0') return;
  KeepErrno keep;
  g_affinity_bytes = syscall(SYS_sched_getaffinity, 0, sizeof g_affinity, g_affinity);
}

// The last exporter that this process (`owner`) has started.
struct LastExport {
  int owner = 0;
  int pid = 0;
  std::uint64_t start_ticks = 0;  // with the pid it identifies a process
};
constinit LastExport g_last{};

// Field 22 of /proc/PID/stat; 0: there is no such process, or it has ended and waits to be reaped.
std::uint64_t start_ticks_of(int pid) noexcept {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  const char* p = strrchr(text, ')');  // the name may hold spaces and parentheses
  if (p == nullptr || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X') return 0;
  ++p;
  for (int field = 3; field < 22; ++field) {
    ++p;
    while (*p != '\0' && *p != ' ') ++p;
    if (*p == '\0') return 0;
  }
  return strtoull(p, nullptr, 10);
}

// No handler of the program may run in the exporter: it would run in our memory. What was sent to
// the program's process group before we left it is thrown away.
void forget_handlers() {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action = {SIG_IGN, 0, nullptr, 0};  // as the kernel has it; libc refuses its own two signals
  for (int i = 1; i <= 64; ++i) syscall(SYS_rt_sigaction, i, &action, nullptr, sizeof action.mask);
  action.handler = SIG_DFL;
  for (int i = 1; i <= 64; ++i) {
    // A trace beyond the limit for files shall be an error that the exporter can clean up after.
    if (i != SIGXFSZ) syscall(SYS_rt_sigaction, i, &action, nullptr, sizeof action.mask);
  }
}

void become_unimportant() {
  sched_param none{};
  sched_setscheduler(0, SCHED_OTHER, &none);
  setpriority(PRIO_PROCESS, 0, 19);
  // Where sessions are scheduled as groups, the nice value counts only within ours.
  const int group = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
  if (group >= 0) {
    [[maybe_unused]] const ssize_t n = write(group, "19", 2);
    close(group);
  }
  if (g_affinity_bytes > 0) syscall(SYS_sched_setaffinity, 0, g_affinity_bytes, g_affinity);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
}

// Both children share our memory until they exec or exit (CLONE_VM | CLONE_VFORK: we are suspended
// meanwhile), so they may only use system calls and their own stacks. Signal dispositions, working
// directory, umask and descriptors are their own copies.
int run_exporter(void* pointer) {
  auto* job = static_cast<Job*>(pointer);
  setsid();
  forget_handlers();
  become_unimportant();
  umask(job->umask);
  if (job->leave_directory && chdir("/") != 0) {
    // It keeps the program's directory busy: no harm to the trace.
  }
  const int null = open("/dev/null", O_RDWR);
  if (null < 0) {
    // Its messages would end up in whatever the program has as standard error.
    job->error = errno;
    _exit(127);
  }
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
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
  job->error = errno;
  _exit(127);
}

// Untraced: a debugger that follows children stays with the program.
constexpr int kCloneFlags = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED;

int start_and_leave(void* pointer) {
  auto* job = static_cast<Job*>(pointer);
  job->exporter = clone(run_exporter, job->stack + kStackSize, kCloneFlags, job);
  if (job->exporter < 0) job->error = errno;
  _exit(0);
}

// The exporter would become our child when its parent leaves.
bool reaps_orphans() noexcept {
  int subreaper = 0;
  return getpid() == 1 || (prctl(PR_GET_CHILD_SUBREAPER, &subreaper) == 0 && subreaper != 0);
}

bool find_program(const char* loaded_as, char* out) noexcept {
  static constinit char library[PATH_MAX];  // more than a small stack has; one call at a time
  if (loaded_as[0] == '\0' || realpath(loaded_as, library) == nullptr) return false;
  char* slash = strrchr(library, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  const int n = snprintf(out, PATH_MAX, "%s/../bin/gpubusy", library);
  return n > 0 && n < PATH_MAX && access(out, X_OK) == 0;
}

}  // namespace

ExportStart start_export(const char* library, const char* recording, std::uint32_t first_window,
                         std::uint32_t last_window) noexcept {
  KeepErrno keep;
  if (reaps_orphans()) return ExportStart::kWouldBeSeen;
  const std::size_t job_size = (sizeof(Job) + 4095) & ~std::size_t{4095};
  const std::size_t total = job_size + 2 * kStackSize;
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ExportStart::kRefused;
  auto* job = static_cast<Job*>(memory);
  char* stacks = static_cast<char*>(memory) + job_size;
  ExportStart result = ExportStart::kNoProgram;
  if (find_program(library, job->program)) {
    if (first_window == last_window) {
      snprintf(job->windows, sizeof job->windows, "%u", first_window);
    } else {
      snprintf(job->windows, sizeof job->windows, "%u..%u", first_window, last_window);
    }
    char* arguments[] = {job->program,
                         const_cast<char*>("export"),
                         const_cast<char*>("--quiet"),
                         const_cast<char*>("--window"),
                         job->windows,
                         const_cast<char*>("--"),
                         const_cast<char*>(recording),
                         nullptr};
    memcpy(job->arguments, arguments, sizeof arguments);
    std::size_t kept = 0;
    for (char** e = environ; e != nullptr && *e != nullptr && kept + 1 < kMaxEnvironment; ++e) {
      if (strncmp(*e, "LD_PRELOAD=", 11) == 0 || strncmp(*e, "GPUBUSY_", 8) == 0) continue;
      job->environment[kept++] = *e;
    }
    // Whoever may read the recording may read its traces, whatever umask the program has now.
    struct stat status;
    const mode_t mode = stat(recording, &status) == 0 ? status.st_mode & 0666 : 0600;
    job->umask = 0777 & ~(mode | 0700 | (mode & 0444) >> 2);
    job->leave_directory = recording[0] == '/';
    job->stack = stacks + kStackSize;
    // A handler of the program must not run on a child's stack that shares our memory.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    // Nor may a child act on a cancellation of this thread, whose library state it shares.
    int cancel_state = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    // Exit signal 0: no SIGCHLD, and only a wait with __WCLONE sees the child.
    const int pid = clone(start_and_leave, stacks + kStackSize, kCloneFlags, job);
    if (pid > 0) {
      while (waitpid(pid, nullptr, __WCLONE) < 0 && errno == EINTR) {
      }
    }
    pthread_setcancelstate(cancel_state, nullptr);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    result = ExportStart::kRefused;
    if (pid > 0 && job->exporter > 0 && job->error == 0) {
      result = ExportStart::kStarted;
      g_last = {getpid(), job->exporter, start_ticks_of(job->exporter)};
    }
  }
  munmap(memory, total);
  return result;
}

bool export_is_running() noexcept {
  KeepErrno keep;
  return g_last.start_ticks != 0 && g_last.owner == getpid() &&
         start_ticks_of(g_last.pid) == g_last.start_ticks;
}

const char* why_not_started(ExportStart result) noexcept {
  switch (result) {
    case ExportStart::kNoProgram: return "no gpubusy program was found beside the library";
    case ExportStart::kWouldBeSeen:
      return "this process adopts orphans (it is process 1 or a subreaper) and would have seen the "
             "exporter as a child";
    case ExportStart::kRefused: return "the system refused to start the exporter";
    case ExportStart::kStarted: break;
  }
  return "";
}

}  // namespace gpubusy::runtime
