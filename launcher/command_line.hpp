// SPDX-License-Identifier: Apache-2.0
//
// The launcher's command line. The settings of the library come from config/options.def; the parser
// is our own because options must end at the program's name and values such as -1 must reach the
// check that explains them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/stacks/tables.hpp"
#include "analysis/stacks/weights.hpp"
#include "config/config.hpp"

namespace gpubusy::launcher {

enum class Action : std::uint8_t {
  kRun,
  kReport,
  kExport,
  kCompare,
  kWhatIf,
  kDoctor,
  kExplainSchedule,
  kHelp,
  kVersion
};

enum class ExportFormat : std::uint8_t { kTrace, kFolded, kPprof };

struct CommandLine {
  Action action = Action::kRun;

  // Environment and options together, checked.
  config::Config config{};
  // Options of the command line as variables of the library. Without the output directory.
  std::vector<std::pair<std::string, std::string>> variables;
  bool has_output = false;  // config.output was given by option or variable

  bool quiet = false;
  bool export_traces = true;
  bool json = false;
  bool markdown = false;
  bool strict = false;                  // kCompare
  std::vector<std::string> conditions;  // kCompare: as given
  std::string report_file;
  std::string html_file;
  std::uint64_t explained_steps = 0;  // 0: as many as show the pattern

  std::vector<std::string> command;            // kRun, kDoctor
  std::string settings_problem;                // kDoctor: what kRun would refuse
  std::vector<std::string> paths;              // kReport, kExport, kWhatIf; kCompare: runs before
  std::vector<std::string> after;              // kCompare: runs after
  std::optional<analysis::GroupBy> by;         // kReport; none: the verdict
  std::uint64_t top = 20;                      // kReport; rows of a table, 0: all
  ExportFormat format = ExportFormat::kTrace;  // kExport
  analysis::Weight weight = analysis::Weight::kDeviceTime;  // kExport; of folded stacks
  bool compress = true;                                     // kExport, and kReport's page
  bool frames = true;                           // kExport; rows of Python functions and operators
  bool include_prelude = false;                 // kExport
  std::string export_directory;                 // kExport; empty: next to the recordings
  std::vector<std::string> changes;             // kWhatIf, in order
  bool together = false;                        // kWhatIf: all changes at once
  unsigned processors = 0;                      // kWhatIf; 0: those of this machine
  std::optional<std::uint32_t> window;          // kExport: only this one …
  std::optional<std::uint32_t> last_window;     // … or those from it to this one
  std::vector<std::string> symbol_directories;  // kReport, kExport, kCompare
};

// The error is one line without "gpubusy: ".
tl::expected<CommandLine, std::string> parse_command_line(const std::vector<std::string>& arguments,
                                                          const char* const* environment);

std::string help_text();

}  // namespace gpubusy::launcher
