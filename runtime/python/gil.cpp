// SPDX-License-Identifier: Apache-2.0
#include "runtime/python/gil.hpp"

namespace gpubusy::runtime::python {
namespace {

// struct _gil_runtime_state, 3.8–3.14: the interval in us after which a waiting thread asks for the
// lock, the last thread that held it, whether it is held, how often it changed hands; then a
// condition and its mutex, twice.
constexpr int kHolder = 8, kLocked = 16, kLocks = 32;
constexpr int kEnd = kLocks + 2 * (48 + 40);  // of pthread_cond_t, pthread_mutex_t
constexpr std::uint64_t kLongestInterval = 3'600'000'000;

// What pthread_self() points to is 2.3 kB large in glibc, less in musl.
constexpr int kThreadBytes = 2048;

std::uintptr_t pointer_at(RemoteMemory& memory, std::uintptr_t address) noexcept {
  return memory.load<std::uintptr_t>(reinterpret_cast<const void*>(address), 0);
}

int int_at(RemoteMemory& memory, std::uintptr_t address) noexcept {
  return memory.load<int>(reinterpret_cast<const void*>(address), 0);
}

}  // namespace

bool is_gil(RemoteMemory& memory, std::uintptr_t at, std::uintptr_t interpreter) noexcept {
  const int locked = int_at(memory, at + kLocked);
  if (locked != 0 && locked != 1) return false;
  const std::uintptr_t holder = pointer_at(memory, at + kHolder);
  return holder != 0 && holder % sizeof(void*) == 0 &&
         pointer_at(memory, holder + kThreadInterpreter) == interpreter && !memory.failed();
}

bool is_lock_of(std::uintptr_t gil, std::uint64_t lock) noexcept {
  return lock >= gil + kLocks && lock < gil + kEnd;
}

std::uintptr_t find_gil(RemoteMemory& memory, std::uint64_t lock,
                        std::uintptr_t interpreter) noexcept {
  const std::uintptr_t last = lock & ~std::uintptr_t{7};
  std::uintptr_t found = 0;
  for (std::uintptr_t at = last - kLocks; is_lock_of(at, lock); at -= sizeof at) {
    memory.forget();
    const std::uintptr_t interval = pointer_at(memory, at);
    const bool fits = interval != 0 && interval <= kLongestInterval;
    // A candidate's pointers may lead nowhere: that is no end of the search.
    if (!fits || !is_gil(memory, at, interpreter)) continue;
    if (found != 0) return 0;
    found = at;
  }
  memory.forget();
  return found;
}

std::uintptr_t holder_of(RemoteMemory& memory, std::uintptr_t gil) noexcept {
  if (int_at(memory, gil + kLocked) != 1) return 0;
  const std::uintptr_t holder = pointer_at(memory, gil + kHolder);
  return memory.failed() ? 0 : holder;
}

int find_thread_number(RemoteMemory& memory, std::uint64_t ident, std::uint32_t number) noexcept {
  memory.forget();
  int found = -1;
  for (int at = 0; at < kThreadBytes && ident != 0 && number != 0; at += 4) {
    const auto word = memory.load<std::uint32_t>(reinterpret_cast<const void*>(ident), at);
    if (memory.failed()) break;
    if (word != number) continue;
    if (found >= 0) return -1;  // a small number, as in a container, stands in several places
    found = at;
  }
  memory.forget();
  return found;
}

bool is_refuted_by_caller(const Interpreter& python, std::uintptr_t gil) noexcept {
  if (python.current_state == nullptr || python.this_thread_state == nullptr) return false;
  const void* own = python.this_thread_state();
  // Up to 3.11 the state of whichever thread holds the GIL, from 3.12 on the caller's if it does.
  if (own == nullptr || python.current_state() != own) return false;
  // Other interpreters may have a GIL of their own.
  if (python.main_interpreter != nullptr &&
      load<const void*>(own, kThreadInterpreter) != python.main_interpreter()) {
    return false;
  }
  const auto* at = reinterpret_cast<const void*>(gil);
  return load<int>(at, kLocked) != 1 || load<const void*>(at, kHolder) != own;
}

}  // namespace gpubusy::runtime::python
