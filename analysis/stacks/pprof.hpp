// SPDX-License-Identifier: Apache-2.0
//
// The calls of the judged steps as a profile of Google's pprof (profile.proto), not compressed.
// Sample types: launches, copies, calls (count), host_time, device_time, gpu_idle (nanoseconds),
// allocated (bytes). Thread-safe.
#pragma once

#include <string>

#include "analysis/stacks/stacks.hpp"
#include "analysis/stacks/weights.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

std::string pprof_profile(const recording::Recording& recording, const Judged& judged,
                          Stacks& stacks, const StackWeights& weights);

}  // namespace gpubusy::analysis
