// SPDX-License-Identifier: Apache-2.0
//
// Runs a model. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/whatif/model.hpp"

namespace gpubusy::analysis::whatif {

struct Replay {
  // From the moment a step is done, by the host and by the device, to that of the next; without the
  // first step, whose beginning was not seen.
  std::vector<std::uint64_t> step_ns;
  std::uint64_t busy_ns = 0;  // the device's work in these, all streams added up
  double mean_ns() const;
};

Replay replay(const Model& model);

}  // namespace gpubusy::analysis::whatif
