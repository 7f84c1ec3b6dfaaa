// SPDX-License-Identifier: Apache-2.0
//
// fork_hammer CHILDREN fork|vfork|spawn: 8 threads call CUDA without pause while the main thread
// starts children. A forked child makes 10 calls and leaves by _exit; one of vfork and posix_spawn
// becomes /bin/true (vfork shares our memory: nothing else is allowed there). Prints "children <n>
// bad <n> slow <n>" (slow: more than 1 s from start to end) and how many launches this process
// made.
#include <cuda_runtime_api.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

extern char** environ;
extern "C" long toy_cuda_launches();

namespace {

std::atomic<bool> g_stop{false};

template <int>
void kernel() {}

void launch_some() {
  for (const void* f :
       {reinterpret_cast<const void*>(&kernel<0>), reinterpret_cast<const void*>(&kernel<1>)}) {
    cudaLaunchKernel(f, dim3(1), dim3(1), nullptr, 0, nullptr);
  }
}

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

pid_t start(const char* way) {
  static char name[] = "/bin/true";
  static char* const arguments[] = {name, nullptr};
  if (std::strcmp(way, "spawn") == 0) {
    pid_t pid = -1;
    return posix_spawn(&pid, name, nullptr, nullptr, arguments, environ) == 0 ? pid : -1;
  }
  if (std::strcmp(way, "vfork") == 0) {
    const pid_t pid = vfork();
    if (pid != 0) return pid;
    execve(name, arguments, environ);
    _exit(9);
  }
  const pid_t pid = fork();
  if (pid != 0) return pid;
  for (int k = 0; k < 5; ++k) launch_some();
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int children = std::atoi(argv[1]);
  const char* way = argv[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      while (!g_stop) {
        launch_some();
        std::this_thread::yield();
      }
    });
  }
  int bad = 0, slow = 0;
  for (int i = 0; i < children; ++i) {
    const double begin = seconds();
    const pid_t pid = start(way);
    int status = 0;
    // A child that hangs is the fault this is about: give it 10 s.
    while (pid > 0 && waitpid(pid, &status, WNOHANG) == 0 && seconds() - begin < 10) usleep(200);
    const double took = seconds() - begin;
    if (pid <= 0 || took >= 10 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) ++bad;
    slow += took > 1;
  }
  g_stop = true;
  for (auto& t : threads) t.join();
  std::printf("children %d bad %d slow %d\nlaunches %ld\n", children, bad, slow,
              toy_cuda_launches());
  return bad == 0 ? 0 : 1;
}
