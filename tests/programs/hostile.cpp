// SPDX-License-Identifier: Apache-2.0
//
// Programs that take away what the helper thread looks with, while it looks, or do what few others
// do. Each case prints what the program can tell of it; the test compares with and without the
// library. What needs root says so. hostile CASE
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void launch() {
  cudaLaunchKernel(reinterpret_cast<const void*>(&launch), 1, 1, nullptr, 0, nullptr);
}

void pause_ms(int ms) { usleep(static_cast<useconds_t>(ms) * 1000); }

std::atomic<bool> g_stop{false};
void* idle(void*) {
  while (!g_stop.load()) pause_ms(1);
  return nullptr;
}

// Another thread, without which there is no helper, for as long as this lives.
class Other {
 public:
  Other() { pthread_create(&thread_, nullptr, idle, nullptr); }
  ~Other() {
    g_stop = true;
    pthread_join(thread_, nullptr);
  }

 private:
  pthread_t thread_;
};

void run(int rounds = 10) {
  for (int i = 0; i < rounds; ++i) {
    launch();
    pause_ms(15);
  }
}

// A launching thread is held up by its vfork, and the child makes calls with its memory.
bool vfork_once() {
  launch();
  const pid_t child = vfork();
  if (child == 0) {
    launch();
    usleep(10'000);
    _exit(7);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}
int vforks() {
  const Other other;
  run(3);
  int good = 0;
  for (int i = 0; i < 20; ++i) good += vfork_once();
  std::printf("good %d\n", good);
  return 0;
}

int not_dumpable() {
  const Other other;
  run(5);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  run();
  std::printf("dumpable %d\n", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
  return 0;
}

// As a daemon locks itself up.
int locked_up() {
  const Other other;
  run(5);
  char name[] = "/tmp/hostile-XXXXXX";
  if (mkdtemp(name) == nullptr || chroot(name) != 0) {
    rmdir(name);
    std::puts("not root");
    return 0;
  }
  const bool moved = chdir("/") == 0;
  run();
  std::printf("moved %d, files %d\n", moved, access("/proc", F_OK) == 0);
  return 0;
}

// /proc and /sys go.
int unmounted() {
  const Other other;
  run(5);
  if (unshare(CLONE_NEWNS) != 0) {
    std::puts("not root");
    return 0;
  }
  mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  const int proc = umount2("/proc", MNT_DETACH), sys = umount2("/sys", MNT_DETACH);
  run();
  std::printf("%d %d %d\n", proc, sys, access("/proc/self/stat", F_OK));
  return 0;
}

// No more memory can be had from the kernel.
int no_memory() {
  const Other other;
  launch();
  const rlimit none{1 << 20, 1 << 20};  // less than there is
  setrlimit(RLIMIT_AS, &none);
  run();
  void* more = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::printf("more %d\n", more != MAP_FAILED);
  return 0;
}

// Stacks of threads are as small as they can be, also of the one that makes the first call and of
// one that forks.
void* small(void*) {
  for (int i = 0; i < 5; ++i) {
    launch();
    pause_ms(5);
  }
  const pid_t child = fork();
  if (child == 0) {
    launch();
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) std::puts("a child crashed");
  return nullptr;
}
int small_stacks() {
  const rlimit little{64 * 1024, 64 * 1024};
  setrlimit(RLIMIT_STACK, &little);
  int made = 0;
  for (int i = 0; i < 10; ++i) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    pthread_t thread;
    made += pthread_create(&thread, &attributes, small, nullptr) == 0;
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
  }
  std::printf("made %d\n", made);
  return 0;
}

pid_t fork_idle() {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}
int end_all(const std::vector<pid_t>& children) {
  int ended = 0;
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    int status = 0;
    ended += waitpid(child, &status, 0) == child;
  }
  return ended;
}

// Children that were stopped, or have ended and are not waited for, and hundreds of others.
int odd_children() {
  const Other other;
  std::vector<pid_t> children;
  for (int i = 0; i < 300; ++i) children.push_back(fork_idle());
  for (int i = 0; i < 10; ++i) kill(children[static_cast<std::size_t>(i)], SIGSTOP);
  for (int i = 10; i < 20; ++i) kill(children[static_cast<std::size_t>(i)], SIGKILL);
  run(30);
  std::printf("ended %d\n", end_all(children));
  return 0;
}

// It takes whatever number it likes for its files.
int fixed_numbers() {
  const Other other;
  launch();
  int ends[2];
  if (pipe(ends) != 0) return 1;
  int wrong = 0;
  for (int round = 0; round < 6; ++round) {
    for (int fd = 10; fd < 300; ++fd) wrong += dup2(ends[1], fd) != fd;
    run(2);
    for (int fd = 10; fd < 300; ++fd) {
      char c = static_cast<char>(fd), got = 0;
      wrong += write(fd, &c, 1) != 1 || read(ends[0], &got, 1) != 1 || got != c;
    }
    for (int fd = 10; fd < 300; ++fd) wrong += close(fd) != 0;
    run(1);
  }
  std::printf("wrong %d\n", wrong);
  return 0;
}

// All threads that there are get another set of processors, as taskset -a does.
int moved_about() {
  const Other other;
  run(3);
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  for (int round = 0; round < 40; ++round) {
    cpu_set_t one;
    CPU_ZERO(&one);
    int skip = round % CPU_COUNT(&all), cpu = 0;
    while (!CPU_ISSET(cpu, &all) || skip-- > 0) ++cpu;
    CPU_SET(cpu, &one);
    DIR* list = opendir("/proc/self/task");
    while (const dirent* task = readdir(list)) {
      const pid_t id = std::atoi(task->d_name);
      if (id != 0) sched_setaffinity(id, sizeof one, &one);
    }
    closedir(list);
    run(1);
  }
  cpu_set_t now;
  sched_getaffinity(0, sizeof now, &now);
  std::printf("processors %d\n", CPU_COUNT(&now));
  return 0;
}

// A thread that may do next to nothing, beside those that launch.
void* strict(void*) {
  syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, nullptr);
  for (int i = 0; i < 100'000'000; ++i) asm volatile("");
  syscall(SYS_exit, 0);
  return nullptr;
}
int strict_thread() {
  const Other other;
  run(3);
  pthread_t thread;
  pthread_create(&thread, nullptr, strict, nullptr);
  run();
  std::printf("joined %d\n", pthread_join(thread, nullptr));
  return 0;
}

