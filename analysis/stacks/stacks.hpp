// SPDX-License-Identifier: Apache-2.0
//
// The whole stack of a call: native and Python frames in one list, innermost first. Where both were
// recorded, Python's frames stand in the place of the interpreter's frames that ran them.
// Work and memory go with the number of distinct stack nodes, not with that of calls.
// Thread-safety: one thread per object (it caches); recording and names must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/source_lines.hpp"
#include "analysis/symbols/native_names.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

using FrameId = std::uint32_t;
using StackId = std::uint32_t;  // 0: no stack was recorded

struct Frame {
  recording::FrameKind kind = recording::FrameKind::kNative;
  std::string function;        // Python: qualified where known; native: demangled; empty: not known
  std::string file;            // of the source; empty: not known
  std::string module;          // of a native frame: path of the object; empty: none
  int line = 0;                // 0: not known
  int first_line = 0;          // of a Python function
  std::uint32_t code = 0;      // of a Python function: key of Recording::codes
  std::uint64_t location = 0;  // of a native frame: its return address
  bool user = false;           // the program's own code: no library, no interpreter
  bool plumbing = false;       // how an interpreter or libc calls what matters
  bool inlined = false;        // into the frame outside of it
};

// "train.py:57 main", "at::native::copy_kernel_cuda", "[libcudart.so.13]", "0x7f12": for people.
std::string label(const Frame& frame);

// A demangled C++ name without its arguments, template arguments and return type.
std::string short_function(std::string_view demangled);

class Stacks {
 public:
  // Without names native frames have no functions, and modules only as far as the recording tells.
  explicit Stacks(const recording::Recording& recording, NativeNames* names = nullptr);

  StackId id_of(const recording::Call& call);
  std::size_t size() const { return stacks_.size(); }  // ids are smaller than this

  enum class Show { kAll, kWithoutPlumbing };
  // Innermost first. `node`: what tells one place in a function from another.
  struct Place {
    FrameId frame;
    std::uint64_t node;
  };
  std::vector<Place> places(StackId stack, Show show = Show::kWithoutPlumbing);
  bool is_cut(StackId stack);  // the stack goes on behind its outermost frame

  const Frame& frame(FrameId id) const { return frames_[id]; }
  bool has_names() const { return names_ != nullptr; }
  const recording::Recording& recording() const { return recording_; }

 private:
  struct Stack {
    std::uint32_t native, python;
  };
  struct NodeFrames {
    std::uint32_t first = 0, count = 0;  // into pool_
  };
  const NodeFrames& frames_of(std::uint32_t node, const recording::StackNode& data);
  FrameId python_frame(std::uint64_t location);
  void add_native(std::uint64_t location, NodeFrames& out);
  FrameId intern(Frame frame);
  bool append(std::uint32_t node, recording::FrameKind only, bool all_kinds,
              std::vector<Place>& out);

  const recording::Recording& recording_;
  NativeNames* names_;
  SourceLines lines_;
  std::deque<Frame> frames_;
  using Key = std::tuple<recording::FrameKind, std::string, std::string, std::string, int, bool,
                         std::uint64_t>;
  std::map<Key, FrameId> frame_ids_;
  std::vector<FrameId> pool_;
  std::unordered_map<std::uint32_t, NodeFrames> by_node_;
  std::vector<Stack> stacks_;
  std::unordered_map<std::uint64_t, StackId> ids_;
};

// The frames of a stack for display, outermost first: without plumbing, one entry for neighbours of
// one unnamed object. Never empty: a call without a stack is "unknown", and where the stack was cut
// "..." stands for what lies outside.
struct NamedFrame {
  std::string name;
  const Frame* frame = nullptr;  // nullptr: none
};
std::vector<NamedFrame> named_frames(Stacks& stacks, StackId stack);

// A recorded object that holds an address at some time; nullptr: none. The newest wins.
const recording::Module* module_at(const recording::Recording& recording, std::uint64_t address);

}  // namespace gpubusy::analysis
