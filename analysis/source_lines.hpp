// SPDX-License-Identifier: Apache-2.0
//
// From the stack ids of a recording to source lines. Lines are worked out once per stack.
// Thread-safety: one thread per object (it caches); the recording must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct SourceLine {
  std::string file;  // as Python names it
  std::string function;
  int line = 0;       // 0: not known
  bool user = false;  // the program's own code: not a library, nor Python's

  bool known() const { return !file.empty(); }
  bool operator==(const SourceLine&) const = default;
};

// "train.py:57 (main)": the last part of the path; empty where nothing is known.
std::string to_text(const SourceLine& line);

// Whether a file is the user's own: not below site-packages, dist-packages or lib/python3.x, nor
// "<frozen …>", "<string>" and the like ("<stdin>" and notebook cells are the user's).
bool is_user_file(std::string_view file);

class SourceLines {
 public:
  explicit SourceLines(const recording::Recording& recording) : recording_(recording) {
    lines_.emplace_back();
  }

  // The innermost frame of the user's own code; else the innermost frame (user == false); else
  // nothing (stack 0, or frames that were not recorded).
  const SourceLine& of_stack(std::uint32_t python_stack) { return line(id_of(python_stack)); }

  // The same as a small number: equal lines have equal ids. 0: nothing is known.
  std::uint32_t id_of(std::uint32_t python_stack);
  const SourceLine& line(std::uint32_t id) const { return lines_[id]; }

  // Innermost first; at most `limit` frames.
  std::vector<SourceLine> frames(std::uint32_t python_stack, std::size_t limit);

  // Of one Python frame; not known for native ones.
  SourceLine of_frame(const recording::StackNode& node);

 private:
  SourceLine of_location(std::uint64_t location);

  const recording::Recording& recording_;
  std::deque<SourceLine> lines_;  // by id; references stay good
  std::map<std::tuple<std::string, std::string, int>, std::uint32_t> ids_;
  std::unordered_map<std::uint32_t, std::uint32_t> by_stack_;
  std::unordered_map<std::uint64_t, SourceLine> by_location_;
};

// A stretch of the program between two calls: "after train.py:63, before train.py:58".
struct Region {
  SourceLine after, before;
  bool known() const { return after.known() || before.known(); }
  bool operator==(const Region&) const = default;
};

// One function: "train.py:58-63 in main (after line 63, before line 58)"; else
// "after train.py:63 (main), before data.py:12 (load)"; empty where nothing is known.
std::string to_text(const Region& region);

}  // namespace gpubusy::analysis
