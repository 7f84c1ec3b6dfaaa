// SPDX-License-Identifier: Apache-2.0
#include "launcher/explain_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace gpubusy::launcher {
namespace {

constexpr std::uint64_t kMaxCycles = 1000;  // of a table that a person reads
constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();

struct Phase {
  std::uint64_t first, end;  // steps [first, end)
  config::Action action;
};

// Only where a phase may begin is action_at() asked: schedules may have 10^9 steps.
std::vector<Phase> phases_of(const config::Schedule& s, std::uint64_t steps, bool& cut) {
  const std::uint64_t cycle = s.wait + s.warmup + s.active;
  std::vector<std::uint64_t> starts = {0, s.skip_first};
  const std::uint64_t cycles =
      std::min(s.repeat == 0 ? (steps == kEver ? 3 : kMaxCycles) : s.repeat, kMaxCycles);
  const std::uint64_t shift = s.skip_first_wait != 0 ? s.wait : 0;
  for (std::uint64_t i = 0; i <= cycles; ++i) {
    for (const std::uint64_t at : {i * cycle, i * cycle + s.wait, i * cycle + s.wait + s.warmup}) {
      if (at >= shift && (i < cycles || at == i * cycle)) {
        starts.push_back(s.skip_first + at - shift);
      }
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  const std::uint64_t last = starts.back();  // the end of the last cycle looked at
  cut = action_at(s, last) != config::Action::kNone || s.repeat == 0 || s.repeat > cycles;

  std::vector<Phase> phases;
  for (std::size_t i = 0; i < starts.size() && starts[i] < steps; ++i) {
    const bool is_last = i + 1 == starts.size();
    if (is_last && cut) break;
    const Phase phase{starts[i], is_last ? kEver : starts[i + 1], action_at(s, starts[i])};
    if (!phases.empty() && phase.action == config::Action::kNone &&
        phases.back().action == config::Action::kNone) {
      phases.back().end = phase.end;
    } else {
      phases.push_back(phase);
    }
  }
  return phases;
}

}  // namespace

std::string explain_schedule(const config::Schedule& s, std::uint64_t steps) {
  if (steps == 0) steps = kEver;
  std::string out = fmt::format(
      "skip_first {}, skip_first_wait {}, wait {}, warmup {}, active {}, repeat {}\n"
      "{:<24}{}\n",
      s.skip_first, s.skip_first_wait, s.wait, s.warmup, s.active, s.repeat, "steps", "phase");
  bool cut = false;
  std::uint64_t window = 0;
  std::uint64_t shown_to = 0;
  for (const Phase& phase : phases_of(s, steps, cut)) {
    const std::uint64_t end = std::min(phase.end, steps);
    shown_to = end;
    std::string range = end == kEver             ? fmt::format("{}-", phase.first)
                        : end - phase.first == 1 ? fmt::format("{}", phase.first)
                                                 : fmt::format("{}-{}", phase.first, end - 1);
    std::string what;
    if (records(phase.action)) {
      what = fmt::format("recorded: window {}, {} steps", window++, end - phase.first);
      if (end < phase.end) {
        what += fmt::format(" of {}: incomplete, the run ends inside it", phase.end - phase.first);
      }
    } else if (phase.action == config::Action::kWarmup) {
      what = "warm-up: prepared, not kept";
    } else {
      what = phase.end == kEver ? "idle, to the end of the run" : "idle";
    }
    out += fmt::format("{:<24}{}\n", range, what);
  }
  if (cut && shown_to < steps) {
    out += fmt::format("{:<24}and so on, every {} steps{}\n", fmt::format("{}-", shown_to),
                       s.wait + s.warmup + s.active,
                       s.repeat == 0 ? "" : fmt::format(", {} cycles in all", s.repeat));
  }
  return out;
}

}  // namespace gpubusy::launcher
