// SPDX-License-Identifier: Apache-2.0
//
// What the cure of a finding would bring. Pure but for reading the number of processors.
#pragma once

#include <string>

#include "analysis/report.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis::whatif {

// The change that stands for the cure of a finding (changes.hpp); empty: none does.
std::string change_for(const Finding& finding, const ProcessReport& report, unsigned processors);

// Sets Finding::gain of the report's first problems, where its steps can be predicted from.
void add_gains(const recording::Recording& recording, const Timeline& timeline,
               ProcessReport& report);

}  // namespace gpubusy::analysis::whatif
