// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

namespace gpubusy::runtime {

// Tries until it succeeds, 50 us apart, but not for ever: who is waited for may have been stopped
// by a debugger, or have been interrupted by the very thread that waits. False: given up.
template <class Try>
bool patiently(int attempts, Try&& try_once) noexcept {
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) usleep(50);
    if (try_once()) return true;
  }
  return false;
}

}  // namespace gpubusy::runtime
