// SPDX-License-Identifier: Apache-2.0
//
// Counts what the host does to the process while a window is recorded (docs/host-counters.md): at
// step edges what the kernel counts of the process and of the thread that makes the edge, without
// reading a file; beside them, in the helper thread of runtime/gaps, what stands in files.
#pragma once

#include <cstdint>

#include "host/groups.hpp"
#include "recording/format.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime::host_facts {

// Once, before the first window.
void set_up(bool enabled) noexcept;

// By the helper: the main thread has put on a seccomp filter since the start, which may end it for
// a system call that it does not know, and may not even let it ask for that.
void stop_asking() noexcept;
bool has_stopped_asking() noexcept;

// At a step edge, in the thread that makes it. Two system calls.
void count_at_edge(std::uint32_t step, std::uint64_t now_ns) noexcept;

// The files, kept open. For the helper thread alone, which has descriptors of its own.
class Watch {
 public:
  void open() noexcept;
  void close() noexcept;
  // `late_ns`: how much later than it had asked for the helper was woken.
  bool is_due(std::uint64_t now_ns, std::uint64_t late_ns) noexcept;
  // Into the block of `self`, the helper.
  void count(ThreadState& self, std::uint64_t now_ns, std::uint64_t late_ns) noexcept;

 private:
  enum File : unsigned {
    kQuota,
    kMemory,
    kMemoryKills,
    kCpu,
    kIo,
    kMemoryPressure,
    kSwap,
    kStatus
  };
  static constexpr int kFiles = 8;
  bool read(File file) noexcept;  // into text_

  bool on_ = false;
  bool version1_ = false;  // of the memory's group
  std::uint64_t next_ns_ = 0;
  std::uint64_t throttled_ns_ = 0;  // when it was counted last
  int files_[kFiles] = {-1, -1, -1, -1, -1, -1, -1, -1};
  recording::HostSource sources_[recording::kHostTopics] = {};
  gpubusy::host::Groups groups_;
  char text_[8192];
};

}  // namespace gpubusy::runtime::host_facts
