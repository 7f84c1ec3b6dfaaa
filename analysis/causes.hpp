// SPDX-License-Identifier: Apache-2.0
//
// What the host was busy with while the device idled, each instant: as looks at the launching
// thread show, else as the calls round the gap tell, by the functions on their stacks or by what
// they are. Every rule is a row of a table or a function in causes.cpp; docs/verdict.md lists them.
// Thread-safety: as SourceLines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/cause.hpp"
#include "analysis/gaps.hpp"
#include "analysis/intervals.hpp"
#include "analysis/looks.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/source_text.hpp"
#include "analysis/steps.hpp"
#include "analysis/throttling.hpp"
#include "analysis/timeline.hpp"

namespace gpubusy::analysis {

// How much a frame tells; several frames of a stack may fit: the smallest index counts.
struct FrameMatch {
  Cause cause = Cause::kNone;
  std::size_t index = 0;
};
FrameMatch match_frame(const SourceLine& frame);

// What a Python stack tells of its thread.
class StackCauses {
 public:
  StackCauses(const recording::Recording& recording, SourceLines& lines);
  Cause of(std::uint32_t python_stack);
  // Whether the innermost frame is the program's own, at a line that takes a lock.
  bool takes_lock(std::uint32_t python_stack);

 private:
  SourceLines& lines_;
  SourceText text_;
  bool trains_;  // an optimizer steps, or something is propagated backward
  std::unordered_map<std::uint32_t, Cause> known_;
};

class Causes {
 public:
  Causes(const recording::Recording& recording, const Timeline& timeline,
         const std::vector<Step>& steps, const Looks& looks, SourceLines& lines);

  // The pieces with their causes; a piece of several is cut where one ends and the next begins.
  // `host_pauses`: looks tell of what lies in these.
  std::vector<IdlePiece> tell(const std::vector<IdlePiece>& pieces,
                              const std::vector<IdlePiece>& host_pauses);
  // Whether a call is made by a thread of gloo's.
  bool is_collective(std::uint32_t call) const;
  // Whether a call is made by what saves the program's state.
  bool is_saving(std::uint32_t call) { return of_call(call) == Cause::kCheckpoint; }

 private:
  struct ByCalls {  // what the calls round a piece tell
    Cause cause = Cause::kNone;
    bool over =
        false;  // the host is known to have left it, or not to be in it yet, by whole frames
  };
  struct Told {  // a part of a piece
    std::uint64_t begin_ns, end_ns;
    Cause cause;
    std::uint32_t thread, stack;  // that shows it, and where it was
  };
  std::vector<Told> of_looks(const IdlePiece& piece, const Gap& gap, const ByCalls& by_calls);
  Cause of_look(const IdlePiece& piece, const recording::GapSample& look,
                const recording::GapSample* own, const ByCalls& by_calls);
  void note_ranges();
  Cause of_ranges(const IdlePiece& piece) const;
  ByCalls of_calls(const IdlePiece& piece);
  std::uint32_t thread_of(const IdlePiece& piece) const;
  bool waits_for_lock(const recording::GapSample& look);
  Cause of_call(std::uint32_t call);
  bool is_small_copy_up(std::uint32_t op) const;
  bool returns_results(std::uint32_t copy_up, const Step& step);

  const recording::Recording& recording_;
  const Timeline& timeline_;
  const std::vector<Step>& steps_;
  SourceLines& lines_;
  const Looks& looks_;
  StackCauses stacks_;
  std::vector<std::pair<Cause, std::vector<Interval>>> ranges_;
  const Throttling throttled_;
  std::vector<std::uint32_t> transfers_;  // calls that move kCpuPartBytes or more, either way
};

}  // namespace gpubusy::analysis
