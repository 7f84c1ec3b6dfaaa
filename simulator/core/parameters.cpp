// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/parameters.hpp"

#include <stdio.h>
#include <stdlib.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>

extern char** environ;

namespace gpubusy::sim {
namespace {

constexpr std::string_view kPrefix = "GPUBUSY_SIM_";

std::string format(double value) {
  char text[40];
  snprintf(text, sizeof text, "%.10g", value);
  return text;
}

std::string limits_of(double least, double greatest) {
  return "a number from " + format(least) + " to " + format(greatest);
}

std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const double value = strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || errno != 0 || !std::isfinite(value)) return {};
  return value;
}

std::string trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

// Empty if the value was taken.
std::string set(Parameters& parameters, std::string_view name, const std::string& value,
                bool& known) {
  known = true;
#define NUMBER(member, default_value, least, greatest, unit, meaning) \
  if (name == #member) {                                              \
    const std::optional<double> number = parse_number(value);         \
    if (!number || *number < (least) || *number > (greatest)) {       \
      return limits_of(least, greatest);                              \
    }                                                                 \
    parameters.member = *number;                                      \
    return "";                                                        \
  }
#define TEXT(member, default_value, meaning) \
  if (name == #member) {                     \
    parameters.member = value;               \
    return "";                               \
  }
#include "simulator/core/parameters.def"
#undef NUMBER
#undef TEXT
  known = false;
  return "one of the names that gpubusy-sim --list-parameters shows";
}

void report(std::vector<std::string>& problems, const std::string& where, const std::string& value,
            const std::string& allowed) {
  problems.push_back(where + ": '" + value + "' is not allowed: " + allowed);
}

void read_file(const char* path, LoadedParameters& loaded) {
  FILE* file = fopen(path, "re");
  if (file == nullptr) {
    report(loaded.problems, "GPUBUSY_SIM_CONFIG", path,
           std::string("a file that can be read (") + strerror(errno) + ")");
    return;
  }
  char* buffer = nullptr;
  size_t capacity = 0;
  for (int number = 1; getline(&buffer, &capacity, file) >= 0; ++number) {
    const std::string line = trim(std::string_view(buffer).substr(0, strcspn(buffer, "#")));
    if (line.empty()) continue;
    const std::string where = std::string(path) + ":" + std::to_string(number);
    const auto equals = line.find('=');
    if (equals == line.npos) {
      report(loaded.problems, where, line, "name = value");
      continue;
    }
    const std::string name = trim(std::string_view(line).substr(0, equals));
    const std::string value = trim(std::string_view(line).substr(equals + 1));
    bool known = false;
    const std::string allowed = set(loaded.values, name, value, known);
    if (!allowed.empty()) report(loaded.problems, where + ": " + name, value, allowed);
  }
  free(buffer);
  fclose(file);
}

void check_faults(const char* name, std::string& value, std::vector<std::string>& problems) {
  std::vector<Fault> faults;
  const std::string problem = parse_faults(value, faults);
  if (problem.empty()) return;
  report(problems, environment_name(name), value, problem);
  value.clear();
}

}  // namespace

std::string parse_faults(std::string_view text, std::vector<Fault>& faults) {
  static constexpr const char* kForm = "NAME@N=VALUE,... with N from 1 and a number as VALUE";
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string item = trim(text.substr(0, comma));
    text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
    if (item.empty()) continue;
    const auto at = item.find('@');
    const auto equals = item.find('=');
    if (at == 0 || at == item.npos || equals == item.npos || equals < at) return kForm;
    Fault fault;
    fault.once = item[equals - 1] == '!';
    fault.name = item.substr(0, at);
    const auto count = parse_number(item.substr(at + 1, equals - fault.once - at - 1));
    const auto value = parse_number(item.substr(equals + 1));
    if (!count || *count < 1 || *count > 1e15 || !value || *value < 0) return kForm;
    fault.count = static_cast<unsigned long long>(*count);
    fault.value = *value;
    faults.push_back(fault);
  }
  return "";
}

std::vector<ParameterInfo> parameter_list() {
  return {
#define NUMBER(member, default_value, least, greatest, unit, meaning) \
  {#member, format(default_value), limits_of(least, greatest), unit, meaning},
#define TEXT(member, default_value, meaning) {#member, default_value, "text", "", meaning},
#include "simulator/core/parameters.def"
#undef NUMBER
#undef TEXT
  };
}

std::string environment_name(std::string_view name) {
  std::string result(kPrefix);
  for (const char c : name) result += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return result;
}

LoadedParameters load_parameters() {
  LoadedParameters loaded;
  if (const char* path = getenv("GPUBUSY_SIM_CONFIG"); path != nullptr && *path != '\0') {
    read_file(path, loaded);
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view line(*entry);
    if (!line.starts_with(kPrefix)) continue;
    const auto equals = line.find('=');
    if (equals == line.npos) continue;
    const std::string_view variable = line.substr(0, equals);
    if (variable == "GPUBUSY_SIM_CONFIG" || equals + 1 == line.size()) continue;
    std::string name;
    for (const char c : variable.substr(kPrefix.size())) {
      name += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    const std::string value(line.substr(equals + 1));
    bool known = false;
    const std::string allowed = set(loaded.values, name, value, known);
    if (!allowed.empty()) report(loaded.problems, std::string(variable), value, allowed);
  }
  check_faults("fail", loaded.values.fail, loaded.problems);
  check_faults("stall", loaded.values.stall, loaded.problems);
  return loaded;
}

}  // namespace gpubusy::sim
