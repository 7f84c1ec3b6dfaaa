// SPDX-License-Identifier: Apache-2.0
//
// What only several ranks' reports together tell: who waits for whom. Thread-safe.
#pragma once

#include "analysis/report.hpp"

namespace gpubusy::analysis {

// Where a rank waits in collectives and another hardly does, the first one's finding names the
// other.
void compare_ranks(SessionReport& session);

}  // namespace gpubusy::analysis
