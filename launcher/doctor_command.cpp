// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "launcher/commands.hpp"
#include "launcher/doctor/check.hpp"
#include "launcher/doctor/render.hpp"
#include "launcher/terminal.hpp"

extern char** environ;

namespace gpubusy::launcher {

int doctor_command(const CommandLine& line) {
  doctor::Machine machine = doctor::measure(line.command, environ, line.config, line.has_output);
  machine.settings_problem = line.settings_problem;
  machine.launcher_version = GPUBUSY_VERSION;
  const std::vector<doctor::Result> results = doctor::examine(machine);
  const std::string text = line.json
                               ? doctor::render_json(results, machine.launcher_version)
                               : doctor::render_text(results, text_options_for(STDOUT_FILENO));
  if (!write_all(STDOUT_FILENO, text)) return kExitNothing;
  return doctor::will_record(results) ? 0 : kExitNothing;
}

}  // namespace gpubusy::launcher
