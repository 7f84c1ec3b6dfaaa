// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/operators.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>

#include <fmt/format.h>

namespace gpubusy::analysis {
namespace {

using recording::FrameKind;

constexpr std::string_view kOverloads[] = {
#define OVERLOAD(name) #name,
#define WHOLE_NAME(name)
#include "analysis/stacks/aten_names.inc"
#undef WHOLE_NAME
#undef OVERLOAD
};
// Names whose end looks like an overload and is none.
constexpr std::string_view kWholeNames[] = {
#define OVERLOAD(name)
#define WHOLE_NAME(name) #name,
#include "analysis/stacks/aten_names.inc"
#undef WHOLE_NAME
#undef OVERLOAD
};

template <std::size_t N>
bool is_in(const std::string_view (&sorted)[N], std::string_view text) {
  return std::binary_search(std::begin(sorted), std::end(sorted), text);
}

// What stands between a start and the next "::", if it is followed by `behind`.
std::optional<std::string_view> part_between(std::string_view text, std::string_view start) {
  if (!text.starts_with(start)) return std::nullopt;
  text.remove_prefix(start.size());
  const std::size_t end = text.find("::");
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(0, end);
}

std::string_view last_name(std::string_view function) {
  const std::size_t at = function.rfind('.');
  return at == std::string_view::npos ? function : function.substr(at + 1);
}

bool in_file(const Frame& frame, std::string_view end) {
  return frame.kind == FrameKind::kPython && frame.file.ends_with(end);
}

// "torch.nn.functional.linear" for a frame in torch's own files; empty for others.
std::string torch_function(const Frame& frame) {
  if (frame.kind != FrameKind::kPython || frame.user) return {};
  const std::size_t at = frame.file.rfind("/torch/");
  if (at == std::string::npos || !frame.file.ends_with(".py")) return {};
  std::string name = frame.file.substr(at + 1, frame.file.size() - at - 4);
  std::replace(name.begin(), name.end(), '/', '.');
  return name + '.' + frame.function;
}

// How torch calls what matters; says nothing of the operation.
bool is_torch_wrapper(const Frame& frame) {
  return in_file(frame, "/torch/nn/modules/module.py") ||
         in_file(frame, "/torch/utils/_contextlib.py") || in_file(frame, "/torch/_ops.py") ||
         in_file(frame, "/torch/cuda/__init__.py");
}

// torch.profiler's names of NCCL's collectives.
std::string nccl_name(std::string_view method) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"allreduce", "all_reduce"},
      {"allreduce_sparse", "all_reduce_sparse"},
      {"allgather", "all_gather"},
      {"_allgather_base", "_all_gather_base"},
      {"alltoall", "all_to_all"},
      {"alltoall_base", "all_to_all"},
      {"allreduce_coalesced", "allreduce_coalesced"}};
  for (const auto& [ours, theirs] : kNames) {
    if (method == ours) return fmt::format("nccl:{}", theirs);
  }
  return fmt::format("nccl:{}", method);
}

bool is_collective(std::string_view method) {
  constexpr std::string_view kMethods[] = {"allreduce",
                                           "allreduce_sparse",
                                           "allreduce_coalesced",
                                           "allgather",
                                           "_allgather_base",
                                           "alltoall",
                                           "alltoall_base",
                                           "broadcast",
                                           "reduce",
                                           "reduce_scatter",
                                           "_reduce_scatter_base",
                                           "gather",
                                           "scatter",
                                           "send",
                                           "recv",
                                           "barrier"};
  return std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
}

// "ncclAllReduce", "cudnnConvolutionForward", "cublasSgemm_v2": the library's own function.
bool is_library_call(std::string_view function) {
  for (const std::string_view start : {"nccl", "cudnn", "cublasLt", "cublas", "cusparse",
                                       "cusolverDn", "cusolver", "cufftExec", "curandGenerate"}) {
    if (!function.starts_with(start) || function.find("::") != std::string_view::npos) continue;
    return function.size() > start.size() &&
           std::isupper(static_cast<unsigned char>(function[start.size()])) != 0;
  }
  return false;
}

