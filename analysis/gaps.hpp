// SPDX-License-Identifier: Apache-2.0
//
// What the launching thread did while the device idled and no thread was in a CUDA call, by the
// looks that the library took at it (docs/gaps.md). ns.
// Thread-safety: pure functions but for the SourceLines and NativeNames they are given.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/looks.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"
#include "analysis/symbols/native_names.hpp"

namespace gpubusy::analysis {

enum class GapKind : std::uint8_t {
  kNotSeen,      // no look falls into it
  kRuns,         // on a processor
  kNoProcessor,  // ready to run, but all processors it may use were taken
  kInterpreter,  // waits for the GIL
  kCollector,    // the interpreter looks for garbage
  kWorkers,      // waits for a DataLoader's worker
  kChild,        // waits for a child process
  kAutograd,     // in backward(), for the threads of autograd that run it
  kLock,         // waits for another thread
  kSleep,
  kPageFault,  // waits for memory to be brought in
  kFileRead,
  kFileWrite,
  kFileLookUp,  // opens, lists or looks up files
  kInput,       // waits for a pipe, a socket or a terminal
  kOutput,      // writes to one
  kMemory,      // in a call that maps or unmaps memory
  kOther,       // in another system call, or stopped
};

// A word or two for tables, and a stable id for JSON.
const char* gap_title(GapKind kind);
const char* gap_id(GapKind kind);

struct GapRow {
  GapKind kind = GapKind::kNotSeen;
  IdleClass idle = IdleClass::kUnknown;
  Cause cause = Cause::kNone;  // of the piece, as idle and input_copy
  bool input_copy = false;
  bool in_backward = false;       // in backward() itself: no work of the line's own
  SourceLine line;                // innermost line of the user's own code, else of any
  std::vector<SourceLine> inner;  // library frames called from there: the first and the innermost
  std::string call;               // system call; empty: in none
  std::string native;             // innermost native function with a name; empty: not known
  std::uint64_t ns = 0;
  std::uint64_t looks = 0;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> by_step;  // step index, ns; by step
};

// Which threads held the GIL, and at which line, as looks found that waited for.
struct GilHolderRow {
  std::uint32_t thread_id = 0;
  std::string thread;  // the kernel's name of it
  SourceLine line;     // as a GapRow's
  std::uint64_t ns = 0;
  std::uint64_t looks = 0;
};
struct GilHolders {
  std::vector<GilHolderRow> rows;  // by ns, longest first
  std::uint64_t looks = 0;         // that found it waited for; with those whose holder is not known
  std::uint64_t known_looks = 0;
};

struct Gaps {
  std::vector<GapRow> rows;  // by ns, longest first; without those not seen
  GilHolders gil;
  std::uint64_t ns = 0;       // of all gaps
  std::uint64_t seen_ns = 0;  // of these, what the rows are about
  std::uint64_t looks = 0;    // in the whole recording
};

// The part of an idle piece in which the host is outside CUDA for long: what looks can tell of.
struct Gap {
  std::uint32_t piece = 0;       // index into the pieces
  std::uint32_t ender = 0;       // thread whose call ends it; 0: none does
  std::uint64_t silence_ns = 0;  // when the host's silence began
  std::uint64_t begin_ns = 0, end_ns = 0;
};
std::vector<Gap> gaps_of(const recording::Recording& recording,
                         const std::vector<IdlePiece>& pieces,
                         const std::vector<IdlePiece>& host_pauses);
// Whether the host may have been elsewhere then.
bool is_gap(const IdlePiece& piece);

// `pieces`: idle pieces of the device, or where there are no device times pauses of the host;
// `gaps`: of these.
Gaps find_gaps(const recording::Recording& recording, const std::vector<IdlePiece>& pieces,
               const std::vector<Gap>& gaps, const Looks& looks, SourceLines& lines,
               NativeNames* names = nullptr);

// "train.py:57 (main) > dataloader.py (__next__) > connection.py (_poll)".
std::string to_text(const GapRow& row);
// … "waits for a DataLoader worker (poll)".
std::string doing_text(const GapRow& row);

// Name of an x86-64 system call; empty: not one of those that are told apart.
std::string system_call_name(std::uint16_t number);
// Whether the thread waited for memory to be brought in from a disk: it is blocked outside of any
// system call; or it runs now, and had been put off its processor by major faults.
bool waits_for_memory(const recording::GapSample& look);
// Whether the interpreter collected garbage: in the thread looked at, or the one that ends the
// silence.
bool is_collecting(const recording::GapSample& look, const recording::GapSample* own);
// The innermost line of the user's own code, else of any.
SourceLine place_of(const std::vector<SourceLine>& frames);
// Which thread held the GIL that the one looked at waited for; null: not known.
const recording::GilHolder* holder_at(const recording::Recording& recording,
                                      const recording::GapSample& look);
// Ready to run, for longer than it ran.
bool lacks_processor(const recording::GapSample& look);

// What a look says. `own`: as above; `frames`: the Python frames, innermost first; `native`: names,
// innermost first.
GapKind kind_of(const recording::GapSample& look, const recording::GapSample* own,
                const std::vector<SourceLine>& frames, const std::vector<std::string>& native);
inline GapKind kind_of(const recording::GapSample& look, const std::vector<SourceLine>& frames,
                       const std::vector<std::string>& native) {
  return kind_of(look, nullptr, frames, native);
}

}  // namespace gpubusy::analysis
