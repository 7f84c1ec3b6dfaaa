// SPDX-License-Identifier: Apache-2.0
//
// The Python frames of another thread of this process, or of a child that was forked from it, which
// may run on meanwhile. All memory is read through the kernel, so that nothing faults; what was
// read counts only if a second look finds the same. Private to runtime. One reader belongs to one
// thread. errno may change. No allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/python/layout.hpp"

namespace gpubusy::runtime::python {

// Copies of the last lines of memory that were asked for.
class RemoteMemory {
 public:
  // Whose memory; 0: this process's. Forked processes have most of what is read at the same
  // addresses: one reader for all of them fetches that at once.
  void look_into(std::uint32_t process_id) noexcept;
  // What is read from here on is not older than this call. What was read since the call before is
  // most likely asked for again: it is fetched at once.
  void forget() noexcept;
  // Too many reads, or one that the kernel refused: 0 was given in its place.
  bool failed() const noexcept { return failed_; }
  bool is_forbidden() const noexcept { return forbidden_; }  // by a sandbox: nothing can be read

  template <class T>
  T load(const void* base, int offset) noexcept {
    T value{};
    copy(reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(offset), &value,
         sizeof value);
    return value;
  }
  const char* bytes(const char* at, std::size_t size, char* scratch) noexcept {
    return copy(reinterpret_cast<std::uintptr_t>(at), scratch, size) ? scratch : nullptr;
  }

 private:
  static constexpr std::size_t kLine = 512, kLines = 128;
  // Frames that are torn may form a ring.
  static constexpr unsigned kMaxReads = 20'000;

  bool copy(std::uintptr_t address, void* out, std::size_t size) noexcept;
  const char* line_at(std::uintptr_t line) noexcept;

  unsigned reads_;
  bool failed_, forbidden_;
  std::uint32_t process_;
  std::uintptr_t places_[kLines];  // 0: empty
  bool used_[kLines];              // since forget()
  char lines_[kLines][kLine];
};

struct RemoteFrame {
  const char* code;
  const char* frame;
  std::uint64_t fingerprint;
  std::int32_t offset;
};

// Whose frames, and of which interpreter. `ident`: what pthread_self() gives there. A thread state
// that was freed, or serves another thread by now, has no frames.
struct RemoteThread {
  const Interpreter* python;
  const char* thread_state;
  std::uint64_t ident;
  // Tells processes apart in which different codes may stand at one address; 0: this process.
  std::uint64_t process = 0;
};

// The frames that were there at two looks, innermost first; where the two differ, the outer ones
// that did not change meanwhile and the one below them if it has only moved on within its function
// (its place is that of the first look), and `torn` says so. `cut`: there were more than `max`.
// `second` is room for `max` frames.
struct RemoteStack {
  int count = 0;
  bool torn = false;
  bool cut = false;
};
RemoteStack walk_remote(RemoteMemory& memory, const RemoteThread& thread, RemoteFrame* frames,
                        RemoteFrame* second, int max) noexcept;

// Another look, after codes were copied: how many of the outermost of `count` frames are still
// there.
int still_there(RemoteMemory& memory, const RemoteThread& thread, const RemoteFrame* frames,
                int count, RemoteFrame* second, int max) noexcept;

}  // namespace gpubusy::runtime::python
