// SPDX-License-Identifier: Apache-2.0
#include "analysis/html/flames.hpp"

#include <memory>

#include <fmt/format.h>

#include "analysis/stacks/flame.hpp"
#include "analysis/stacks/stacks.hpp"
#include "analysis/symbols/native_names.hpp"

namespace gpubusy::analysis {

std::string flames_json(const JudgedProcess& process) {
  struct Shown {
    const char* id;
    const char* unit;
    Weight weight;
  };
  static constexpr Shown kShown[] = {{"idle", "ns", Weight::kIdle},
                                     {"device", "ns", Weight::kDeviceTime},
                                     {"launches", "launches", Weight::kLaunches}};
  const std::unique_ptr<NativeNames> names = open_native_names(process.recording, {});
  Stacks stacks(process.recording, names.get());
  const StackWeights weights = weigh(process.recording, process, stacks);
  std::string out;
  for (const Shown& shown : kShown) {
    FlameOptions options;
    options.weight = shown.weight;
    out += fmt::format("{}\"{}\":{{\"unit\":\"{}\",\"root\":{}}}", out.empty() ? "{" : ",\n",
                       shown.id, shown.unit, flame_json(flame_tree(stacks, weights, options)));
  }
  return out + '}';
}

}  // namespace gpubusy::analysis
