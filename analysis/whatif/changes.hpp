// SPDX-License-Identifier: Apache-2.0
//
// What can be changed in a model: the grammar of `gpubusy whatif --change`, and what each change
// does to the graph. Thread-safety: pure functions but for the SourceLines they are given.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/source_lines.hpp"
#include "analysis/whatif/model.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis::whatif {

enum class ChangeKind : std::uint8_t {
  kPinned,    // pageable copies become pinned and asynchronous
  kNoSync,    // waits for the device do not wait
  kWorkers,   // input is loaded by worker processes
  kLaunches,  // the host's cost of launching, times `factor`
  kKernel,    // length of kernels, times `factor`
  kCopies,    // length of copies in one direction, times `factor`
  kAlloc,     // allocating and freeing, times `factor`
  kHost,      // the host outside CUDA at a line, times `factor`
  kDrop,      // calls at a line, their device work and the host time before them are gone
  kPrefetch,  // the step's input is copied a step ahead, beside kernels
  kPacked,    // the small copies of a step become one
  kQuota,     // there is no quota of processor time
};

struct Change {
  ChangeKind kind = ChangeKind::kPinned;
  std::string text;  // as it was written
  // Lines, files or functions, with commas between; a glob of kernels; a direction; empty: all.
  std::string target;
  double factor = 1;
  unsigned workers = 0, workers_before = 0;
};

// "pinned", "no-sync", "no-sync:train.py:60", "workers=4", "workers=2:4", "launches*0.1",
// "kernel:*gemm*:*0.5"… An error says what is allowed.
tl::expected<Change, std::string> parse_change(std::string_view text);
// The forms that are allowed, with what they mean, for help texts.
struct ChangeForm {
  const char* form;
  const char* help;
};
const std::vector<ChangeForm>& change_forms();

// What is not known is assumed in three ways; the best and the worst give the prediction's
// interval.
enum class Assumption : std::uint8_t { kBest, kLikely, kWorst };

struct Surroundings {
  unsigned processors = 1;  // that the program may use
};

struct Applied {
  std::uint64_t touched = 0;  // calls or pieces of work that the change applies to
  std::uint64_t host_ns = 0;  // of host time at lines, what it takes away
  std::string assumed;        // what was not measured but assumed; empty: nothing
};

Applied apply(Model& model, const Change& change, Assumption assumption,
              const recording::Recording& recording, const Timeline& timeline, SourceLines& lines,
              const Surroundings& surroundings);

}  // namespace gpubusy::analysis::whatif
