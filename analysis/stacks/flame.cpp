// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/flame.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "analysis/json_text.hpp"

namespace gpubusy::analysis {
namespace {

struct Node {
  std::uint64_t value = 0;
  std::uint32_t parent = 0;
  bool user = false, python = false;
};

constexpr std::uint32_t kRoot = 0;

// The tree before it is cut: nodes by (parent, name).
class Tree {
 public:
  Tree() { nodes_.push_back({}), names_.push_back("all"); }

  void add(const std::vector<const Frame*>& outermost_first, std::uint64_t value,
           const std::vector<std::string>& names) {
    std::uint32_t at = kRoot;
    nodes_[kRoot].value += value;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto [it, fresh] =
          ids_.try_emplace({at, names[i]}, static_cast<std::uint32_t>(nodes_.size()));
      if (fresh) {
        Node node;
        node.parent = at;
        if (outermost_first[i] != nullptr) {
          node.user = outermost_first[i]->user;
          node.python = outermost_first[i]->kind == recording::FrameKind::kPython;
        }
        nodes_.push_back(node);
        names_.push_back(names[i]);
      }
      at = it->second;
      nodes_[at].value += value;
    }
  }

  FlameNode cut(const FlameOptions& options) const {
    std::uint64_t least =
        static_cast<std::uint64_t>(static_cast<double>(nodes_[kRoot].value) * options.least_share);
    if (nodes_.size() > options.max_nodes) {
      std::vector<std::uint64_t> values;
      for (const Node& node : nodes_) values.push_back(node.value);
      const auto nth = values.begin() +
                       static_cast<std::ptrdiff_t>(std::max<std::size_t>(options.max_nodes, 1)) - 1;
      std::nth_element(values.begin(), nth, values.end(), std::greater<>());
      least = std::max(least, *nth);
    }
    std::vector<std::vector<std::uint32_t>> children(nodes_.size());
    for (std::uint32_t i = 1; i < nodes_.size(); ++i) children[nodes_[i].parent].push_back(i);
    std::size_t room = options.max_nodes;
    return take(kRoot, least, children, room);
  }

 private:
  FlameNode take(std::uint32_t id, std::uint64_t least,
                 const std::vector<std::vector<std::uint32_t>>& children, std::size_t& room) const {
    FlameNode out;
    out.name = names_[id];
    out.value = nodes_[id].value;
    out.user = nodes_[id].user;
    out.python = nodes_[id].python;
    std::vector<std::uint32_t> sorted = children[id];
    std::stable_sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
      return nodes_[a].value > nodes_[b].value;
    });
    std::uint64_t other = 0;
    std::vector<std::uint32_t> kept;
    for (const std::uint32_t child : sorted) {
      const std::uint64_t value = nodes_[child].value;
      if (value == 0) continue;
      if (value < least || room == 0) {
        other += value;
      } else {
        --room;
        kept.push_back(child);
      }
    }
    for (const std::uint32_t child : kept) {
      out.children.push_back(take(child, least, children, room));
    }
    if (other > 0) {
      FlameNode rest;
      rest.name = "other";
      rest.value = other;
      out.children.push_back(std::move(rest));
    }
    return out;
  }

  std::vector<Node> nodes_;
  std::vector<std::string> names_;
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> ids_;
};

void append(std::string& out, const FlameNode& node) {
  out += "{\"name\": ";
  append_json_string(out, node.name);
  out += ", \"value\": " + std::to_string(node.value);
  if (node.user) out += ", \"user\": true";
  if (node.python) out += ", \"python\": true";
  if (!node.children.empty()) {
    out += ", \"children\": [";
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0) out += ", ";
      append(out, node.children[i]);
    }
    out += ']';
  }
  out += '}';
}

}  // namespace

FlameNode flame_tree(Stacks& stacks, const StackWeights& weights, const FlameOptions& options) {
  Tree tree;
  for (StackId stack = 0; stack < weights.by_stack.size(); ++stack) {
    const std::uint64_t value = value_of(weights.by_stack[stack], options.weight);
    if (value == 0) continue;
    std::vector<const Frame*> frames;
    std::vector<std::string> names;
    for (const NamedFrame& named : named_frames(stacks, stack)) {
      frames.push_back(named.frame);
      names.push_back(named.name);
    }
    tree.add(frames, value, names);
  }
  return tree.cut(options);
}

std::string flame_json(const FlameNode& root) {
  std::string out;
  append(out, root);
  return out;
}

}  // namespace gpubusy::analysis
