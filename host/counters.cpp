// SPDX-License-Identifier: Apache-2.0
#include "host/counters.hpp"

#include <string.h>

#include <limits>

#include "host/text_file.hpp"

namespace gpubusy::host {
namespace {

std::uint64_t times(std::uint64_t value, std::uint64_t factor) noexcept {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  return value > kMost / factor ? kMost : value * factor;
}

// The number behind "total=" in the line that begins with `name`; microseconds.
bool total_of(const char* text, const char* name, std::uint64_t& ns) noexcept {
  const std::size_t length = strlen(name);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    const char* const end = strchr(line, '\n');
    if (strncmp(line, name, length) == 0 && line[length] == ' ') {
      const char* at = strstr(line, " total=");
      if (at == nullptr || (end != nullptr && at > end)) return false;
      at += strlen(" total=");
      std::uint64_t us = 0;
      if (*at < '0' || *at > '9' || !take_number(at, us)) return false;
      ns = times(us, 1000);
      return true;
    }
    line = end == nullptr ? nullptr : end + 1;
  }
  return false;
}

}  // namespace

bool parse_throttling(const char* text, Throttling& out) noexcept {
  Throttling t;
  if (!number_of_line(text, "nr_periods", t.periods) ||
      !number_of_line(text, "nr_throttled", t.throttled_periods)) {
    return false;
  }
  if (std::uint64_t us = 0; number_of_line(text, "throttled_usec", us)) {
    t.throttled_ns = times(us, 1000);
  } else if (!number_of_line(text, "throttled_time", t.throttled_ns)) {
    return false;
  }
  out = t;
  return true;
}

bool parse_memory_events(const char* text, MemoryEvents& out) noexcept {
  MemoryEvents e;
  if (!number_of_line(text, "high", e.high) || !number_of_line(text, "max", e.max)) return false;
  number_of_line(text, "oom_kill", e.oom_kills);  // since Linux 4.13
  out = e;
  return true;
}

bool parse_pressure(const char* text, Pressure& out) noexcept {
  Pressure p;
  if (!total_of(text, "some", p.some_ns)) return false;
  p.has_full = total_of(text, "full", p.full_ns);
  out = p;
  return true;
}

bool parse_swapping(const char* text, Swapping& out) noexcept {
  Swapping s;
  if (!number_of_line(text, "pswpin", s.pages_in) ||
      !number_of_line(text, "pswpout", s.pages_out)) {
    return false;
  }
  out = s;
  return true;
}

bool parse_swapped(const char* text, std::uint64_t& bytes) noexcept {
  std::uint64_t kib = 0;
  if (!take_number(text, kib)) return false;
  bytes = times(kib, 1024);
  return true;
}

}  // namespace gpubusy::host
