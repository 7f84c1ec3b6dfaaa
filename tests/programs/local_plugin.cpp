// SPDX-License-Identifier: Apache-2.0
//
// A library as Python extensions are: loaded RTLD_LOCAL, its CUDA runtime found by its own run
// path, and itself loading a plug-in by bare name.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

extern "C" int plugin_run() {
  void* plug = dlopen("libgpubusy_test_plug.so", RTLD_NOW | RTLD_LOCAL);
  if (plug == nullptr) return -1;
  auto* answer = reinterpret_cast<int (*)()>(dlsym(plug, "plug_answer"));
  if (answer == nullptr) return -2;
  static const int stub = 0;
  for (int i = 0; i < 10; ++i) {
    if (cudaLaunchKernel(&stub, dim3(1), dim3(1), nullptr, 0, nullptr) != cudaSuccess) return -3;
  }
  return answer();
}
