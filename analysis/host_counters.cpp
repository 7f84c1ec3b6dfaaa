// SPDX-License-Identifier: Apache-2.0
#include "analysis/host_counters.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace gpubusy::analysis {
namespace {

using recording::HostCounter;
using recording::HostCounts;
using recording::HostMoment;
using recording::Recording;

using Number = std::optional<std::uint64_t>;

// By how much a counter has risen; it never falls, but damage may make it seem so.
Number rise(const HostCounts& from, const HostCounts& to, HostCounter counter) {
  const Number a = from.at(counter), b = to.at(counter);
  if (!a || !b || *b < *a) return std::nullopt;
  return *b - *a;
}

struct UseField {
  Number HostUse::*field;
  HostCounter process, thread;
};
constexpr UseField kUse[] = {
    {&HostUse::user_ns, HostCounter::kUserNs, HostCounter::kThreadUserNs},
    {&HostUse::system_ns, HostCounter::kSystemNs, HostCounter::kThreadSystemNs},
    {&HostUse::minor_faults, HostCounter::kMinorFaults, HostCounter::kThreadMinorFaults},
    {&HostUse::major_faults, HostCounter::kMajorFaults, HostCounter::kThreadMajorFaults},
    {&HostUse::voluntary_switches, HostCounter::kVoluntarySwitches,
     HostCounter::kThreadVoluntarySwitches},
    {&HostUse::involuntary_switches, HostCounter::kInvoluntarySwitches,
     HostCounter::kThreadInvoluntarySwitches},
};

struct BesideField {
  Number HostBeside::*field;
  HostCounter counter;
};
constexpr BesideField kBeside[] = {
    {&HostBeside::quota_periods, HostCounter::kQuotaPeriods},
    {&HostBeside::throttled_periods, HostCounter::kThrottledPeriods},
    {&HostBeside::throttled_ns, HostCounter::kThrottledNs},
    {&HostBeside::memory_high, HostCounter::kMemoryHigh},
    {&HostBeside::memory_max, HostCounter::kMemoryMax},
    {&HostBeside::memory_oom_kills, HostCounter::kMemoryOomKills},
    {&HostBeside::cpu_some_ns, HostCounter::kCpuSomeNs},
    {&HostBeside::cpu_full_ns, HostCounter::kCpuFullNs},
    {&HostBeside::io_some_ns, HostCounter::kIoSomeNs},
    {&HostBeside::io_full_ns, HostCounter::kIoFullNs},
    {&HostBeside::memory_some_ns, HostCounter::kMemorySomeNs},
    {&HostBeside::memory_full_ns, HostCounter::kMemoryFullNs},
    {&HostBeside::swap_in_pages, HostCounter::kSwapInPages},
    {&HostBeside::swap_out_pages, HostCounter::kSwapOutPages},
};

// A part of what was counted between two samples, for the part of that time that is judged.
class Sum {
 public:
  void add(Number risen, double part) {
    if (!risen) return;
    sum_ += static_cast<double>(*risen) * part;
    known_ = true;
  }
  Number total() const {
    return known_ ? Number(static_cast<std::uint64_t>(std::llround(sum_))) : std::nullopt;
  }

 private:
  double sum_ = 0;
  bool known_ = false;
};

// Calls `take` with each two samples of one helper thread in a row.
template <typename Take>
void each_two(const Recording& recording, Take take) {
  const HostCounts* before = nullptr;
  for (const HostCounts& counts : recording.host_counts) {
    if (counts.moment != HostMoment::kHelper) continue;
    if (before != nullptr && before->thread_id == counts.thread_id &&
        before->time_ns < counts.time_ns) {
      take(*before, counts);
    }
    before = &counts;
  }
}

void count_beside(const Recording& recording, const std::vector<Step>& steps, HostReport& out) {
  std::vector<Interval> judged;
  for (const Step& step : steps) append_union(judged, {step.begin_ns, step.end_ns});
  std::array<Sum, std::size(kBeside)> sums;
  std::array<Sum, std::size(kUse)> use;
  each_two(recording, [&](const HostCounts& from, const HostCounts& to) {
    const std::uint64_t ns = covered(judged, from.time_ns, to.time_ns);
    if (ns == 0) return;
    const double part = static_cast<double>(ns) / static_cast<double>(to.time_ns - from.time_ns);
    out.beside.ns += ns;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].add(rise(from, to, kBeside[i].counter), part);
    }
    for (std::size_t i = 0; i < use.size(); ++i) {
      use[i].add(rise(from, to, kUse[i].process), part);
    }
    if (const Number swapped = to.at(HostCounter::kSwappedBytes)) {
      out.beside.swapped_bytes = std::max(*swapped, out.beside.swapped_bytes.value_or(0));
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i) out.beside.*kBeside[i].field = sums[i].total();
  for (std::size_t i = 0; i < use.size(); ++i) out.beside.process.*kUse[i].field = use[i].total();
}

void count_steps(const Recording& recording, const std::vector<Step>& steps, HostReport& out) {
  std::unordered_map<std::uint32_t, const HostCounts*> edges;
  for (const HostCounts& counts : recording.host_counts) {
    if (counts.moment == HostMoment::kEdge) edges[counts.step] = &counts;
  }
  out.steps.resize(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].number == 0) continue;  // nothing was counted at its begin
    const auto from = edges.find(steps[i].number - 1), to = edges.find(steps[i].number);
    if (from == edges.end() || to == edges.end()) continue;
    HostStep& step = out.steps[i];
    for (const UseField& f : kUse) {
      step.process.*f.field = rise(*from->second, *to->second, f.process);
      if (from->second->thread_id == to->second->thread_id) {
        step.thread.*f.field = rise(*from->second, *to->second, f.thread);
      }
    }
    if (!step.process.known()) continue;
    if (out.counted_steps++ == 0) {
      out.process = step.process;
      out.thread = step.thread;
    } else {
      out.process.add(step.process);
      out.thread.add(step.thread);
    }
  }
}

}  // namespace

void HostUse::add(const HostUse& other) {
  for (const UseField& f : kUse) {
    const Number more = other.*f.field;
    Number& sum = this->*f.field;
    sum = sum && more ? Number(*sum + *more) : std::nullopt;
  }
}

HostReport count_host(const Recording& recording, const std::vector<Step>& steps) {
  HostReport out;
  for (const HostCounts& counts : recording.host_counts) {
    if (counts.moment != HostMoment::kHelper) continue;
    ++out.samples;
    out.sources = counts.sources;
  }
  count_steps(recording, steps, out);
  count_beside(recording, steps, out);
  return out;
}

}  // namespace gpubusy::analysis
