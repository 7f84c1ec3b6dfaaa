// SPDX-License-Identifier: Apache-2.0
//
// Counts what the host does to the process while a window is recorded (docs/host-counters.md): at
// step edges what the kernel counts of the process and of the thread that makes the edge, without
// reading a file; beside them, in the helper thread of runtime/gaps, what stands in files.
#pragma once

#include <cstdint>

#include "host/counters.hpp"
#include "host/groups.hpp"
#include "recording/format.hpp"
#include "runtime/gaps/evidence.hpp"
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
  bool is_due(std::uint64_t now_ns) const noexcept { return on_ && now_ns >= next_ns_; }
  // Into the block of `self`, the helper.
  void count(ThreadState& self, std::uint64_t now_ns) noexcept;
  // Where the group has a quota, how long launching threads waited for a processor meanwhile: a
  // wait that goes with throttled time is the quota's. At each waking of the helper.
  void count_threads(ThreadState& self, std::uint64_t now_ns) noexcept;

 private:
  enum File : unsigned {
    kQuota,
    kMemory,
    kMemoryKills,
    kCpu,
    kIo,
    kMemoryPressure,
    kSwap,
    kStatus,
    kOwnGroups
  };
  static constexpr int kFiles = 9;
  static constexpr int kMaxThreads = 8;
  struct Thread {
    std::uint32_t id = 0;
    std::uint64_t asked_ns = 0;  // 0: not yet
    gaps::ProcessorUse use;      // then
    gaps::ProcessorUse now;
    gaps::TaskFiles files;
  };

  bool read(File file) noexcept;  // into text_
  // Of the text that says in which groups this process is; 0: not told.
  std::uint64_t mark_of_groups() noexcept;
  Thread& thread_of(std::uint32_t id) noexcept;
  void write_thread(ThreadState& self, const Thread& thread, std::uint64_t now_ns,
                    const gpubusy::host::Throttling& group) noexcept;

  bool on_ = false;
  bool version1_ = false;  // of the memory's group
  std::uint64_t next_ns_ = 0;
  std::uint64_t throttled_ns_ = 0;  // when threads were asked last
  Thread threads_[kMaxThreads];
  int files_[kFiles] = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
  std::uint64_t mark_ = 0;
  recording::HostSource sources_[recording::kHostTopics] = {};
  gpubusy::host::Groups groups_;
  char text_[8192];
};

}  // namespace gpubusy::runtime::host_facts
