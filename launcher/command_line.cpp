// SPDX-License-Identifier: Apache-2.0
#include "launcher/command_line.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

#include "launcher/hook_names.hpp"

namespace gpubusy::launcher {
namespace {

struct Flag {
  const char* name;
  const char* short_name;
  const char* value;  // nullptr: takes none; "[=N]": may have one
  const char* help;
};

constexpr Flag kRunFlags[] = {
    {"--quiet", "-q", nullptr, "no verdict at the end; trouble is still told"},
    {"--no-export", "", nullptr, "no traces at the end; `gpubusy export` makes them later"},
    {"--json", "", nullptr, "the verdict as JSON"},
    {"--report", "", "FILE", "write the verdict to FILE as well"},
    {"--html", "", "FILE", "write the verdict and a timeline to FILE, one HTML page"},
    {"--explain-schedule", "", "[=STEPS]",
     "show which steps the schedule idles, warms up and records; run nothing"},
    {"--help", "-h", nullptr, "this text"},
    {"--version", "-V", nullptr, "version"},
};
constexpr Flag kReportFlags[] = {
    {"--json", "", nullptr, "as JSON"},
    {"--markdown", "", nullptr, "as Markdown, for an issue or a pull request"},
    {"--report", "", "FILE", "write to FILE instead of standard output"},
    {"--by", "", "WHAT",
     "report: instead of the verdict a table by line, function, operator, stack or phase"},
    {"--top", "", "N", "report --by: rows to show, the others summed; 0: all; default 20"},
    {"--symbols", "", "DIR", "look in DIR too for the program's files and debug files; repeatable"},
    {"--html", "", "FILE", "write the verdict and a timeline to FILE, one HTML page (report only)"},
    {"--no-compress", "", nullptr, "for browsers before 2023: a larger page"},
};
constexpr Flag kWhatIfFlags[] = {
    {"--change", "", "CHANGE", "what is changed; may be given several times"},
    {"--together", "", nullptr, "all changes at once, else each by itself"},
    {"--processors", "", "N", "that the program may use, else those of this machine"},
    {"--json", "", nullptr, "as JSON"},
    {"--report", "", "FILE", "write to FILE instead of standard output"},
};
constexpr Flag kCompareFlags[] = {
    {"--fail-if", "", "CONDITION",
     "exit with 3 if it holds beyond noise, e.g. 'step_time>5%'; may be repeated"},
    {"--strict", "", nullptr, "also where too few steps or nothing measured leave it open"},
};
constexpr Flag kDoctorFlags[] = {
    {"--json", "", nullptr, "as JSON"},
    {"--help", "-h", nullptr, "this text"},
};
constexpr Flag kExportFlags[] = {
    {"--output", "-o", "DIR", "existing directory for the traces, else next to the recordings"},
    {"--format", "", "FORMAT",
     "trace (a Chrome trace, the default), folded (collapsed stacks) or pprof (profile.proto)"},
    {"--weight", "", "WHAT",
     "folded: device-time (the default), host-time, launches or idle, of the judged steps"},
    {"--no-compress", "", nullptr, ".json instead of .json.gz"},
    {"--no-frames", "", nullptr, "trace: no rows of Python functions and operators"},
    {"--prelude", "", nullptr, "also what came before the first step"},
    {"--window", "", "N[..M]", "only the window of this number, or these"},
    {"--symbols", "", "DIR", "look in DIR too for the program's files and debug files; repeatable"},
    {"--quiet", "-q", nullptr, "do not print the names of the traces"},
};

// Walks over arguments; splits --name=value.
class Arguments {
 public:
  explicit Arguments(const std::vector<std::string>& all) : all_(all) {}
  bool at_end() const { return next_ == all_.size(); }
  const std::string& peek() const { return all_[next_]; }
  void skip() { ++next_; }
  std::vector<std::string> rest() const {
    return {all_.begin() + static_cast<std::ptrdiff_t>(next_), all_.end()};
  }

