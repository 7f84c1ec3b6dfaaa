// SPDX-License-Identifier: Apache-2.0
#include "analysis/passes.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "analysis/thresholds.hpp"
#include "analysis/timeline.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Recording;

constexpr std::size_t kMaxDepth = 256;

// A call that asks for work or waits for it, with those without a stack that follow it.
struct Event {
  std::uint32_t python_stack;
  std::uint64_t end_ns;
  std::size_t work;  // calls that ask for work
};

struct Frame {
  std::uint32_t node = 0, code = 0, offset = 0;
};

// The thread that asks for most work, and what it did.
std::vector<Event> events_of(const Recording& recording, const recording::Window& window) {
  std::unordered_map<std::uint32_t, std::vector<Event>> by_thread;
  std::unordered_map<std::uint32_t, std::size_t> work;
  for (const Call& call : recording.calls) {
    if (call.start_ns < window.begin_ns || call.start_ns > window.end_ns) continue;
    const bool wants = wants_device_work(call);
    if (!wants && !waits_for_device(call)) continue;
    std::vector<Event>& events = by_thread[call.thread_id];
    if (call.python_stack != 0) {
      events.push_back({call.python_stack, call.end_ns, wants});
    } else if (!events.empty()) {
      events.back().end_ns = std::max(events.back().end_ns, call.end_ns);
      events.back().work += wants;
    }
    work[call.thread_id] += wants;
  }
  const auto most = std::max_element(work.begin(), work.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second, a.first) < std::pair(b.second, b.first);
  });
  return most == work.end() ? std::vector<Event>() : std::move(by_thread[most->first]);
}

// Frames of stacks, outermost first.
class Frames {
 public:
  explicit Frames(const Recording& recording) : recording_(recording) {}

  const std::vector<Frame>& of(std::uint32_t stack) {
    const auto [it, fresh] = by_stack_.try_emplace(stack);
    if (!fresh) return it->second;
    std::vector<Frame>& frames = it->second;
    for (std::uint32_t id = stack; id != 0 && frames.size() < kMaxDepth;) {
      const auto node = recording_.stack_nodes.find(id);
      if (node == recording_.stack_nodes.end()) break;
      if (node->second.kind == recording::FrameKind::kPython) {
        frames.push_back({id, static_cast<std::uint32_t>(node->second.location >> 32),
                          static_cast<std::uint32_t>(node->second.location)});
      }
      id = node->second.parent;
    }
    std::reverse(frames.begin(), frames.end());
    return frames;
  }

 private:
  const Recording& recording_;
  std::unordered_map<std::uint32_t, std::vector<Frame>> by_stack_;
};

// Going back within a function: what a loop does at the end of each turn, and so does a function
// that is called from one place again.
struct Jump {
  std::size_t event;        // the first behind it
  std::uint32_t low, high;  // offsets of instructions
};
struct Place {  // one function, as called from one instruction
  std::size_t depth;
  std::uint32_t caller, code;
  auto operator<=>(const Place&) const = default;
};

std::map<Place, std::vector<Jump>> jumps_of(const std::vector<Event>& events, Frames& frames) {
  std::map<Place, std::vector<Jump>> out;
  for (std::size_t i = 1; i < events.size(); ++i) {
    const std::uint32_t from = events[i - 1].python_stack, to = events[i].python_stack;
    if (from == to) continue;
    const std::vector<Frame>&a = frames.of(from), &b = frames.of(to);
    const std::size_t depth = std::min(a.size(), b.size());
    std::size_t d = 0;
    while (d < depth && a[d].node == b[d].node) ++d;
    if (d == depth || a[d].code != b[d].code || b[d].offset >= a[d].offset) continue;
    out[{d, d == 0 ? 0 : a[d - 1].node, a[d].code}].push_back({i, b[d].offset, a[d].offset});
  }
  return out;
}

// Jumps of one function are of one loop where they cross the same instructions; by event.
std::vector<std::vector<Jump>> loops_of(std::vector<Jump> jumps) {
  std::sort(jumps.begin(), jumps.end(), [](const Jump& a, const Jump& b) { return a.low < b.low; });
  std::vector<std::vector<Jump>> out;
  std::uint32_t high = 0;
  for (const Jump& jump : jumps) {
    if (out.empty() || jump.low >= high) out.emplace_back();
    high = std::max(out.back().empty() ? 0 : high, jump.high);
    out.back().push_back(jump);
  }
  for (std::vector<Jump>& loop : out) {
    std::sort(loop.begin(), loop.end(),
              [](const Jump& a, const Jump& b) { return a.event < b.event; });
  }
  return out;
}

// Passes ask for about the same amount of work each, and for most of all.
bool are_passes(const std::vector<Jump>& loop, const std::vector<std::size_t>& work_before) {
  if (loop.size() < kFewestPasses + 1) return false;
  std::vector<std::size_t> work;
  for (std::size_t i = 1; i < loop.size(); ++i) {
    work.push_back(work_before[loop[i].event] - work_before[loop[i - 1].event]);
  }
  std::vector<std::size_t> sorted = work;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t median = sorted[sorted.size() / 2];
  const auto alike = std::count_if(work.begin(), work.end(), [&](std::size_t n) {
    return n > 0 && n * 2 >= median && n <= median * 2;
  });
  const std::size_t inside = work_before[loop.back().event] - work_before[loop.front().event];
  return static_cast<double>(alike) >= kEvenPasses * static_cast<double>(work.size()) &&
         inside * 2 >= work_before.back();
}

}  // namespace

Passes find_passes(const Recording& recording, const recording::Window& window) {
  const std::vector<Event> events = events_of(recording, window);
  std::vector<std::size_t> work_before = {0};
  for (const Event& event : events) work_before.push_back(work_before.back() + event.work);

  Frames frames(recording);
  Passes out;
  const std::vector<Jump>* best = nullptr;
  std::size_t best_depth = 0;
  std::vector<std::vector<std::vector<Jump>>> kept;        // keeps `best` alive
  for (auto& [place, jumps] : jumps_of(events, frames)) {  // outermost first
    if (best != nullptr && place.depth > best_depth) break;
    for (const std::vector<Jump>& loop : kept.emplace_back(loops_of(std::move(jumps)))) {
      if (!are_passes(loop, work_before) || (best != nullptr && loop.size() <= best->size())) {
        continue;
      }
      best = &loop;
      best_depth = place.depth;
    }
  }
  if (best == nullptr) return out;
  for (const Jump& jump : *best) {
    const std::uint64_t edge = events[jump.event - 1].end_ns;
    if (out.edges_ns.empty() || edge > out.edges_ns.back()) out.edges_ns.push_back(edge);
  }
  for (std::size_t i = best->front().event; i < events.size() && out.python_stack == 0; ++i) {
    if (events[i].work == 0) continue;
    // Down to the function that the loop is in: a stack that is cut there is one, too.
    const std::vector<Frame>& stack = frames.of(events[i].python_stack);
    if (best_depth < stack.size()) out.python_stack = stack[best_depth].node;
  }
  return out;
}

}  // namespace gpubusy::analysis
