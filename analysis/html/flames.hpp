// SPDX-License-Identifier: Apache-2.0
//
// Flame graphs for the HTML report, by whole stack: where the idle time of the judged steps, their
// launches and their device time come from. Thread-safe.
#pragma once

#include <string>

#include "analysis/html/judged_process.hpp"

namespace gpubusy::analysis {

// {"idle": {"unit": "ns", "root": NODE}, …}; NODE as flame_json() of analysis/stacks/flame.hpp.
std::string flames_json(const JudgedProcess& process);

}  // namespace gpubusy::analysis
