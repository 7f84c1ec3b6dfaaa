// SPDX-License-Identifier: Apache-2.0
//
// Libraries that the process has loaded, looked at without the loader's lock. The preload part knows
// how (preload/objects.hpp); it hands its functions in at the start.
#pragma once

namespace gpubusy::runtime {

// Finds the first loaded object, but this library, that defines a symbol. Takes a name and gives an
// object for find_in(), and its path ("" for the program itself); nullptr: none does. The object is
// only good while it stays loaded.
struct LibraryFinder {
  const void* (*find_library)(const char* symbol, const char** path);
  void* (*find_in)(const void* library, const char* symbol);
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
LoadedLibrary find_loaded_library(const char* symbol) noexcept;

}  // namespace gpubusy::runtime
