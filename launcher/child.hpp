// SPDX-License-Identifier: Apache-2.0
//
// Runs the program as a child in our own process group and session, so that the terminal, Ctrl-C
// and job control treat it as if it had been started alone, and hands on what only we received.
// One at a time; changes the process's signal mask and dispositions.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpubusy::launcher {

struct ChildResult {
  pid_t pid = -1;
  int exec_error = 0;  // errno of exec; the program never ran
  int status = 0;      // as waitpid gives it
};

// `arguments` and `environment` for execvpe. Returns when the child itself has ended, whatever its
// own children do.
ChildResult run_child(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& environment);

// From here on a signal that would end us ends us as the child ended, at once.
void end_as_child_on_signals(int status);

// Exits with the child's code, or dies by the child's signal.
[[noreturn]] void end_as_child(int status);

}  // namespace gpubusy::launcher
