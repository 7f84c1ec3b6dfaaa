// SPDX-License-Identifier: Apache-2.0
#include "runtime/python/remote.hpp"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gpubusy::runtime::python {

void RemoteMemory::look_into(std::uint32_t process_id) noexcept {
  process_ = process_id;
  forbidden_ = false;
  forget();
}

void RemoteMemory::forget() noexcept {
  reads_ = 0;
  failed_ = false;
  iovec local[kLines], remote[kLines];
  std::size_t slots[kLines];
  unsigned long count = 0;
  for (std::size_t i = 0; i < kLines; ++i) {
    if (places_[i] != 0 && used_[i]) {
      local[count] = {lines_[i], kLine};
      remote[count] = {reinterpret_cast<void*>(places_[i]), kLine};
      slots[count++] = i;
    } else {
      places_[i] = 0;
    }
    used_[i] = false;
  }
  if (count == 0) return;
  // Ends at the first line that is not there any more.
  const long n = syscall(SYS_process_vm_readv, process_ != 0 ? process_ : getpid(), local, count,
                         remote, count, 0ul);
  const unsigned long good = n <= 0 ? 0 : static_cast<unsigned long>(n) / kLine;
  for (unsigned long i = good; i < count; ++i) places_[slots[i]] = 0;
}

const char* RemoteMemory::line_at(std::uintptr_t line) noexcept {
  const std::size_t slot = line / kLine % kLines;
  used_[slot] = true;
  if (places_[slot] == line) return lines_[slot];
  iovec local{lines_[slot], kLine};
  iovec remote{reinterpret_cast<void*>(line), kLine};
  places_[slot] = 0;
  const long n = syscall(SYS_process_vm_readv, process_ != 0 ? process_ : getpid(), &local, 1ul,
                         &remote, 1ul, 0ul);
  if (n != static_cast<long>(kLine)) {
    // ESRCH: a process that ends.
    forbidden_ = forbidden_ || (n < 0 && errno != EFAULT && errno != ESRCH);
    return nullptr;
  }
  places_[slot] = line;
  return lines_[slot];
}

bool RemoteMemory::copy(std::uintptr_t address, void* out, std::size_t size) noexcept {
  auto* to = static_cast<char*>(out);
  while (size != 0 && !failed_) {
    const std::size_t within = address % kLine;
    const std::size_t part = kLine - within < size ? kLine - within : size;
    const char* line =
        ++reads_ > kMaxReads || address < kLine ? nullptr : line_at(address - within);
    if (line == nullptr) {
      failed_ = true;
      break;
    }
    std::memcpy(to, line + within, part);
    to += part;
    address += part;
    size -= part;
  }
  if (size != 0) std::memset(to, 0, size);
  return size == 0;
}

namespace {

struct Collector {
  const Interpreter& python;
  RemoteMemory& memory;
  RemoteFrame* out;
  int max;
  int count = 0;
  bool cut = false;

  Visit frame(const char* f, const char* code, std::int32_t offset) noexcept {
    if (memory.failed()) return Visit::kStop;
    if (count == max) {
      cut = true;
      return Visit::kStop;
    }
    if (memory.load<const void*>(code, kObjectType) != python.code_type) {
      // 3.13 has frames that hold something else; anything else is a frame that is being made.
      return memory.failed() ? Visit::kStop : Visit::kContinue;
    }
    out[count++] = {code, f, fingerprint(python.layout, code, memory), offset};
    return Visit::kContinue;
  }
  void entry(std::uintptr_t) noexcept {}
};

// 0 frames where the memory could not be followed to the end.
int look(RemoteMemory& memory, const RemoteThread& thread, RemoteFrame* out, int max,
         bool& cut) noexcept {
  memory.forget();
  cut = false;
  if (thread.python->thread_ident == 0 ||
      memory.load<std::uint64_t>(thread.thread_state, thread.python->thread_ident) !=
          thread.ident) {
    return 0;
  }
  Collector collector{*thread.python, memory, out, max};
  visit_frames(thread.python->layout, thread.thread_state, collector, memory);
  if (memory.failed()) return 0;
  cut = collector.cut;
  return collector.count;
}

// A thread that runs leaves frames and calls of the interpreter's while they are read, and most
// walks end nowhere then; they end soon.
int look_again_and_again(RemoteMemory& memory, const RemoteThread& thread, RemoteFrame* out,
                         int max, bool& cut) noexcept {
  constexpr int kMostLooks = 16;
  int count = 0;
  for (int i = 0; i < kMostLooks && count == 0; ++i) count = look(memory, thread, out, max, cut);
  return count;
}

bool is_of_same_function(const RemoteFrame& a, const RemoteFrame& b) noexcept {
  return a.code == b.code && a.frame == b.frame && a.fingerprint == b.fingerprint;
}

// A frame's code and its place in that are not read at one instant: another function may have had
// the frame between.
bool is_within_code(RemoteMemory& memory, const Layout& layout, const RemoteFrame& frame) noexcept {
  std::int64_t bytes = 0;
  if (layout.style == FrameStyle::kFrameObject) {
    bytes =
        memory.load<std::int64_t>(memory.load<const void*>(frame.code, kCodeBytes), kObjectSize);
  } else {
    bytes = 2 * memory.load<std::int64_t>(frame.code, kObjectSize);
  }
  return frame.offset >= 0 && frame.offset < bytes && frame.offset % 2 == 0 && !memory.failed();
}

// How many outer frames are the same. The innermost of them may have moved on within its function:
// it was at the first place as that was read.
int common_outer(RemoteMemory& memory, const Layout& layout, const RemoteFrame* a, int a_count,
                 const RemoteFrame* b, int b_count) noexcept {
  int n = 0;
  while (n < a_count && n < b_count) {
    const RemoteFrame& first = a[a_count - 1 - n];
    const RemoteFrame& second = b[b_count - 1 - n];
    if (!is_of_same_function(first, second)) break;
    if (first.offset != second.offset) {
      return is_within_code(memory, layout, first) ? n + 1 : n;
    }
    ++n;
  }
  return n;
}

}  // namespace

RemoteStack walk_remote(RemoteMemory& memory, const RemoteThread& thread, RemoteFrame* frames,
                        RemoteFrame* second, int max) noexcept {
  constexpr int kAttempts = 3;
  RemoteStack best;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bool cut = false, cut_again = false;
    const int count = look_again_and_again(memory, thread, frames, max, cut);
    const int again = count == 0 ? 0 : look_again_and_again(memory, thread, second, max, cut_again);
    // Where the outer end is cut off, what is outermost depends on how deep the inner end is.
    const int common = cut != cut_again ? 0
                                        : common_outer(memory, thread.python->layout, frames, count,
                                                       second, again);
    const bool moved = common > 0 && frames[count - common].offset != second[again - common].offset;
    best = {common, moved || common != count || common != again, cut};
    // Innermost first: what is torn stands in front.
    if (common != count) std::memmove(frames, frames + (count - common), common * sizeof *frames);
    if (!best.torn) break;
  }
  return best;
}

int still_there(RemoteMemory& memory, const RemoteThread& thread, const RemoteFrame* frames,
                int count, RemoteFrame* second, int max) noexcept {
  bool cut = false;
  const int again = look(memory, thread, second, max, cut);
  return common_outer(memory, thread.python->layout, frames, count, second, again);
}

}  // namespace gpubusy::runtime::python
