// SPDX-License-Identifier: Apache-2.0
#include "analysis/looks.hpp"

#include <unordered_map>

#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {

Looks::Looks(const recording::Recording& recording)
    : samples_(recording.gap_samples), stands_until_(samples_.size()) {
  std::unordered_map<std::uint32_t, std::uint64_t> next_since;  // by thread
  for (std::size_t i = samples_.size(); i-- > 0;) {
    const Sample& look = samples_[i];
    const std::uint64_t reach = look.time_ns + kLookReachNs;
    const auto [next, last] = next_since.try_emplace(look.thread_id, look.since_ns);
    stands_until_[i] = last ? reach : std::max(look.time_ns, std::min(reach, next->second));
    next->second = look.since_ns;
  }

  std::vector<const Sample*> looks;
  for (const Sample& look : samples_) looks.push_back(&look);
  std::stable_sort(looks.begin(), looks.end(),
                   [](const Sample* a, const Sample* b) { return a->since_ns < b->since_ns; });
  std::uint64_t since = 0, time = 0;  // of the last round
  for (const Sample* look : looks) {
    if (silences_.empty() || (look->since_ns != since && look->since_ns != time)) {
      silences_.push_back({look->since_ns, {}});
    }
    auto& rounds = silences_.back().rounds;
    if (rounds.empty() || look->since_ns != since) rounds.emplace_back();
    rounds.back().push_back(look);
    since = look->since_ns;
    time = look->time_ns;
  }
}

// What the thread that ends the silence was seen to do. Where it only waits for work, as autograd's
// threads do, what the thread with Python frames does is what it waits for.
std::vector<Looks::Stretch> Looks::stretches(std::uint64_t end, std::uint32_t thread) const {
  const auto behind = std::partition_point(silences_.begin(), silences_.end(),
                                           [&](const Silence& s) { return s.begin_ns < end; });
  if (behind == silences_.begin()) return {};
  const Silence& silence = *std::prev(behind);
  std::vector<Stretch> out;
  std::uint64_t begin = silence.begin_ns;
  for (const auto& round : silence.rounds) {
    const Sample* best = nullptr;
    for (const Sample* look : round) {
      const bool better = best == nullptr || (look->python_stack != 0 && best->python_stack == 0) ||
                          (look->thread_id == thread && best->thread_id != thread &&
                           (look->python_stack != 0 || best->python_stack == 0));
      if (better) best = look;
    }
    const std::uint64_t time = best->time_ns;
    if (!out.empty()) {
      // A thread that has moved may have done so at any time between.
      const bool unmoved = (best->flags & recording::kGapUnmoved) != 0 &&
                           best->thread_id == out.back().look->thread_id;
      const std::uint64_t from = out.back().end_ns;
      const std::uint64_t change = unmoved ? from : from + (time - std::min(from, time)) / 2;
      out.back().end_ns = std::max(from, change);
      begin = out.back().end_ns;
    }
    out.push_back({begin, std::max(begin, time), best});
  }
  // Until the silence ended, but not for long: the looks may have stopped.
  if (!out.empty()) {
    const std::uint64_t last = out.back().look->time_ns - out.back().look->since_ns;
    out.back().end_ns += std::max<std::uint64_t>(2 * last, kLookReachNs);
  }
  return out;
}

}  // namespace gpubusy::analysis
