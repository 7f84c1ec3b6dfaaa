// SPDX-License-Identifier: Apache-2.0
#include "runtime/loaded_library.hpp"

#include <atomic>

namespace gpubusy::runtime {
namespace {

constinit std::atomic<const LibraryFinder*> g_finder{nullptr};

}  // namespace

void set_library_finder(const LibraryFinder* finder) noexcept {
  g_finder.store(finder, std::memory_order_release);
}

const LibraryFinder* library_finder() noexcept { return g_finder.load(std::memory_order_acquire); }

LoadedLibrary find_loaded_library(const char* symbol) noexcept {
  const LibraryFinder* finder = g_finder.load(std::memory_order_acquire);
  const char* path = "";
  const void* library = finder == nullptr ? nullptr : finder->find_library(symbol, &path);
  return {finder, library, path};
}

}  // namespace gpubusy::runtime
