// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/frame_slices.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::FrameKind;
using recording::Recording;

// Of one invocation of an operator; one that launches more is taken for several.
constexpr std::size_t kMaxSeen = 4096;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

// As torch.profiler has it: "torch/nn/modules/linear.py(128): Linear.forward".
std::string python_name(const Frame& frame) {
  std::string_view file = frame.file;
  for (const std::string_view mark : {"/site-packages/", "/dist-packages/"}) {
    const std::size_t at = file.rfind(mark);
    if (at != std::string_view::npos) file = file.substr(at + mark.size());
  }
  return fmt::format("{}({}): {}", file, frame.first_line, frame.function);
}

}  // namespace

FrameSlices::FrameSlices(const Recording& recording, Operators& operators, std::uint32_t first,
                         std::uint32_t last, ByThread obstacles, ByThread library_calls,
                         std::size_t limit)
    : recording_(recording), operators_(operators), stacks_(operators.stacks()), limit_(limit) {
  std::map<std::uint32_t, ThreadState> threads;
  std::map<std::uint32_t, Obstacles> in_the_way;
  for (auto& [id, intervals] : obstacles) {
    Obstacles& o = in_the_way[id];
    o.by_end = intervals;
    o.by_begin = std::move(intervals);
    std::sort(o.by_begin.begin(), o.by_begin.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    std::sort(o.by_end.begin(), o.by_end.end(),
              [](const Interval& a, const Interval& b) { return a.end < b.end; });
  }
  for (auto& [id, intervals] : library_calls) {
    std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
      return std::pair(a.begin, b.end) < std::pair(b.begin, a.end);
    });
    std::vector<Interval>& outermost = in_the_way[id].library_calls;
    for (const Interval& interval : intervals) {
      if (outermost.empty() || interval.begin >= outermost.back().end) {
        outermost.push_back(interval);
      }
    }
  }
  for (std::uint32_t i = first; i < last; ++i) {
    const Call& call = recording.calls[i];
    ThreadState& thread = threads[call.thread_id];
    const Chain& chain = chain_of(stacks_.id_of(call));
    std::size_t same = 0;
    while (same < std::min(thread.open.size(), chain.elements.size()) &&
           thread.open[same].element.context == chain.elements[same].context &&
           thread.open[same].element.name == chain.elements[same].name) {
      ++same;
    }
    // The same instructions again, to the last: a loop has begun its operator anew.
    const bool again = same > chain.repeats && (thread.seen.size() >= kMaxSeen ||
                                                std::find(thread.seen.begin(), thread.seen.end(),
                                                          chain.whole) != thread.seen.end());
    if (again) same = chain.repeats;
    if (same <= chain.repeats) thread.seen.clear();
    thread.seen.push_back(chain.whole);
    const std::size_t at = thread.calls.size();
    thread.calls.push_back(i);
    close(thread, same, at, in_the_way[call.thread_id]);
    for (std::size_t d = same; d < chain.elements.size(); ++d) {
      thread.open.push_back({chain.elements[d], static_cast<std::uint32_t>(at)});
    }
  }
  for (auto& [id, thread] : threads) close(thread, 0, thread.calls.size(), in_the_way[id]);
  std::sort(slices_.begin(), slices_.end(), [](const FrameSlice& a, const FrameSlice& b) {
    return std::pair(a.first_call, a.depth) < std::pair(b.first_call, b.depth);
  });
}

const Interval* FrameSlices::Obstacles::round(const Call& call) const {
  const auto behind =
      std::partition_point(library_calls.begin(), library_calls.end(),
                           [&](const Interval& i) { return i.begin <= call.start_ns; });
  if (behind == library_calls.begin()) return nullptr;
  const Interval& found = *std::prev(behind);
  return call.end_ns <= found.end ? &found : nullptr;
}

std::uint64_t FrameSlices::Obstacles::first_crossing(std::uint64_t begin, std::uint64_t end) const {
  std::uint64_t edge = end;
  const auto inside = std::partition_point(by_end.begin(), by_end.end(),
                                           [&](const Interval& o) { return o.end <= begin; });
  for (auto o = inside; o != by_end.end() && o->end < edge; ++o) {
    if (o->begin < begin) edge = o->end;
  }
  const auto later = std::partition_point(by_begin.begin(), by_begin.end(),
                                          [&](const Interval& o) { return o.begin <= begin; });
  for (auto o = later; o != by_begin.end() && o->begin < edge; ++o) {
    if (o->end > end) edge = o->begin;
  }
  return edge;
}

