// SPDX-License-Identifier: Apache-2.0
//
// The looks that the library took at silent threads (docs/gaps.md), and the time that each stands
// for. Two readings:
//   seen      from the look before it to the look itself
//   telling   without holes, one look at a time for a whole silence: that of the thread which says
//   most
// The kernel counts processor time late, and a wait for a processor when it ends: what of both lies
// before the look that tells it is given to the looks before. Times: CLOCK_MONOTONIC ns.
// Thread-safety: const; the recording must outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

// Gives what lies before the look that tells it to the looks before: `id_of` says whose they are.
// `looks`: by time.
template <typename Look, typename IdOf>
void give_to_earlier(std::vector<Look>& looks, IdOf id_of) {
  std::unordered_map<std::uint32_t, Look*> later;
  for (std::size_t i = looks.size(); i-- > 0;) {
    Look& look = looks[i];
    Look*& next = later[id_of(look)];
    if (next != nullptr && next->since_ns == look.time_ns && look.state == 'R') {
      const std::uint64_t active = next->run_ns + next->wait_ns;
      const std::uint64_t earlier = active - std::min(active, next->time_ns - next->since_ns);
      const std::uint64_t waited = std::min(earlier, next->wait_ns);
      look.wait_ns += waited;
      next->wait_ns -= waited;
      look.run_ns += earlier - waited;
      next->run_ns -= earlier - waited;
    }
    next = &look;
  }
}

// Of two looks of one round, at the thread with Python frames and at the one that ends the silence
// (may be null, or the same): the one that shows what is waited for. A thread without frames, as
// autograd's are, mostly waits for the other; it does not where it is ready to run, or waits for
// the GIL itself.
const recording::GapSample& acting(const recording::GapSample& look,
                                   const recording::GapSample* own);

class Looks {
 public:
  explicit Looks(const recording::Recording& recording);
  Looks(const Looks&) = delete;
  Looks& operator=(const Looks&) = delete;

  // Each calls visit() for the part of [begin, end) that a look stands for.
  template <typename Visit>
  void seen(std::uint64_t begin, std::uint64_t end, Visit visit) const {
    const auto at = std::lower_bound(
        samples_.begin(), samples_.end(), begin,
        [](const Sample& look, std::uint64_t time) { return look.time_ns < time; });
    for (auto look = at; look != samples_.end() && look->since_ns < end; ++look) {
      const std::uint64_t from = std::max(look->since_ns, begin);
      const std::uint64_t until = std::min(look->time_ns, end);
      if (from < until) visit(*look, from, until);
    }
  }
  // A look at a thread that ran for a part of its time, and waited for a processor in another, is
  // two: one that only waits, one that only runs. `silence`: when it began; looks from before it
  // tell of another one. `thread`: the one whose call ends it. visit(look, own, from, until): `own`
  // is that thread's look of the same round, or null.
  template <typename Visit>
  void telling(std::uint64_t begin, std::uint64_t end, std::uint64_t silence, std::uint32_t thread,
               Visit visit) const {
    for (const Stretch& s : stretches(end, thread)) {
      if (s.look->time_ns < silence) continue;
      const std::uint64_t from = std::max(begin, s.begin_ns), until = std::min(end, s.end_ns);
      if (from >= until) continue;
      const Sample& acts = acting(*s.look, s.own);
      const auto split = split_.find(&acts);
      if (split == split_.end()) {
        visit(*s.look, s.own, from, until);
        continue;
      }
      const auto part = [&](const Sample& as, std::uint64_t a, std::uint64_t b) {
        if (a >= b) return;
        &acts == s.own ? visit(*s.look, &as, a, b) : visit(as, s.own, a, b);
      };
      const double share =
          static_cast<double>(acts.wait_ns) / static_cast<double>(acts.wait_ns + acts.run_ns);
      const std::uint64_t middle =
          from + static_cast<std::uint64_t>(share * static_cast<double>(until - from));
      part(split->second.waits, from, middle);
      part(split->second.runs, middle, until);
    }
  }

 private:
  using Sample = recording::GapSample;
  struct Stretch {
    std::uint64_t begin_ns, end_ns;
    const Sample *look, *own;
  };
  // The looks of one silence, by round: all threads that are looked at in one have the same times.
  struct Silence {
    std::uint64_t begin_ns = 0;
    std::vector<std::vector<const Sample*>> rounds;
  };

  struct Split {
    Sample waits, runs;
  };

  // Of the last silence that begins before `end`.
  std::vector<Stretch> stretches(std::uint64_t end, std::uint32_t thread) const;

  std::vector<Sample> samples_;    // by time
  std::vector<Silence> silences_;  // by begin
  std::unordered_map<const Sample*, Split> split_;
  bool counted_ = false;  // whether times on a processor are there
};

}  // namespace gpubusy::analysis
