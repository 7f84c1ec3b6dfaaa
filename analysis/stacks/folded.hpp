// SPDX-License-Identifier: Apache-2.0
//
// Collapsed stacks, as flamegraph.pl, speedscope and inferno read them. Thread-safe.
#pragma once

#include <string>

#include "analysis/stacks/stacks.hpp"
#include "analysis/stacks/weights.hpp"

namespace gpubusy::analysis {

// One line per stack: "outermost;…;innermost value"; ns, or a number of launches. Stacks without
// weight are left out; the values add up to the weight's total.
std::string folded_text(Stacks& stacks, const StackWeights& weights, Weight weight);

}  // namespace gpubusy::analysis
