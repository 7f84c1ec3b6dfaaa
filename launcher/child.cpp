// SPDX-License-Identifier: Apache-2.0
#include "launcher/child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

namespace gpubusy::launcher {
namespace {

constexpr int kSignals = 65;

// All but those that come out of our own instructions: they must keep their effect.
sigset_t waited_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
    sigdelset(&set, signal);
  }
  return set;
}

// False also where the process is gone.
bool is_stopped(pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[512];
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* state = strrchr(text, ')');
  return state != nullptr && (state[2] == 'T' || state[2] == 't');
}

// A signal with kill()'s mark may have gone to us alone or to the whole process group; the child
// must get it once in either case. siginfo does not tell, so a witness, a tiny process in the same
// group, counts what reaches the group. Where it is missing, signals are handed on.
// While we are stopped like the child, it also wakes us when the child alone is continued.
class Witness {
 public:
  explicit Witness(const sigset_t& set) {
    void* shared =
        mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return;
    counts_ = new (shared) Counts;
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) watch(set, parent);
  }
  ~Witness() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (counts_ != nullptr) munmap(counts_, sizeof(Counts));
  }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  pid_t pid() const { return pid_; }
  void gone() { pid_ = -1; }

  // 0: none.
  void wake_us_with(pid_t child) {
    if (counts_ == nullptr || pid_ <= 0) return;
    counts_->stopped_child.store(child, std::memory_order_release);
    // It may sleep until its next signal; this one has no other effect there.
    if (child != 0) kill(pid_, SIGURG);
  }

  // True: the signal that we have just taken went to the group.
  bool saw(int signal) {
    if (pid_ <= 0) return false;
    // The kernel walks through the group while we run already; the witness needs a moment, and on a
    // busy machine more than that: while the signal is pending there, it has reached the group.
    constexpr int kMoments = 50, kMostMoments = 20'000;  // 5 ms, 2 s
    for (int left = kMoments, all = 0; left > 0 && all < kMostMoments; --left, ++all) {
      const unsigned now = counts_->seen[signal].load(std::memory_order_acquire);
      if (now != used_[signal]) {
        used_[signal] = now;
        return true;
      }
      if (left == 1 && is_pending_at_witness(signal)) left = kMoments;
      const timespec moment{0, 100000};
      nanosleep(&moment, nullptr);
    }
    return false;
  }

 private:
  // Sent to the witness, and not taken by it yet.
  bool is_pending_at_witness(int signal) const {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", static_cast<int>(pid_));
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return false;
    text[size] = '\0';
    const char* pending = strstr(text, "\nShdPnd:");
    if (pending == nullptr) return false;
    return (strtoull(pending + strlen("\nShdPnd:"), nullptr, 16) >> (signal - 1) & 1) != 0;
  }

  struct Counts {
    std::atomic<unsigned> seen[kSignals];
    std::atomic<pid_t> stopped_child;
  };

  [[noreturn]] void watch(const sigset_t& set, pid_t parent) {
    prctl(PR_SET_NAME, "gpubusy-witness");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    // Pipes of the program must see their end without us.
    if (syscall(SYS_close_range, 0u, ~0u, 0u) != 0) {
      for (int fd = 0; fd < 1024; ++fd) close(fd);
    }
    [[maybe_unused]] const int moved = chdir("/");
    while (true) {
      const pid_t stopped = counts_->stopped_child.load(std::memory_order_acquire);
      siginfo_t info{};
      const timespec pause{0, 50000000};
      const int signal =
          stopped != 0 ? sigtimedwait(&set, &info, &pause) : sigwaitinfo(&set, &info);
      if (signal > 0 && signal < kSignals && info.si_pid != parent) {
        counts_->seen[signal].fetch_add(1, std::memory_order_release);
      }
      if (signal < 0 && stopped != 0 && !is_stopped(stopped)) kill(parent, SIGCONT);
    }
  }

  Counts* counts_ = nullptr;
  pid_t pid_ = -1;
  unsigned used_[kSignals] = {};
};

void set_default(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
}

