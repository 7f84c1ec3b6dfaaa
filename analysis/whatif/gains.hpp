// SPDX-License-Identifier: Apache-2.0
//
// What the cure of a finding would bring. Pure functions but for the Study they are given.
#pragma once

#include <string>
#include <vector>

#include "analysis/report.hpp"
#include "analysis/whatif/changes.hpp"

namespace gpubusy::analysis::whatif {

// The change that stands for the cure of a finding (changes.hpp); empty: none does.
std::string change_for(const Finding& finding, const ProcessReport& report, unsigned processors);

// … of all problems of a report, dearest finding first, each once.
std::vector<Change> standard_changes(const ProcessReport& report, unsigned processors);

class Study;
// Sets Finding::gain of the report's first problems.
void add_gains(Study& study, ProcessReport& report);

}  // namespace gpubusy::analysis::whatif
