// SPDX-License-Identifier: Apache-2.0
#include "analysis/throttling.hpp"

#include <algorithm>
#include <optional>

namespace gpubusy::analysis {

using recording::HostCounter;
using recording::HostCounts;
using recording::HostMoment;

Throttling::Throttling(const recording::Recording& recording) {
  std::uint64_t before_ns = 0;
  std::optional<std::uint64_t> before;
  std::map<std::uint32_t, std::vector<CountedWait>> counted;
  for (const HostCounts& counts : recording.host_counts) {
    if (const auto now = counts.at(HostCounter::kThrottledNs)) {
      if (before && *now > *before) rises_.push_back({before_ns, counts.time_ns, *now - *before});
      before = now;
      before_ns = counts.time_ns;
    } else if (counts.moment == HostMoment::kHelper) {
      before.reset();  // the process has gone to another group
    }
    const auto waited = counts.at(HostCounter::kThreadWaitedNs);
    if (counts.moment != HostMoment::kThread || !waited) continue;
    const std::uint64_t ago = counts.at(HostCounter::kThreadSinceNs).value_or(0);
    counted[counts.thread_id].push_back(
        {counts.time_ns - std::min(ago, counts.time_ns), counts.time_ns,
         counts.at(HostCounter::kThreadRanNs).value_or(0), *waited});
  }
  for (const auto& [thread, waits] : counted) threads_[thread] = stretches(waits);
}

const std::vector<Interval>& Throttling::of(std::uint32_t thread) const {
  static const std::vector<Interval> kNothing;
  const auto found = threads_.find(thread);
  return found == threads_.end() ? kNothing : found->second;
}

// From the last wait to the first: what was counted at a look but had begun before the look before
// it lies behind all that was counted there.
std::vector<Interval> Throttling::stretches(const std::vector<CountedWait>& counted) const {
  std::vector<std::uint64_t> left;  // of each rise
  for (const Rise& rise : rises_) left.push_back(rise.ns);
  std::vector<Interval> parts;
  std::uint64_t limit = ~std::uint64_t{0};
  for (auto look = counted.rbegin(); look != counted.rend(); ++look) {
    if (look->time_ns <= look->since_ns) continue;
    const std::uint64_t latest = std::min(look->time_ns, limit);
    // Looks follow each other closely while the thread runs: it mostly ran behind its wait.
    const std::uint64_t end =
        latest - std::min({latest, look->run_ns, look->time_ns - look->since_ns});
    const Interval wait{end - std::min(end, look->wait_ns), end};
    limit = wait.begin;
    std::uint64_t ns = 0;
    const auto behind = std::partition_point(
        rises_.begin(), rises_.end(), [&](const Rise& rise) { return rise.begin_ns < wait.end; });
    for (auto rise = behind; rise != rises_.begin() && std::prev(rise)->end_ns > wait.begin;
         --rise) {
      std::uint64_t& of_rise = left[static_cast<std::size_t>(std::prev(rise) - rises_.begin())];
      const std::uint64_t part = std::min(of_rise, wait.length() - ns);
      of_rise -= part;
      ns += part;
    }
    if (ns > 0) parts.push_back({wait.begin, wait.begin + ns});
  }
  std::vector<Interval> out;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) append_union(out, *part);
  return out;
}

}  // namespace gpubusy::analysis
