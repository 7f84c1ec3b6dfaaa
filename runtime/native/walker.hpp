// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's native frames, by the unwind tables of the code on its stack. Never faults
// and never loops, whatever the tables and the stack hold: sp only moves outwards, and memory is
// read only between the current frame and the proven top of the thread's own stack. On any other
// stack (fibers, alternate signal stacks) the kernel does the reading; where it must not, a walk
// has one frame. What cannot be followed ends the walk, and the walk says so.
//
// A ThreadStack belongs to one thread at a time. errno may change. No allocation but the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/native/rules.hpp"

namespace gpubusy::runtime::native {

// Of one stack; outer ones are cut off. A Python function has 3 or 4 of them before 3.11.
inline constexpr int kMaxFrames = 1024;

struct Frame {
  std::uintptr_t sp;  // at the call: the callee's CFA
  std::uintptr_t pc;  // return address, or the interrupted instruction
  std::uintptr_t fp;
  std::uintptr_t fp_slot;  // where fp was read: an address or one of the following
  std::uint32_t node;      // for whoever interns stacks; 0 where it is not known
  bool interrupted;        // by a signal: pc itself is the place, not what lies before it

  static constexpr std::uintptr_t kUnchanged = 0;  // fp is the callee's
  static constexpr std::uintptr_t kComputed = 1;   // more was read than pc and fp
};

enum class End : std::uint8_t {
  kOutermost,  // reached
  kTooDeep,
  kNoRule,       // code without a usable description (JIT code, hand-written assembly)
  kOutOfBounds,  // the next frame would lie below the last, or outside of the stack
  kForeign,      // another stack than the thread's own, which may not be read
  kUnloading,    // kNoRule, perhaps only while another thread unloads a library
  kBusy,         // no walk: a signal handler has interrupted one
};

struct Registers {
  std::uintptr_t pc, sp, fp;
};

// Of one moment in the function that this is expanded in. It must still be running during the walk.
[[gnu::always_inline]] inline Registers current_registers() noexcept {
  Registers r{};
#if defined(__x86_64__)
  asm volatile(
      "leaq (%%rip), %%rax\n\t"
      "movq %%rax, 0(%0)\n\t"
      "movq %%rsp, 8(%0)\n\t"
      "movq %%rbp, 16(%0)"
      :
      : "r"(&r)
      : "rax", "memory");
#endif
  return r;
}

// Once per process: code whose frames are left out at the inner end (the library's own), and, when
// this is the first thread, that it is.
void set_up_walker(std::uintptr_t own_begin, std::uintptr_t own_end) noexcept;

// A Python frame among the native ones, for whoever interns stacks.
struct PlacedFrame {
  std::uint64_t location;
  std::uintptr_t entry;
  std::uint32_t node;
  std::int32_t behind;  // index of the native frame that runs it, or that runs its outer ones
};

class ThreadStack {
 public:
  // From zeroed memory of this size; nullptr: there is none.
  static ThreadStack* map() noexcept;
  static void unmap(ThreadStack* stack) noexcept;

  // Another thread begins to use it.
  void forget() noexcept;

  // The callers of the function whose registers these are. Result in frames(), which kBusy leaves
  // to the walk that was interrupted.
  End walk(const Registers& start, bool use_memo = true) noexcept;

  // The frames of another thread that is blocked in the kernel, of which pc and sp are known. The
  // innermost is the place itself. A frame pointer that was not saved by then ends the walk.
  End walk_other(const Registers& start) noexcept;

  // Of the last walk, outermost first. Frames at the outer end that are as they were in the walk
  // before keep their `node`: so many are at most known.
  Frame* frames() noexcept { return frames_; }
  int count() const noexcept { return count_; }
  End end() const noexcept { return end_; }

  // The nodes are those of this epoch (stack_table); another one voids them.
  std::uint32_t node_epoch = 0;
  // Which Python frames are between those with a node, outermost first, and where the chain of
  // nodes begins: frames further out have none.
  static constexpr int kMaxPlaced = 256;
  PlacedFrame placed[kMaxPlaced];
  int placed_count = 0;
  int first = 0;

  // For tests: the stack is this, whatever the thread's real one is.
  void pretend_bounds_for_test(std::uintptr_t low, std::uintptr_t high) noexcept;
  bool is_on_own_stack_for_test(std::uintptr_t sp) noexcept { return is_on_own_stack(sp); }

 private:
  static constexpr std::size_t kPage = 4096;

  bool is_on_own_stack(std::uintptr_t sp) noexcept {
    return (sp >= low_ && sp < high_) || extend(sp);
  }
  bool extend(std::uintptr_t sp) noexcept;
  int match(const class OwnMemory& memory, const Rules& rules, const Registers& r,
            int& candidate) noexcept;
  template <class Memory>
  End walk_in(Memory& memory, const Rules& rules, Registers r, bool with_memo, int& fresh,
              int& kept) noexcept;
  End walk_foreign(const Rules& rules, const Registers& start, int& fresh) noexcept;
  void walk_now(const Registers& start, bool own, bool use_memo) noexcept;
  void keep(int fresh, int kept) noexcept;

  std::uintptr_t owner_;       // thread pointer
  std::uintptr_t low_, high_;  // of the thread's own stack: readable, low_ is that of a page
  struct Range {
    std::uintptr_t begin, end;
  };
  static constexpr unsigned kOthers = 8;
  Range others_[kOthers];  // addresses known not to be of it: fibers that were met before
  unsigned next_other_;
  std::uintptr_t busy_;       // sp of the walk that is going on, 0: none
  std::uint64_t generation_;  // of the rules that frames_ come from; 0: no memo
  int count_;
  End end_;
  Frame frames_[kMaxFrames];   // outermost first: a memo of the walk before
  Frame fresh_[kMaxFrames];    // innermost first
  unsigned char page_[kPage];  // a copy of a page of a foreign stack
};

}  // namespace gpubusy::runtime::native
