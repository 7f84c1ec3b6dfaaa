// SPDX-License-Identifier: Apache-2.0
#include "runtime/native/walker.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

// Of the loader: the first thread's sp at the program's entry.
extern "C" [[gnu::weak]] void* __libc_stack_end;

namespace gpubusy::runtime::native {
namespace {

constexpr std::size_t kPageSize = 4096;
constexpr std::uintptr_t kPageMask = ~std::uintptr_t{kPageSize - 1};
constexpr std::uintptr_t kWord = 8;
// How many new pages of a stack a walk looks at, and how large a stack may be. Larger ones are read
// as foreign ones.
constexpr std::uintptr_t kMaxProbed = 4096, kMaxStack = std::uintptr_t{1} << 30;
// Code at this address, or below, is the end of a stack that a program made by hand.
constexpr std::uintptr_t kNoCaller = 0;

constinit std::uintptr_t g_own_begin = 0, g_own_end = 0;
constinit std::uintptr_t g_first_thread = 0;  // its thread pointer; a fork does not change it

std::uintptr_t thread_pointer() noexcept {
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
}

bool is_own(std::uintptr_t pc) noexcept { return pc >= g_own_begin && pc < g_own_end; }

// Asks the kernel, by a call that reads the new mask before it refuses to know what to do with it.
// No seccomp filter forbids it.
bool is_readable(std::uintptr_t address) noexcept {
  constexpr int kNoSuchAction = -1;
  constexpr std::size_t kKernelSetSize = 8;
  return syscall(SYS_rt_sigprocmask, kNoSuchAction, address, nullptr, kKernelSetSize) != 0 &&
         errno == EINVAL;
}

// libc puts a thread's control block at the top of its stack (where the architecture has it above
// the thread-local storage), but for the first thread.
std::uintptr_t top_of_stack() noexcept {
  const std::uintptr_t self = thread_pointer();
  const bool is_first = g_first_thread != 0 ? self == g_first_thread
                                            : syscall(SYS_gettid) == static_cast<long>(getpid());
  if (!is_first) return self;
  return &__libc_stack_end == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(__libc_stack_end);
}

}  // namespace

// The thread's own stack, from the current frame on.
class OwnMemory {
 public:
  OwnMemory(std::uintptr_t low, std::uintptr_t high) noexcept : low_(low), high_(high) {}
  bool read(std::uintptr_t address, std::uintptr_t& value) const noexcept {
    if (address < low_ || address > high_ - kWord || address % kWord != 0) [[unlikely]] {
      return false;
    }
    value = *reinterpret_cast<const volatile std::uintptr_t*>(address);
    return true;
  }
  static constexpr bool kMayLeave = false;  // by a signal frame, for a lower address

 private:
  std::uintptr_t low_, high_;
};

// Any memory, through the kernel.
class ForeignMemory {
 public:
  explicit ForeignMemory(unsigned char* page) noexcept : copy_(page) {}
  bool read(std::uintptr_t address, std::uintptr_t& value) noexcept {
    if (address % kWord != 0) return false;
    const std::uintptr_t page = address & kPageMask;
    if (page != page_) {
      iovec local{copy_, kPageSize};
      iovec remote{reinterpret_cast<void*>(page), kPageSize};
      page_ = 0;
      const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
      if (n != static_cast<ssize_t>(kPageSize)) {
        forbidden_ = n < 0 && errno != EFAULT;
        return false;
      }
      page_ = page;
    }
    std::memcpy(&value, copy_ + (address - page), sizeof value);
    return true;
  }
  bool is_forbidden() const noexcept { return forbidden_; }
  static constexpr bool kMayLeave = true;

