// SPDX-License-Identifier: Apache-2.0
//
// Preloaded into a training loop by torch_stacks.py: at each kernel launch takes the stack in one
// of several ways, in blocks of launches that take turns, and times it. At the end of the process
// writes the times (ns, with the timer's own) to the file that GPUBUSY_BENCH_CAPTURE names.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/native/capture.hpp"
#include "runtime/stack_table.hpp"

namespace {

namespace native = gpubusy::runtime::native;
namespace runtime = gpubusy::runtime;
using runtime::now_ns;

struct Sink final : runtime::DefinitionSink {
  bool define(gpubusy::recording::RecordHeader*, std::size_t, const runtime::Part*,
              std::size_t) noexcept override {
    return true;
  }
} g_sink;

enum Way { kTimer, kBoth, kPython, kNative, kGlibc, kLibunwind, kWays };
constexpr const char* kNames[kWays] = {"timer", "both", "python", "native", "glibc", "libunwind"};
constexpr long kBlock = 200;

int (*g_unw_backtrace)(void**, int) = nullptr;
pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
std::vector<std::uint32_t>* g_times = new std::vector<std::uint32_t>[kWays];
long g_launches = 0;
std::uint64_t g_native_frames = 0, g_python_frames = 0, g_stacks = 0, g_differ = 0, g_cut = 0;
thread_local native::ThreadStack* t_stack = nullptr;

void write_results() {
  const char* path = std::getenv("GPUBUSY_BENCH_CAPTURE");
  std::FILE* out = path == nullptr ? nullptr : std::fopen(path, "w");
  if (out == nullptr) return;
  pthread_mutex_lock(&g_lock);
  std::fprintf(out,
               "{\"launches\": %ld, \"stacks\": %llu, \"native_frames\": %llu, "
               "\"python_frames\": %llu, \"differ\": %llu, \"cut\": %llu, \"unplaced\": %llu",
               g_launches, static_cast<unsigned long long>(g_stacks),
               static_cast<unsigned long long>(g_native_frames),
               static_cast<unsigned long long>(g_python_frames),
               static_cast<unsigned long long>(g_differ), static_cast<unsigned long long>(g_cut),
               static_cast<unsigned long long>(native::unplaced_stacks()));
  for (int way = 0; way < kWays; ++way) {
    std::vector<std::uint32_t>& t = g_times[way];
    if (t.empty()) continue;
    std::sort(t.begin(), t.end());
    std::fprintf(out, ", \"%s\": {\"count\": %zu, \"median\": %u, \"p99\": %u}", kNames[way],
                 t.size(), t[t.size() / 2], t[t.size() * 99 / 100]);
  }
  std::fprintf(out, "}\n");
  std::fclose(out);
  pthread_mutex_unlock(&g_lock);
}

bool set_up() {
  native::ObjectSource source{};
  source.find_object =
      reinterpret_cast<decltype(source.find_object)>(dlsym(RTLD_DEFAULT, "_dl_find_object"));
  native::set_object_source(source);
  native::set_up_walker(0, 0);
  if (void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL)) {
    g_unw_backtrace = reinterpret_cast<int (*)(void**, int)>(dlsym(library, "unw_backtrace"));
  }
  void* warm[4];
  backtrace(warm, 4);
  std::atexit(write_results);
  return true;
}

[[gnu::noinline]] void look() {
  static const bool ready = set_up();
  if (t_stack == nullptr) t_stack = native::ThreadStack::map();
  if (!ready || t_stack == nullptr) return;
  pthread_mutex_lock(&g_lock);
  const long launch = g_launches++;
  pthread_mutex_unlock(&g_lock);
  const int way = static_cast<int>(launch / kBlock % kWays);
  if (way == kLibunwind && g_unw_backtrace == nullptr) return;
  runtime::PythonFrames python;
  void* frames[512];
  const std::uint64_t begin = now_ns();
  switch (way) {
    case kBoth:
      runtime::capture_python_stack(g_sink, nullptr, python);
      native::capture_native_stack(g_sink, *t_stack, &python);
      break;
    case kPython: runtime::capture_python_stack(g_sink); break;
    case kNative: native::capture_native_stack(g_sink, *t_stack); break;
    case kGlibc: backtrace(frames, 512); break;
    case kLibunwind: g_unw_backtrace(frames, 512); break;
    default: break;
  }
  const std::uint64_t took = now_ns() - begin;
  pthread_mutex_lock(&g_lock);
  g_times[way].push_back(static_cast<std::uint32_t>(took));
  if (way == kBoth) {
    ++g_stacks;
    g_native_frames += static_cast<std::uint64_t>(t_stack->count());
    g_python_frames += static_cast<std::uint64_t>(t_stack->placed_count);
    g_cut += t_stack->end() != native::End::kOutermost;
    if (launch % 16 == 0) {  // the truth, outside of the times
      const int n = backtrace(frames, 512);
      bool same = n == t_stack->count();
      for (int i = 1; same && i < n; ++i) {
        same = t_stack->frames()[n - 1 - i].pc == reinterpret_cast<std::uintptr_t>(frames[i]);
      }
      g_differ += !same;
    }
  }
  pthread_mutex_unlock(&g_lock);
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

struct Dim {
  unsigned x, y, z;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cudaLaunchKernel(const void* function, Dim grid, Dim block, void** arguments,
                            std::size_t shared, void* stream) {
  static const auto real = next<decltype(&cudaLaunchKernel)>("cudaLaunchKernel");
  look();
  return real(function, grid, block, arguments, shared, stream);
}

EXPORT int cudaLaunchKernelExC(const void* config, const void* function, void** arguments) {
  static const auto real = next<decltype(&cudaLaunchKernelExC)>("cudaLaunchKernelExC");
  look();
  return real(config, function, arguments);
}

// What code compiled by CUDA 13 calls.
EXPORT int __cudaLaunchKernel(const void* kernel, Dim grid, Dim block, void** arguments,
                              std::size_t shared, void* stream) {
  static const auto real = next<decltype(&__cudaLaunchKernel)>("__cudaLaunchKernel");
  look();
  return real(kernel, grid, block, arguments, shared, stream);
}
