// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/folded.hpp"

#include <cstdint>
#include <map>

#include <fmt/format.h>

namespace gpubusy::analysis {
namespace {

// The format knows no escapes: ";" divides frames, a line ends a stack.
std::string cleaned(std::string name) {
  for (char& c : name) {
    if (c == ';') c = ':';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return name;
}

}  // namespace

std::string folded_text(Stacks& stacks, const StackWeights& weights, Weight weight) {
  std::map<std::string, std::uint64_t> lines;
  for (StackId stack = 0; stack < weights.by_stack.size(); ++stack) {
    const std::uint64_t value = value_of(weights.by_stack[stack], weight);
    if (value == 0) continue;
    std::string line;
    for (const NamedFrame& frame : named_frames(stacks, stack)) {
      if (!line.empty()) line += ';';
      line += cleaned(frame.name);
    }
    lines[line] += value;
  }
  std::string out;
  for (const auto& [line, value] : lines) out += fmt::format("{} {}\n", line, value);
  return out;
}

}  // namespace gpubusy::analysis
