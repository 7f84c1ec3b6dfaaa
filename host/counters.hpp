// SPDX-License-Identifier: Apache-2.0
//
// What the kernel counts of a control group, and of the machine: parsers of its texts. Pure
// functions, no allocation. False: the text does not tell; nothing is changed then.
#pragma once

#include <cstdint>

namespace gpubusy::host {

// cpu.stat of either version of control groups. Throttled time is summed over processors.
struct Throttling {
  std::uint64_t periods = 0, throttled_periods = 0, throttled_ns = 0;
};
bool parse_throttling(const char* text, Throttling& out) noexcept;

// How often memory was reclaimed at "high", an allocation met the limit, a process was killed.
struct MemoryEvents {
  std::uint64_t high = 0, max = 0, oom_kills = 0;
};
bool parse_memory_events(const char* text, MemoryEvents& out) noexcept;  // memory.events

// Pressure (PSI): time in which some or all tasks stood still for want of a resource.
struct Pressure {
  std::uint64_t some_ns = 0, full_ns = 0;
  bool has_full = false;  // of the processors only newer kernels tell it
};
bool parse_pressure(const char* text, Pressure& out) noexcept;

// /proc/vmstat: pages swapped in and out since boot, of all processes.
struct Swapping {
  std::uint64_t pages_in = 0, pages_out = 0;
};
bool parse_swapping(const char* text, Swapping& out) noexcept;

// The field VmSwap of /proc/self/status, behind its name: bytes of the process that are swapped
// out.
bool parse_swapped(const char* text, std::uint64_t& bytes) noexcept;

}  // namespace gpubusy::host
