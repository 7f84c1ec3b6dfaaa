// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <vector>

#include "launcher/command_line.hpp"
#include "launcher/commands.hpp"
#include "launcher/explain_schedule.hpp"
#include "launcher/self_test.hpp"
#include "launcher/terminal.hpp"

extern char** environ;

namespace gpubusy::launcher {
namespace {

int run(const std::vector<std::string>& arguments) {
  const auto line = parse_command_line(arguments, environ);
  if (!line) {
    say(line.error());
    return kExitRefused;
  }
  switch (line->action) {
    case Action::kRun: return run_command(*line);
    case Action::kReport: return report_command(*line);
    case Action::kExport: return export_command(*line);
    case Action::kCompare: return compare_command(*line);
    case Action::kWhatIf: return whatif_command(*line);
    case Action::kDoctor: return doctor_command(*line);
    case Action::kHelp: return write_all(STDOUT_FILENO, help_text()) ? 0 : kExitNothing;
    case Action::kVersion:
      return write_all(STDOUT_FILENO, fmt::format("gpubusy {}\n", GPUBUSY_VERSION)) ? 0
                                                                                    : kExitNothing;
    case Action::kExplainSchedule: {
      const config::Config& c = line->config;
      const config::Schedule schedule{c.skip_first, c.skip_first_wait, c.wait,
                                      c.warmup,     c.active,          c.repeat};
      if (c.capture_kind != config::CaptureKind::kNone) {
        return write_all(STDOUT_FILENO,
                         fmt::format("The schedule does not apply: windows are opened and closed "
                                     "by the program, --capture-range {}\n",
                                     c.capture_range))
                   ? 0
                   : kExitNothing;
      }
      return write_all(STDOUT_FILENO, explain_schedule(schedule, line->explained_steps))
                 ? 0
                 : kExitNothing;
    }
  }
  return kExitRefused;
}

}  // namespace
}  // namespace gpubusy::launcher

int main(int argc, char** argv) {
  if (getenv(gpubusy::launcher::kSelfTestVariable) != nullptr) return 0;
  try {
    return gpubusy::launcher::run({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::exception& error) {
    gpubusy::launcher::say(error.what());
    return gpubusy::launcher::kExitRefused;
  }
}
