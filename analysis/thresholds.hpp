// SPDX-License-Identifier: Apache-2.0
//
// Every number that decides something in analysis, with its reason. Shares are of wall time.
// docs/verdict.md explains them to users: keep both in step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::analysis {

// ---- what is what ------------------------------------------------------------------------------

// A stretch outside CUDA shorter than this, between two launches, is the price of launching: it is
// above what a framework spends between two operators (5-100 us, slow machines 300 us), and below
// what anybody would look for in the code.
inline constexpr std::uint64_t kLaunchPauseNs = 500'000;

// A call that neither launches nor waits (event, stream, query) and is shorter than this belongs to
// launching; a longer one holds the host up.
inline constexpr std::uint64_t kShortCallNs = 100'000;

// Stretches outside CUDA shorter than this are not kept apart.
inline constexpr std::uint64_t kSmallPauseNs = 20'000;

// A synchronisation that ended up to this long before the device's work seems to end still is the
// one that waited for it: device times converted from CUDA events are that far off at times.
inline constexpr std::uint64_t kClockSlackNs = 20'000;

// Device work that seems to begin before its launch proves that the clocks are apart; up to this
// the device's clock is moved, beyond it the time is called wrong.
inline constexpr std::uint64_t kMaxClockCorrectionNs = 1'000'000;
// CUPTI's conversion was seen to drift by seconds in processes that idle for hours; which work
// belongs to which call is known all the same.
inline constexpr std::uint64_t kMaxCuptiCorrectionNs = 3'600'000'000'000;
// A correction up to this is one number for a window; beyond it the clock drifts or jumps within,
// and is corrected by pieces of kClockPieceNs: 50 ppm are 2.5 us in one.
inline constexpr std::uint64_t kSteadyClockNs = 50'000;
inline constexpr std::uint64_t kClockPieceNs = 50'000'000;

// The work right behind a pause decides what the pause was for: a batch's copy may come behind a
// memset or a small kernel (zero_grad, a counter), not behind a whole forward pass.
inline constexpr int kWorkBehindPause = 4;

// Copies down and up again of at least this size are data that the host computes on; less is a
// count or a loss.
inline constexpr std::uint64_t kCpuPartBytes = 4u << 10;

// How many frames of a stack are searched for a library that tells what the program does.
inline constexpr std::size_t kMaxFramesForCause = 64;

// A long pause inside a series of launches (or copies) from one line is a hiccup of that series,
// such as losing the processor, if it is one in so many or fewer.
inline constexpr std::uint64_t kFewHiccups = 20;

// Turns of a loop are taken for steps where a program marks none, if there are so many of them …
inline constexpr std::size_t kFewestPasses = 8;
// … and this share of them ask for about as much work as the median one (half of it to twice).
inline constexpr double kEvenPasses = 0.75;

// A prelude's first steps hold imports, warm-up and autotuning.
inline constexpr std::uint32_t kPreludeWarmupSteps = 1;

// How long a look at a thread stands for what it does behind it, if no other look follows: twice
// the longest time between two looks.
inline constexpr std::uint64_t kLookReachNs = 20'000'000;

// Gaps of some milliseconds are met by looks by chance: what was seen of this much of a finding's
// time tells of it. How much it was is said.
inline constexpr double kLeastSeen = 0.25;

// A line that the host is at for this much of a finding's gaps is where the finding is.
inline constexpr double kGapLineShare = 0.5;

// Parts of a step's division that are less than this share one row.
inline constexpr double kLeastPartShare = 0.001;

// What a thread that runs again may have been off its processor for by one major fault: some 0.1 ms
// for a flash disk, and the wait for a processor behind it. One that takes longer is met while it
// waits.
inline constexpr std::uint64_t kLongestFaultNs = 2'000'000;
// … and what the kernel does for it at least on the thread's own processor: 17 to 26 us were
// measured, half of the fault where the disk is fast.
inline constexpr std::uint64_t kFaultRunNs = 10'000;

// How many calls round a pause are searched for one with a Python stack.
inline constexpr int kCallsToSearch = 16;

// ---- what is worth a finding
// ---------------------------------------------------------------------

// TensorBoard's profiler warns at 5 % of the step for data loading; users know that number.
inline constexpr double kStarvationShare = 0.05;
// Workers that wait to be asked for a batch for most of the time are not what holds up the rest.
inline constexpr double kWorkersIdle = 0.5;
// Ready without a processor for this much of the time that they compute or could: there are more
// workers than processors for them. Two on one have half.
inline constexpr double kReadyOfComputing = 0.25;
// Fewer looks at workers say what they did, but not what to do about it.
inline constexpr std::uint64_t kFewestLooks = 10;
// Less of what loading does is not named.
inline constexpr double kLeastLoading = 0.05;
// In at least this share of the steps: one slow batch (a checkpoint, a new epoch) is no starvation.
inline constexpr double kStarvationSteps = 0.5;

