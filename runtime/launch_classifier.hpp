// SPDX-License-Identifier: Apache-2.0
//
// Which kernels need a look at the Python stack to find optimizer steps? Between windows nothing
// else is wanted from a launch, so kernels that optimizers do not launch pass after one probe of a
// small cache.
//
// A kernel is learned to be `never` launched by an optimizer from sightings: at least 8 outside and
// none inside, over at least 2 ended steps (or 255 sightings while no step is seen: inference). It
// is looked at again at about each 64th launch. Kernels
// seen inside keep being looked at. What sets a wrong picture right:
//   * a `never` kernel found inside a step: everything learned is void and learned anew;
//   * no step for much longer than usual (a new phase whose optimizer uses only known kernels): the
//     same, at most with doubling distance.
// So a step can go unseen only when all its launches are of kernels known as `never` and none of
// them comes up for its look; the foreach and fused optimizers' kernels are launched by nothing
// else but clipping.
//
// Thread-safe, no locks. Races between threads cost a look or delay one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime {

class LaunchClassifier {
 public:
  // True: the launch is no part of an optimizer's step as far as known. False: look, then saw().
  [[gnu::always_inline]] bool may_skip(const void* function) noexcept {
    Entry* e = &entries_[slot_of(function)];
    const std::uint64_t wanted =
        word(function, kNever, generation_.load(std::memory_order_relaxed));
    if ((e->word.load(std::memory_order_relaxed) & kIdentity) != wanted) {
      e = &entries_[slot_of(function) ^ 1];
      if ((e->word.load(std::memory_order_relaxed) & kIdentity) != wanted) return false;
    }
    const std::uint32_t left = e->until_look.load(std::memory_order_relaxed);
    if (left == 0) return false;
    e->until_look.store(left - 1, std::memory_order_relaxed);
    return true;
  }

  // What the look at a launch of this function found.
  void saw(const void* function, bool in_optimizer) noexcept {
    const std::uint64_t generation = generation_.load(std::memory_order_relaxed);
    const auto steps = static_cast<std::uint32_t>(steps_.load(std::memory_order_relaxed));
    Entry& e = entry_of(function);
    const std::uint64_t old = e.word.load(std::memory_order_relaxed);
    std::uint64_t kind = old >> kKindShift & 3;
    const bool known = same_function(old, function) &&
                       ((old >> kGenerationShift & kGenerationMask) == generation ||
                        kind == kOnly || kind == kMixed);
    std::uint64_t step = steps & kStepMask, sightings = 0;
    if (known) {
      step = old >> kStepShift & kStepMask;
      sightings = old & kSightingsMask;
    } else {
      kind = in_optimizer ? kOnly : kLearning;
    }
    if (sightings < kSightingsMask) ++sightings;
    if (in_optimizer) {
      looks_since_step_.store(0, std::memory_order_relaxed);
      if (kind == kNever) {
        e.word.store(word(function, kMixed, generation), std::memory_order_relaxed);
        forget();
        return;
      }
      if (kind == kLearning) kind = kMixed;
    } else {
      if (kind == kOnly) kind = kMixed;
      if (kind == kLearning &&
          ((sightings >= kEnoughSightings && ((steps - step) & kStepMask) >= 2) ||
           sightings == kSightingsMask)) {
        kind = kNever;
      }
      if (kind == kNever) e.until_look.store(interval(), std::memory_order_relaxed);
      watch_for_overdue_step();
    }
    e.word.store(word(function, kind, generation) | step << kStepShift | sightings,
                 std::memory_order_relaxed);
  }

  // An optimizer's step has ended.
  void step_ended() noexcept {
    const std::uint32_t looks = looks_in_step_.exchange(0, std::memory_order_relaxed);
    const std::uint32_t usual = usual_looks_.load(std::memory_order_relaxed);
    // Follows a rise at once, a fall slowly.
    const std::uint32_t now = looks > usual ? looks : usual - (usual - looks) / 8;
    usual_looks_.store(now > 0 ? now : 1, std::memory_order_relaxed);
    patience_.store(1, std::memory_order_relaxed);
    steps_.fetch_add(1, std::memory_order_relaxed);
  }

  // Void: all that was learned about kernels outside of optimizers.
  void forget() noexcept {
    const std::uint64_t next = (generation_.load(std::memory_order_relaxed) + 1) & kGenerationMask;
    // Generation numbers wrap: what is left from 32 generations ago must not come to life again.
    if (next == 0) {
      for (Entry& e : entries_) e.word.store(0, std::memory_order_relaxed);
    }
    generation_.store(next, std::memory_order_relaxed);
    steps_.store(0, std::memory_order_relaxed);
    relearned_.fetch_add(1, std::memory_order_relaxed);
  }

