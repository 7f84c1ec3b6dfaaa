// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "config/schedule.hpp"

namespace gpubusy::launcher {

// A table of step ranges: idle, warm-up, recorded. `steps` 0: the whole schedule, or its first
// three cycles where it goes on for ever.
std::string explain_schedule(const config::Schedule& schedule, std::uint64_t steps);

}  // namespace gpubusy::launcher
