// SPDX-License-Identifier: Apache-2.0
//
// What could run side by side on the device and does not. ns. Thread-safety: pure functions but for
// the SourceLines they are given.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"

namespace gpubusy::analysis {

struct Concurrency {
  // Copies from pinned host memory by asynchronous calls.
  std::uint64_t pinned_copy_ns = 0;  // union of them
  std::uint64_t copy_alone_ns = 0;   // … while no kernel ran
  SourceLine copy_line;              // of most of the time alone

  // Kernels of the two streams with most kernel time of those that leave half of the device empty.
  std::uint64_t small_kernel_ns[2] = {};  // larger first; 0: there is no such stream
  std::uint64_t small_overlap_ns = 0;     // both at once
  SourceLine stream_line;                 // of most launches in the second

  // Bytes moved within the device: copies, and kernels that only copy (a change of layout).
  std::uint64_t device_copies = 0, device_copy_ns = 0;
  SourceLine device_copy_line;
  SourceLine
      device_copy_inside;  // the library's function that copies there; not known: the line's own
};

Concurrency concurrency_of(const recording::Recording& recording, const Timeline& timeline,
                           const std::vector<Step>& steps, std::int16_t device, SourceLines& lines);

}  // namespace gpubusy::analysis
