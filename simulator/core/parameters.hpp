// SPDX-License-Identifier: Apache-2.0
//
// The parameters of the simulated device. One table (parameters.def) gives members, limits, help.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpubusy::sim {

struct Parameters {
#define NUMBER(member, default_value, least, greatest, unit, meaning) double member = default_value;
#define TEXT(member, default_value, meaning) std::string member = default_value;
#include "simulator/core/parameters.def"
#undef NUMBER
#undef TEXT
};

// A call that is made to fail or to stall, from `fail` and `stall`.
struct Fault {
  std::string name;
  unsigned long long count = 1;
  bool once = false;
  double value = 0;
};

// "NAME@N=VALUE,...". Returns what is wrong with `text`, empty if nothing is.
std::string parse_faults(std::string_view text, std::vector<Fault>& faults);

struct ParameterInfo {
  const char* name;
  std::string default_value, limits, unit, meaning;
};
std::vector<ParameterInfo> parameter_list();
std::string environment_name(std::string_view name);

// One line for each value that cannot be used, in which case the default stands.
struct LoadedParameters {
  Parameters values;
  std::vector<std::string> problems;
};
LoadedParameters load_parameters();

}  // namespace gpubusy::sim
