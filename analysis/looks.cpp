// SPDX-License-Identifier: Apache-2.0
#include "analysis/looks.hpp"

#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {

const recording::GapSample& acting(const recording::GapSample& look,
                                   const recording::GapSample* own) {
  const bool acts =
      own != nullptr && (own->state == 'R' || (own->flags & recording::kGapInterpreter) != 0);
  return acts ? *own : look;
}

Looks::Looks(const recording::Recording& recording) : samples_(recording.gap_samples) {
  for (const Sample& look : samples_) {
    counted_ = counted_ || look.run_ns != 0 || look.wait_ns != 0;
  }
  give_to_earlier(samples_, [](const Sample& look) { return look.thread_id; });

  for (const Sample& look : samples_) {
    const std::uint64_t lesser = std::min(look.run_ns, look.wait_ns);
    const double both = static_cast<double>(look.run_ns + look.wait_ns);
    if (look.state != 'R' || lesser == 0 || static_cast<double>(lesser) < kLeastOfLook * both) {
      continue;
    }
    Split& split = split_[&look];
    split.waits = split.runs = look;
    split.waits.run_ns = 0;
    split.runs.wait_ns = 0;
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

namespace {

// For how much of the time between two looks the thread still did what the first one saw.
// `counted`: the kernel counts how long it is on a processor, or ready.
std::uint64_t last_of(const recording::GapSample& first, const recording::GapSample& second,
                      std::uint64_t between, bool counted) {
  if (first.thread_id != second.thread_id) return between / 2;
  if ((second.flags & recording::kGapUnmoved) != 0) return 0;
  // For as long as that it was not blocked.
  const std::uint64_t active = std::min(between, second.run_ns + second.wait_ns);
  const bool was_active = first.state == 'R', is_active = second.state == 'R';
  if (counted && was_active && !is_active) return active;
  if (counted && !was_active && is_active) return between - active;
  return between / 2;  // it may have changed at any time
}

}  // namespace

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
    const Sample *best = nullptr, *own = nullptr;
    for (const Sample* look : round) {
      if (look->thread_id == thread) own = look;
      const bool better = best == nullptr || (look->python_stack != 0 && best->python_stack == 0) ||
                          (look->thread_id == thread && best->thread_id != thread &&
                           (look->python_stack != 0 || best->python_stack == 0));
      if (better) best = look;
    }
    // What the kernel counted before the first look is not known: one at a thread that runs tells
    // nothing of the time before it, and the next look tells more.
    const bool uncounted = counted_ && best->state == 'R' && best->run_ns + best->wait_ns == 0;
    if (out.empty() && uncounted && &round != &silence.rounds.back()) continue;
    const std::uint64_t time = best->time_ns;
    if (!out.empty()) {
      const std::uint64_t from = out.back().end_ns;
      begin = out.back().end_ns =
          from + last_of(*out.back().look, *best, time - std::min(from, time), counted_);
    }
    out.push_back({begin, std::max(begin, time), best, own});
  }
  // Until the silence ended, but not for long: the looks may have stopped.
  if (!out.empty()) {
    const std::uint64_t last = out.back().look->time_ns - out.back().look->since_ns;
    out.back().end_ns += std::max<std::uint64_t>(2 * last, kLookReachNs);
  }
  return out;
}

}  // namespace gpubusy::analysis
