// SPDX-License-Identifier: Apache-2.0
//
// The looks that the library took at silent threads (docs/gaps.md), and the time that each stands
// for. Three readings, from the strictest to the one that leaves no hole:
//   seen      from the look before it to the look itself
//   standing  … and on until the next look at that thread, though not for long
//   telling   one look at a time for a whole silence: that of the thread which says most
// Times: CLOCK_MONOTONIC ns. Thread-safety: const; the recording must outlive it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

class Looks {
 public:
  explicit Looks(const recording::Recording& recording);

  // Each calls visit(look, from, until) for the part of [begin, end) that a look stands for.
  template <typename Visit>
  void seen(std::uint64_t begin, std::uint64_t end, Visit visit) const {
    each(
        begin, begin, end, [](std::size_t, const Sample& look) { return look.time_ns; }, visit);
  }
  // `silence`: when the silence began; looks from before it tell of another one.
  template <typename Visit>
  void standing(std::uint64_t begin, std::uint64_t end, std::uint64_t silence, Visit visit) const {
    each(
        silence, begin, end, [this](std::size_t i, const Sample&) { return stands_until_[i]; },
        visit);
  }
  // `thread`: the one whose call ends the silence.
  template <typename Visit>
  void telling(std::uint64_t begin, std::uint64_t end, std::uint32_t thread, Visit visit) const {
    for (const Stretch& s : stretches(end, thread)) {
      const std::uint64_t from = std::max(begin, s.begin_ns), until = std::min(end, s.end_ns);
      if (from < until) visit(*s.look, from, until);
    }
  }

 private:
  using Sample = recording::GapSample;
  struct Stretch {
    std::uint64_t begin_ns, end_ns;
    const Sample* look;
  };
  // The looks of one silence, by round: all threads that are looked at in one have the same times.
  struct Silence {
    std::uint64_t begin_ns = 0;
    std::vector<std::vector<const Sample*>> rounds;
  };

  template <typename Until, typename Visit>
  void each(std::uint64_t first, std::uint64_t begin, std::uint64_t end, Until until_of,
            Visit visit) const {
    const auto at = std::lower_bound(
        samples_.begin(), samples_.end(), first,
        [](const Sample& look, std::uint64_t time) { return look.time_ns < time; });
    for (auto i = static_cast<std::size_t>(at - samples_.begin());
         i < samples_.size() && samples_[i].since_ns < end; ++i) {
      const std::uint64_t from = std::max(samples_[i].since_ns, begin);
      const std::uint64_t until = std::min(until_of(i, samples_[i]), end);
      if (from < until) visit(samples_[i], from, until);
    }
  }
  // Of the last silence that begins before `end`.
  std::vector<Stretch> stretches(std::uint64_t end, std::uint32_t thread) const;

  const std::vector<Sample>& samples_;       // by time
  std::vector<std::uint64_t> stands_until_;  // by sample
  std::vector<Silence> silences_;            // by begin
};

}  // namespace gpubusy::analysis