// Work that begins this much after its call had returned was queued behind other work. On an empty
// stream it begins within some microseconds.
inline constexpr std::uint64_t kQueuedBehindEarlierNs = 20'000;

// … unless it begins within this behind recorded work of another stream, for which it may have
// waited: an event between streams takes some microseconds, more on a busy device.
inline constexpr std::uint64_t kWaitedForNs = 50'000;

// Idle behind synchronisations: 20 .item() calls with 0.1 ms of Python each in a 50 ms step are 4
// %.
inline constexpr double kSyncShare = 0.03;

// Idle while the host launches; a step always has some at its start and behind a needed wait.
inline constexpr double kLaunchBoundShare = 0.10;

// Idle while the host does something else in mid-step.
inline constexpr double kHostShare = 0.05;

// Host time in pageable copies while no kernel runs.
inline constexpr double kPageableShare = 0.01;
// …or so many bytes per step from pageable memory (Nsight's rule ignores copies up to 64 KiB).
inline constexpr std::uint64_t kPageableBytes = 1u << 20;
inline constexpr std::uint64_t kSmallCopyBytes = 64u << 10;

// cudaMalloc, cudaFree, cudaHostAlloc… in a steady state: a caching allocator makes none.
inline constexpr double kAllocationShare = 0.02;
inline constexpr double kAllocationsPerStep = 1.0;

// Without steps, memory that is given back as well, so many times: what a program allocates as it
// starts is kept.
inline constexpr std::uint64_t kFewestChurns = 20;
inline constexpr double kFreedOfAllocated = 0.25;

// Copies to the host and back again of at least this size, …
inline constexpr std::uint64_t kOffloadBytes = 1u << 20;
// … so many a step, and this much time of the device with them while no kernel runs.
inline constexpr double kOffloadsPerStep = 2;
inline constexpr double kOffloadShare = 0.05;

// Host time in allocations that failed at first and were made when memory had been given back.
inline constexpr double kMemoryFullShare = 0.02;

// So many small copies per step can be packed into one; fewer are a batch of a few tensors.
inline constexpr double kSmallCopiesPerStep = 20;
inline constexpr double kSmallCopiesShare = 0.05;

// Saving, logging, evaluating, a part of the model on the CPU, a wait for another rank.
inline constexpr double kCauseShare = 0.05;

// A process that has not ended and was seen to ask for nothing for so long stands still.
inline constexpr std::uint64_t kStandstillNs = 2'000'000'000;

// A rank that waits at most this share of what another waits in collectives is waited for.
inline constexpr double kSlowRankRest = 0.5;

// Of what a rank waits in collectives: less is not told of the rank that it waits for.
inline constexpr double kLateRankShare = 0.05;

// Pinned copies while no kernel runs.
inline constexpr double kCopyAloneShare = 0.05;

// Device time in copies within the device: below, a program copies what it has to.
inline constexpr double kDeviceCopyShare = 0.10;

// A second stream of small kernels this busy is worth running beside the first …
inline constexpr double kSerialStreamShare = 0.10;
// … and does not, if less than this of it overlaps.
inline constexpr double kSerialOverlap = 0.10;

// A step that loses less than this share of what the worst one loses is not among those that tell
// how often something is met.
inline constexpr double kDearOfLongest = 0.1;

// Steps in which the device waits for input at least this share of the longest such wait are
// stalled; few and evenly spaced, at least three of them, they are the beginnings of epochs.
inline constexpr double kStallOfLongest = 0.35;
inline constexpr std::size_t kFewestStalls = 3;
inline constexpr double kShareInStalls = 0.75;

// Idle in other CUDA calls (module loading, stream creation…).
inline constexpr double kBlockedShare = 0.03;

// What costs less than this is no problem, however often it is met.
inline constexpr double kLeastShare = 0.001;

// Device time in products of single precision from where another precision is worth naming.
inline constexpr double kSinglePrecisionShare = 0.20;

// From here the GPU counts as busy: what is left is launch gaps that no cure below removes.
inline constexpr double kBusyShare = 0.85;

// Idle that device work without times may have filled, from where it spoils the numbers.
inline constexpr double kUnknownShare = 0.05;

// One piece of device work in so many may be untimed where a finding is about what overlaps.
inline constexpr std::uint64_t kMostUntimed = 20;

// Of a look's time on a processor and waiting for one, the lesser part counts from here on.
inline constexpr double kLeastOfLook = 0.1;

// A step this much longer than the median is an outlier (checkpoint, validation); they are counted.
inline constexpr double kOutlierFactor = 2.0;

// Recorded steps are said to be slowed by the recording if so many of both kinds were seen, and
// their median is longer by this factor and by this much.
inline constexpr std::uint64_t kFewestToCompare = 5;
inline constexpr double kSlowedBy = 1.3, kSlowedByMs = 0.5;

}  // namespace gpubusy::analysis
