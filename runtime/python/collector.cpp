// SPDX-License-Identifier: Apache-2.0
#include "runtime/python/collector.hpp"

#include "runtime/python/gil.hpp"

namespace gpubusy::runtime::python {
namespace {

// struct _gc_runtime_state, 3.8–3.13: three generations of 24 bytes, a pointer to the first of
// them, the permanent generation, three statistics of three words, `collecting`, and the lists
// `garbage` and `callbacks`. A word that points to itself like that is nowhere else.
constexpr int kGenerations = 3, kGenerationBytes = 24, kStatisticsBytes = 24;
constexpr int kToGenerations = kGenerations * kGenerationBytes;
constexpr int kToCollecting = 8 + kGenerationBytes + kGenerations * kStatisticsBytes;
constexpr int kToGarbage = kToCollecting + 8, kToCallbacks = kToGarbage + 8;

// The first word of the GIL's struct, unless the program has set another.
constexpr std::uint64_t kInterval = 5000;

// What is searched: the structs stand in the first part of the interpreter's state or of
// _PyRuntime.
constexpr std::size_t kSearched = 256 * 1024;
constexpr std::size_t kLine = 512;

std::uintptr_t pointer_at(RemoteMemory& memory, std::uintptr_t address) noexcept {
  return memory.load<std::uintptr_t>(reinterpret_cast<const void*>(address), 0);
}

int int_at(RemoteMemory& memory, std::uintptr_t address) noexcept {
  return memory.load<int>(reinterpret_cast<const void*>(address), 0);
}

bool is_of_type(RemoteMemory& memory, std::uintptr_t object, const void* type) noexcept {
  return object != 0 &&
         pointer_at(memory, object + kObjectType) == reinterpret_cast<std::uintptr_t>(type);
}

bool is_flag(int value) noexcept { return value == 0 || value == 1; }

bool is_collection_state(RemoteMemory& memory, std::uintptr_t at, const void* list) noexcept {
  return is_flag(int_at(memory, at + kToCollecting)) &&
         is_of_type(memory, pointer_at(memory, at + kToGarbage), list) &&
         is_of_type(memory, pointer_at(memory, at + kToCallbacks), list);
}

// Calls `visit` with each word and its address, until it says so or the memory ends.
template <class Visit>
void each_word(RemoteMemory& memory, std::uintptr_t from, Visit visit) noexcept {
  for (std::uintptr_t at = from; at < from + kSearched; at += sizeof at) {
    if ((at - from) % kLine == 0) memory.forget();
    const std::uintptr_t word = pointer_at(memory, at);
    if (memory.failed() || visit(at, word)) return;
  }
}

}  // namespace

CollectorPlaces find_collector(const Interpreter& python, RemoteMemory& memory,
                               const char* thread_state) noexcept {
  CollectorPlaces places;
  // 3.14 has another struct.
  if (python.layout.minor > 13 || python.list_type == nullptr || python.runtime == nullptr) {
    return places;
  }
  memory.look_into(0);
  const auto interpreter =
      pointer_at(memory, reinterpret_cast<std::uintptr_t>(thread_state) + kThreadInterpreter);
  if (interpreter == 0 || memory.failed() ||
      (python.main_interpreter != nullptr &&
       python.main_interpreter() != reinterpret_cast<const void*>(interpreter))) {
    return places;
  }
  const auto runtime = reinterpret_cast<std::uintptr_t>(python.runtime);
  // The main interpreter's state is part of _PyRuntime from 3.12 on.
  const std::uintptr_t begins[] = {interpreter, runtime};
  for (const std::uintptr_t from : begins) {
    each_word(memory, from, [&](std::uintptr_t at, std::uintptr_t word) noexcept {
      // A candidate's pointers may lead nowhere: that is no end of the search.
      if (places.collecting == 0 && word == at - kToGenerations) {
        if (is_collection_state(memory, at, python.list_type))
          places.collecting = at + kToCollecting;
        memory.forget();
      } else if (places.gil == 0 && word == kInterval) {
        if (is_gil(memory, at, interpreter)) places.gil = at;
        memory.forget();
      }
      return places.known();
    });
  }
  memory.look_into(0);
  return places;
}

bool is_collecting(const CollectorPlaces& places, RemoteMemory& memory,
                   const char* thread_state) noexcept {
  const bool collecting = int_at(memory, places.collecting) == 1;
  return collecting &&
         holder_of(memory, places.gil) == reinterpret_cast<std::uintptr_t>(thread_state) &&
         !memory.failed();
}

}  // namespace gpubusy::runtime::python
