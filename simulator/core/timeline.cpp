// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/timeline.hpp"

#include <algorithm>

namespace gpubusy::sim {
namespace {

constexpr float kFull = 1.0001f;  // shares are sums of rounded fractions
// Operations are placed at most this long after they could have started (a copy that ends late).
constexpr std::uint64_t kKeptNs = 50'000'000;

}  // namespace

void Timeline::forget_before(std::uint64_t time_ns) {
  while (steps_.size() > 1 && steps_[1].time_ns <= time_ns) steps_.pop_front();
}

std::size_t Timeline::step_at(std::uint64_t time_ns) {
  const auto next =
      std::upper_bound(steps_.begin(), steps_.end(), time_ns,
                       [](std::uint64_t time, const Step& step) { return time < step.time_ns; });
  const auto index = static_cast<std::size_t>(next - steps_.begin());
  if (index > 0 && steps_[index - 1].time_ns == time_ns) return index - 1;
  const float used = index == 0 ? 0 : steps_[index - 1].used;
  steps_.insert(next, {time_ns, used});
  return index;
}

void Timeline::use(std::uint64_t from_ns, std::uint64_t to_ns, float share) {
  std::size_t first = step_at(from_ns);
  const std::size_t last = step_at(to_ns);
  for (; first < last; ++first) steps_[first].used += share;
}

std::uint64_t Timeline::reserve(std::uint64_t ready_ns, std::uint64_t duration_ns, float share,
                                std::uint64_t now_ns) {
  if (duration_ns == 0) return ready_ns;
  forget_before(now_ns > kKeptNs ? now_ns - kKeptNs : 0);
  if (steps_.empty()) {
    steps_.push_back({ready_ns, 0});
  }
  if (ready_ns >= steps_.back().time_ns) {
    // The common case: one stream, or an idle device.
    if (ready_ns > steps_.back().time_ns) {
      steps_.push_back({ready_ns, share});
    } else {
      steps_.back().used = share;
    }
    steps_.push_back({ready_ns + duration_ns, 0});
    return ready_ns;
  }
  const auto next =
      std::upper_bound(steps_.begin(), steps_.end(), ready_ns,
                       [](std::uint64_t time, const Step& step) { return time < step.time_ns; });
  std::uint64_t start = ready_ns;
  auto step = next == steps_.begin() ? next : std::prev(next);
  for (; step != steps_.end() && step->time_ns < start + duration_ns; ++step) {
    const auto following = std::next(step);
    if (step->used + share > kFull && following != steps_.end() && following->time_ns > start) {
      start = following->time_ns;
    }
  }
  use(start, start + duration_ns, share);
  return start;
}

void Timeline::extend(std::uint64_t from_ns, std::uint64_t to_ns) {
  if (to_ns <= from_ns) return;
  use(from_ns, to_ns, 1);
}

}  // namespace gpubusy::sim