// Ids in the process are others than those that /proc tells.
int other_ids() {
  if (unshare(CLONE_NEWPID) != 0) {
    std::puts("not root");
    return 0;
  }
  const pid_t child = fork();
  if (child == 0) {
    {
      const Other other;
      run(60);
      std::printf("id %d\n", static_cast<int>(getpid()));
    }
    std::fflush(stdout);
    exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// A debugger stops every thread that is listed and lets it go on.
int traced() {
  const Other other;
  run(3);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const pid_t tracer = fork();
  if (tracer == 0) {
    const std::string tasks = "/proc/" + std::to_string(getppid()) + "/task";
    int wrong = 0;
    for (int round = 0; round < 20; ++round) {
      std::vector<pid_t> stopped;
      DIR* list = opendir(tasks.c_str());
      while (const dirent* task = readdir(list)) {
        const pid_t id = std::atoi(task->d_name);
        if (id == 0 || ptrace(PTRACE_SEIZE, id, 0, 0) != 0) continue;
        ptrace(PTRACE_INTERRUPT, id, 0, 0);
        int status = 0;
        wrong += waitpid(id, &status, __WALL) != id;
        if (WIFSTOPPED(status)) stopped.push_back(id);
      }
      closedir(list);
      pause_ms(5);
      for (const pid_t id : stopped) wrong += ptrace(PTRACE_DETACH, id, 0, 0) != 0;
      pause_ms(5);
    }
    _exit(wrong);
  }
  run(20);
  int status = 0;
  waitpid(tracer, &status, 0);
  std::printf("wrong %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  return 0;
}

// All memory is kept in place, also what comes.
int locked_memory() {
  const Other other;
  run(3);
  const int locked = mlockall(MCL_CURRENT | MCL_FUTURE);
  run();
  std::printf("locked %d\n", locked == 0 || errno == EPERM || errno == ENOMEM);
  return 0;
}

// The whole process is stopped and goes on, again and again.
int stopped() {
  const Other other;
  run(3);
  const pid_t self = getpid(), child = fork();
  if (child == 0) {
    for (int i = 0; i < 20; ++i) {
      kill(self, SIGSTOP);
      pause_ms(10);
      kill(self, SIGCONT);
      pause_ms(10);
    }
    _exit(7);
  }
  run();
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  return 0;
}

// Another thread than the first one runs another program.
void* executes(void*) {
  run(3);
  execl("/bin/echo", "echo", "executed", nullptr);
  return nullptr;
}
int executed_by_a_thread() {
  const Other other;
  run(3);
  pthread_t thread;
  pthread_create(&thread, nullptr, executes, nullptr);
  run(100);
  return 1;
}

// The first thread has ended, and others launch and fork.
void* goes_on(void*) {
  pause_ms(20);
  run(5);
  const pid_t child = fork();
  if (child == 0) {
    launch();
    exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  run(5);
  std::printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  std::fflush(stdout);
  _exit(7);
}
int first_thread_gone() {
  run(2);
  pthread_t thread;
  pthread_create(&thread, nullptr, goes_on, nullptr);
  pthread_detach(thread);
  run(2);
  pthread_exit(nullptr);
}

// A thread with a descriptor table of its own closes all in it and opens others.
void* own_table(void*) {
  int wrong = unshare(CLONE_FILES);
  for (int fd = 3; fd < 300; ++fd) close(fd);
  int ends[2];
  wrong += pipe(ends) != 0 || ends[0] != 3;
  for (int fd = 5; fd < 300; ++fd) wrong += dup2(ends[1], fd) != fd;
  run();
  for (int i = 0; i < 3000; ++i) launch();  // more than is kept in memory
  for (int fd = 4; fd < 300; ++fd) close(fd);
  char c;
  wrong += read(ends[0], &c, 1) != 0;  // nobody else has or wrote to the pipe
  std::printf("wrong %d\n", wrong);
  return nullptr;
}
int other_table() {
  const Other other;
  run(3);
  pthread_t thread;
  pthread_create(&thread, nullptr, own_table, nullptr);
  run();
  pthread_join(thread, nullptr);
  return 0;
}

// Threads with a real-time policy, all on one processor: the helper hardly gets it.
int real_time() {
  cpu_set_t one;
  CPU_ZERO(&one);
  sched_getaffinity(0, sizeof one, &one);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &one) && kept++ > 0) CPU_CLR(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
  const sched_param most{sched_get_priority_max(SCHED_FIFO)};
  if (sched_setscheduler(0, SCHED_FIFO, &most) != 0) {
    std::puts("not root");
    return 0;
  }
  const Other other;
  run(5);
  int real = 0, all = 0;
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 2'000'000; ++k) asm volatile("");
    launch();
    const pid_t child = fork();
    if (child == 0) _exit(sched_getscheduler(0) == SCHED_FIFO ? 7 : 8);
    int status = 0;
    waitpid(child, &status, 0);
    real += WEXITSTATUS(status) == 7;
    ++all;
  }
  run(3);
  std::printf("real %d of %d\n", real, all);
  return 0;
}

// Files may not grow: who tries gets SIGXFSZ.
int small_files() {
  const Other other;
  const rlimit little{100'000, 100'000};
  setrlimit(RLIMIT_FSIZE, &little);
  run(5);
  for (int i = 0; i < 3000; ++i) launch();
  run(5);
  std::puts("end");
  return 0;
}

// Programs are started all the time, by several threads.
std::atomic<int> g_started{0};
void* starts(void*) {
  for (int i = 0; i < 15; ++i) {
    launch();
    char name[] = "true";
    char* arguments[] = {name, nullptr};
    pid_t child = 0;
    if (posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ) != 0) continue;
    int status = 0;
    g_started += waitpid(child, &status, 0) == child && status == 0;
    pause_ms(3);
  }
  return nullptr;
}
int spawns() {
  pthread_t threads[4];
  for (pthread_t& thread : threads) pthread_create(&thread, nullptr, starts, nullptr);
  run();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  std::printf("started %d\n", g_started.load());
  return 0;
}

