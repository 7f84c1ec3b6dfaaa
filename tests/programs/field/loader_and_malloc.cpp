// SPDX-License-Identifier: Apache-2.0
//
// LIBRARY: a plug-in whose constructor allocates. Otherwise: loader_and_malloc SECONDS PLUGIN; one
// thread loads and unloads the plug-in, two allocate, two throw, all call CUDA meanwhile. Prints
// whether each of them came forward.
#include <cstdlib>
#include <string>
#include <vector>

#ifdef LIBRARY
namespace {
std::vector<std::string>* g_table;
[[gnu::constructor]] void fill() {
  g_table = new std::vector<std::string>;
  for (int i = 0; i < 50; ++i) g_table->push_back(std::string(100, 'x'));
}
[[gnu::destructor]] void empty() { delete g_table; }
}  // namespace
#else
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

namespace {
std::atomic<bool> g_stop{false};
char g_kernel;
void launch() { cudaLaunchKernel(&g_kernel, dim3(1), dim3(1), nullptr, 0, nullptr); }
}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::atomic<long> rounds[5] = {};
  std::vector<std::thread> threads;
  const auto run = [&](int index, auto work) {
    threads.emplace_back([&rounds, index, work] {
      while (!g_stop) {
        work();
        launch();
        ++rounds[index];
      }
    });
  };
  run(0, [&] {
    void* plugin = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) std::abort();
    dlclose(plugin);
  });
  for (int i = 1; i <= 2; ++i) {
    run(i, [] {
      void* p[64];
      for (int k = 0; k < 64; ++k) p[k] = std::malloc(static_cast<size_t>(k) * 100 + 1);
      for (void* q : p) std::free(q);
    });
  }
  for (int i = 3; i <= 4; ++i) {
    run(i, [] {
      try {
        throw std::runtime_error("thrown");
      } catch (const std::exception&) {
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(argv[1])));
  g_stop = true;
  for (auto& t : threads) t.join();
  for (auto& r : rounds) std::printf("%d ", r > 100);
  std::printf("end\n");
}
#endif
