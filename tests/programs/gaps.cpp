// SPDX-License-Identifier: Apache-2.0
//
// What the helper thread that looks into gaps must not change. Each case prints what the program
// can tell of it; the test compares with and without the library. gaps CASE
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

namespace {

void launch() {
  cudaLaunchKernel(reinterpret_cast<const void*>(&launch), 1, 1, nullptr, 0, nullptr);
}

void pause_ms(int ms) { usleep(static_cast<useconds_t>(ms) * 1000); }

int threads() {
  struct stat tasks;
  return stat("/proc/self/task", &tasks) == 0 ? static_cast<int>(tasks.st_nlink) - 2 : -1;
}

std::atomic<bool> g_stop{false};
void* idle(void*) {
  while (!g_stop.load()) pause_ms(1);
  return nullptr;
}

pthread_t start_idle() {
  pthread_t thread;
  pthread_create(&thread, nullptr, idle, nullptr);
  return thread;
}

// Launches with gaps between: the helper runs from the first one on.
void run(int rounds = 10, int gap_ms = 15) {
  for (int i = 0; i < rounds; ++i) {
    launch();
    pause_ms(gap_ms);
  }
}

int one_thread() {
  run();
  std::printf("threads %d\n", threads());
  return 0;
}

// The lowest free descriptor is the program's, also while the helper opens files.
int descriptors() {
  const pthread_t other = start_idle();
  run(3);
  int wrong = 0;
  const int lowest = dup(0);
  close(lowest);
  launch();
  for (int i = 0; i < 3000; ++i) {
    const int fd = open("/dev/null", O_RDONLY);
    wrong += fd != lowest;
    close(fd);
    usleep(50);
  }
  // A pipe whose writing end is closed is at its end at once.
  for (int i = 0; i < 200; ++i) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0) return 1;
    close(ends[1]);
    char c;
    wrong += read(ends[0], &c, 1) != 0;
    close(ends[0]);
    usleep(100);
  }
  std::printf("wrong %d\n", wrong);
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// A pipe that the program closes right behind the launch that starts the helper is closed, although
// the helper does not get a processor for long.
void* spin(void*) {
  while (!g_stop.load()) {
  }
  return nullptr;
}
int busy_pipe() {
  cpu_set_t one;
  CPU_ZERO(&one);
  sched_getaffinity(0, sizeof one, &one);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &one) && kept++ > 0) CPU_CLR(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
  pthread_t threads[16];
  for (pthread_t& thread : threads) pthread_create(&thread, nullptr, spin, nullptr);
  int ends[2];
  if (pipe2(ends, O_NONBLOCK) != 0) return 1;
  launch();
  close(ends[1]);
  char c;
  std::printf("read %d\n", static_cast<int>(read(ends[0], &c, 1)));
  g_stop = true;
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  return 0;
}

