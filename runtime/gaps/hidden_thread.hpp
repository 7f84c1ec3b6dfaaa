// SPDX-License-Identifier: Apache-2.0
//
// A thread that libc knows nothing of, in the program's address space but with descriptors of its
// own (and a current directory). So it is not counted where a program ends with its last thread,
// changes no descriptor numbers and is not reached by a program that closes them all; starting it
// calls no malloc and takes no lock. All signals are blocked in it for ever.
//
// What runs in it: system calls, memory that cannot fault, mutexes that are held for moments. No
// malloc, no locale (printf, strtol), no pthread_create or _key functions, no dlopen.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime::gaps {

enum class Started : std::uint8_t {
  kYes,
  kStillRuns,    // the one before has not quite ended
  kUnsupported,  // this architecture, or a libc that is not known
  kNoMemory,
  kRefused,  // by the system: a limit on threads, a sandbox
};

// Runs `body`, once at a time per process; `keep` is the descriptor that stays open. Waits, for a
// millisecond at most, until the others are closed there: nobody shall find a pipe open that was
// closed. From any thread, also inside a signal handler.
Started start_hidden_thread(void (*body)(), int keep) noexcept;

bool hidden_thread_runs() noexcept;
// In the thread: until that time on CLOCK_MONOTONIC. False: it shall end.
bool sleep_in_hidden_thread(std::uint64_t until_ns) noexcept;
// In the thread, now and then during longer work: somebody waits for its end.
bool hidden_thread_shall_end() noexcept;
// Asks it to end and waits for that, for two milliseconds at most.
void end_hidden_thread() noexcept;

// In the child of a fork, where it does not exist.
void hidden_thread_after_fork() noexcept;

}  // namespace gpubusy::runtime::gaps
