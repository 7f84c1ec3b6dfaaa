// SPDX-License-Identifier: Apache-2.0
//
// Which thread holds the GIL (3.8–3.14), as the interpreter itself notes it. Where it notes that is
// found by what the struct looks like and by the lock that a thread waits for, which is part of it:
// no version's offsets are believed. A thread that is known to hold the GIL can refute what was
// found, once and for all. Private to runtime.
#pragma once

#include <cstdint>

#include "runtime/python/layout.hpp"
#include "runtime/python/remote.hpp"

namespace gpubusy::runtime::python {

// Whether a struct _gil_runtime_state of that interpreter (PyInterpreterState) may be there.
bool is_gil(RemoteMemory& memory, std::uintptr_t at, std::uintptr_t interpreter) noexcept;

// The one whose lock a thread waits for at `lock`; 0: not found, or it may be one of two.
std::uintptr_t find_gil(RemoteMemory& memory, std::uint64_t lock,
                        std::uintptr_t interpreter) noexcept;
// Whether that lock is part of it.
bool is_lock_of(std::uintptr_t gil, std::uint64_t lock) noexcept;

// The state (PyThreadState) of the thread that holds it now; 0: none does.
std::uintptr_t holder_of(RemoteMemory& memory, std::uintptr_t gil) noexcept;

// What pthread_self() points to has the kernel's number of the thread in it: where, by one thread
// of which both are known. Less than 0: not found.
int find_thread_number(RemoteMemory& memory, std::uint64_t ident, std::uint32_t number) noexcept;

// Whether what is noted at `gil`, in the interpreter's static memory, is wrong: the calling thread
// holds the GIL, and something else is noted. Reads its own memory. False where it cannot tell.
bool is_refuted_by_caller(const Interpreter& python, std::uintptr_t gil) noexcept;

}  // namespace gpubusy::runtime::python
