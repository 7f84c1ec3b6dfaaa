// SPDX-License-Identifier: Apache-2.0
//
// Where the interpreter notes that it collects garbage, and which thread holds the GIL: together
// they tell that a thread is inside a collection, also one that Python began by itself. Private to
// runtime.
#pragma once

#include <cstdint>

#include "runtime/python/layout.hpp"
#include "runtime/python/remote.hpp"

namespace gpubusy::runtime::python {

// Addresses; 0: not found, and then nothing is said about collections.
struct CollectorPlaces {
  std::uintptr_t collecting = 0;  // int of the interpreter's state of collection
  std::uintptr_t gil = 0;         // struct _gil_runtime_state
  bool known() const noexcept { return collecting != 0 && gil != 0; }
};

// Of the main interpreter, by what the structs look like: no version's offsets are believed. For
// the thread that reads `memory`, with a thread's state. Costs some hundred reads: once.
CollectorPlaces find_collector(const Interpreter& python, RemoteMemory& memory,
                               const char* thread_state) noexcept;

// Whether that thread was collecting at this moment.
bool is_collecting(const CollectorPlaces& places, RemoteMemory& memory,
                   const char* thread_state) noexcept;

}  // namespace gpubusy::runtime::python