  // Takes the option at the front: its name, and the value behind '=' if there is one.
  std::string take_name() {
    const std::string& text = all_[next_++];
    name_ = text;
    attached_.reset();
    const std::size_t equals = text.find('=');
    if (text.starts_with("--") && equals != std::string::npos) {
      name_ = text.substr(0, equals);
      attached_ = text.substr(equals + 1);
    } else if (text.starts_with("-o") && !text.starts_with("--") && text.size() > 2) {
      name_ = "-o";
      attached_ = text.substr(2);
    }
    return name_;
  }
  tl::expected<std::string, std::string> take_value() {
    if (attached_) return *attached_;
    if (at_end() || all_[next_] == "--") {
      return tl::unexpected(fmt::format("{} needs a value", name_));
    }
    return all_[next_++];
  }
  const std::optional<std::string>& attached() const { return attached_; }

 private:
  const std::vector<std::string>& all_;
  std::size_t next_ = 0;
  std::string name_;
  std::optional<std::string> attached_;
};

bool is_option(const std::string& text) { return text.size() > 1 && text[0] == '-'; }

const config::OptionInfo* setting_by_flag(std::string_view flag) {
  for (std::size_t i = 0; i < config::kOptionCount; ++i) {
    if (flag == config::kOptions[i].flag) return &config::kOptions[i];
  }
  return nullptr;
}

template <std::size_t N>
const Flag* flag_by_name(const Flag (&flags)[N], std::string_view name) {
  for (const Flag& flag : flags) {
    if (name == flag.name || (flag.short_name[0] != '\0' && name == flag.short_name)) return &flag;
  }
  return nullptr;
}

tl::unexpected<std::string> unknown_option(const std::string& name, std::string_view where) {
  return tl::unexpected(
      fmt::format("unknown option {}; `gpubusy --help` lists those of {}", name, where));
}

// Strict, as config's: digits only.
tl::expected<std::uint64_t, std::string> whole_number(const std::string& text, std::uint64_t least,
                                                      std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || number < least ||
      number > most) {
    return tl::unexpected(fmt::format("allowed is a whole number from {} to {}", least, most));
  }
  return number;
}

// The value of an option that knows some words.
template <typename Value, std::size_t N>
tl::expected<Value, std::string> one_of(const std::pair<std::string_view, Value> (&words)[N],
                                        const std::string& name, const std::string& text) {
  std::string allowed;
  for (const auto& [word, value] : words) {
    if (word == text) return value;
    allowed += (allowed.empty() ? "" : ", ") + std::string(word);
  }
  return tl::unexpected(fmt::format("{}='{}': allowed are {}", name, text, allowed));
}

constexpr std::pair<std::string_view, analysis::GroupBy> kGroups[] = {
    {"line", analysis::GroupBy::kLine},
    {"function", analysis::GroupBy::kFunction},
    {"operator", analysis::GroupBy::kOperator},
    {"stack", analysis::GroupBy::kStack},
    {"phase", analysis::GroupBy::kPhase}};
constexpr std::pair<std::string_view, ExportFormat> kFormats[] = {{"trace", ExportFormat::kTrace},
                                                                  {"folded", ExportFormat::kFolded},
                                                                  {"pprof", ExportFormat::kPprof}};
constexpr std::pair<std::string_view, analysis::Weight> kWeights[] = {
    {"device-time", analysis::Weight::kDeviceTime},
    {"host-time", analysis::Weight::kHostTime},
    {"launches", analysis::Weight::kLaunches},
    {"idle", analysis::Weight::kIdle}};

// What would be without effect is refused.
std::string what_does_not_fit(const CommandLine& line, bool has_top, bool has_weight) {
  if (line.action == Action::kCompare && line.by) return "--by is for report";
  if (has_top && !line.by) return "--top needs --by";
  if (line.by && line.markdown) return "--by has no Markdown form; allowed is --json";
  if (line.by && !line.html_file.empty()) return "--by and --html: one of them";
  if (has_weight && line.format != ExportFormat::kFolded) return "--weight needs --format folded";
  if (line.format == ExportFormat::kTrace) return {};
  if (line.window) return "--window needs --format trace; stacks are of the judged steps";
  if (line.include_prelude) return "--prelude needs --format trace";
  if (!line.frames) return "--no-frames needs --format trace";
  if (!line.compress) return "--no-compress needs --format trace";
  return {};
}

// compare BEFORE AFTER, compare BEFORE… -- AFTER…; `separated`: a -- stood between.
tl::expected<void, std::string> split_sides(CommandLine& line, bool separated) {
  if (!separated && line.paths.size() == 2) {
    line.after = {line.paths[1]};
    line.paths.pop_back();
  }
  if (!line.paths.empty() && !line.after.empty()) return {};
  if (separated) {
    return tl::unexpected(
        std::string("compare needs runs on both sides of --: compare BEFORE... -- AFTER..."));
  }
  return tl::unexpected(fmt::format(
      "compare needs two directories or files of a recording, {} given{}", line.paths.size(),
      line.paths.size() > 2 ? "; of several runs: compare BEFORE... -- AFTER..." : ""));
}

tl::expected<CommandLine, std::string> parse_later_command(CommandLine line, Arguments arguments,
                                                           std::string_view word) {
  bool has_top = false, has_weight = false, separated = false;
  while (!arguments.at_end()) {
    if (!is_option(arguments.peek())) {
      (separated ? line.after : line.paths).push_back(arguments.peek());
      arguments.skip();
      continue;
    }
    if (arguments.peek() == "--") {
      arguments.skip();
      // Behind the first run it parts the sides; else, and the second time, it ends the options.
      if (line.action == Action::kCompare && !line.paths.empty() && !separated) {
        separated = true;
        continue;
      }
      if (separated) {
        for (std::string& path : arguments.rest()) line.after.push_back(std::move(path));
        break;
      }
      for (std::string& path : arguments.rest()) line.paths.push_back(std::move(path));
      break;
    }
    const std::string name = arguments.take_name();
    if (name == "--help" || name == "-h") {
      line.action = Action::kHelp;
      return line;
    }
    const Flag* flag = line.action == Action::kExport   ? flag_by_name(kExportFlags, name)
                       : line.action == Action::kWhatIf ? flag_by_name(kWhatIfFlags, name)
                                                        : flag_by_name(kReportFlags, name);
    if (flag == nullptr && line.action == Action::kCompare) {
      flag = flag_by_name(kCompareFlags, name);
    }
    if (flag == nullptr) return unknown_option(name, word);
    if (flag->value == nullptr && arguments.attached()) {
      return tl::unexpected(fmt::format("{} takes no value", name));
    }
    const std::string_view known = flag->name;
    if (known == "--json") {
      line.json = true;
    } else if (known == "--markdown") {
      line.markdown = true;
    } else if (known == "--strict") {
      line.strict = true;
    } else if (known == "--no-compress") {
      line.compress = false;
    } else if (known == "--no-frames") {
      line.frames = false;
    } else if (known == "--prelude") {
      line.include_prelude = true;
    } else if (known == "--quiet") {
      line.quiet = true;
    } else if (known == "--together") {
      line.together = true;
    } else {
      auto value = arguments.take_value();
      if (!value) return tl::unexpected(std::move(value).error());
      if (value->empty()) return tl::unexpected(fmt::format("{} needs a value", name));
      if (known == "--window") {
        const std::size_t dots = value->find("..");
        const auto first = whole_number(value->substr(0, dots), 0, 0xffffffff);
        const auto last = dots == std::string::npos ? first
                                                    : whole_number(value->substr(dots + 2),
                                                                   first.value_or(0), 0xffffffff);
        if (!first || !last) {
          return tl::unexpected(
              fmt::format("--window='{}': {}", *value, first ? last.error() : first.error()));
        }
        line.window = static_cast<std::uint32_t>(*first);
        line.last_window = static_cast<std::uint32_t>(*last);
      } else if (known == "--change") {
        line.changes.push_back(std::move(*value));
      } else if (known == "--processors") {
        const auto number = whole_number(*value, 1, 65'536);
        if (!number)
          return tl::unexpected(fmt::format("--processors='{}': {}", *value, number.error()));
        line.processors = static_cast<unsigned>(*number);
      } else if (known == "--fail-if") {
        line.conditions.push_back(std::move(*value));
      } else if (known == "--symbols") {
        line.symbol_directories.push_back(std::move(*value));
      } else if (known == "--html") {
        line.html_file = std::move(*value);
      } else if (known == "--output") {
        line.export_directory = std::move(*value);
      } else if (known == "--by") {
        const auto by = one_of(kGroups, name, *value);
        if (!by) return tl::unexpected(by.error());
        line.by = *by;
      } else if (known == "--format") {
        const auto format = one_of(kFormats, name, *value);
        if (!format) return tl::unexpected(format.error());
        line.format = *format;
      } else if (known == "--weight") {
        const auto weight = one_of(kWeights, name, *value);
        if (!weight) return tl::unexpected(weight.error());
        line.weight = *weight;
        has_weight = true;
      } else if (known == "--top") {
        const auto top = whole_number(*value, 0, 1'000'000'000);
        if (!top) return tl::unexpected(fmt::format("--top='{}': {}", *value, top.error()));
        line.top = *top;
        has_top = true;
      } else {
        line.report_file = std::move(*value);
      }
    }
  }
  if (line.action == Action::kCompare && (!line.html_file.empty() || !line.compress)) {
    return tl::unexpected(std::string("compare has no HTML page: gpubusy report DIR --html FILE"));
  }
  if (std::string problem = what_does_not_fit(line, has_top, has_weight); !problem.empty()) {
    return tl::unexpected(std::move(problem));
  }
  if (line.action == Action::kCompare) {
    if (auto split = split_sides(line, separated); !split) {
      return tl::unexpected(std::move(split).error());
    }
  } else if (line.paths.size() != 1) {
    return tl::unexpected(fmt::format("{} needs one directory or file of a recording, {} given",
                                      word, line.paths.size()));
  }
  if (line.json && line.markdown) {
    return tl::unexpected(std::string("--json and --markdown: one of them"));
  }
  return line;
}

// A message about a variable that was set by an option names the option.
std::string name_options(std::string text, const CommandLine& line) {
  for (std::size_t i = 0; i < config::kOptionCount; ++i) {
    const config::OptionInfo& option = config::kOptions[i];
    if (!text.starts_with(std::string(option.variable) + "=")) continue;
    bool given = line.has_output && std::string_view(option.member) == "output";
    for (const auto& [variable, value] : line.variables)
      given = given || variable == option.variable;
    if (given) return option.flag + text.substr(std::strlen(option.variable));
  }
  return text;
}

using Settings = std::vector<std::pair<const config::OptionInfo*, std::string>>;

// --step call:NAME: a name that the library would refuse once the program runs.
tl::expected<void, std::string> check_step_call(const config::Config& c) {
  if (c.step_kind != config::StepKind::kCall || can_end_steps(c.step_pattern)) return {};
  const std::string near = nearest_step_call(c.step_pattern);
  return tl::unexpected(
      fmt::format("GPUBUSY_STEP={}: '{}' is not a function whose calls are recorded; allowed is "
                  "one of the CUDA runtime or driver, e.g. call:{}",
                  c.step, c.step_pattern, near.empty() ? "cudaGraphLaunch" : near));
}

// Fills in line.config from variables and options, and judges it.
tl::expected<void, std::string> settle(CommandLine& line, const Settings& settings,
                                       const char* const* variables) {
  config::Problem problem{};
  config::set_defaults(line.config);
  if (!config::load(line.config, variables, problem)) {
    return tl::unexpected(std::string(problem.text));
  }
  line.has_output = line.config.output[0] != '\0';
  for (const auto& [setting, value] : settings) {
    if (!config::set_option(line.config, *setting, value.c_str(), setting->flag, problem)) {
      return tl::unexpected(std::string(problem.text));
    }
    if (std::string_view(setting->member) == "output") {
      if (value.empty()) {
        return tl::unexpected(std::string("--output='': allowed is the name of a directory"));
      }
      line.has_output = true;
    } else {
      line.variables.emplace_back(setting->variable, value);
    }
  }
  if (!config::finish(line.config, problem)) {
    return tl::unexpected(name_options(problem.text, line));
  }
  if (const auto step = check_step_call(line.config); !step) {
    return tl::unexpected(name_options(step.error(), line));
  }
  return {};
}

}  // namespace

tl::expected<CommandLine, std::string> parse_command_line(const std::vector<std::string>& all,
                                                          const char* const* environment) {
  CommandLine line;
  Arguments arguments(all);
  if (!all.empty() && all[0] == "doctor") {
    arguments.skip();
    line.action = Action::kDoctor;
  } else if (!all.empty()) {
    constexpr std::pair<std::string_view, Action> kWords[] = {{"report", Action::kReport},
                                                              {"export", Action::kExport},
                                                              {"compare", Action::kCompare},
                                                              {"whatif", Action::kWhatIf}};
    for (const auto& [word, action] : kWords) {
      if (all[0] != word) continue;
      arguments.skip();
      line.action = action;
      return parse_later_command(std::move(line), arguments, word);
    }
  }

  // Options win over variables, so a variable is judged only where no option replaces it.
  Settings settings;
  while (!arguments.at_end() && is_option(arguments.peek())) {
    if (arguments.peek() == "--") {
      arguments.skip();
      break;
    }
    const std::string name = arguments.take_name();
    const std::string_view long_name = name == "-o" ? "--output" : std::string_view(name);
    if (const config::OptionInfo* setting = setting_by_flag(long_name)) {
      auto value = arguments.take_value();
      if (!value) return tl::unexpected(std::move(value).error());
      settings.emplace_back(setting, std::move(*value));
      continue;
    }
    const bool doctor = line.action == Action::kDoctor;
    const Flag* flag = doctor ? flag_by_name(kDoctorFlags, name) : flag_by_name(kRunFlags, name);
    if (flag == nullptr) return unknown_option(name, doctor ? "doctor" : "gpubusy");
    if (flag->value == nullptr && arguments.attached()) {
      return tl::unexpected(fmt::format("{} takes no value", name));
    }
    const std::string_view known = flag->name;
    if (known == "--quiet") {
      line.quiet = true;
    } else if (known == "--no-export") {
      line.export_traces = false;
    } else if (known == "--json") {
      line.json = true;
    } else if (known == "--report" || known == "--html") {
      auto value = arguments.take_value();
      if (!value) return tl::unexpected(std::move(value).error());
      if (value->empty()) return tl::unexpected(fmt::format("{} needs the name of a file", known));
      (known == "--html" ? line.html_file : line.report_file) = std::move(*value);
    } else if (known == "--explain-schedule") {
      line.action = Action::kExplainSchedule;
      if (arguments.attached()) {
        const auto number = whole_number(*arguments.attached(), 1, 9999999999);
        if (!number) {
          return tl::unexpected(
              fmt::format("--explain-schedule='{}': {}", *arguments.attached(), number.error()));
        }
        line.explained_steps = *number;
      }
    } else {
      line.action = known == "--help" ? Action::kHelp : Action::kVersion;
      return line;
    }
  }

  std::vector<const char*> variables;
  for (const char* const* e = environment; e != nullptr && *e != nullptr; ++e) {
    bool replaced = false;
    for (const auto& [setting, value] : settings) {
      const std::size_t size = std::strlen(setting->variable);
      replaced = replaced || (std::strncmp(*e, setting->variable, size) == 0 && (*e)[size] == '=');
    }
    if (!replaced) variables.push_back(*e);
  }
  variables.push_back(nullptr);

  if (auto settled = settle(line, settings, variables.data()); !settled) {
    if (line.action != Action::kDoctor) return tl::unexpected(std::move(settled).error());
    line.settings_problem = std::move(settled).error();
  }
  if (line.config.export_traces == 0) line.export_traces = false;
  if (line.action == Action::kExplainSchedule) return line;
  line.command = arguments.rest();
  if (line.action == Action::kDoctor && line.command.empty()) return line;
  if (line.command.empty()) {
    return tl::unexpected(
        std::string("no command; usage: gpubusy [options] [--] command [arguments...]"));
  }
  if (line.command[0].empty()) return tl::unexpected(std::string("the command's name is empty"));
  return line;
}

namespace {

std::string default_text(const config::OptionInfo& option) {
  if (option.kind == config::Kind::Text) {
    if (option.text_default[0] != '\0') return option.text_default;
    return std::string_view(option.member) == "output" ? "gpubusy-<UTC time>-<pid>" : "none";
  }
  if (option.kind == config::Kind::Size) {
    constexpr std::pair<unsigned, char> kUnits[] = {{30, 'G'}, {20, 'M'}, {10, 'K'}};
    for (const auto& [shift, unit] : kUnits) {
      const std::uint64_t number = option.number_default >> shift;
      if (number != 0 && number << shift == option.number_default) {
        return fmt::format("{}{}", number, unit);
      }
    }
  }
  return fmt::format("{}", option.number_default);
}

const char* value_name(config::Kind kind) {
  switch (kind) {
    case config::Kind::Text: return "TEXT";
    case config::Kind::Switch: return "0|1";
    case config::Kind::Size: return "SIZE";
    case config::Kind::Count: break;
  }
  return "N";
}

void add_flag(std::string& out, const Flag& flag) {
  std::string left =
      flag.short_name[0] == '\0' ? flag.name : fmt::format("{}, {}", flag.short_name, flag.name);
  if (flag.value != nullptr)
    left += flag.value[0] == '[' ? flag.value : fmt::format(" {}", flag.value);
  out += fmt::format("  {:<28} {}\n", left, flag.help);
}

}  // namespace

std::string help_text() {
  std::string out =
      "Tells whether the GPU is busy while a program runs and, if not, why.\n"
      "\n"
      "  gpubusy [options] [--] command [arguments...]\n"
      "  gpubusy report DIR [--json | --markdown] [--report FILE] [--html FILE]\n"
      "  gpubusy report DIR --by line|function|operator|stack|phase [--top N] [--json]\n"
      "  gpubusy export DIR [-o DIR] [--no-compress] [--prelude] [--window N[..M]]\n"
      "  gpubusy export DIR --format folded|pprof [--weight WHAT] [-o DIR]\n"
      "  gpubusy compare BEFORE AFTER [--fail-if CONDITION]... [--json | --markdown]\n"
      "  gpubusy compare BEFORE... -- AFTER... [--fail-if CONDITION]...\n"
      "  gpubusy whatif DIR [--change CHANGE]... [--together] [--json]\n"
      "  gpubusy doctor [options] [--json] [--] [command [arguments...]]\n"
      "\n"
      "The program runs as it would without gpubusy: same output, same exit status. The verdict\n"
      "goes to standard error, recordings and traces into the output directory.\n"
      "\n"
      "Settings (each also as an environment variable, which works without this launcher):\n";
  for (std::size_t i = 0; i < config::kOptionCount; ++i) {
    const config::OptionInfo& option = config::kOptions[i];
    const std::string left =
        fmt::format("{}{} {}", std::string_view(option.member) == "output" ? "-o, " : "",
                    option.flag, value_name(option.kind));
    out += fmt::format("  {:<28} {}\n{:31}{}, default {}\n", left, option.help, "", option.variable,
                       default_text(option));
  }
  out += "\nOptions:\n";
  for (const Flag& flag : kRunFlags) add_flag(out, flag);
  out += "\nOptions of report and compare:\n";
  for (const Flag& flag : kReportFlags) add_flag(out, flag);
  out += "\nOptions of whatif:\n";
  for (const Flag& flag : kWhatIfFlags) add_flag(out, flag);
  out += "\nOptions of compare:\n";
  for (const Flag& flag : kCompareFlags) add_flag(out, flag);
  out += "\nOptions of export:\n";
  for (const Flag& flag : kExportFlags) add_flag(out, flag);
  out +=
      "\n"
      "Exit status: the program's own; if it was ended by a signal, gpubusy ends by the same.\n"
      "125: gpubusy refused to start it. 126: it cannot be executed. 127: it was not found.\n"
      "compare: 3 where a condition of --fail-if holds. doctor: 1 where a recording will not "
      "work.\n"
      "A program called report, export, compare, whatif or doctor: gpubusy -- report ...\n";
  return out;
}

}  // namespace gpubusy::launcher
