// SPDX-License-Identifier: Apache-2.0
//
// 8 threads call CUDA without pause while the main thread forks children that call it too and leave
// by _exit. argv[1]: number of children. Prints "children <n> bad <n>".
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

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

}  // namespace

int main(int argc, char** argv) {
  const int children = argc > 1 ? std::atoi(argv[1]) : 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      while (!g_stop) {
        launch_some();
        std::this_thread::yield();
      }
    });
  }
  int bad = 0;
  for (int i = 0; i < children; ++i) {
    const pid_t pid = i % 10 == 9 ? vfork() : fork();
    if (pid == 0) {
      if (i % 10 == 9) _exit(0);  // vfork shares our memory: nothing else is allowed there
      for (int k = 0; k < 5; ++k) launch_some();
      _exit(0);
    }
    int status = 0;
    // A child that hangs is the fault this is about: give it 10 s.
    int waited = 0;
    while (waitpid(pid, &status, WNOHANG) == 0 && ++waited < 10000) usleep(1000);
    if (waited >= 10000 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) ++bad;
  }
  g_stop = true;
  for (auto& t : threads) t.join();
  std::printf("children %d bad %d\n", children, bad);
  return bad == 0 ? 0 : 1;
}
