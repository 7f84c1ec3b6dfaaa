// SPDX-License-Identifier: Apache-2.0
//
// Launches one kernel of each odd name, twice; prints nothing. Names come as nvcc registers them.
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "simulator/fake_kernel.hpp"

int main() {
  static char stubs[8];
  static std::vector<std::string> names = {
      "control\x01\x1f\x7f",
      "quote\"back\\slash/",
      "new\nline\ttab\r",
      "invalid\xff\xfe\xc3",
      "\xe6\xa0\xb8\xe5\xbf\x83_kernel",  // CJK
      "surrogate\xed\xa0\x80!",           // U+D800, alone
      "</script>&<b>",
      // A template's name of 10 KB, as CUTLASS has them.
      "wide<" + std::string(10'000, 'T') + ">",
  };
  static std::vector<gpubusy::sim::FakeKernel*> kernels;
  for (size_t i = 0; i < names.size(); ++i) {
    kernels.push_back(new gpubusy::sim::FakeKernel(&stubs[i], names[i].c_str()));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    for (int k = 0; k < 2; ++k) {
      cudaLaunchKernel(&stubs[i], dim3(1), dim3(1), nullptr, 0, nullptr);
    }
  }
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
