// SPDX-License-Identifier: Apache-2.0
//
// Each step's wall time divided without rest and without overlap: what the device was busy with,
// and what it idled for. Where work of several kinds runs at once, the time is that of the first
// kind in the order of Part; what of the others ran beside is told apart, as hidden.
// docs/verdict.md. Whole ns. Thread-safety: pure functions but for the SourceLines they are given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/gaps.hpp"
#include "analysis/looks.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"
#include "analysis/summary.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

// The rows of a division; division.cpp has a line on each. Order: what is busy, by precedence.
enum class Part : std::uint8_t {
  kCompute,
  kCommunication,
  kCopyInPageable,
  kCopyInPinned,
  kCopyInOther,
  kCopyOutPageable,
  kCopyOutPinned,
  kCopyOutOther,
  kCopyWithin,
  kCopyOther,
  kMemset,
  kEarlier,
  // … what it idles for, from here on
  kLoaderWorkers,
  kWorkerStart,
  kLoading,
  kStorage,
  kInput,
  kLaunching,
  kSmallCopies,
  kSynchronisation,
  kPageableCopies,
  kAllocation,
  kPinning,
  kCodeLoading,
  kOtherCall,
  kInterpreter,
  kCollection,
  kNoProcessor,
  kQuota,
  kMemory,
  kCheckpoint,
  kLogging,
  kEvaluation,
  kPeers,
  kCpuPart,
  kHostRuns,
  kFiles,
  kStreams,
  kLock,
  kChild,
  kSleep,
  kHostAtStart,
  kHostInStep,
  kQueued,
  kUnknown,
};
inline constexpr std::size_t kParts = static_cast<std::size_t>(Part::kUnknown) + 1;
inline constexpr std::size_t kBusyParts = static_cast<std::size_t>(Part::kEarlier) + 1;
constexpr bool is_busy(Part part) { return static_cast<std::size_t>(part) < kBusyParts; }

const char* part_id(Part part);     // stable, for JSON
const char* part_title(Part part);  // for tables
// What is shown in one colour: "compute", "communication", "copies", "input", "launching",
// "waiting", "calls", "host", "queued", "unknown".
const char* part_family(Part part);

// Whether a kernel is one of a library that exchanges data between devices (NCCL, RCCL, NVSHMEM,
// PyTorch's symmetric memory), by its name without C++ decoration.
bool is_communication(std::string_view kernel);

struct StepDivision {
  std::array<std::uint64_t, kParts> ns = {};          // by Part; adds up to the wall time
  std::array<std::uint64_t, kBusyParts> hidden = {};  // not in the sum: ran beside earlier parts
  std::uint64_t at(Part part) const { return ns[static_cast<std::size_t>(part)]; }
};

struct Division {
  std::vector<StepDivision> steps;       // as those judged
  StepDivision total;                    // of all
  std::array<SourceLine, kParts> lines;  // where most of a part goes back to; may be unknown
  std::size_t median = 0;                // index of the step of median length; the lower of two
  bool known() const { return !steps.empty(); }
};

// A row of a table: a part, or what is left of small ones.
struct PartRow {
  std::string title;
  bool busy = false;
  std::uint64_t ns = 0;
  SourceLine line;
  bool is_rest = false;  // what is left of small ones
};
// What is busy, then what is idle, each by ns; parts of less than kLeastPartShare are one row for
// each of both, but the unknown is never among them. Adds up to the wall time.
std::vector<PartRow> rows_to_show(const Division& division);
// What ran beside other work, of all steps; most first.
std::vector<std::pair<Part, std::uint64_t>> hidden_parts(const Division& division);

// `gaps`: of the idle pieces of the device; `row_of_piece`: for each piece its row in
// Summary::idle.
Division divide(const recording::Recording& recording, const Timeline& timeline,
                const std::vector<Step>& steps, const DeviceSteps& device,
                const std::vector<Gap>& gaps, const Looks& looks, const Summary& summary,
                const std::vector<std::uint32_t>& row_of_piece, SourceLines& lines);

}  // namespace gpubusy::analysis
