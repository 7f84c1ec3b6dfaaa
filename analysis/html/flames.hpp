// SPDX-License-Identifier: Apache-2.0
//
// Flame graphs for the HTML report, by Python stack: where the idle time of the judged steps, their
// launches and their device time come from. Thread-safe.
#pragma once

#include <string>

#include "analysis/html/judged_process.hpp"

namespace gpubusy::analysis {

// {"idle": {"unit": "ns", "root": NODE}, …}; NODE is {"name", "value", "children": [NODE, …]},
// dearest first; "user": 1 marks the program's own code. The root has the whole; calls without a
// stack are a child of it, and children too small to show are one, so that nothing is left out in
// silence.
std::string flames_json(const JudgedProcess& process);

}  // namespace gpubusy::analysis