 private:
  unsigned char* copy_;
  std::uintptr_t page_ = 0;
  bool forbidden_ = false;
};

namespace {

enum class Step : std::uint8_t {
  kCaller,
  kInterrupted,
  kOutermost,
  kNoRule,
  kUnread,
  kOutOfBounds
};

// From a frame to its caller. `fp_slot` as in Frame.
template <class Memory>
[[gnu::always_inline]] inline Step step(Memory& memory, const Rules& rules, Registers& r,
                                        bool exact, std::uintptr_t& fp_slot) noexcept {
  // A return address may be that of the next function already, behind a call that does not return.
  const Rule rule = rules.of(exact ? r.pc : r.pc - 1);
  const auto offset = static_cast<std::uintptr_t>(std::intptr_t{rule.cfa_offset});
  std::uintptr_t cfa = 0;
  fp_slot = Frame::kUnchanged;
  switch (rule.type) {
    case RuleType::kFromSp: cfa = r.sp + offset; break;
    case RuleType::kFromFp: cfa = r.fp + offset; break;
    case RuleType::kLoadedFromSp:
    case RuleType::kLoadedFromFp:
      fp_slot = Frame::kComputed;
      if (!memory.read((rule.type == RuleType::kLoadedFromSp ? r.sp : r.fp) + offset, cfa)) {
        return Step::kOutOfBounds;
      }
      cfa += rule.add_words * kWord;
      break;
    case RuleType::kSignal: {
      const std::uintptr_t context = r.sp + offset;
      fp_slot = Frame::kComputed;
      if (!memory.read(context, cfa) || !memory.read(context + kSignalPc, r.pc) ||
          !memory.read(context + static_cast<std::uintptr_t>(kSignalFp), r.fp) ||
          cfa % kWord != 0 || (cfa <= r.sp && !Memory::kMayLeave)) {
        return Step::kOutOfBounds;
      }
      r.sp = cfa;
      return Step::kInterrupted;
    }
    case RuleType::kOutermost: return Step::kOutermost;
    case RuleType::kUnread: return Step::kUnread;
    default: return Step::kNoRule;
  }
  if (cfa <= r.sp || cfa % kWord != 0 || !memory.read(cfa - kWord, r.pc)) [[unlikely]] {
    return Step::kOutOfBounds;
  }
  if (rule.fp != SavedFp::kSame) {
    if (rule.fp == SavedFp::kLost) {
      r.fp = 0;
      fp_slot = Frame::kComputed;
    } else {
      const std::uintptr_t slot = (rule.fp == SavedFp::kAtCfa ? cfa : r.fp) +
                                  static_cast<std::uintptr_t>(std::intptr_t{rule.fp_offset});
      // It is in the frame: what is above is the caller's.
      if (slot >= cfa || !memory.read(slot, r.fp)) [[unlikely]]
        return Step::kOutOfBounds;
      if (fp_slot == Frame::kUnchanged) fp_slot = slot;
    }
  }
  r.sp = cfa;
  return r.pc == kNoCaller ? Step::kOutermost : Step::kCaller;
}

End end_of(Step step) noexcept {
  return step == Step::kOutermost ? End::kOutermost
         : step == Step::kNoRule  ? End::kNoRule
         : step == Step::kUnread  ? End::kUnloading
                                  : End::kOutOfBounds;
}

}  // namespace

void set_up_walker(std::uintptr_t own_begin, std::uintptr_t own_end) noexcept {
  g_own_begin = own_begin;
  g_own_end = own_end;
  if (g_first_thread == 0 && syscall(SYS_gettid) == static_cast<long>(getpid())) {
    g_first_thread = thread_pointer();
  }
}

ThreadStack* ThreadStack::map() noexcept {
  if constexpr (!kSupported) return nullptr;
  void* p = mmap(nullptr, sizeof(ThreadStack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<ThreadStack*>(p);
}
void ThreadStack::unmap(ThreadStack* stack) noexcept { munmap(stack, sizeof(ThreadStack)); }

void ThreadStack::forget() noexcept {
  owner_ = low_ = high_ = busy_ = 0;
  for (Range& other : others_) other = {0, 0};
  generation_ = 0;
  count_ = 0;
}

void ThreadStack::pretend_bounds_for_test(std::uintptr_t low, std::uintptr_t high) noexcept {
  forget();
  owner_ = thread_pointer();
  low_ = low;
  high_ = high;
}

// Is sp on the thread's own stack, below what is known of it? Then all pages from there on can be
// read: the stack has no holes, and its guard lies below it.
[[gnu::noinline, gnu::cold]] bool ThreadStack::extend(std::uintptr_t sp) noexcept {
  if (owner_ != thread_pointer()) {
    forget();
    owner_ = thread_pointer();
  }
  if (high_ == 0) {
    high_ = top_of_stack() & ~(kWord - 1);
    low_ = (high_ + kPageSize - 1) & kPageMask;
  }
  if (sp >= high_ || high_ - sp > kMaxStack) return false;
  for (const Range& other : others_) {
    if (sp >= other.begin && sp < other.end) return false;
  }
  const std::uintptr_t first = sp & kPageMask;
  if (first >= low_) return true;
  std::uintptr_t page = first;
  while (page < low_ && page - first < kMaxProbed * kPageSize && is_readable(page)) {
    page += kPageSize;
  }
  if (page < low_) {  // a hole: it is another stack
    others_[next_other_++ % kOthers] = {first, page};
    return false;
  }
  low_ = first;
  return true;
}

// Is the frame with these registers one of the walk before, and are all frames outside of it as
// they were? A step depends on the registers and on the memory it reads only: both are compared.
// Returns the index, or -1. `candidate` goes down: frames further in are not looked at again.
[[gnu::always_inline]] inline int ThreadStack::match(const OwnMemory& memory, const Rules& rules,
                                                     const Registers& r, int& candidate) noexcept {
  while (candidate >= 0 && frames_[candidate].sp < r.sp) --candidate;
  if (candidate < 0) return -1;
  const Frame& same = frames_[candidate];
  if (same.sp != r.sp || same.pc != r.pc || same.fp != r.fp || same.interrupted) return -1;
  for (int k = candidate - 1; k >= 0; --k) {
    const Frame& f = frames_[k];
    bool good;
    if (f.fp_slot == Frame::kComputed) [[unlikely]] {
      const Frame& callee = frames_[k + 1];
      Registers again{callee.pc, callee.sp, callee.fp};
      std::uintptr_t slot;
      const Step s = step(memory, rules, again, callee.interrupted, slot);
      good = (s == Step::kCaller || s == Step::kInterrupted) && again.pc == f.pc &&
             again.sp == f.sp && again.fp == f.fp;
    } else {
      std::uintptr_t value;
      good = memory.read(f.sp - kWord, value) && value == f.pc &&
             (f.fp_slot == Frame::kUnchanged || (memory.read(f.fp_slot, value) && value == f.fp));
    }
    if (!good) {
      candidate = k;
      return -1;
    }
  }
  return candidate;
}

template <class Memory>
[[gnu::always_inline]] inline End ThreadStack::walk_in(Memory& memory, const Rules& rules,
                                                       Registers r, bool with_memo, int& fresh,
                                                       int& kept) noexcept {
  int candidate = with_memo ? count_ - 1 : -1;
  bool exact = true;  // the first pc is where the function is, not where it returns to
  kept = 0;
  fresh = 0;
  for (;;) {
    std::uintptr_t slot;
    const Step s = step(memory, rules, r, exact, slot);
    if (s > Step::kInterrupted) return end_of(s);
    exact = s == Step::kInterrupted;
    if (fresh == 0 && is_own(r.pc) && !exact) continue;
    if (fresh == kMaxFrames) return End::kTooDeep;
    fresh_[fresh++] = {r.sp, r.pc, r.fp, slot, 0, exact};
    if constexpr (!Memory::kMayLeave) {
      if (candidate < 0 || exact) continue;
      const int found = match(memory, rules, r, candidate);
      if (found < 0) continue;
      if (end_ == End::kTooDeep && found + fresh < kMaxFrames) {
        candidate = -1;  // there is more to see than the walk before could keep
        continue;
      }
      kept = found + 1;
      --fresh;  // frames_[found] is the same
      return end_;
    }
  }
}

[[gnu::noinline, gnu::cold]] End ThreadStack::walk_foreign(const Rules& rules,
                                                           const Registers& start,
                                                           int& fresh) noexcept {
  int kept;
  ForeignMemory memory(page_);
  const End end = walk_in(memory, rules, start, false, fresh, kept);
  if (!memory.is_forbidden()) return end;
  // The frames of this library, and the word that they return to, are there for sure.
  Registers r = start;
  fresh = 0;
  constexpr std::uintptr_t kOwnFrames = 16384;
  OwnMemory mine(r.sp, r.sp + kOwnFrames);
  bool exact = true;
  for (;;) {
    std::uintptr_t slot;
    const Step s = step(mine, rules, r, exact, slot);
    if (s != Step::kCaller) return end_of(s);
    exact = false;
    if (is_own(r.pc)) continue;
    fresh_[fresh++] = {r.sp, r.pc, r.fp, slot, 0, false};
    return End::kForeign;
  }
}

// The new frames go behind those that stay.
[[gnu::always_inline]] inline void ThreadStack::keep(int fresh, int kept) noexcept {
  const int over = kept + fresh - kMaxFrames;
  if (over > 0) [[unlikely]] {  // outer ones are cut off, and the rest are other stacks then
    if (over < kept) std::memmove(frames_, frames_ + over, (kept - over) * sizeof(Frame));
    kept -= over;
    for (int i = 0; i < kept; ++i) frames_[i].node = 0;
    end_ = End::kTooDeep;
  }
  for (int i = fresh - 1; i >= 0; --i) frames_[kept++] = fresh_[i];
  count_ = kept;
}

[[gnu::always_inline]] inline void ThreadStack::walk_now(const Registers& start, bool own,
                                                         bool use_memo) noexcept {
  const Rules rules;
  int fresh = 0, kept = 0;
  const bool with_memo = own && use_memo && generation_ == rules.generation();
  generation_ = 0;  // a signal handler may leave the walk by longjmp
  busy_ = start.sp;
  asm volatile("" ::: "memory");
  if (own) [[likely]] {
    OwnMemory memory(start.sp, high_);
    end_ = walk_in(memory, rules, start, with_memo, fresh, kept);
    keep(fresh, kept);
    if (end_ != End::kUnloading) generation_ = rules.generation();
  } else {
    end_ = walk_foreign(rules, start, fresh);
    keep(fresh, 0);
  }
  asm volatile("" ::: "memory");
  busy_ = 0;
}

End ThreadStack::walk(const Registers& start, bool use_memo) noexcept {
  if (owner_ != thread_pointer()) [[unlikely]] {
    forget();
    owner_ = thread_pointer();
  }
  const bool own = is_on_own_stack(start.sp);
  // The walk that was left by a longjmp is no longer on the stack.
  if (busy_ != 0 && (!own || start.sp < busy_)) [[unlikely]]
    return End::kBusy;
  walk_now(start, own, use_memo);
  return end_;
}

End ThreadStack::walk_other(const Registers& start) noexcept {
  const Rules rules;
  ForeignMemory memory(page_);
  int fresh = 0, kept = 0;
  owner_ = 0;  // what is known of a stack is not this one's
  generation_ = 0;
  end_ = walk_in(memory, rules, start, false, fresh, kept);
  if (memory.is_forbidden()) end_ = End::kForeign;
  // walk_in() gives the callers.
  if (fresh == kMaxFrames) --fresh;
  std::memmove(fresh_ + 1, fresh_, static_cast<std::size_t>(fresh) * sizeof(Frame));
  fresh_[0] = {start.sp, start.pc, start.fp, Frame::kUnchanged, 0, false};
  keep(fresh + 1, 0);
  return end_;
}

}  // namespace gpubusy::runtime::native
