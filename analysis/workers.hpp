// SPDX-License-Identifier: Apache-2.0
//
// What a data loader's worker processes did while the device idled, by the looks that the library
// took at them (docs/gaps.md); and the same words for a process that loads by itself.
// Thread-safety: pure functions but for the SourceLines they are given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/gaps.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"

namespace gpubusy::analysis {

enum class Loading : std::uint8_t {
  kComputes,     // on a processor
  kNoProcessor,  // ready to run, but all processors it may use were taken
  kQuota,        // ready to run, but the quota of processor time was used up
  kStorage,      // waits for a file: reads, writes, looks it up, or brings in a mapped page
  kInput,        // waits for another process or the network
  kLock,
  kSleep,
  kChild,  // waits for a child process of its own
  kIdle,   // waits for the training process to ask for a batch
  kOther,
};
inline constexpr std::size_t kLoadings = 10;
using LoadingShares = std::array<double, kLoadings>;  // sum 1, or all 0

// "wait for storage", as several processes do; and a stable id for JSON.
const char* loading_text(Loading doing);
const char* loading_id(Loading doing);

// `idle`: what it waits for is to be asked for work.
Loading loading_of(GapKind kind, char state, bool idle);

// What decides how loading gets faster.
enum class Bottleneck : std::uint8_t {
  kUnknown,      // no looks, or none of the others for most of the time
  kProcessor,    // computing
  kNoProcessor,  // more to compute than there are processors
  kQuota,        // more to compute than the quota of processor time allows
  kStorage,
  kInput,
  kLock,
  kSleep,
  kChild,
  kIdle,
};
Bottleneck bottleneck_of(const LoadingShares& shares);
const char* bottleneck_id(Bottleneck bottleneck);

struct WorkerLine {
  SourceLine line;   // innermost line of the user's own code in the worker, else of any
  double share = 0;  // of all looks at workers
  std::uint64_t looks = 0;
  LoadingShares doing = {};
};

struct Workers {
  std::uint64_t looks = 0;     // at workers, while the device idled in the judged steps
  std::uint32_t count = 0;     // workers at one time
  std::uint32_t started = 0;   // … in all
  std::uint32_t left_out = 0;  // processes that there was no room to look at
  LoadingShares doing = {};    // of the looks
  // Of the time between looks, in gaps or not: its main thread on a processor, ready but on none;
  // and processors that all threads of one worker used.
  double run_share = 0, ready_share = 0, processors_used = 0;
  double quota_share = 0;          // of ready_share, what the quota of processor time explains
  std::vector<WorkerLine> lines;   // most looks first
  std::uint64_t without_line = 0;  // looks at workers that computed or waited in no known line
  bool spawned = false;            // some are interpreters of their own: their lines are not known
  bool forbidden = false;          // the kernel did not let some be read
};

// `pieces`: idle pieces of the device, or where there are no device times pauses of the host.
Workers find_workers(const recording::Recording& recording, const std::vector<IdlePiece>& pieces,
                     SourceLines& lines);

// "97 % compute, 3 % wait for storage".
std::string loading_shares_text(const LoadingShares& shares);

}  // namespace gpubusy::analysis
