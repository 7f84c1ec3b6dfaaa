// SPDX-License-Identifier: Apache-2.0
//
// What is loaded into the process, and by which ways the program came by the hooks, as definitions
// in the recording. The preload part knows the loader's lists; it gives functions that read them
// without the loader's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/definitions.hpp"

namespace gpubusy::runtime {

// Objects of the loader's list, copied out of it: its strings may go with their object.
struct ModuleBatch {
  static constexpr std::size_t kMax = 32;
  static constexpr std::size_t kBuildIdMax = 32;
  struct Module {
    std::uint64_t begin, end, base;
    const char* path;  // into `text`, not terminated
    std::uint16_t path_size;
    bool cut;
    std::uint8_t build_id_size;
    unsigned char build_id[kBuildIdMax];
  };
  Module modules[kMax];
  std::size_t count;
  char text[16 * 1024];
};

struct LoaderView {
  // Changes whenever an object is loaded or unloaded.
  std::uint64_t (*generation)() noexcept;
  // Copies objects from position `first` on; false: there are no more behind them.
  bool (*list)(std::size_t first, ModuleBatch& out) noexcept;
  // Has the program loaded the driver (or what needs it), rather than a preload?
  bool (*has_driver)() noexcept;
  // Path of this library, terminated. False: not known.
  bool (*own_path)(char* out, std::size_t size) noexcept;
};

void set_loader(const LoaderView& loader) noexcept;
const LoaderView& loader() noexcept;

// By which ways hooks were handed out: one byte of recording::ReachFlags for each function.
void set_reach_table(const std::atomic<std::uint8_t>* reach, std::size_t count) noexcept;

// Writes what is new since the last time; nearly free where nothing is. Under the recorder's mutex.
void write_loaded_modules(DefinitionSink& sink, std::uint64_t now_ns) noexcept;
void write_reach(DefinitionSink& sink, std::uint64_t now_ns) noexcept;

// A new file begins: all of it is new again.
void forget_loaded_modules() noexcept;

}  // namespace gpubusy::runtime
