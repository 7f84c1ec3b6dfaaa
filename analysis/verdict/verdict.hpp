// SPDX-License-Identifier: Apache-2.0
//
// From numbers to findings: a table of independent functions (findings.hpp). Thread-safe.
#pragma once

#include <vector>

#include "analysis/report.hpp"

namespace gpubusy::analysis {

// All findings, dearest first; information last, but a busy GPU without problems first.
std::vector<Finding> find_all(const ProcessReport& report);

}  // namespace gpubusy::analysis
