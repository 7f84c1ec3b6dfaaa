// SPDX-License-Identifier: Apache-2.0
//
// Recordings of typical programs, for tests of analysis and of the consumers of traces.
#pragma once

#include <cstdint>

#include "tests/support/recording_builder.hpp"

namespace gpubusy::testing {

// A training loop in train.py, steps 7 and on in one scheduled window. In ms, per step:
//   0      step begins (optimizer.step() at line 63 has returned)
//   0..30  the host is outside CUDA (the `for` line fetches a batch)
//   30     cudaMemcpyAsync HtoD, pageable, 8 MB at line 58: host 30..32, device 30.1..32
//   32     16 launches at lines 60 to 62, one each 0.05 ms; kernels of 0.5 ms from 32.1, back to
//   back 40.1   the device is done 33     step ends at line 63; the next begins when the device
//   still runs
// So steps are 33 ms, the device is busy for 1.9 + 8 ms of each (7.1 ms in the step after).
struct StarvedOptions {
  int steps = 20;
  bool pinned = false;
  std::uint32_t pid = 4242;
  rec::TimeSource source = rec::TimeSource::kEvents;
};
RecordingBuilder starved_loop(const StarvedOptions& options = {});

// Small kernels only: per step `launches` launches, one each `gap_us`, kernels of `kernel_us`.
RecordingBuilder launch_bound_loop(int steps, int launches, std::uint64_t gap_us,
                                   std::uint64_t kernel_us);

// Everything a trace can hold: two threads, two devices, several streams, overlapping kernels on
// one stream, graph launches, all copy kinds, memsets, untimed and failed calls, hostile names.
RecordingBuilder everything(std::uint32_t pid = 5151);

// Ranges of all kinds round the launches of four steps of 1 ms, numbers 3 to 6 (start:
// kRangesBegin): one round all of it, one per step, one that crosses the steps' edges, start/end
// ranges that overlap, marks, cuDNN calls, hostile names.
inline constexpr std::uint64_t kRangesBegin = RecordingBuilder::kStart + 10'000'000;
RecordingBuilder ranges(std::uint32_t pid = 6161);

// What tests/golden/format-1.gpubusy was written from: small, in short blocks, two threads, every
// type of record. The file in the repository stays as it is for ever; this may not change either.
RecordingBuilder golden();

// A recording with about `calls` calls and as many device times, for speed; `looks`: steps begin
// with 5 ms of host work that was looked at each ms.
RecordingBuilder many_calls(std::uint64_t calls, bool looks = false);

// About `calls` launches and copies of uneven lengths on three streams, with ranges that nest, for
// the speed of viewers: nothing in it repeats.
RecordingBuilder uneven_calls(std::uint64_t calls);

// Two windows of two steps of 10 ms, 1 s between them.
RecordingBuilder two_windows();

// A small one whose every name is markup, script or of odd characters.
RecordingBuilder markup();

}  // namespace gpubusy::testing
