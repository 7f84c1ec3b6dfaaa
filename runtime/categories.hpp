// SPDX-License-Identifier: Apache-2.0
//
// What follows from the kind of a call.
#pragma once

#include "recording/format.hpp"

namespace gpubusy::runtime {

// Calls whose effect must be known also while nothing is recorded.
constexpr bool is_always_seen(recording::Category c) noexcept {
  using enum recording::Category;
  return c == kCapture || c == kModule || c == kContext || c == kProfiler;
}

// Calls that tell that this process uses CUDA in earnest: the first one opens the recording. Not
// what clears up: a forked child that never used CUDA frees its parent's things when it exits.
constexpr bool arms(recording::Category c) noexcept {
  using enum recording::Category;
  return c != kModule && c != kContext && c != kDeviceFree && c != kHostFree && c != kStream &&
         c != kEvent && c != kOther;
}

// Calls that never become records of their own (as Kineto leaves out cudaSetDevice), nor end steps.
constexpr bool is_recorded(recording::Category c) noexcept {
  return c != recording::Category::kContext;
}

constexpr bool is_device_work(recording::Category c) noexcept {
  using enum recording::Category;
  return c == kLaunch || c == kGraphLaunch || c == kCopy || c == kMemset;
}

}  // namespace gpubusy::runtime
