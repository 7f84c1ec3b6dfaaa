// SPDX-License-Identifier: Apache-2.0
//
// Libraries that the process has loaded, looked at without the loader's lock. The preload part
// knows how (preload/objects.hpp); it hands its functions in at the start.
#pragma once

#include <link.h>

#include <cstddef>

namespace gpubusy::runtime {

// Finds the first loaded object, but this library, that defines a symbol. Takes a name and gives an
// object for find_in(), and its path ("" for the program itself); nullptr: none does. The object is
// only good while it stays loaded.
struct LibraryFinder {
  const void* (*find_library)(const char* symbol, const char** path);
  void* (*find_in)(const void* library, const char* symbol);
  // dl_iterate_phdr, but no fork falls into it.
  void (*walk)(int (*step)(dl_phdr_info*, std::size_t, void*), void* data);
};

class LoadedLibrary {
 public:
  LoadedLibrary(const LibraryFinder* finder, const void* library, const char* path) noexcept
      : finder_(finder), library_(library), path_(path) {}
  explicit operator bool() const noexcept { return library_ != nullptr; }
  void* find(const char* symbol) const noexcept { return finder_->find_in(library_, symbol); }
  const char* path() const noexcept { return path_; }

 private:
  const LibraryFinder* finder_;
  const void* library_;
  const char* path_;
};

void set_library_finder(const LibraryFinder* finder) noexcept;
const LibraryFinder* library_finder() noexcept;  // nullptr before it is set
LoadedLibrary find_loaded_library(const char* symbol) noexcept;

}  // namespace gpubusy::runtime
