// SPDX-License-Identifier: Apache-2.0
//
// ends_by_signal default|handler|ignore: steps of 3 launches each 5 ms, for 60 s at most. SIGTERM
// is left alone, handled (the program says so and ends with 3), or ignored.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <time.h>

#include <cstdio>
#include <cstring>

namespace {
volatile sig_atomic_t g_asked = 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (std::strcmp(argv[1], "handler") == 0) {
    struct sigaction action {};
    action.sa_handler = [](int) { g_asked = 1; };
    sigaction(SIGTERM, &action, nullptr);
  } else if (std::strcmp(argv[1], "ignore") == 0) {
    signal(SIGTERM, SIG_IGN);
  }
  static char kernel;
  for (int step = 0; step < 12'000 && g_asked == 0; ++step) {
    for (int i = 0; i < 3; ++i) cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr);
    cudaDeviceSynchronize();
    const timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  std::printf("saved\n");
  return 3;
}
