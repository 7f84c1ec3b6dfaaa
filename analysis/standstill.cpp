// SPDX-License-Identifier: Apache-2.0
#include "analysis/standstill.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "analysis/causes.hpp"
#include "analysis/report.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kMaxFrames = 256;

// The latest look, of the last round the one with Python frames.
const recording::GapSample* last_look(const recording::Recording& recording) {
  const recording::GapSample* last = nullptr;
  const auto later = [](const recording::GapSample& a, const recording::GapSample& b) {
    if (a.time_ns != b.time_ns) return a.time_ns > b.time_ns;
    return a.python_stack != 0 && b.python_stack == 0;
  };
  for (const recording::GapSample& look : recording.gap_samples) {
    if (last == nullptr || later(look, *last)) last = &look;
  }
  return last;
}

std::string names_of(const std::vector<const ProcessReport*>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    out += fmt::format("{}{}",
                       i == 0                  ? ""
                       : i + 1 == ranks.size() ? " and "
                                               : ", ",
                       ranks[i]->rank);
  }
  return out;
}

std::string place_of(const Standstill& s) {
  return fmt::format("{}{}", s.line.known() ? to_text(s.line) + ": " : "", gap_title(s.kind));
}

}  // namespace

Standstill standstill_of(const recording::Recording& recording, SourceLines& lines) {
  Standstill out;
  const recording::GapSample* look = last_look(recording);
  if (recording.state != recording::FileState::kOpen || look == nullptr) return out;
  std::uint64_t last_call = 0;
  for (const recording::Call& call : recording.calls) last_call = std::max(last_call, call.end_ns);
  if (look->time_ns < last_call + kStandstillNs) return out;
  out.ns = look->time_ns - last_call;
  const std::vector<SourceLine> frames = lines.frames(look->python_stack, kMaxFrames);
  out.kind = kind_of(*look, frames, {});
  out.line = lines.of_stack(look->python_stack);
  out.in_collective = std::any_of(frames.begin(), frames.end(), [](const SourceLine& frame) {
    return match_frame(frame).cause == Cause::kCollective;
  });
  return out;
}

void tell_standstills(SessionReport& session) {
  std::vector<const ProcessReport*> inside, elsewhere;
  for (const ProcessReport& process : session.processes) {
    if (process.rank < 0 || process.standstill.ns == 0) continue;
    (process.standstill.in_collective ? inside : elsewhere).push_back(&process);
  }
  std::string ranks;
  if (!inside.empty() && !elsewhere.empty()) {
    ranks =
        fmt::format(" In a collective: {}; not there: {}", names_of(inside), names_of(elsewhere));
    for (const ProcessReport* process : elsewhere) {
      ranks += fmt::format("{} {}", process == elsewhere.front() ? " at" : ";",
                           place_of(process->standstill));
    }
    ranks += '.';
  }
  for (ProcessReport& process : session.processes) {
    const Standstill& s = process.standstill;
    if (s.ns == 0) continue;
    process.warnings.push_back(fmt::format(
        "It has not ended, and asks nothing of the GPU: when it was last looked at for {:.1f} s, "
        "behind {} steps, at {}{}.{}",
        static_cast<double>(s.ns) / 1e9, process.steps_seen, place_of(s),
        s.in_collective ? ", in a collective" : "", process.rank < 0 ? "" : ranks));
  }
}

}  // namespace gpubusy::analysis