// It can open nothing any more (Landlock).
void* launches(void*) {
  run(3);
  return nullptr;
}
int may_open_nothing() {
#ifdef SYS_landlock_create_ruleset
  const Other other;
  run(5);
  const std::uint64_t all_files = (1u << 13) - 1;
  const long rules = syscall(SYS_landlock_create_ruleset, &all_files, sizeof all_files, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const bool on = rules >= 0 && syscall(SYS_landlock_restrict_self, rules, 0) == 0;
  if (rules >= 0) close(static_cast<int>(rules));
  run();
  pthread_t thread;
  pthread_create(&thread, nullptr, launches, nullptr);
  pthread_join(thread, nullptr);
  std::printf("on %d, opens %d\n", on, open("/dev/null", O_RDONLY) >= 0);
#endif
  return 0;
}

// Handlers run on the stack of a thread whose own is used up, and launch.
std::atomic<int> g_handled{0};
int alternate_stacks() {
  const Other other;
  static char room[32 * 1024];
  const stack_t stack{room, 0, sizeof room};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = [](int) {
    launch();
    ++g_handled;
  };
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
  run(3);
  for (int i = 0; i < 50; ++i) {
    raise(SIGUSR1);
    pause_ms(2);
  }
  std::printf("handled %d\n", g_handled.load());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  static constexpr struct {
    const char* name;
    int (*run)();
  } kCases[] = {
      {"vforks", vforks},
      {"not_dumpable", not_dumpable},
      {"locked_up", locked_up},
      {"unmounted", unmounted},
      {"no_memory", no_memory},
      {"small_stacks", small_stacks},
      {"odd_children", odd_children},
      {"fixed_numbers", fixed_numbers},
      {"moved_about", moved_about},
      {"strict_thread", strict_thread},
      {"other_ids", other_ids},
      {"traced", traced},
      {"locked_memory", locked_memory},
      {"stopped", stopped},
      {"executed_by_a_thread", executed_by_a_thread},
      {"first_thread_gone", first_thread_gone},
      {"other_table", other_table},
      {"real_time", real_time},
      {"small_files", small_files},
      {"spawns", spawns},
      {"may_open_nothing", may_open_nothing},
      {"alternate_stacks", alternate_stacks},
  };
  for (const auto& c : kCases) {
    if (argc == 2 && std::strcmp(argv[1], c.name) == 0) return c.run();
  }
  return 2;
}
