// SPDX-License-Identifier: Apache-2.0
//
// steady_steps STEPS: a fixed amount of work and 10,000 launches per step, about 2 ms. Prints a
// line per step: thread CPU time and wall time in ns, and the resident memory behind it in KiB, so
// that steps before, in and after a window can be compared.
#include <cuda_runtime_api.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {
long long now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}
long resident_kib() {
  long size = 0, resident = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
    std::fclose(f);
  }
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}
struct Step {
  long long cpu, wall;
  long memory;
};
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  static char kernel;
  std::vector<Step> steps(static_cast<size_t>(std::atoi(argv[1])));
  volatile unsigned state = 1;
  for (Step& step : steps) {
    const long long cpu = now(CLOCK_THREAD_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
    for (int i = 0; i < 10000; ++i) {
      for (int k = 0; k < 220; ++k) state = state * 1664525 + 1013904223;
      cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr);
    }
    cudaDeviceSynchronize();
    step = {now(CLOCK_THREAD_CPUTIME_ID) - cpu, now(CLOCK_MONOTONIC) - wall, 0};
    step.memory = resident_kib();
  }
  for (const Step& s : steps) std::printf("%lld %lld %ld\n", s.cpu, s.wall, s.memory);
}
