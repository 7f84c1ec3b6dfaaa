// SPDX-License-Identifier: Apache-2.0
//
// Tables over the judged steps of a process: copies, kernels, calls, lines. ns, bytes.
// Thread-safety: pure functions but for the SourceLines they are given.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/cause.hpp"
#include "analysis/concurrency.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"

namespace gpubusy::analysis {

class Causes;

// Smallest, middle and largest of a set.
struct Spread {
  double minimum = 0, median = 0, maximum = 0;
};
Spread spread_of(std::vector<double> values);

struct CopyRow {
  recording::CopyDirection direction = recording::CopyDirection::kUnknown;
  recording::MemoryKind host_kind = recording::MemoryKind::kUnknown;  // of the host side, if any
  bool asynchronous = false;
  std::uint64_t count = 0, bytes = 0;
  std::uint64_t timed = 0, timed_bytes = 0, device_ns = 0;  // of those with a device time
  std::uint64_t host_ns = 0;                                // the host in the call
  std::uint64_t host_idle_ns = 0;                           // … while no kernel ran
  // Above kSmallCopyBytes only, without those of a checkpoint, which is a finding of its own.
  std::uint64_t large_count = 0, large_bytes = 0, large_idle_ns = 0;
  SourceLine line;  // where most of the host time was spent
  double gigabytes_per_second() const {
    return device_ns ? static_cast<double>(timed_bytes) / static_cast<double>(device_ns) : 0;
  }
};

struct KernelRow {
  std::string name;  // demangled
  std::uint64_t count = 0, total_ns = 0;
  double share = 0;  // of all kernel time
  SourceLine line;   // of most launches
};

struct CallRow {
  std::string name;  // without version suffix
  std::uint64_t count = 0, total_ns = 0, longest_ns = 0;
  std::uint64_t failed = 0;
};

// Idle time of one class by the line or region of code that it goes back to.
struct IdleRow {
  IdleClass idle = IdleClass::kUnknown;
  Cause cause = Cause::kNone;
  Region region;            // outside CUDA: between two calls; else `before` is the call's line
  bool outside = false;     // the host was outside CUDA
  bool input_copy = false;  // the work behind it was, or began with, a copy from the host
  std::string call;         // name of the call that it is about; empty where there are several
  std::uint64_t ns = 0;
  std::uint64_t pieces = 0;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> by_step;  // step index, ns; by step
};

// How long the host waited for the device, by line.
struct WaitRow {
  SourceLine line;
  std::string call;
  std::uint64_t count = 0;
  std::uint64_t host_ns = 0;         // in the call
  std::uint64_t device_busy_ns = 0;  // … while the device worked
  std::uint64_t idle_after_ns = 0;   // idle of class kAfterSync that goes back to it
};

struct Allocations {
  std::uint64_t device_allocs = 0, device_frees = 0, host_allocs = 0, host_frees = 0;
  std::uint64_t host_ns = 0;  // in those of the device
  std::uint64_t failed = 0;   // device allocations that failed
  // … and were asked for again when memory had been given back: from the failure to the success.
  std::uint64_t retries = 0, retry_frees = 0, retry_host_ns = 0, retry_idle_ns = 0;
  SourceLine retry_line;
  std::uint64_t idle_ns = 0;                             // device idle meanwhile
  SourceLine line;                                       // where most of the time was spent
  SourceLine free_line;                                  // … of it in cudaFree
  std::uint64_t pinned_host_ns = 0, pinned_idle_ns = 0;  // of pinned host memory, as above
  SourceLine pinned_line;
};

// Copies of at most kSmallCopyBytes to the device.
struct SmallCopies {
  std::uint64_t count = 0, bytes = 0;
  std::uint64_t in_series = 0;  // right behind another one of the thread, but for waits
  std::uint64_t idle_ns = 0;    // the host with them while no kernel runs
  SourceLine line;              // where most of that was spent
};

// Copies to the host that are copied back, from the same memory and as many bytes, later in the
// step, and others between: activations that are kept on the host until backward, for one.
struct Offloads {
  std::uint64_t count = 0, bytes = 0;  // there and back is one
  std::uint64_t alone_ns = 0;          // of the device with them, both ways, while no kernel runs
  SourceLine line;                     // of the way there
};

struct Summary {
  std::uint64_t calls = 0;         // in the judged steps
  std::vector<CopyRow> copies;     // by host_ns, longest first; then bytes
  std::vector<KernelRow> kernels;  // by total_ns, longest first
  std::vector<CallRow> by_call;    // by total_ns, longest first
  std::vector<IdleRow> idle;       // by ns, longest first
  std::vector<IdleRow> pauses;  // the host outside CUDA, whether the device idled or not; as idle
  std::vector<WaitRow> waits;   // by host_ns, longest first
  Allocations allocations;
  SmallCopies small_copies;
  Offloads offloads;
  Concurrency concurrency;
  std::uint64_t launches = 0;  // kernels and graphs launched
  std::uint64_t graph_launches = 0;
  std::uint64_t kernel_ns = 0;            // sum over kernels, not union
  std::uint64_t single_precision_ns = 0;  // … of products and convolutions without tensor cores
  std::string single_precision_kernel;    // the one with most of that time
  SourceLine single_precision_line;
  std::uint64_t median_kernel_ns = 0;
  std::uint64_t median_launch_gap_ns = 0;  // from launch to launch on a thread
};

// Of pieces and pauses whose causes are told. It completes what is known of the pieces: whether
// input follows, and which of them are hiccups of a series. `row_of_piece`: filled with the row in
// Summary::idle of each idle piece of the device.
Summary summarise(const recording::Recording& recording, const Timeline& timeline,
                  const std::vector<Step>& steps, DeviceSteps& device,
                  std::vector<IdlePiece>& host_pauses, Causes& causes, SourceLines& lines,
                  std::vector<std::uint32_t>& row_of_piece);

}  // namespace gpubusy::analysis
