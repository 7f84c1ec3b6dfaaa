// SPDX-License-Identifier: Apache-2.0
//
// Stacks as numbers. A stack is a node id; a node is (caller's node, location), so common outer
// frames are stored once. Ids start from 1 and mean something within one recording file only.
//
// Readers take no lock. Memory is mapped at the first capture (address space for the caps below,
// touched as it fills) and never the program's allocator's. Thread-safe unless a function says
// otherwise. Nothing here changes errno.
#pragma once

#include <cstdint>

#include "recording/format.hpp"
#include "runtime/definitions.hpp"
#include "runtime/python/frames.hpp"
#include "runtime/python/optimizer.hpp"
#include "runtime/python/remote.hpp"

namespace gpubusy::runtime {

inline constexpr std::uint32_t kMaxStackNodes = 1u << 20;
inline constexpr std::uint32_t kMaxCodes = 1u << 16;
inline constexpr int kMaxStackFrames = 256;  // of one stack; outer ones are cut off and flagged

// The calling thread's Python frames at one moment, for whoever puts them among native ones.
struct PythonFrames {
  int count = 0;
  python::Chain chain;
  std::uint32_t epoch = 0;                // that the code ids are of
  python::Frame frames[kMaxStackFrames];  // innermost first, each with its code's id
};
inline std::uint64_t location_of(const python::Frame& f) noexcept {
  return std::uint64_t{f.code_id} << 32 | static_cast<std::uint32_t>(f.offset < 0 ? 0 : f.offset);
}

// The calling thread's Python stack: id of its innermost frame's node, 0 where there is none.
// Sends CodeRecords and StackNodeRecords to the sink before it returns an id that needs them. When
// a table is full or the sink refuses, the id of the deepest node that is known.
// With `call` also tells (at no cost of its own) whether the thread is inside an optimizer's step,
// as python::current_optimizer_call() would. `frames`: none where the table cut the stack short.
std::uint32_t capture_python_stack(DefinitionSink& sink, python::OptimizerCall* call,
                                   PythonFrames& frames) noexcept;
std::uint32_t capture_python_stack(DefinitionSink& sink,
                                   python::OptimizerCall* call = nullptr) noexcept;

// For stacks of another thread (python::walk_remote): which codes are known already. One thread's.
// Codes that are met here alone are kept here: the common table also tells optimizers, for which a
// code must be read by the thread that is inside it.
class RemoteCodes {
 public:
  static RemoteCodes* map() noexcept;  // nullptr: no memory

  // The node of the innermost frame that could be named, 0: none. Definitions go to the sink
  // before. `second` is room for `max` frames.
  std::uint32_t intern(DefinitionSink& sink, python::RemoteMemory& memory,
                       const python::RemoteThread& thread, python::RemoteStack& stack,
                       python::RemoteFrame* frames, python::RemoteFrame* second, int max) noexcept;

 private:
  struct Known {
    const void* code;
    std::uint64_t fingerprint;
    std::uint64_t process;  // RemoteThread::process
    std::uint32_t id;
  };
  static constexpr std::size_t kKnown = 1024;
  static constexpr int kRead = 8;  // codes at a time

  void define(DefinitionSink& sink, python::RemoteMemory& memory,
              const python::RemoteThread& thread, const python::RemoteStack& stack,
              const python::RemoteFrame* frames, python::RemoteFrame* second, int max,
              const int* depths, int count, std::uint32_t* ids) noexcept;

  Known& known_of(const python::RemoteFrame& frame, std::uint64_t process) noexcept;
  std::uint32_t known_id_of(const python::RemoteFrame& frame, std::uint64_t process) noexcept;

  std::uint32_t epoch_;  // of the table that the ids are of
  Known known_[kKnown];  // by address
};

// Native frames go into the same tree: frames[0] is the innermost return address.
std::uint32_t intern_native_stack(DefinitionSink& sink, const std::uint64_t* frames, int count,
                                  bool cut) noexcept;

// One frame, for callers who know the caller's node (0: outermost). `cut`: there were more behind
// it. 0: the table is full or the sink refuses.
std::uint32_t intern_frame(DefinitionSink& sink, std::uint32_t parent, recording::FrameKind kind,
                           std::uint64_t location, bool cut) noexcept;
// Ids mean something within one epoch only. Read it before the first intern_frame().
std::uint32_t stack_epoch() noexcept;

struct StackTableCounts {
  std::uint32_t nodes;
  std::uint32_t codes;
  std::uint64_t refused;  // captures that a full table or the sink cut short
};
StackTableCounts stack_table_counts() noexcept;

// A new file begins: ids start over, definitions are sent anew. Captures that other threads have in
// progress may still return old ids: stop recording first. Address space of the old tables is not
// given back (a reader may be in it); their memory is.
void reset_stack_table() noexcept;

// The same in the child of a fork, where this is the only thread.
void reset_stack_table_after_fork() noexcept;

}  // namespace gpubusy::runtime
