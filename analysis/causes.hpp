// SPDX-License-Identifier: Apache-2.0
//
// What the host was busy with while the device idled: as samples of the launching thread show, else
// as the calls round the gap tell, by the functions on their stacks or by what they are. Every rule
// is a row of a table or a function in causes.cpp; docs/verdict.md lists them. Thread-safety: as
// SourceLines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/intervals.hpp"
#include "analysis/looks.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/source_text.hpp"
#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"

namespace gpubusy::analysis {

enum class Cause : std::uint8_t {
  kNone,         // nothing but the idle class is known
  kCheckpoint,   // the program saves its state
  kLogging,      // it logs, prints or formats tensors
  kEvaluation,   // it evaluates the model
  kCollective,   // it waits for other ranks in a collective
  kWorkerStart,  // it starts processes
  kLoading,      // it loads samples itself
  kLoaderQueue,  // it waits for what loader workers prepare
  kInterpreter,  // it waits for the interpreter's lock (the GIL)
  kNoProcessor,  // it was ready to run and had no processor
  kCollection,   // it collects garbage
  kSeries,       // between two of many launches from one line
  kSmallCopies,  // between two small copies to the device
  kCpuPart,      // results were copied down, and what follows is copied up again
  kQuota,        // the quota of processor time was used up
  kPageFault,    // it waited for memory to be brought in from a disk
};
inline constexpr std::size_t kCauses = 16;
const char* cause_id(Cause cause);

// How much a frame tells; several frames of a stack may fit: the smallest index counts.
struct FrameMatch {
  Cause cause = Cause::kNone;
  std::size_t index = 0;
};
FrameMatch match_frame(const SourceLine& frame);

class Causes {
 public:
  Causes(const recording::Recording& recording, const Timeline& timeline,
         const std::vector<Step>& steps, SourceLines& lines);

  Cause of_piece(const IdlePiece& piece);

 private:
  void note_ranges();
  Cause of_ranges(const IdlePiece& piece) const;
  Cause of_calls(const IdlePiece& piece);
  Cause of_samples(const IdlePiece& piece, std::uint32_t thread);
  Cause of_sample(const recording::GapSample& sample);
  Cause of_stack(std::uint32_t python_stack);
  Cause of_call(std::uint32_t call);
  bool is_small_copy_up(std::uint32_t op) const;
  bool returns_results(std::uint32_t copy_up, const Step& step);

  const recording::Recording& recording_;
  const Timeline& timeline_;
  const std::vector<Step>& steps_;
  SourceLines& lines_;
  Looks looks_;
  SourceText text_;
  std::unordered_map<std::uint32_t, Cause> by_stack_;
  std::vector<std::pair<Cause, std::vector<Interval>>> ranges_;
  const std::vector<Interval> throttled_;
  std::vector<std::uint32_t> transfers_;  // calls that move kCpuPartBytes or more, either way
};

}  // namespace gpubusy::analysis
