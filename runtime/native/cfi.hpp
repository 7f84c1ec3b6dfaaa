// SPDX-License-Identifier: Apache-2.0
//
// How to get from a frame to its caller, read from an object's .eh_frame: the part of DWARF call
// frame information that compilers, libc's assembler and the linker's PLT use. A rule knows three
// registers (pc, sp, the frame pointer), which is all that those need.
//
// Pure: reads nothing but the ranges of the image, in which any byte may be wrong. No state, no
// errors but "no rule". Thread-safe.
#pragma once

#include <bit>
#include <cstdint>

namespace gpubusy::runtime::native {

#if defined(__x86_64__)
inline constexpr bool kSupported = true;
#else
inline constexpr bool kSupported = false;  // another architecture's registers: no native stacks
#endif

enum class RuleType : std::uint8_t {
  kEmpty = 0,     // never the type of a rule: marks free entries of a cache
  kNone,          // there is none, or it needs more than we know
  kOutermost,     // has no caller
  kFromSp,        // CFA = sp + offset
  kFromFp,        // CFA = fp + offset
  kLoadedFromSp,  // CFA = word at (sp + offset) + add
  kLoadedFromFp,
  kUnread,  // not looked for: another thread unloads a library
  kSignal,  // pc, sp and fp of the interrupted code are in the context at sp + offset
};

enum class SavedFp : std::uint8_t {
  kSame,   // the caller's is still in the register
  kAtCfa,  // in memory at CFA + offset
  kAtFp,   // in memory at fp + offset
  kLost,
};

// The caller's sp is the CFA, its pc (the return address) lies right below. Eight bytes, so that a
// cache needs no lock.
struct Rule {
  RuleType type = RuleType::kNone;
  SavedFp fp = SavedFp::kSame;
  std::int16_t fp_offset = 0;
  std::int32_t cfa_offset : 28 = 0;  // kSignal: of the interrupted sp, from sp
  std::uint32_t add_words : 4 = 0;
};
static_assert(sizeof(Rule) == 8);

// The kernel's ucontext on x86-64 holds rbp, …, rsp, rip: distances from rsp's place.
inline constexpr int kSignalFp = -40, kSignalPc = 8;

// An object as it is mapped: its readable segments, and where in them .eh_frame_hdr begins.
struct Image {
  struct Range {
    std::uintptr_t begin, end;
  };
  static constexpr int kMaxRanges = 8;

  std::uintptr_t header = 0;
  int range_count = 0;
  Range ranges[kMaxRanges] = {};

  // nullptr: the address is in none.
  const Range* range_of(std::uintptr_t address) const noexcept {
    for (int i = 0; i < range_count; ++i) {
      if (address >= ranges[i].begin && address < ranges[i].end) return &ranges[i];
    }
    return nullptr;
  }
};

// The rule for the instruction at pc.
Rule find_rule(const Image& image, std::uintptr_t pc) noexcept;

struct CodeSpan {
  std::uintptr_t begin = 0, end = 0;
  bool has(std::uintptr_t pc) const noexcept { return pc >= begin && pc < end; }
};
// The code that is described together with pc: a function, or the part of one that the compiler has
// put elsewhere. Empty: there is no description.
CodeSpan find_span(const Image& image, std::uintptr_t pc) noexcept;

}  // namespace gpubusy::runtime::native