  std::uint32_t relearned() const noexcept { return relearned_.load(std::memory_order_relaxed); }

  void reset() noexcept {
    for (Entry& e : entries_) e.word.store(0, std::memory_order_relaxed);
    generation_.store(0, std::memory_order_relaxed);
    steps_.store(0, std::memory_order_relaxed);
    looks_since_step_.store(0, std::memory_order_relaxed);
    looks_in_step_.store(0, std::memory_order_relaxed);
    usual_looks_.store(0, std::memory_order_relaxed);
    patience_.store(1, std::memory_order_relaxed);
    relearned_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr unsigned kBits = 12;
  // Word: function (47 bits) | kind (2) | generation (5) | step (2) | sightings (8).
  static constexpr unsigned kFunctionShift = 17, kKindShift = 15, kGenerationShift = 10,
                            kStepShift = 8;
  static constexpr std::uint64_t kGenerationMask = 31, kStepMask = 3, kSightingsMask = 255;
  static constexpr std::uint64_t kIdentity = ~std::uint64_t{0} << kGenerationShift;
  static constexpr std::uint64_t kLearning = 0, kNever = 1, kOnly = 2, kMixed = 3;
  static constexpr std::uint64_t kEnoughSightings = 8;
  static constexpr std::uint32_t kOverdueLooks = 64;

  struct Entry {
    std::atomic<std::uint64_t> word{0};
    std::atomic<std::uint32_t> until_look{0};
    std::uint32_t reserved = 0;
  };

  static std::uint64_t word(const void* function, std::uint64_t kind,
                            std::uint64_t generation) noexcept {
    return reinterpret_cast<std::uintptr_t>(function) << kFunctionShift | kind << kKindShift |
           generation << kGenerationShift;
  }
  static bool same_function(std::uint64_t w, const void* function) noexcept {
    return w != 0 && w >> kFunctionShift == word(function, 0, 0) >> kFunctionShift;
  }
  static std::size_t slot_of(const void* function) noexcept {
    return static_cast<std::size_t>(
        reinterpret_cast<std::uintptr_t>(function) * 0x9e3779b97f4a7c15ull >> (64 - kBits));
  }

  Entry& entry_of(const void* function) noexcept {
    const std::size_t slot = slot_of(function);
    Entry& first = entries_[slot];
    Entry& second = entries_[slot ^ 1];
    const std::uint64_t a = first.word.load(std::memory_order_relaxed);
    const std::uint64_t b = second.word.load(std::memory_order_relaxed);
    if (same_function(a, function)) return first;
    if (same_function(b, function)) return second;
    if (a == 0) return first;
    if (b == 0) return second;
    // Both taken: the one that is thrown out is learned again at its next launch.
    return (chance() & 1) != 0 ? first : second;
  }

  // Irregular, so that a kernel's look does not fall on the same place in each step.
  std::uint32_t interval() noexcept { return 32 + (chance() & 63); }
  std::uint32_t chance() noexcept {
    std::uint32_t x = chance_.load(std::memory_order_relaxed);
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    chance_.store(x, std::memory_order_relaxed);
    return x >> 8;
  }

  void watch_for_overdue_step() noexcept {
    looks_in_step_.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t looks = looks_since_step_.fetch_add(1, std::memory_order_relaxed) + 1;
    const std::uint32_t patience = patience_.load(std::memory_order_relaxed);
    const std::uint32_t usual = usual_looks_.load(std::memory_order_relaxed);
    if (usual == 0) return;  // no step so far: nothing is overdue
    if (looks < (2 * usual + kOverdueLooks) * patience) return;
    looks_since_step_.store(0, std::memory_order_relaxed);
    if (patience < 1u << 12) patience_.store(patience * 2, std::memory_order_relaxed);
    forget();
  }

  alignas(64) Entry entries_[1u << kBits];  // both places of a function in one cache line
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::uint64_t> steps_{0};             // since the last forget()
  std::atomic<std::uint32_t> looks_since_step_{0};  // outside, since a launch inside or a forget()
  std::atomic<std::uint32_t> looks_in_step_{0};
  std::atomic<std::uint32_t> usual_looks_{0};
  std::atomic<std::uint32_t> patience_{1};
  std::atomic<std::uint32_t> chance_{0x2545f491};
  std::atomic<std::uint32_t> relearned_{0};
};

}  // namespace gpubusy::runtime
