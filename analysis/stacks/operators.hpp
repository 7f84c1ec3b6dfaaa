// SPDX-License-Identifier: Apache-2.0
//
// What a stack says of a call in PyTorch's words: the operators it is in, and the phase of
// training. docs/stacks.md has the rules. Thread-safety: one thread per object (it caches).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "analysis/stacks/stacks.hpp"

namespace gpubusy::analysis {

enum class Phase : std::uint8_t { kData, kForward, kBackward, kOptimizer, kEvaluation, kOther };
inline constexpr std::size_t kPhases = 6;
const char* phase_name(Phase phase);  // "data loading", "forward", …

// "aten::add_" of "add__Tensor", the name of a struct in at::_ops.
std::string aten_name(std::string_view struct_name);

struct Operator {
  std::string name;       // as torch.profiler names it
  std::size_t place = 0;  // index into Stacks::places() (without plumbing) of its outermost frame
};

struct StackFacts {
  std::vector<Operator> operators;  // outermost first
  bool operators_guessed = false;   // made of Python's frames: a function of torch, not an operator
  Phase phase = Phase::kOther;
  bool phase_guessed = false;
};

class Operators {
 public:
  explicit Operators(Stacks& stacks) : stacks_(stacks) {}
  Stacks& stacks() { return stacks_; }

  // The reference is good as long as the object.
  const StackFacts& of(StackId stack);

  // The phase of a call: of its stack, else of its thread (autograd's and the pinning one).
  Phase phase_of(const recording::Call& call);

  // The innermost operator, "?" before it where it is a guess; empty: none.
  std::string innermost(StackId stack);

 private:
  enum class Role : std::uint8_t {
    kNone,
    kOperator,        // is one, by its own name
    kRedispatch,      // the same operator again, or one whose call was not seen
    kPythonNode,      // runs the backward of a Python autograd.Function inside of it
    kPythonFunction,  // runs the forward of one
  };
  struct Named {
    Role role = Role::kNone;
    std::string name;
  };
  const Named& named(FrameId frame);
  std::vector<Operator> operators_of(const std::vector<Stacks::Place>& places);
  void guess_operator(const std::vector<Stacks::Place>& places, StackFacts& out);
  void find_phase(const std::vector<Stacks::Place>& places, StackFacts& out);

  Stacks& stacks_;
  std::unordered_map<FrameId, Named> names_;
  std::unordered_map<StackId, StackFacts> facts_;
  std::unordered_map<std::uint32_t, Phase> thread_phases_;
};

}  // namespace gpubusy::analysis
