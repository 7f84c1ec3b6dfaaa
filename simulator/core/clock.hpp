// SPDX-License-Identifier: Apache-2.0
//
// Simulated time is host time: CLOCK_MONOTONIC, in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace gpubusy::sim {

inline std::uint64_t now_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

enum class Waiting : std::uint8_t {
  kSpin,   // as CUDA does by default: precise, keeps a core busy for the last microseconds
  kYield,  // cudaEventBlockingSync: sleeps, wakes up late
};
void wait_until(std::uint64_t time_ns, Waiting how = Waiting::kSpin) noexcept;

}  // namespace gpubusy::sim