// Whether one of the words of a function's name says that it evaluates.
bool sounds_like_evaluation(std::string_view function) {
  std::string word;
  const auto is_one = [&] {
    for (const std::string_view start : {"eval", "valid", "infer", "predict"}) {
      if (word.starts_with(start)) return true;
    }
    return word == "test" || word == "val" || word == "testing";
  };
  for (const char c : last_name(function)) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalpha(u) == 0 || (std::isupper(u) != 0 && !word.empty() &&
                                 std::islower(static_cast<unsigned char>(word.back())) != 0)) {
      if (is_one()) return true;
      word.clear();
    }
    if (std::isalpha(u) != 0) word += static_cast<char>(std::tolower(u));
  }
  return is_one();
}

}  // namespace

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kData: return "data loading";
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kOptimizer: return "optimizer";
    case Phase::kEvaluation: return "evaluation";
    case Phase::kOther: break;
  }
  return "other";
}

std::string aten_name(std::string_view name) {
  if (is_in(kWholeNames, name)) return fmt::format("aten::{}", name);
  // The longest end that is an overload, unless what stands before it is known; a name may itself
  // begin with "_".
  std::string_view best = name;
  for (std::size_t i = 1; i + 1 < name.size(); ++i) {
    if (name[i] != '_' || !is_in(kOverloads, name.substr(i + 1))) continue;
    const std::string_view start = name.substr(0, i);
    if (is_in(kWholeNames, start)) return fmt::format("aten::{}", start);
    if (best.size() == name.size()) best = start;
  }
  return fmt::format("aten::{}", best);
}

const Operators::Named& Operators::named(FrameId id) {
  const auto [it, fresh] = names_.try_emplace(id);
  if (!fresh) return it->second;
  Named& out = it->second;
  const Frame& frame = stacks_.frame(id);
  const std::string_view function = frame.function;
  if (frame.kind == FrameKind::kPython) {
    if (frame.file.find("/torchinductor_") != std::string::npos && last_name(function) == "call") {
      const std::size_t slash = frame.file.rfind('/');
      out = {Role::kOperator,
             fmt::format("CompiledFxGraph ({})",
                         frame.file.substr(slash == std::string::npos ? 0 : slash + 1))};
    }
    return out;
  }
  if (const auto op = part_between(function, "at::_ops::")) {
    const std::string_view method = function.substr(10 + op->size() + 2);
    out = {method.starts_with("redispatch") ? Role::kRedispatch : Role::kOperator, aten_name(*op)};
  } else if (const auto node = part_between(function, "torch::autograd::generated::")) {
    if (function.find("::apply(") != std::string_view::npos) {
      out = {Role::kOperator, std::string(*node)};
    }
  } else if (const auto known = part_between(function, "torch::autograd::");
             known && function.find("::apply(") != std::string_view::npos) {
    if (*known == "PyNode") {
      out.role = Role::kPythonNode;
    } else if (*known == "AccumulateGrad" || *known == "CopyBackwards" || *known == "CopySlices") {
      out = {Role::kOperator, fmt::format("torch::autograd::{}", *known)};
    }
  } else if (function.find("THPFunction_apply(") != std::string_view::npos) {
    out.role = Role::kPythonFunction;
  } else if (const auto method = part_between(function, "c10d::"); method == "ProcessGroupNCCL") {
    const std::string_view rest = function.substr(6 + 16 + 2);
    const std::string_view called = rest.substr(0, rest.find('('));
    if (is_collective(called)) out = {Role::kOperator, nccl_name(called)};
  } else if (function.starts_with("torch::jit::InterpreterState")) {
    out = {Role::kRedispatch, "torch::jit"};
  }
  return out;
}

std::vector<Operator> Operators::operators_of(const std::vector<Stacks::Place>& places) {
  std::vector<Operator> out;
  Role waiting = Role::kNone;  // for the Python frame that tells the name
  std::size_t waiting_place = 0;
  bool in_optimizer = false;
  std::string library;
  std::size_t library_place = 0;
  for (std::size_t i = places.size(); i-- > 0;) {
    const Frame& frame = stacks_.frame(places[i].frame);
    if (frame.kind == FrameKind::kPython) {
      const std::string_view function = frame.function;
      const std::string_view method = last_name(function);
      const bool in_torch_function = in_file(frame, "/torch/autograd/function.py");
      if (waiting != Role::kNone && !in_torch_function) {
        const bool backward = waiting == Role::kPythonNode;
        if (function.ends_with(backward ? ".backward" : ".forward")) {
          // "train.<locals>.Scale.forward": the class is what stands before.
          std::string_view owner = function.substr(0, function.size() - method.size() - 1);
          owner = last_name(owner);
          out.push_back({std::string(owner) + (backward ? "Backward" : ""), waiting_place});
        }
        waiting = Role::kNone;
      }
      if (in_optimizer && method == "step" && !in_file(frame, "/torch/optim/optimizer.py")) {
        in_optimizer = false;
        out.push_back({"Optimizer.step#" + std::string(function), i});
      }
      in_optimizer |= in_file(frame, "/torch/optim/optimizer.py") && method == "wrapper";
    }
    const Named& name = named(places[i].frame);
    switch (name.role) {
      case Role::kNone:
        if (frame.kind == FrameKind::kNative && is_library_call(frame.function)) {
          library = short_function(frame.function);
          library_place = i;
        }
        break;
      case Role::kOperator:
        out.push_back({name.name, i});
        library.clear();
        break;
      case Role::kRedispatch:
        if (out.empty() || out.back().name != name.name) out.push_back({name.name, i});
        library.clear();
        break;
      case Role::kPythonNode:
      case Role::kPythonFunction:
        waiting = name.role;
        waiting_place = i;
        break;
    }
  }
  if (out.empty() && !library.empty()) out.push_back({library, library_place});
  return out;
}

