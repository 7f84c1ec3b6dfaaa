// SPDX-License-Identifier: Apache-2.0
//
// The control groups (cgroups, of either version) that this process is in: what they allow it, and
// where their counters are. Files are looked for where systemd, Docker and Kubernetes mount them.
// libc only, no allocation, errno may change. Thread-safety: pure but for the files.
#pragma once

#include <cstdint>

#include "host/text_file.hpp"

namespace gpubusy::host {

struct Group {
  Path folder;      // empty: none was found
  int version = 0;  // 1 or 2
  bool found() const noexcept { return version != 0; }
};

struct Groups {
  // Whether limits can be read at all; 0 below then means that there is none.
  bool tells_cpu = false, tells_memory = false;
  // The tightest quota of the group and of those above it: so much processor time in each period.
  std::uint64_t cpu_quota_us = 0, cpu_period_us = 0;
  std::uint64_t memory_bytes = 0;  // the tightest limit
  // Where that limit is counted; without a limit the process's own group.
  Group cpu, memory;
  Group pressure;  // the process's own; version 2 alone has it

  double quota_processors() const noexcept {
    return cpu_period_us == 0
               ? 0
               : static_cast<double>(cpu_quota_us) / static_cast<double>(cpu_period_us);
  }
};

// `root` stands in front of every path; "" is the real one.
void read_groups(const char* root, Groups& out) noexcept;
// The same with room for a file's text, which a small stack has not.
inline constexpr std::size_t kGroupText = 8192;
void read_groups(const char* root, Groups& out, char (&text)[kGroupText]) noexcept;

// This process's group in the hierarchy of a controller, out of the text of /proc/self/cgroup; ""
// is version 2. Begins with a slash; cut at its line's end in `text`. nullptr: it is in none.
const char* group_of(const char* text, const char* controller, std::size_t& size) noexcept;

// "350000 100000" or "max 100000". False: not such a text; quota 0: none.
bool parse_cpu_max(const char* text, std::uint64_t& quota_us, std::uint64_t& period_us) noexcept;
// A number of bytes, or "max". False: not such a text; 0: no limit (version 1 has a huge number).
bool parse_memory_limit(const char* text, std::uint64_t& bytes) noexcept;

}  // namespace gpubusy::host
