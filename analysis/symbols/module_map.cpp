// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/module_map.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kMaxCompared = 16;  // modules of one address

bool same_object(const recording::Module& a, const recording::Module& b) {
  return std::tie(a.base, a.path, a.build_id) == std::tie(b.base, b.path, b.build_id);
}

}  // namespace

ModuleMap::ModuleMap(const std::vector<recording::Module>& modules) {
  struct Edge {
    std::uint64_t address;
    std::size_t module;
    bool begins;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].begin >= modules[i].end) continue;
    edges.push_back({modules[i].begin, i, true});
    edges.push_back({modules[i].end, i, false});
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.address < b.address; });
  std::set<std::size_t> there;  // as found: the last is the latest
  for (std::size_t i = 0; i < edges.size();) {
    const std::uint64_t address = edges[i].address;
    for (; i < edges.size() && edges[i].address == address; ++i) {
      if (edges[i].begins) {
        there.insert(edges[i].module);
      } else {
        there.erase(edges[i].module);
      }
    }
    Segment segment{address, {}};
    if (!there.empty()) {
      segment.found.module = *there.rbegin();
      std::size_t compared = 0;
      for (auto other = there.rbegin(); other != there.rend(); ++other) {
        segment.found.doubtful = segment.found.doubtful || ++compared > kMaxCompared ||
                                 !same_object(modules[*other], modules[segment.found.module]);
        if (segment.found.doubtful) break;
      }
    }
    segments_.push_back(segment);
  }
}

ModuleMap::Found ModuleMap::at(std::uint64_t address) const {
  auto segment =
      std::upper_bound(segments_.begin(), segments_.end(), address,
                       [](std::uint64_t value, const Segment& s) { return value < s.begin; });
  return segment == segments_.begin() ? Found{} : (--segment)->found;
}

}  // namespace gpubusy::analysis
