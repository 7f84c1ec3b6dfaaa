// SPDX-License-Identifier: Apache-2.0
//
// Launches in a loop through the ordinary binding of a program to libcudart, timed in blocks. The
// median over blocks is robust against the other tenants of the machine.
#include <cuda_runtime_api.h>
#include <time.h>

#include <algorithm>
#include <vector>

namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void kernel() {}

template <class Call>
double median_ns(long blocks, long calls, Call&& call) {
  std::vector<double> times;
  for (long b = 0; b < blocks; ++b) {
    const double start = now();
    for (long i = 0; i < calls; ++i) call();
    times.push_back((now() - start) / static_cast<double>(calls));
  }
  std::nth_element(times.begin(), times.begin() + blocks / 2, times.end());
  return times[static_cast<std::size_t>(blocks / 2)];
}

}  // namespace

// Median ns of one call over `blocks` blocks of `calls` calls.
extern "C" double ns_per_cudaLaunchKernel(long blocks, long calls) {
  return median_ns(blocks, calls, [] {
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(32), nullptr, 0,
                     nullptr);
  });
}
extern "C" double ns_per_cudaMalloc(long blocks, long calls) {
  return median_ns(blocks, calls, [] {
    void* pointer = nullptr;
    cudaMalloc(&pointer, 256);
  });
}

// cuda-mock refuses to work in a process where one of these is not imported.
extern "C" void imports_for_cuda_mock() {
  int device = 0;
  cudaGetDevice(&device);
  cudaSetDevice(device);
  cudaMemcpy(&device, &device, sizeof device, cudaMemcpyHostToHost);
  cudaFree(nullptr);
}
