// SPDX-License-Identifier: Apache-2.0
//
// no_signals eintr [watched]  waits in poll, recv, nanosleep and futex; EINTR anywhere is fatal;
//                             another thread launches meanwhile, or (watched) sleeps
// no_signals exec COUNT MIB   touches MIB and starts /bin/true COUNT times by fork and exec
// CUDA is called all the while, so a recording is open. Prints what went wrong, and what a profiler
// by signals would leave behind: handlers, timers, pending signals.
#include <cuda_runtime_api.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

char g_kernel;
std::atomic<bool> g_stop{false};
void launch() { cudaLaunchKernel(&g_kernel, dim3(1), dim3(1), nullptr, 0, nullptr); }

void signals_of_this_process() {
  std::string caught;
  char line[256];
  if (FILE* status = std::fopen("/proc/self/status", "r")) {
    while (std::fgets(line, sizeof line, status)) {
      if (std::strncmp(line, "SigCgt", 6) == 0 || std::strncmp(line, "SigPnd", 6) == 0 ||
          std::strncmp(line, "ShdPnd", 6) == 0) {
        caught += line;
      }
    }
    std::fclose(status);
  }
  int timers = 0;
  for (const auto which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval value{};
    getitimer(which, &value);
    timers += value.it_value.tv_sec != 0 || value.it_value.tv_usec != 0;
  }
  if (FILE* posix = std::fopen("/proc/self/timers", "r")) {
    while (std::fgets(line, sizeof line, posix)) timers += std::strncmp(line, "ID:", 3) == 0;
    std::fclose(posix);
  }
  std::printf("%stimers %d\n", caught.c_str(), timers);
}

void must_not_be_interrupted(long result, const char* what) {
  if (result >= 0 || errno != EINTR) return;
  std::printf("%s: EINTR\n", what);
  std::exit(1);
}

int eintr(bool watched) {
  std::thread busy([watched] {
    const timespec pause{0, 1'000'000};
    while (!g_stop) {
      if (watched) {
        must_not_be_interrupted(nanosleep(&pause, nullptr), "nanosleep of another thread");
      } else {
        launch();
      }
    }
  });
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 2;
  timeval timeout{0, 20000};
  setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  sem_t never;
  sem_init(&never, 0, 0);
  for (int i = 0; i < 20; ++i) {
    launch();
    pollfd p{ends[0], POLLIN, 0};
    must_not_be_interrupted(poll(&p, 1, 20), "poll");
    char byte;
    must_not_be_interrupted(recv(ends[0], &byte, 1, 0), "recv");
    timespec t{0, 20'000'000};
    must_not_be_interrupted(nanosleep(&t, nullptr), "nanosleep");
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20'000'000;
    if (until.tv_nsec >= 1'000'000'000) ++until.tv_sec, until.tv_nsec -= 1'000'000'000;
    must_not_be_interrupted(sem_timedwait(&never, &until), "futex");
  }
  g_stop = true;
  busy.join();
  signals_of_this_process();
  return 0;
}

int exec(int count, size_t mib) {
  launch();
  std::vector<char> memory(mib << 20);
  for (size_t i = 0; i < memory.size(); i += 4096) memory[i] = 1;
  int bad = 0;
  for (int i = 0; i < count; ++i) {
    launch();
    const pid_t pid = fork();
    if (pid == 0) {
      execl("/bin/true", "true", nullptr);
      _exit(127);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) ++bad;
  }
  std::printf("bad %d of %d\n", bad, count);
  signals_of_this_process();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "eintr") == 0) return eintr(false);
  if (argc == 3 && std::strcmp(argv[1], "eintr") == 0) return eintr(true);
  if (argc == 4 && std::strcmp(argv[1], "exec") == 0) {
    return exec(std::atoi(argv[2]), static_cast<size_t>(std::atoi(argv[3])));
  }
  return 2;
}