void Operators::guess_operator(const std::vector<Stacks::Place>& places, StackFacts& out) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Frame& frame = stacks_.frame(places[i].frame);
    if (is_torch_wrapper(frame)) continue;
    std::string name = torch_function(frame);
    if (name.empty()) continue;
    // An optimizer's name is not a guess, but what it runs inside is not known.
    out.operators.push_back({std::move(name), i});
    out.operators_guessed = true;
    return;
  }
}

void Operators::find_phase(const std::vector<Stacks::Place>& places, StackFacts& out) {
  bool forward = false, user_evaluates = false, decided = false;
  for (const Stacks::Place& place : places) {
    const Frame& frame = stacks_.frame(place.frame);
    if (frame.kind == FrameKind::kNative) {
      if (!decided && frame.function.starts_with("torch::autograd::Engine::")) {
        out.phase = Phase::kBackward;
        decided = true;
      }
      continue;
    }
    user_evaluates |= frame.user && sounds_like_evaluation(frame.function);
    if (decided) continue;
    const std::string_view method = last_name(frame.function);
    if (frame.file.find("/torch/utils/data/") != std::string::npos) {
      // Not a transform that runs the model's own code: that is inside of it.
      out.phase = Phase::kData;
      decided = true;
    } else if (in_file(frame, "/torch/autograd/__init__.py") ||
               (in_file(frame, "/torch/_tensor.py") && method == "backward") ||
               (in_file(frame, "/torch/autograd/graph.py") && method == "_engine_run_backward")) {
      // What a checkpoint runs forward again is part of the backward pass.
      out.phase = Phase::kBackward;
      decided = true;
    } else if (frame.file.find("/torch/optim/") != std::string::npos) {
      // A closure's forward pass is inside of the step.
      out.phase = forward ? Phase::kForward : Phase::kOptimizer;
      decided = true;
    } else if (in_file(frame, "/torch/nn/modules/module.py") &&
               (method == "_call_impl" || method == "_wrapped_call_impl")) {
      forward = true;
    }
  }
  if (!decided && forward) out.phase = Phase::kForward;
  if (out.phase == Phase::kForward && user_evaluates) {
    out.phase = Phase::kEvaluation;
    out.phase_guessed = true;
  }
}

const StackFacts& Operators::of(StackId stack) {
  const auto [it, fresh] = facts_.try_emplace(stack);
  if (!fresh || stack == 0) return it->second;
  StackFacts& out = it->second;
  const std::vector<Stacks::Place> places = stacks_.places(stack);
  out.operators = operators_of(places);
  if (out.operators.empty()) guess_operator(places, out);
  find_phase(places, out);
  return out;
}

Phase Operators::phase_of(const recording::Call& call) {
  const Phase phase = of(stacks_.id_of(call)).phase;
  if (phase != Phase::kOther) return phase;
  const auto [it, fresh] = thread_phases_.try_emplace(call.thread_id, Phase::kOther);
  if (fresh) {
    const auto& threads = stacks_.recording().threads;
    const auto thread = threads.find(call.thread_id);
    if (thread != threads.end() && thread->second.name.starts_with("pt_autograd_")) {
      it->second = Phase::kBackward;
    }
  }
  return it->second;
}

std::string Operators::innermost(StackId stack) {
  const StackFacts& facts = of(stack);
  if (facts.operators.empty()) return {};
  return (facts.operators_guessed ? "?" : "") + facts.operators.back().name;
}

}  // namespace gpubusy::analysis
