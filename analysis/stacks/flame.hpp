// SPDX-License-Identifier: Apache-2.0
//
// A flame graph as data: the calls of the judged steps by whole stack, as a tree. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/stacks/weights.hpp"

namespace gpubusy::analysis {

struct FlameOptions {
  Weight weight = Weight::kDeviceTime;
  std::size_t max_nodes = 4000;     // beyond it the smallest become "other"
  double least_share = 1.0 / 2000;  // of the whole; what is less becomes "other"
};

struct FlameNode {
  std::string name;                 // of a frame, as people read it
  std::uint64_t value = 0;          // of the frame and all inside; ns, or a number of launches
  std::vector<FlameNode> children;  // dearest first; "other" last
  bool user = false;                // the program's own code
  bool python = false;
};

// The root is "all" and has the whole of the weight, so that nothing is left out in silence. Calls
// without a stack are "unknown".
FlameNode flame_tree(Stacks& stacks, const StackWeights& weights, const FlameOptions& options);

// {"name": …, "value": …, "user": true, "children": [ … ]}; `children` and flags only where there
// are any.
std::string flame_json(const FlameNode& root);

}  // namespace gpubusy::analysis
