// SPDX-License-Identifier: Apache-2.0
#include "analysis/html/flames.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "analysis/json_text.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Recording;

constexpr std::size_t kMaxDepth = 128;
constexpr double kLeastShare = 1.0 / 2000;  // narrower than a pixel

using Sums = std::unordered_map<std::uint32_t, std::uint64_t>;  // by Python stack

struct Node {
  std::uint64_t value = 0;
  bool user = false;
  std::map<std::string, Node> children;
};

void append_node(std::string& out, const std::string& name, const Node& node, std::uint64_t least) {
  out += "{\"name\":";
  append_json_string(out, name);
  out += fmt::format(",\"value\":{}", node.value);
  if (node.user) out += ",\"user\":1";
  std::vector<const std::pair<const std::string, Node>*> shown;
  std::uint64_t small = 0;
  for (const auto& child : node.children) {
    if (child.second.value >= least) {
      shown.push_back(&child);
    } else {
      small += child.second.value;
    }
  }
  std::stable_sort(shown.begin(), shown.end(),
                   [](const auto* a, const auto* b) { return a->second.value > b->second.value; });
  if (!shown.empty() || small > 0) {
    const char* comma = ",\"children\":[";
    for (const auto* child : shown) {
      out += comma;
      comma = ",";
      append_node(out, child->first, child->second, least);
    }
    if (small > 0) out += fmt::format("{}{{\"name\":\"(small ones)\",\"value\":{}}}", comma, small);
    out += ']';
  }
  out += '}';
}

void append_flame(std::string& out, const char* unit, const Sums& sums, SourceLines& lines) {
  Node root;
  for (const auto& [stack, value] : sums) {
    if (value == 0) continue;
    root.value += value;
    Node* node = &root;
    const std::vector<SourceLine> frames = lines.frames(stack, kMaxDepth);
    if (frames.empty()) root.children["(no Python stack)"].value += value;
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      node = &node->children[to_text(*frame)];
      node->value += value;
      node->user = frame->user;
    }
  }
  out += fmt::format("{{\"unit\":\"{}\",\"root\":", unit);
  append_node(out, "all", root,
              static_cast<std::uint64_t>(static_cast<double>(root.value) * kLeastShare));
  out += '}';
}

}  // namespace

std::string flames_json(const JudgedProcess& process) {
  const Recording& recording = process.recording;
  const std::vector<Step>& steps = process.selection.steps;
  Sums idle, launches, device_time;
  for (const DeviceOp& op : process.timeline.ops) {
    const recording::Call& call = recording.calls[op.call];
    if (step_at(steps, call.start_ns) == kNoCall) continue;
    device_time[call.python_stack] += op.end_ns - op.start_ns;
  }
  for (const recording::Call& call : recording.calls) {
    const bool launch = call.category == recording::Category::kLaunch ||
                        call.category == recording::Category::kGraphLaunch;
    if (launch && step_at(steps, call.start_ns) != kNoCall) ++launches[call.python_stack];
  }
  for (const IdlePiece& piece : process.times.pieces) {
    idle[piece.call == kNoCall ? 0 : recording.calls[piece.call].python_stack] += piece.ns;
  }
  SourceLines lines(recording);
  std::string out = "{\"idle\":";
  append_flame(out, "ns", idle, lines);
  out += ",\n\"device\":";
  append_flame(out, "ns", device_time, lines);
  out += ",\n\"launches\":";
  append_flame(out, "launches", launches, lines);
  return out + '}';
}

}  // namespace gpubusy::analysis
