// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/library.hpp"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "runtime/driver.hpp"
#include "runtime/loaded_library.hpp"
#include "runtime/no_cancel.hpp"

namespace gpubusy::runtime::cupti {
namespace {

constexpr const char* kMark = "cuptiActivityEnable";  // a library that has this is libcupti
constexpr int kOldest = 11;

constinit Library g_library{};
constinit std::atomic<const Library*> g_ready{nullptr};
constinit std::atomic<bool> g_looking{false};

// Newer functions may be in a library of their own (the simulated CUPTI's are), but never those of
// another whole libcupti.
void* find_function(const LoadedLibrary& loaded, const char* symbol) noexcept {
  if (void* p = loaded.find(symbol)) return p;
  const LoadedLibrary other = find_loaded_library(symbol);
  return other && other.find(kMark) == nullptr ? other.find(symbol) : nullptr;
}

bool take_functions(const LoadedLibrary& loaded) noexcept {
#define GPUBUSY_LOOK_UP(member, symbol, ...) \
  g_library.member = reinterpret_cast<decltype(g_library.member)>(find_function(loaded, symbol));
  GPUBUSY_CUPTI_FUNCTIONS(GPUBUSY_LOOK_UP)
#undef GPUBUSY_LOOK_UP
  snprintf(g_library.path, sizeof g_library.path, "%s", loaded.path());
  const Library& l = g_library;
  return l.enable != nullptr && l.disable != nullptr && l.register_callbacks != nullptr &&
         l.flush_all != nullptr && l.next_record != nullptr && l.push_external != nullptr &&
         l.pop_external != nullptr && l.timestamp != nullptr && l.callback_name != nullptr &&
         l.subscribe != nullptr && l.unsubscribe != nullptr;
}

// "DIR/libcupti.so.N"; CUDA 11's has a minor version.
bool try_load(const char* directory, int major) noexcept {
  char path[1200];
  const char* slash = directory[0] == '\0' ? "" : "/";
  snprintf(path, sizeof path, "%s%slibcupti.so.%d%s", directory, slash, major,
           major == 11 ? ".8" : "");
  return dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr;
}

// Directories of a toolkit, or of the wheels, that has `runtime`'s libcudart in it.
bool try_beside(const char* runtime, int major) noexcept {
  char base[1024];
  const char* end = strrchr(runtime, '/');
  if (end == nullptr || static_cast<std::size_t>(end - runtime) >= sizeof base - 64) return false;
  const std::size_t length = static_cast<std::size_t>(end - runtime);
  memcpy(base, runtime, length);
  for (const char* rest :
       {"", "/../../cuda_cupti/lib", "/../extras/CUPTI/lib64", "/../../../extras/CUPTI/lib64"}) {
    snprintf(base + length, sizeof base - length, "%s", rest);
    if (try_load(base, major)) return true;
  }
  return false;
}

bool try_root(const char* root, int major) noexcept {
  if (root == nullptr || root[0] == '\0') return false;
  char directory[1100];
  for (const char* rest : {"extras/CUPTI/lib64", "lib64"}) {
    snprintf(directory, sizeof directory, "%.1000s/%s", root, rest);
    if (try_load(directory, major)) return true;
  }
  return false;
}

}  // namespace

const Library* library() noexcept {
  if (const Library* l = g_ready.load(std::memory_order_acquire)) [[likely]]
    return l;
  const NoCancel no_cancel;
  // Another thread is about to find it; but it may have been stopped by a debugger.
  for (int attempt = 0; g_looking.exchange(true); ++attempt) {
    if (attempt > 1000) return nullptr;
    usleep(50);
    if (const Library* l = g_ready.load(std::memory_order_acquire)) return l;
  }
  if (const LoadedLibrary loaded = find_loaded_library(kMark)) {
    if (take_functions(loaded)) g_ready.store(&g_library, std::memory_order_release);
  }
  g_looking.store(false);
  return g_ready.load(std::memory_order_acquire);
}

bool load_library(const char* path) noexcept {
  const NoCancel no_cancel;
  if (path[0] != '\0') {
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) return false;
    return library() != nullptr;
  }
  if (library() != nullptr) return true;
  const Driver* d = driver();
  int version = 0;
  if (d == nullptr || d->driver_get_version == nullptr ||
      d->driver_get_version(&version) != CUDA_SUCCESS) {
    return false;
  }
  const LoadedLibrary runtime = find_loaded_library("cudaGetErrorString");
  // That of the program's own toolkit rather than a newer one elsewhere. An older CUPTI works with
  // a newer driver, not the other way round.
  const auto newest_first = [&](auto&& try_major) {
    for (int major = version / 1000; major >= kOldest; --major) {
      if (try_major(major)) return true;
    }
    return false;
  };
  if ((runtime && newest_first([&](int major) { return try_beside(runtime.path(), major); })) ||
      newest_first([](int major) { return try_root(getenv("CUDA_HOME"), major); }) ||
      newest_first([](int major) { return try_root(getenv("CUDA_PATH"), major); }) ||
      newest_first([](int major) { return try_load("", major); }) ||
      newest_first([](int major) { return try_root("/usr/local/cuda", major); })) {
    return library() != nullptr;
  }
  return false;
}

const char* path_in_use() noexcept {
  const Library* l = g_ready.load(std::memory_order_acquire);
  return l == nullptr || l->path[0] == '\0' ? nullptr : l->path;
}

const char* result_text(Result result) noexcept {
  const Library* l = library();
  const char* text = nullptr;
  if (l == nullptr || l->result_string == nullptr || l->result_string(result, &text) != kSuccess ||
      text == nullptr) {
    return "unknown error";
  }
  return text;
}

void forget_library_search_after_fork() noexcept { g_looking.store(false); }

}  // namespace gpubusy::runtime::cupti
