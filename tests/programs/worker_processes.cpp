// SPDX-License-Identifier: Apache-2.0
//
// Processes below one that launches, of which the helper thread is to find those that are a
// loader's workers. worker_processes CASE
#include <cuda_runtime_api.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void launch() {
  cudaLaunchKernel(reinterpret_cast<const void*>(&launch), 1, 1, nullptr, 0, nullptr);
}

// Launches with gaps between.
void run(int ms) {
  constexpr int kGapMs = 15;
  for (int i = 0; i < ms; i += kGapMs) {
    launch();
    pause_ms(kGapMs);
  }
  launch();
}

// A process of several threads, as a training is: else there is no helper.
void have_another_thread() {
  std::thread([] { pause(); }).detach();
}

[[noreturn]] void idle() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}

// As torch names a worker's thread.
pid_t fork_worker() {
  const pid_t id = fork();
  if (id != 0) return id;
  prctl(PR_SET_NAME, "pt_data_worker");
  idle();
}

// As multiprocessing starts an interpreter.
pid_t spawn_worker() {
  char command[] = "multiprocessing.spawn", what[] = "idle";
  char* arguments[] = {command, what, nullptr};
  pid_t id = 0;
  return posix_spawn(&id, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0 ? id : -1;
}

// As Python before 3.10 does: by fork, and it may be looked at before it runs the other program.
pid_t fork_and_run_worker(const char* command) {
  const pid_t id = fork();
  if (id != 0) return id;
  pause_ms(200);
  execl("/proc/self/exe", command, "idle", nullptr);
  _exit(127);
}

int end_all(const std::vector<pid_t>& workers) {
  int ended = 0;
  for (const pid_t id : workers) {
    kill(id, SIGKILL);
    ended += waitpid(id, nullptr, 0) == id;
  }
  return ended;
}

// Each epoch has workers of its own; two epochs' together are more than there is room for.
int epochs() {
  have_another_thread();
  int ended = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<pid_t> workers;
    for (int i = 0; i < 20; ++i) workers.push_back(fork_worker());
    run(300);
    ended += end_all(workers);
  }
  std::printf("ended %d\n", ended);
  return 0;
}

// More than there is room for, for longer than a search for them takes to come again.
int crowd() {
  have_another_thread();
  std::vector<pid_t> workers;
  for (int i = 0; i < 40; ++i) workers.push_back(spawn_worker());
  run(5500);
  std::printf("ended %d\n", end_all(workers));
  return 0;
}

// What the fork server of multiprocessing has forked has its command line, and forks workers.
int served() {
  have_another_thread();
  std::vector<pid_t> workers;
  for (int i = 0; i < 2; ++i) workers.push_back(fork_worker());
  run(300);
  std::printf("ended %d\n", end_all(workers));
  return 0;
}

// One of each kind.
int forked_first() {
  have_another_thread();
  std::vector<pid_t> workers;
  workers.push_back(fork_and_run_worker("multiprocessing.spawn"));
  workers.push_back(fork_and_run_worker("multiprocessing.resource_tracker"));
  run(600);
  std::printf("ended %d\n", end_all(workers));
  return 0;
}

// A machine with many processes of others, older than the one that launches.
int busy_machine() {
  constexpr int kOthers = 1100;
  int ready[2], stop[2];
  if (pipe(ready) != 0 || pipe(stop) != 0) return 1;
  const pid_t first = fork();
  if (first == 0) {
    if (fork() != 0) _exit(0);
    close(stop[1]);
    std::vector<pid_t> others;
    while (others.size() < kOthers) {
      const pid_t id = fork();
      if (id < 0) break;
      if (id == 0) idle();
      others.push_back(id);
    }
    const int made = static_cast<int>(others.size());
    const bool told = write(ready[1], &made, sizeof made) == sizeof made;
    char c;
    const bool stopped = read(stop[0], &c, 1) == 0;
    end_all(others);
    _exit(told && stopped ? 0 : 1);
  }
  close(ready[1]);
  int made = 0;
  if (read(ready[0], &made, sizeof made) != sizeof made) made = 0;
  waitpid(first, nullptr, 0);
  if (const pid_t launches = fork(); launches != 0) {
    int status = 0;
    return waitpid(launches, &status, 0) == launches && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  have_another_thread();
  const pid_t worker = spawn_worker();
  run(500);
  std::printf("enough %d ended %d\n", made == kOthers, end_all({worker}));
  return 0;
}

// A program that forks all the time, as a shell does.
int forks() {
  have_another_thread();
  int good = 0;
  for (int i = 0; i < 2000; ++i) {
    if (i % 50 == 0) run(5);
    const pid_t child = fork();
    if (child == 0) _exit(7);
    int status = 0;
    good += waitpid(-1, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
  }
  run(30);
  std::printf("good %d\n", good);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  static constexpr struct {
    const char* name;
    int (*run)();
  } kCases[] = {{"epochs", epochs},
                {"crowd", crowd},
                {"served", served},
                {"forked_first", forked_first},
                {"busy_machine", busy_machine},
                {"forks", forks}};
  if (std::strcmp(argv[1], "idle") == 0) idle();
  if (std::strcmp(argv[1], "served") == 0 &&
      std::strcmp(argv[0], "multiprocessing.forkserver") != 0) {
    execl("/proc/self/exe", "multiprocessing.forkserver", argv[1], nullptr);
    return 1;
  }
  for (const auto& c : kCases) {
    if (std::strcmp(argv[1], c.name) == 0) return c.run();
  }
  return 2;
}
