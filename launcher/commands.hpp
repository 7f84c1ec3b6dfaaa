// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launcher/command_line.hpp"

namespace gpubusy::launcher {

inline constexpr int kExitNothing = 1;    // report and friends: nothing to tell
inline constexpr int kExitWorse = 3;      // compare: a condition of --fail-if holds
inline constexpr int kExitRefused = 125;  // as env(1) and timeout(1)
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// Runs the program. Returns only where it could not be started; else ends as the program did.
int run_command(const CommandLine& line);

int report_command(const CommandLine& line);
int export_command(const CommandLine& line);
int compare_command(const CommandLine& line);
int whatif_command(const CommandLine& line);
int doctor_command(const CommandLine& line);

}  // namespace gpubusy::launcher