std::uint32_t FrameSlices::name_id(std::string name) {
  const auto [it, fresh] =
      name_ids_.try_emplace(std::move(name), static_cast<std::uint32_t>(names_.size()));
  if (fresh) names_.push_back(it->first);
  return it->second;
}

const FrameSlices::Chain& FrameSlices::chain_of(StackId stack) {
  const auto [it, fresh] = chains_.try_emplace(stack);
  if (!fresh) return it->second;
  Chain& chain = it->second;
  const StackFacts& facts = operators_.of(stack);
  const std::vector<Stacks::Place> places = stacks_.places(stack);
  std::size_t next = 0;  // of the operators
  std::uint64_t context = 0;
  for (std::size_t i = places.size(); i-- > 0;) {
    const Frame& frame = stacks_.frame(places[i].frame);
    if (frame.kind == FrameKind::kPython) {
      chain.elements.push_back({context, name_id(python_name(frame)), FrameSlice::Kind::kPython});
    }
    for (; next < facts.operators.size() && facts.operators[next].place == i; ++next) {
      if (facts.operators_guessed) continue;
      const std::string& name = facts.operators[next].name;
      chain.elements.push_back({context, name_id(name),
                                name.starts_with("Optimizer.step#") ? FrameSlice::Kind::kAnnotation
                                                                    : FrameSlice::Kind::kOperator});
    }
    if (frame.kind == FrameKind::kPython) chain.repeats = chain.elements.size();
    const auto node = recording_.stack_nodes.find(static_cast<std::uint32_t>(places[i].node >> 16));
    context = mixed(mixed(context, static_cast<std::uint64_t>(frame.kind)),
                    node->second.location + (places[i].node & 0xffff));
  }
  chain.whole = context;
  return chain;
}

// Closes what is open from a depth on; `end`: behind its last call.
void FrameSlices::close(ThreadState& thread, std::size_t depth, std::size_t end,
                        const Obstacles& obstacles) {
  while (thread.open.size() > depth) {
    const Open open = thread.open.back();
    thread.open.pop_back();
    emit(thread, open, thread.open.size(), open.first, end - 1, obstacles);
  }
}

// The slice of calls [first, last] of a thread; in pieces where it would cross an obstacle.
void FrameSlices::emit(const ThreadState& thread, const Open& open, std::size_t depth,
                       std::size_t first, std::size_t last, const Obstacles& obstacles) {
  const auto call = [&](std::size_t i) -> const Call& { return recording_.calls[thread.calls[i]]; };
  while (true) {
    // Round a library's call as far as all that is in it belongs to the frame.
    const auto begin_of = [&](std::size_t i) {
      const Interval* library = obstacles.round(call(i));
      const bool whole = library != nullptr && (i == 0 || call(i - 1).end_ns <= library->begin);
      return whole ? library->begin : call(i).start_ns;
    };
    const auto end_of = [&](std::size_t i) {
      const Interval* library = obstacles.round(call(i));
      const bool whole = library != nullptr &&
                         (i + 1 == thread.calls.size() || call(i + 1).start_ns >= library->end);
      return whole ? library->end : call(i).end_ns;
    };
    const std::uint64_t begin = begin_of(first), end = end_of(last);
    const std::uint64_t edge = obstacles.first_crossing(begin, end);
    std::size_t next = last + 1;
    if (edge < end) {
      const auto behind = std::partition_point(
          thread.calls.begin() + static_cast<std::ptrdiff_t>(first),
          thread.calls.begin() + static_cast<std::ptrdiff_t>(last) + 1,
          [&](std::uint32_t i) { return recording_.calls[i].start_ns < edge; });
      next = std::max(static_cast<std::size_t>(behind - thread.calls.begin()), first + 1);
    }
    if (slices_.size() < limit_) {
      slices_.push_back({begin, end_of(next - 1), thread.calls[first], thread.calls[next - 1],
                         open.element.name, static_cast<std::uint32_t>(depth), open.element.kind});
    } else {
      ++left_out_;
    }
    if (next > last) return;
    first = next;
  }
}

}  // namespace gpubusy::analysis
