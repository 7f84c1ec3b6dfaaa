// SPDX-License-Identifier: Apache-2.0
//
// Frames of Python and operators as slices on the rows of threads, for traces. They are seen from
// calls, not traced: a slice goes from the first to the last of neighbouring calls of a thread that
// were made in it. docs/stacks.md has the rules. Thread-safety: one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/intervals.hpp"
#include "analysis/stacks/operators.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct FrameSlice {
  enum class Kind : std::uint8_t { kPython, kOperator, kAnnotation };
  std::uint64_t begin_ns, end_ns;
  std::uint32_t first_call, last_call;  // indices into Recording::calls, of one thread
  std::uint32_t name;                   // of FrameSlices::name()
  std::uint32_t depth;
  Kind kind;
};

class FrameSlices {
 public:
  using ByThread = std::map<std::uint32_t, std::vector<Interval>>;
  // Of calls [first, last). `obstacles`: other slices on the rows of threads; frames that would
  // cross one are cut there. `library_calls`: those of them that are calls of a library (cuDNN), in
  // which calls of CUDA are made; frames stand round them. At most `limit` slices are made.
  FrameSlices(const recording::Recording& recording, Operators& operators, std::uint32_t first,
              std::uint32_t last, ByThread obstacles, ByThread library_calls, std::size_t limit);

  const std::vector<FrameSlice>& slices() const { return slices_; }  // by first call, then depth
  const std::string& name(std::uint32_t id) const { return names_[id]; }
  std::uint64_t left_out() const { return left_out_; }  // slices beyond the limit

 private:
  struct Element {
    std::uint64_t context;  // all that is outside, to the instruction
    std::uint32_t name;
    FrameSlice::Kind kind;
  };
  struct Chain {
    std::vector<Element> elements;  // outermost first
    std::uint64_t whole = 0;        // the stack, to the instruction
    std::size_t repeats = 0;        // the outermost operator inside of the innermost Python frame
  };
  struct Open {
    Element element;
    std::uint32_t first = 0;  // index into the thread's calls
  };
  // The calls of a thread, and what is open at the last of them.
  struct ThreadState {
    std::vector<std::uint32_t> calls;
    std::vector<Open> open;
    std::vector<std::uint64_t> seen;  // Chain::whole since the open operator began
  };
  struct Obstacles {
    std::vector<Interval> by_begin, by_end;
    std::vector<Interval> library_calls;  // the outermost, by begin
    // The library call round a call; nullptr: none.
    const Interval* round(const recording::Call& call) const;
    // Where the first of them crosses an edge of [begin, end); `end`: none does.
    std::uint64_t first_crossing(std::uint64_t begin, std::uint64_t end) const;
  };
  const Chain& chain_of(StackId stack);
  std::uint32_t name_id(std::string name);
  void close(ThreadState& thread, std::size_t depth, std::size_t end, const Obstacles& obstacles);
  void emit(const ThreadState& thread, const Open& open, std::size_t depth, std::size_t first,
            std::size_t last, const Obstacles& obstacles);

  const recording::Recording& recording_;
  Operators& operators_;
  Stacks& stacks_;
  std::size_t limit_;
  std::uint64_t left_out_ = 0;
  std::vector<FrameSlice> slices_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> name_ids_;
  std::unordered_map<StackId, Chain> chains_;
};

}  // namespace gpubusy::analysis