int close_all() {
  const pthread_t other = start_idle();
  run(3);
  for (int fd = 3; fd < 2000; ++fd) close(fd);
  char name[] = "/tmp/gaps-XXXXXX";
  int files[600];
  const int first = mkstemp(name);
  unlink(name);
  for (int& fd : files) fd = dup(first);
  run(10);
  struct stat status;
  fstat(first, &status);
  std::printf("bytes %lld\n", static_cast<long long>(status.st_size));
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// The process ends with its last thread, and as that says.
void* last(void*) {
  pause_ms(300);
  std::puts("last thread");
  std::fflush(stdout);
  return nullptr;
}
int last_thread() {
  pthread_t thread;
  pthread_create(&thread, nullptr, last, nullptr);
  pthread_detach(thread);
  run(12);
  std::atexit([] { std::puts("exit handler"); });
  std::fflush(stdout);
  pthread_exit(nullptr);
}

// Where the last other thread has ended, the helper goes too.
int alone_again() {
  const pthread_t other = start_idle();
  run(12);
  g_stop = true;
  pthread_join(other, nullptr);
  launch();
  int left = 0;
  for (int i = 0; i < 3000 && (left = threads()) != 1; ++i) pause_ms(1);
  std::printf("threads %d\n", left);
  return 0;
}

int forks() {
  const pthread_t other = start_idle();
  int good = 0;
  for (int i = 0; i < 200; ++i) {
    launch();
    if (i % 10 == 0) pause_ms(5);
    const pid_t child = fork();
    if (child == 0) _exit(threads() == 1 ? 7 : 8);
    int status = 0;
    // No child of anybody else's.
    const pid_t ended = waitpid(-1, &status, 0);
    good += ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
  }
  std::printf("good %d\n", good);
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

std::atomic<int> g_signals{0};
int signals() {
  const pthread_t other = start_idle();
  run(3);
  struct sigaction action = {};
  action.sa_handler = [](int) { ++g_signals; };
  sigaction(SIGUSR1, &action, nullptr);
  for (int i = 0; i < 1000; ++i) kill(getpid(), SIGUSR1);
  std::printf("signals %d\n", g_signals.load());
  // All threads take part when ids change: one that does not answer would hang this.
  std::printf("setuid %d\n", setuid(getuid()));
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// No thread keeps the rights that the process has given up.
int drops_rights() {
  if (getuid() != 0) {
    std::puts("not root");
    return 0;
  }
  const pthread_t other = start_idle();
  run(5);
  if (setuid(65534) != 0) return 1;
  run(20);
  int wrong = 0;
  const std::string tasks = "/proc/self/task/";
  if (DIR* list = opendir(tasks.c_str())) {
    while (const dirent* task = readdir(list)) {
      if (task->d_name[0] == '.') continue;
      char text[2048] = {};
      FILE* status = fopen((tasks + task->d_name + "/status").c_str(), "r");
      if (status == nullptr) continue;
      fread(text, 1, sizeof text - 1, status);
      fclose(status);
      wrong += std::strstr(text, "\nUid:\t65534\t65534\t") == nullptr;
    }
    closedir(list);
  }
  std::printf("wrong %d\n", wrong);
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

void* come_and_go(void*) {
  launch();
  pause_ms(3);
  launch();
  return nullptr;
}
int many_threads() {
  for (int round = 0; round < 60; ++round) {
    pthread_t threads[8];
    for (pthread_t& t : threads) pthread_create(&t, nullptr, come_and_go, nullptr);
    for (pthread_t& t : threads) pthread_join(t, nullptr);
  }
  std::puts("end");
  return 0;
}

int exec_in_gap() {
  start_idle();
  run(5);
  execl("/bin/echo", "echo", "executed", nullptr);
  return 1;
}
int exit_at_once() {
  start_idle();
  run(5);
  std::puts("leaves");
  std::fflush(stdout);
  _exit(9);
}
int killed() {
  start_idle();
  run(5);
  std::puts("dies");
  std::fflush(stdout);
  raise(SIGKILL);
  return 0;
}

// The last other thread ends while there are no gaps, or just before a fork.
int alone_and_busy() {
  const pthread_t other = start_idle();
  run(5);
  g_stop = true;
  pthread_join(other, nullptr);
  timespec now, begin;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    launch();
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (threads() != 1 && now.tv_sec - begin.tv_sec < 3);
  std::printf("threads %d\n", threads());
  return 0;
}
// Not gone at once where the machine is busy: a fork waits for it, but not for long.
bool becomes_alone() {
  for (int i = 0; i < 2000; ++i) {
    if (threads() == 1) return true;
    pause_ms(1);
  }
  return false;
}
int forks_alone() {
  int good = 0, late = 0;
  for (int i = 0; i < 20; ++i) {
    g_stop = false;
    const pthread_t other = start_idle();
    for (int k = 0; k < 6; ++k) {
      launch();
      pause_ms(12);
    }
    g_stop = true;
    pthread_join(other, nullptr);
    pause_ms(1);
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (threads() == 1) {
      ++good;
    } else if (becomes_alone()) {
      ++late;
    }
    waitpid(child, nullptr, 0);
  }
  std::printf("good %d late %d\n", good, late);
  return 0;
}

// A thread with a current directory of its own may enter a mount name space.
void* enter(void*) {
  if (unshare(CLONE_FS) != 0) return nullptr;
  run(5);
  const int space = open("/proc/self/ns/mnt", O_RDONLY);
  const int result = setns(space, CLONE_NEWNS);
  std::printf("setns %d %d\n", result, result == 0 ? 0 : errno);
  return nullptr;
}
int name_space() {
  const pthread_t other = start_idle();
  pthread_t thread;
  pthread_create(&thread, nullptr, enter, nullptr);
  pthread_join(thread, nullptr);
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// A filter ends the process for a system call that the program does not make.
int sandboxed() {
  const pthread_t other = start_idle();
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setscheduler, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(code), code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
    return 1;
  run();
  std::puts("end");
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// The main thread alone gives up a system call that tells of filters; later it makes more steps.
int main_sandboxed() {
  const pthread_t other = start_idle();
  run();
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(code), code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) return 1;
  pause_ms(500);
  run();
  std::puts("end");
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// A filter that was there before: to ask by prctl whether there is one ends the process.
int run_filtered(const char* name) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_GET_SECCOMP, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(code), code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) return 1;
  execl("/proc/self/exe", "gaps", name, nullptr);
  return 1;
}
int filtered_descriptors() { return run_filtered("descriptors"); }
int filtered_full_table() { return run_filtered("full_table"); }
int filtered_twice() { return run_filtered("sandboxed"); }

// Many groups make a status of /proc longer than a page; the fields behind them count as well.
int many_groups() {
  gid_t groups[1500];
  for (std::size_t i = 0; i < std::size(groups); ++i) groups[i] = 100'000 + static_cast<gid_t>(i);
  if (setgroups(std::size(groups), groups) != 0) {
    std::puts("not root");
    return 0;
  }
  return main_sandboxed();
}

// No descriptor is free when the helper would be started, and later there are.
int full_table() {
  launch();  // the recording is opened; one thread has no helper
  const pthread_t other = start_idle();
  const rlimit few{64, 64};
  setrlimit(RLIMIT_NOFILE, &few);
  int first = -1, last = -1;
  for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0; last = fd) {
    if (first < 0) first = fd;
  }
  run(15);
  for (int fd = first; fd <= last; ++fd) close(fd);
  run(15);
  std::printf("full %d\n", last > first);
  g_stop = true;
  pthread_join(other, nullptr);
  return 0;
}

// No more threads may be made: the program's own fail as ever, and nothing else changes.
int no_threads() {
  const pthread_t other = start_idle();
  const rlimit none{0, 0};
  setrlimit(RLIMIT_NPROC, &none);
  run(5);
  g_stop = true;
  pthread_join(other, nullptr);
  std::puts("end");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  static constexpr struct {
    const char* name;
    int (*run)();
  } kCases[] = {
      {"one_thread", one_thread},
      {"descriptors", descriptors},
      {"busy_pipe", busy_pipe},
      {"close_all", close_all},
      {"last_thread", last_thread},
      {"alone_again", alone_again},
      {"forks", forks},
      {"signals", signals},
      {"many_threads", many_threads},
      {"exec_in_gap", exec_in_gap},
      {"exit_at_once", exit_at_once},
      {"killed", killed},
      {"no_threads", no_threads},
      {"drops_rights", drops_rights},
      {"alone_and_busy", alone_and_busy},
      {"forks_alone", forks_alone},
      {"name_space", name_space},
      {"sandboxed", sandboxed},
      {"full_table", full_table},
      {"many_groups", many_groups},
      {"filtered_descriptors", filtered_descriptors},
      {"filtered_full_table", filtered_full_table},
      {"filtered_twice", filtered_twice},
      {"main_sandboxed", main_sandboxed},
  };
  for (const auto& c : kCases) {
    if (argc == 2 && std::strcmp(argv[1], c.name) == 0) return c.run();
  }
  return 2;
}
