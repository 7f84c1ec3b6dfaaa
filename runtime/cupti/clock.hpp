// SPDX-License-Identifier: Apache-2.0
//
// From CUPTI's clock to CLOCK_MONOTONIC. CUPTI's times are those of CLOCK_REALTIME, or of whatever
// function the program has registered (PyTorch: the processor's time stamp counter), and nobody
// tells which: both clocks are read together now and then, and times are interpolated in between.
// A function of ours is never registered: it would change the program's own records.
// Thread-safety: none; one user at a time (the harvest's lock, the client's for start).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cupti/library.hpp"

namespace gpubusy::runtime::cupti {

class Clock {
 public:
  // Forgets: from here on the clock may be another one.
  void restart(std::uint32_t epoch) noexcept {
    epoch_ = epoch;
    count_ = 0;
  }
  std::uint32_t epoch() const noexcept { return epoch_; }
  // Reads both clocks.
  void sample(const Activities& cupti) noexcept;
  struct Time {
    std::uint64_t ns;
    std::uint32_t uncertainty_ns;
  };
  Time convert(std::uint64_t cupti) const noexcept;
  bool ready() const noexcept { return count_ != 0; }
  std::uint64_t newest_ns() const noexcept { return count_ == 0 ? 0 : samples_[count_ - 1].ns; }

 private:
  struct Sample {
    std::uint64_t cupti, ns;
    std::uint32_t uncertainty_ns;
    bool is_realtime;
  };
  static constexpr std::size_t kSamples = 128;
  Sample samples_[kSamples] = {};  // by time
  std::size_t count_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace gpubusy::runtime::cupti