void unblock(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void block(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

// The child stopped: so do we, by the same signal, that a shell shows the same. SIGCONT goes on.
void stop_like_child(int signal) {
  if (signal == SIGSTOP) {
    raise(SIGSTOP);
    return;
  }
  struct sigaction old {};
  sigaction(signal, nullptr, &old);
  set_default(signal);
  // A left-over of the same Ctrl-Z must not stop us twice.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  const timespec now{0, 0};
  while (sigtimedwait(&set, nullptr, &now) > 0) {
  }
  kill(getpid(), signal);
  unblock(signal);
  block(signal);
  sigaction(signal, &old, nullptr);
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int g_status_for_handler = 0;

void on_late_signal(int) { end_as_child(g_status_for_handler); }

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& environment) {
  ChildResult result;
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(environment);
  const sigset_t waited = waited_signals();
  sigset_t original_mask;
  sigprocmask(SIG_BLOCK, &waited, &original_mask);
  struct sigaction original_child_action {};
  sigaction(SIGCHLD, nullptr, &original_child_action);
  set_default(SIGCHLD);  // ignored, the kernel would throw the status away

  const pid_t original_parent = getppid();
  Witness witness(waited);
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    result.exec_error = errno;
    return result;
  }
  const pid_t child = fork();
  if (child == 0) {
    sigaction(SIGCHLD, &original_child_action, nullptr);
    sigprocmask(SIG_SETMASK, &original_mask, nullptr);
    execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(error_pipe[1], &error, sizeof error);
    _exit(127);
  }
  const int fork_error = errno;
  close(error_pipe[1]);
  if (child < 0) {
    close(error_pipe[0]);
    result.exec_error = fork_error;
    return result;
  }
  result.pid = child;
  // Not before the fork: the child keeps what it would have had.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);

  int error = 0;
  ssize_t size;
  do {
    size = read(error_pipe[0], &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  close(error_pipe[0]);
  if (size == static_cast<ssize_t>(sizeof error)) {
    waitpid(child, nullptr, 0);
    result.exec_error = error;
    return result;
  }

  bool ended = false;
  while (!ended) {
    int status = 0;
    pid_t pid;
    // All children: as process 1 of a container, orphans are ours to reap.
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
      if (pid == witness.pid()) {
        if (!WIFSTOPPED(status)) witness.gone();
      } else if (pid == child && WIFSTOPPED(status)) {
        witness.wake_us_with(child);
        stop_like_child(WSTOPSIG(status));
        witness.wake_us_with(0);
      } else if (pid == child) {
        result.status = status;
        ended = true;
      }
    }
    if (ended) break;

    siginfo_t info{};
    const int signal = sigwaitinfo(&waited, &info);
    if (signal < 0 || signal == SIGCHLD) continue;
    // From the kernel: the terminal's keys, its hang-up and its size go to the whole group.
    if (info.si_code > 0 || info.si_pid == witness.pid()) continue;
    if (info.si_pid == child && getppid() == original_parent && original_parent > 1) {
      // The program means its parent, which is ours without us.
      kill(original_parent, signal);
      continue;
    }
    if (witness.saw(signal)) continue;
    if (info.si_code == SI_QUEUE) {
      sigqueue(child, signal, info.si_value);
    } else {
      kill(child, signal);
    }
  }

  // What came with the child's end was meant for the run and has had its effect.
  const timespec now{0, 0};
  while (sigtimedwait(&waited, nullptr, &now) > 0) {
  }
  return result;
}

void end_as_child_on_signals(int status) {
  g_status_for_handler = status;
  struct sigaction action {};
  action.sa_handler = on_late_signal;
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    sigaction(signal, &action, nullptr);
    sigaddset(&set, signal);
  }
  // The rest stays blocked: a background job may then write to its terminal, too.
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void end_as_child(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);  // the program's core must not be overwritten by ours
    prctl(PR_SET_DUMPABLE, 0);      // nor go to a handler of cores
    set_default(signal);
    raise(signal);
    unblock(signal);
    // Only process 1 of a container comes here: a signal's default does not end it.
    _exit(128 + signal);
  }
  _exit(WEXITSTATUS(status));
}

}  // namespace gpubusy::launcher
