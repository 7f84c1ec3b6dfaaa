// SPDX-License-Identifier: Apache-2.0
//
// Kernels that are registered by constructors: by the program's own, and by a library's (LIBRARY)
// that is linked at start-up, before any preloaded library's constructor runs.
#include <cuda_runtime_api.h>
#include <vector_types.h>

extern "C" void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*,
                                       dim3*, dim3*, int*);

namespace {
char g_module, g_stub;
void launch() { cudaLaunchKernel(&g_stub, dim3(1), dim3(1), nullptr, 0, nullptr); }
[[gnu::constructor]] void register_kernel() {
#ifdef LIBRARY
  char name[] = "kernel_of_linked_library";
#else
  char name[] = "kernel_of_program";
#endif
  static char kept[sizeof name];
  for (unsigned i = 0; i < sizeof name; ++i) kept[i] = name[i];
  __cudaRegisterFunction(reinterpret_cast<void**>(&g_module), &g_stub, nullptr, kept, 0, nullptr,
                         nullptr, nullptr, nullptr, nullptr);
}
}  // namespace

#ifdef LIBRARY
void launch_from_library() { launch(); }
#else
void launch_from_library();
int main() {
  launch_from_library();
  launch();
}
#endif
