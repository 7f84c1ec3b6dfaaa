// SPDX-License-Identifier: Apache-2.0
//
// Stacks of calls: the whole stack, operators, phases, and everything that is summed by stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "analysis/report.hpp"
#include "analysis/stacks/flame.hpp"
#include "analysis/stacks/folded.hpp"
#include "analysis/stacks/frame_slices.hpp"
#include "analysis/stacks/operators.hpp"
#include "analysis/stacks/phases.hpp"
#include "analysis/stacks/pprof.hpp"
#include "analysis/stacks/stack_report.hpp"
#include "analysis/stacks/stacks.hpp"
#include "analysis/stacks/tables.hpp"
#include "analysis/stacks/weights.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using testing::CallOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RecordingBuilder;
using Json = nlohmann::json;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;
constexpr const char* kTorch = "/venv/lib/python3.11/site-packages/torch/";
std::string torch_file(const char* rest) { return std::string(kTorch) + rest; }

// Names that a test gives.
class FakeNames : public NativeNames {
 public:
  const std::vector<NativeFrame>& at(std::uint64_t location) override {
    return by_address_[location];
  }

  std::uint64_t add(const std::string& function,
                    const std::string& module = "/lib/libtorch_cpu.so") {
    const std::uint64_t address = 0x1000 + 16 * by_address_.size();
    NativeFrame frame;
    frame.function = function;
    frame.module = module;
    by_address_[address] = {frame};
    return address;
  }
  void inlined(std::uint64_t address, const std::string& function) {
    NativeFrame frame;
    frame.function = function;
    frame.module = by_address_[address].front().module;
    frame.inlined = true;
    by_address_[address].insert(by_address_[address].begin(), frame);
  }

 private:
  std::map<std::uint64_t, std::vector<NativeFrame>> by_address_;
};

// One recording with stacks that are written outermost first: "file:function" is a Python frame,
// anything else a native function.
class Script {
 public:
  RecordingBuilder b;
  FakeNames names;
  std::uint64_t now = kStart;

  // As the runtime records it: Python's frames stand inside of the eval frame that runs them.
  std::uint32_t chain(const std::vector<std::string>& outermost_first) {
    std::uint32_t node = native(0, "_start", "/usr/bin/python3.11");
    bool in_python = false;
    for (const std::string& frame : outermost_first) {
      const std::size_t colon = frame.find(".py:");
      if (colon == std::string::npos) {
        node = native(node, frame, "/lib/libtorch_cpu.so");
        in_python = false;
        continue;
      }
      if (!in_python) node = native(node, "_PyEval_EvalFrameDefault", "/usr/bin/python3.11");
      in_python = true;
      node = python(node, frame);
    }
    return node;
  }
  std::uint32_t python(std::uint32_t parent, const std::string& frame) {
    const std::size_t colon = frame.find(".py:") + 3;
    std::size_t line_at = frame.find('@');
    const int line = line_at == std::string::npos ? 10 : std::stoi(frame.substr(line_at + 1));
    line_at = std::min(line_at, frame.size());
    return b.frame(parent, frame.substr(0, colon), frame.substr(colon + 1, line_at - colon - 1),
                   line);
  }
  std::uint32_t native(std::uint32_t parent, const std::string& function,
                       const std::string& module) {
    const auto [it, fresh] = addresses_.try_emplace(function, 0);
    if (fresh) it->second = names.add(function, module);
    return b.native_node(parent, it->second);
  }
  // A launch of 10 us every 20, with a kernel of 5 us.
  void launch(std::uint32_t stack, std::uint32_t thread = 0) {
    CallOptions o;
    o.native_stack = stack;
    o.thread = thread;
    const std::uint32_t call = b.launch(now, now + 10'000, kernel_, o);
    b.device_time(call, now + 5'000, now + 10'000, o);
    now += 20'000;
  }

 private:
  std::map<std::string, std::uint64_t> addresses_;
  std::uint32_t kernel_ = b.kernel("k");
};

struct Read {
  explicit Read(Script& script)
      : recording(script.b.read()), stacks(recording, &script.names), operators(stacks) {}
  explicit Read(RecordingBuilder builder)
      : recording(builder.read()), stacks(recording), operators(stacks) {}
  StackId stack(std::size_t call) { return stacks.id_of(recording.calls.at(call)); }
  std::vector<std::string> ops(std::size_t call) {
    std::vector<std::string> out;
    for (const Operator& op : operators.of(stack(call)).operators) out.push_back(op.name);
    return out;
  }
  Phase phase(std::size_t call) { return operators.phase_of(recording.calls.at(call)); }

  recording::Recording recording;
  Stacks stacks;
  Operators operators;
};

std::vector<std::string> shown(Read& read, std::size_t call) {
  std::vector<std::string> out;
  for (const NamedFrame& frame : named_frames(read.stacks, read.stack(call))) {
    out.push_back(frame.name);
  }
  return out;
}

TEST(AtenNames, OverloadsAreToldFromNames) {
  EXPECT_EQ(aten_name("add_Tensor"), "aten::add");
  EXPECT_EQ(aten_name("add__Tensor"), "aten::add_");
  EXPECT_EQ(aten_name("addmm"), "aten::addmm");
  EXPECT_EQ(aten_name("addmm_out"), "aten::addmm");
  EXPECT_EQ(aten_name("max_dim"), "aten::max");
  EXPECT_EQ(aten_name("max_pool2d"), "aten::max_pool2d");
  EXPECT_EQ(aten_name("empty_memory_format"), "aten::empty");
  EXPECT_EQ(aten_name("_foreach_add__List"), "aten::_foreach_add_");
  EXPECT_EQ(aten_name("norm_except_dim"), "aten::norm_except_dim");
  EXPECT_EQ(aten_name("index_reduce_out"), "aten::index_reduce");
  EXPECT_EQ(aten_name("_to_copy"), "aten::_to_copy");
  EXPECT_EQ(aten_name(""), "aten::");
}

TEST(ShortFunction, KeepsTheNameAlone) {
  EXPECT_EQ(short_function("at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)"),
            "at::_ops::addmm::call");
  EXPECT_EQ(short_function("void at::native::gpu_kernel<at::native::F<int>(*)(int)>(int)"),
            "at::native::gpu_kernel<...>");
  EXPECT_EQ(short_function("at::(anonymous namespace)::wrapper(at::Tensor&)"),
            "at::(anonymous)::wrapper");
  EXPECT_EQ(short_function("std::vector<int>::operator[](unsigned long) const"),
            "std::vector<...>::operator[]");
  EXPECT_EQ(short_function("A::operator()(int) const"), "A::operator()");
  EXPECT_EQ(short_function("operator new(unsigned long)"), "operator new");
  EXPECT_EQ(short_function("f(int)::{lambda(int)#1}::operator()(int) const"),
            "f::{...}::operator()");
  EXPECT_EQ(short_function("main"), "main");
  EXPECT_EQ(short_function(""), "");
  EXPECT_EQ(short_function("((((("), "(((((");
}

TEST(AnalysisStacks, PythonStandsWhereItRan) {
  Script s;
  s.launch(s.chain(
      {"/home/u/train.py:main", "_PyEval_Vector", "THPVariable_add", "/home/u/hook.py:hook",
       "at::Tensor c10::Dispatcher::callWithDispatchKeySlowPath<at::Tensor>(int)", "cudnn_do"}));
  Read read(s);
  EXPECT_THAT(shown(read, 0), ElementsAre("main (train.py:10)", "THPVariable_add",
                                          "hook (hook.py:10)", "cudnn_do"));
  EXPECT_EQ(read.stacks.places(read.stack(0), Stacks::Show::kAll).size(), 9u);
}

TEST(AnalysisStacks, NativeAloneWithPythonBesideIsMerged) {
  Script s;
  CallOptions o;
  o.native_stack = s.native(s.native(s.native(0, "_PyEval_Vector", "/usr/bin/python3.11"),
                                     "THPVariable_add", "/lib/libtorch.so"),
                            "add", "/lib/libtorch.so");
  o.python_stack = s.python(0, "/home/u/train.py:main");
  s.b.launch(kStart, kStart + 10, s.b.kernel("k"), o);
  Read read(s);
  EXPECT_THAT(shown(read, 0), ElementsAre("main (train.py:10)", "THPVariable_add", "add"));
}

TEST(AnalysisStacks, PythonAlone) {
  RecordingBuilder b;
  CallOptions o;
  o.python_stack = b.frame(b.frame(0, "/home/u/a.py", "outer", 1), "/home/u/a.py", "inner", 7);
  b.launch(kStart, kStart + 10, b.kernel("k"), o);
  Read read(b);
  EXPECT_THAT(shown(read, 0), ElementsAre("outer (a.py:1)", "inner (a.py:7)"));
  EXPECT_FALSE(read.stacks.is_cut(read.stack(0)));
}

TEST(AnalysisStacks, InlinedFramesCutStacksAndObjectsWithoutNames) {
  Script s;
  const std::uint64_t address = s.names.add("outer()", "/home/u/app");
  s.names.inlined(address, "inner()");
  const std::uint64_t unnamed = s.names.add("", "/lib/libx.so");
  const std::uint32_t cut = s.b.native_node(0, address, true);
  s.launch(s.b.native_node(s.b.native_node(cut, unnamed), unnamed));
  Read read(s);
  EXPECT_THAT(shown(read, 0), ElementsAre("...", "outer", "inner", "[libx.so]"));
  EXPECT_TRUE(read.stacks.is_cut(read.stack(0)));
}

TEST(AnalysisStacks, NoStackIsUnknownAndCyclesEnd) {
  RecordingBuilder b;
  b.launch(kStart, kStart + 10, b.kernel("k"));
  CallOptions o;
  o.native_stack = 1;
  b.native_node(2, 0x5000);  // 1 -> 2 -> 1
  b.native_node(1, 0x6000);
  b.launch(kStart + 20, kStart + 30, 1, o);
  Read read(b);
  EXPECT_EQ(read.stack(0), 0u);
  EXPECT_THAT(shown(read, 0), ElementsAre("unknown"));
  EXPECT_LE(shown(read, 1).size(), 1025u);
}

TEST(AnalysisOperators, AsTheProfilerNamesThem) {
  Script s;
  s.launch(
      s.chain({"/home/u/t.py:main", "at::_ops::linear::call(at::Tensor const&)",
               "at::native::linear(at::Tensor const&)", "at::_ops::addmm::call(at::Tensor const&)",
               "torch::autograd::VariableType::f()",
               "at::_ops::addmm::redispatch(c10::DispatchKeySet)", "cublasSgemm_v2"}));
  s.launch(s.chain({"torch::autograd::Engine::thread_init(int)",
                    "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)",
                    "at::_ops::mm::redispatch(c10::DispatchKeySet)"}));
  s.launch(s.chain({"torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"}));
  s.launch(s.chain({"cudnnConvolutionForward"}));
  s.launch(
      s.chain({"c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&)", "ncclAllReduce"}));
  s.launch(s.chain({"/home/u/t.py:main"}));
  Read read(s);
  EXPECT_THAT(read.ops(0), ElementsAre("aten::linear", "aten::addmm"));
  EXPECT_THAT(read.ops(1), ElementsAre("AddmmBackward0", "aten::mm"));
  EXPECT_THAT(read.ops(2), ElementsAre("torch::autograd::AccumulateGrad"));
  EXPECT_THAT(read.ops(3), ElementsAre("cudnnConvolutionForward"));
  EXPECT_THAT(read.ops(4), ElementsAre("nccl:all_reduce"));
  EXPECT_THAT(read.ops(5), IsEmpty());
  EXPECT_FALSE(read.operators.of(read.stack(0)).operators_guessed);
  EXPECT_EQ(read.operators.innermost(read.stack(0)), "aten::addmm");
}

TEST(AnalysisOperators, FunctionsInPythonHaveTheirClassesNames) {
  Script s;
  s.launch(
      s.chain({"/home/u/t.py:main", "(anonymous namespace)::THPFunction_apply(_object*, _object*)",
               "/home/u/t.py:main.<locals>.Scale.forward",
               "at::_ops::mul_Tensor::call(at::Tensor const&)"}));
  s.launch(
      s.chain({"torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)",
               torch_file("autograd/function.py:BackwardCFunction.apply"),
               "/home/u/t.py:Scale.backward", "at::_ops::mul_Tensor::call(at::Tensor const&)"}));
  s.launch(s.chain({"/home/u/t.py:main",
                    torch_file("optim/optimizer.py:Optimizer.profile_hook_step.<locals>.wrapper"),
                    torch_file("optim/sgd.py:SGD.step"), torch_file("optim/sgd.py:_multi"),
                    "at::_ops::_foreach_add__List::call(int)"}));
  s.launch(s.chain({"/tmp/torchinductor_u/ab/cab.py:call"}));
  Read read(s);
  EXPECT_THAT(read.ops(0), ElementsAre("Scale", "aten::mul"));
  EXPECT_THAT(read.ops(1), ElementsAre("ScaleBackward", "aten::mul"));
  EXPECT_THAT(read.ops(2), ElementsAre("Optimizer.step#SGD.step", "aten::_foreach_add_"));
  EXPECT_THAT(read.ops(3), ElementsAre("CompiledFxGraph (cab.py)"));
}

TEST(AnalysisOperators, WithoutNativeNamesAGuessThatSaysSo) {
  RecordingBuilder b;
  CallOptions o;
  const std::uint32_t module = b.frame(b.frame(0, "/home/u/t.py", "main", 3),
                                       torch_file("nn/modules/module.py"), "Module._call_impl", 1);
  o.python_stack = b.frame(module, torch_file("nn/functional.py"), "linear", 5);
  b.launch(kStart, kStart + 10, b.kernel("k"), o);
  o.python_stack = module;  // only what calls modules: says nothing
  b.launch(kStart + 20, kStart + 30, 1, o);
  Read read(b);
  EXPECT_THAT(read.ops(0), ElementsAre("torch.nn.functional.linear"));
  EXPECT_TRUE(read.operators.of(read.stack(0)).operators_guessed);
  EXPECT_EQ(read.operators.innermost(read.stack(0)), "?torch.nn.functional.linear");
  EXPECT_THAT(read.ops(1), IsEmpty());
}

TEST(AnalysisPhases, OfAStack) {
  const std::string module = torch_file("nn/modules/module.py:Module._call_impl");
  const std::string backward = torch_file("autograd/graph.py:_engine_run_backward");
  const std::string step = torch_file("optim/optimizer.py:Optimizer.step.<locals>.wrapper");
  const std::string loader = torch_file("utils/data/dataloader.py:_BaseDataLoaderIter.__next__");
  const std::string main = "/home/u/t.py:main";
  const std::pair<std::vector<std::string>, Phase> cases[] = {
      {{main}, Phase::kOther},
      {{main, module, "/home/u/t.py:Net.forward"}, Phase::kForward},
      {{main, backward}, Phase::kBackward},
      {{"torch::autograd::Engine::thread_init(int)"}, Phase::kBackward},
      {{main, step, torch_file("optim/sgd.py:SGD.step")}, Phase::kOptimizer},
      {{main, torch_file("optim/optimizer.py:Optimizer.zero_grad")}, Phase::kOptimizer},
      {{main, loader, "/home/u/t.py:collate"}, Phase::kData},
      {{main, step, "/home/u/t.py:closure", module, "/home/u/t.py:Net.forward"}, Phase::kForward},
      {{main, step, "/home/u/t.py:closure", backward}, Phase::kBackward},
      {{main, backward, torch_file("utils/checkpoint.py:unpack"), module}, Phase::kBackward},
      {{main, backward, "/home/u/t.py:hook", step}, Phase::kOptimizer},
      {{main, "/home/u/t.py:evaluate", module}, Phase::kEvaluation},
      {{main, "/home/u/t.py:Trainer.validation_step", module}, Phase::kEvaluation},
      {{main, "/home/u/t.py:run_test", module}, Phase::kEvaluation},
      {{main, "/home/u/t.py:latest", module}, Phase::kForward},
      {{main, "/home/u/t.py:contest", module}, Phase::kForward},
      {{main, "/home/u/t.py:evaluate"}, Phase::kOther},
  };
  Script s;
  for (const auto& [frames, phase] : cases) s.launch(s.chain(frames));
  Read read(s);
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(read.phase(i), cases[i].second) << cases[i].first.back() << " " << i;
    EXPECT_EQ(read.operators.of(read.stack(i)).phase_guessed,
              cases[i].second == Phase::kEvaluation);
  }
}

TEST(AnalysisPhases, AutogradsThreadIsKnownByItsName) {
  RecordingBuilder b;
  b.thread(77, "pt_autograd_0");
  CallOptions o;
  o.thread = 77;
  b.launch(kStart, kStart + 10, b.kernel("k"), o);
  b.launch(kStart + 20, kStart + 30, 1);
  Read read(b);
  EXPECT_EQ(read.phase(0), Phase::kBackward);
  EXPECT_EQ(read.phase(1), Phase::kOther);
}

TEST(AnalysisPhases, EachInstantIsInOneRow) {
  Script s;
  const std::uint32_t forward =
      s.chain({"/home/u/t.py:main", torch_file("nn/modules/module.py:Module._call_impl")});
  const std::uint32_t backward = s.chain({"torch::autograd::Engine::thread_init(int)"});
  s.b.window(recording::WindowEvent::kBegin, kStart, 0, 0, 1);
  s.now = kStart + 30'000;
  s.launch(forward);   // 30..40, the device 35..40
  s.launch(forward);   // 50..60, 55..60
  s.launch(backward);  // 70..80, 75..80
  s.b.step_edge(kStart + 100'000, 0);
  s.b.window(recording::WindowEvent::kEnd, kStart + 100'000, 0, 0, 1);
  Read read(s);
  const Judged judged = judge(read.recording);
  std::map<std::string, PhaseRow> rows;
  for (const PhaseRow& row : phase_rows(read.recording, judged, read.stacks, read.operators)) {
    rows[phase_title(row)] = row;
  }
  EXPECT_EQ(rows.at("before forward").wall_ns, 30'000u);
  EXPECT_EQ(rows.at("before forward").sums.idle_ns, 30'000u);
  EXPECT_EQ(rows.at("forward").wall_ns, 30'000u);
  EXPECT_EQ(rows.at("forward").sums.launches, 2u);
  EXPECT_EQ(rows.at("forward").sums.host_ns, 20'000u);
  EXPECT_EQ(rows.at("forward").sums.device_ns, 10'000u);
  EXPECT_EQ(rows.at("forward").sums.idle_ns, 20'000u);
  EXPECT_EQ(rows.at("forward -> backward").wall_ns, 10'000u);
  EXPECT_EQ(rows.at("backward").wall_ns, 10'000u);
  EXPECT_EQ(rows.at("after backward").wall_ns, 20'000u);
  EXPECT_EQ(rows.size(), 5u);
}

// ---- sums ----

std::vector<std::pair<const char*, RecordingBuilder>> recordings() {
  std::vector<std::pair<const char*, RecordingBuilder>> out;
  out.emplace_back("starved", testing::starved_loop());
  out.emplace_back("everything", testing::everything());
  out.emplace_back("ranges", testing::ranges());
  out.emplace_back("launches", testing::launch_bound_loop(5, 40, 10, 3));
  return out;
}

TEST(AnalysisTables, EverythingAddsUpToTheVerdict) {
  for (auto& [name, builder] : recordings()) {
    Read read(builder);
    const Judged judged = judge(read.recording);
    const ProcessReport verdict = report_of(read.recording);
    std::uint64_t idle = 0;
    for (const IdleClass c : kAllIdleClasses) idle += verdict.idle(c);
    Sums expected;
    for (const recording::Call& call : read.recording.calls) {
      if (step_at(verdict.steps, call.start_ns) != kNoCall) count_call(call, expected);
    }
    for (const DeviceOp& op : judged.timeline.ops) {
      if (step_at(verdict.steps, read.recording.calls[op.call].start_ns) == kNoCall) continue;
      expected.device_ns += op.end_ns - op.start_ns;
    }
    expected.idle_ns = idle;
    EXPECT_GT(expected.launches, 0u) << name;
    for (const GroupBy by : {GroupBy::kLine, GroupBy::kFunction, GroupBy::kOperator,
                             GroupBy::kStack, GroupBy::kPhase}) {
      for (const std::size_t top : {std::size_t{0}, std::size_t{1}, std::size_t{20}}) {
        const CostTable table =
            make_table(read.recording, judged, read.stacks, read.operators, by, top);
        EXPECT_EQ(table.total, expected) << name << " " << static_cast<int>(by);
        EXPECT_EQ(table.wall_ns, verdict.wall_ns);
        Sums sum = table.other.sums;
        std::uint64_t wall = 0;
        for (const CostRow& row : table.rows) {
          sum += row.sums;
          wall += row.wall_ns;
          EXPECT_FALSE(row.name.empty());
        }
        EXPECT_EQ(sum, expected) << name << " " << static_cast<int>(by) << " " << top;
        if (by == GroupBy::kPhase) {
          EXPECT_EQ(wall, verdict.wall_ns) << name;
        }
        if (top == 0) {
          EXPECT_EQ(table.others, 0u);
        }
      }
    }
  }
}

TEST(AnalysisTables, LinesAreThoseOfTheVerdict) {
  Read read(testing::starved_loop());
  const Judged judged = judge(read.recording);
  const CostTable table =
      make_table(read.recording, judged, read.stacks, read.operators, GroupBy::kLine, 20);
  std::map<std::string, Sums> rows;
  for (const CostRow& row : table.rows) rows[row.name] = row.sums;
  ASSERT_TRUE(rows.contains("train.py:58 (main)"));
  EXPECT_EQ(rows["train.py:58 (main)"].copies, 20u);
  EXPECT_EQ(rows["train.py:58 (main)"].device_ns, 20u * 1'900'000);
  // The device waits for the batch that line 58 copies.
  EXPECT_EQ(table.rows.front().name, "train.py:58 (main)");
}

TEST(AnalysisTables, WhatIsNotKnownIsNamedAndKept) {
  Script s;
  s.b.window(recording::WindowEvent::kBegin, kStart, 0, 0, 1);
  for (int i = 0; i < 4; ++i) s.launch(s.chain({"/home/u/t.py:f@" + std::to_string(i + 1)}));
  s.launch(0);
  s.b.step_edge(s.now, 0);
  s.b.window(recording::WindowEvent::kEnd, s.now, 0, 0, 1);
  Read read(s);
  const Judged judged = judge(read.recording);
  const CostTable table =
      make_table(read.recording, judged, read.stacks, read.operators, GroupBy::kLine, 1);
  ASSERT_EQ(table.rows.size(), 2u);
  const CostRow& unknown = table.rows[table.rows[0].known ? 1 : 0];
  EXPECT_FALSE(unknown.known);
  EXPECT_EQ(unknown.name, "(unknown)");
  EXPECT_EQ(unknown.sums.launches, 1u);
  EXPECT_EQ(table.others, 3u);
  EXPECT_EQ(table.other.sums.launches, 3u);
}

TEST(AnalysisTables, TheBackwardPassHasNoLineAndSaysWhy) {
  Script s;
  s.launch(s.chain({"torch::autograd::Engine::thread_init(int)"}));
  Read read(s);
  const CostTable table = make_table(read.recording, judge(read.recording), read.stacks,
                                     read.operators, GroupBy::kLine, 20);
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].name, "(backward: no Python frame)");
  EXPECT_FALSE(table.rows[0].known);
}

TEST(AnalysisTables, TextAndJsonSayTheSame) {
  recording::Session session;
  session.processes.push_back(testing::starved_loop().read());
  CostTableOptions options;
  options.top = 2;
  const std::string text = render_tables(session, options, TextOptions{});
  EXPECT_THAT(text, HasSubstr("train.py:58 (main)"));
  EXPECT_THAT(text, HasSubstr("20 steps"));
  EXPECT_THAT(text, HasSubstr("total"));
  const Json json = Json::parse(render_tables_json(session, options));
  EXPECT_EQ(json["by"], "line");
  const Json& process = json["processes"].at(0);
  EXPECT_EQ(process["rows"].at(0)["line"], 58);
  EXPECT_EQ(process["total"]["launches"], 320);
  std::uint64_t launches = process["others"]["launches"];
  for (const Json& row : process["rows"]) launches += row["launches"].get<std::uint64_t>();
  EXPECT_EQ(launches, 320u);
  EXPECT_EQ(render_tables(recording::Session{}, options, TextOptions{}),
            "no CUDA call was recorded\n");
}

TEST(AnalysisFolded, ValuesAddUpAndNamesAreHarmless) {
  for (auto& [name, builder] : recordings()) {
    Read read(builder);
    const StackWeights weights = weigh(read.recording, judge(read.recording), read.stacks);
    for (const Weight weight : kAllWeights) {
      std::istringstream lines(folded_text(read.stacks, weights, weight));
      std::uint64_t sum = 0;
      std::set<std::string> stacks;
      for (std::string line; std::getline(lines, line);) {
        const std::size_t blank = line.rfind(' ');
        ASSERT_NE(blank, std::string::npos);
        sum += std::stoull(line.substr(blank + 1));
        EXPECT_TRUE(stacks.insert(line.substr(0, blank)).second) << "twice: " << line;
      }
      EXPECT_EQ(sum, value_of(weights.total, weight)) << name << " " << weight_name(weight);
    }
  }
}

TEST(AnalysisFlame, TheRootHasAllAndTheTreeIsBounded) {
  Script s;
  s.b.window(recording::WindowEvent::kBegin, kStart, 0, 0, 1);
  for (int i = 0; i < 200; ++i) {
    s.launch(s.chain({"/home/u/t.py:main", "/home/u/t.py:f@" + std::to_string(i % 50 + 1)}));
  }
  s.launch(0);
  s.b.step_edge(s.now, 0);
  s.b.window(recording::WindowEvent::kEnd, s.now, 0, 0, 1);
  Read read(s);
  const StackWeights weights = weigh(read.recording, judge(read.recording), read.stacks);
  const auto check = [&](const FlameNode& root) {
    std::size_t nodes = 0;
    const auto visit = [&](const auto& self, const FlameNode& node) -> void {
      ++nodes;
      std::uint64_t sum = 0;
      for (const FlameNode& child : node.children) {
        sum += child.value;
        self(self, child);
      }
      EXPECT_LE(sum, node.value) << node.name;
    };
    visit(visit, root);
    return nodes;
  };
  FlameOptions options;
  options.weight = Weight::kLaunches;
  options.least_share = 0;
  const FlameNode whole = flame_tree(read.stacks, weights, options);
  EXPECT_EQ(whole.value, 201u);
  ASSERT_EQ(whole.children.size(), 2u);
  EXPECT_EQ(whole.children[0].name, "main (t.py:10)");
  EXPECT_EQ(whole.children[0].value, 200u);
  EXPECT_EQ(whole.children[0].children.size(), 50u);
  EXPECT_TRUE(whole.children[0].user);
  EXPECT_EQ(whole.children[1].name, "unknown");
  EXPECT_EQ(check(whole), 53u);

  options.max_nodes = 10;
  const FlameNode small = flame_tree(read.stacks, weights, options);
  EXPECT_EQ(small.value, 201u);
  EXPECT_LE(check(small), 2 * 10u + 2);
  EXPECT_EQ(small.children[0].children.back().name, "other");
  const Json json = Json::parse(flame_json(small));
  EXPECT_EQ(json["value"], 201);
  EXPECT_EQ(json["children"][0]["name"], "main (t.py:10)");
}

// ---- pprof: a reader of its own ----

struct Wire {
  std::map<std::uint32_t, std::vector<std::uint64_t>> numbers;
  std::map<std::uint32_t, std::vector<std::string>> bytes;
  std::uint64_t number(std::uint32_t field) const {
    const auto found = numbers.find(field);
    return found == numbers.end() ? 0 : found->second.at(0);
  }
};

std::uint64_t varint(const std::string& text, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(text.at(at++));
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

Wire parse(const std::string& text) {
  Wire out;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint64_t key = varint(text, at);
    const auto field = static_cast<std::uint32_t>(key >> 3);
    if ((key & 7) == 0) {
      out.numbers[field].push_back(varint(text, at));
    } else {
      EXPECT_EQ(key & 7, 2u);
      const std::uint64_t size = varint(text, at);
      out.bytes[field].push_back(text.substr(at, size));
      EXPECT_LE(at + size, text.size());
      at += size;
    }
  }
  return out;
}

std::vector<std::uint64_t> packed(const std::string& text) {
  std::vector<std::uint64_t> out;
  for (std::size_t at = 0; at < text.size();) out.push_back(varint(text, at));
  return out;
}

TEST(AnalysisPprof, IsWhole) {
  Script s;
  const std::uint64_t address = s.names.add("outer()", "/home/u/app");
  s.names.inlined(address, "inner()");
  s.b.module("/home/u/app", address - 8, address + 8, "\xab\xcd");
  s.b.window(recording::WindowEvent::kBegin, kStart, 0, 0, 1);
  s.launch(s.b.native_node(s.chain({"/home/u/t.py:main@12"}), address));
  s.launch(0);
  s.b.step_edge(s.now, 0);
  s.b.window(recording::WindowEvent::kEnd, s.now, 0, 0, 1);
  Read read(s);
  const Judged judged = judge(read.recording);
  const StackWeights weights = weigh(read.recording, judged, read.stacks);
  Wire profile = parse(pprof_profile(read.recording, judged, read.stacks, weights));
  const std::vector<std::string>& strings = profile.bytes[6];
  ASSERT_EQ(strings.at(0), "");
  std::vector<std::string> types;
  for (const std::string& type : profile.bytes[1])
    types.push_back(strings.at(parse(type).number(1)));
  EXPECT_THAT(types, ElementsAre("launches", "copies", "calls", "host_time", "device_time",
                                 "gpu_idle", "allocated"));
  std::map<std::uint64_t, std::string> functions;
  for (const std::string& function : profile.bytes[5]) {
    const Wire f = parse(function);
    EXPECT_TRUE(functions.emplace(f.number(1), strings.at(f.number(2))).second);
  }
  std::map<std::uint64_t, Wire> mappings, locations;
  for (const std::string& m : profile.bytes[3]) mappings[parse(m).number(1)] = parse(m);
  for (const std::string& l : profile.bytes[4]) locations[parse(l).number(1)] = parse(l);
  EXPECT_EQ(functions.count(0) + mappings.count(0) + locations.count(0), 0u);
  std::vector<std::vector<std::string>> stacks;
  std::vector<std::uint64_t> sums(types.size());
  for (const std::string& bytes : profile.bytes[2]) {
    const Wire sample = parse(bytes);
    stacks.emplace_back();
    for (const std::uint64_t id : packed(sample.bytes.at(1).at(0))) {
      const Wire& location = locations.at(id);
      if (location.numbers.contains(2)) {
        const Wire& mapping = mappings.at(location.number(2));
        EXPECT_EQ(strings.at(mapping.number(5)), "/home/u/app");
        EXPECT_EQ(strings.at(mapping.number(6)), "abcd");
        EXPECT_EQ(location.number(3), address - 1);
      }
      for (const std::string& line : location.bytes.at(4)) {
        stacks.back().push_back(functions.at(parse(line).number(1)));
        if (stacks.back().back() == "main") {
          EXPECT_EQ(parse(line).number(2), 12u);
        }
      }
    }
    const std::vector<std::uint64_t> values = packed(sample.bytes.at(2).at(0));
    ASSERT_EQ(values.size(), types.size());
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
  }
  EXPECT_THAT(stacks,
              ElementsAre(ElementsAre("unknown"), ElementsAre("inner()", "outer()", "main")));
  EXPECT_EQ(sums[0], 2u);
  EXPECT_EQ(sums[3], weights.total.host_ns);
  EXPECT_EQ(sums[4], 10'000u);
  EXPECT_EQ(sums[5], weights.total.idle_ns);
  EXPECT_EQ(strings.at(profile.number(14)), "device_time");
}

// ---- slices of a trace ----

struct Drawn {
  std::string name;
  std::uint32_t first, last;
  bool operator==(const Drawn&) const = default;
};
void PrintTo(const Drawn& d, std::ostream* out) {
  *out << d.name << " " << d.first << ".." << d.last;
}

using ByThread = FrameSlices::ByThread;

std::vector<Drawn> drawn(Read& read, ByThread obstacles = {}, std::size_t limit = 1000) {
  const FrameSlices slices(read.recording, read.operators, 0,
                           static_cast<std::uint32_t>(read.recording.calls.size()),
                           std::move(obstacles), {}, limit);
  std::vector<Drawn> out;
  for (const FrameSlice& s : slices.slices()) {
    out.push_back({slices.name(s.name), s.first_call, s.last_call});
  }
  return out;
}

const char* const kMul = "at::_ops::mul_Tensor::call(at::Tensor const&)";
const char* const kLinear = "at::_ops::linear::call(at::Tensor const&)";
const char* const kAddmm = "at::_ops::addmm::call(at::Tensor const&)";

TEST(AnalysisFrameSlices, GoFromTheFirstToTheLastCallInAFrame) {
  Script s;
  s.launch(s.chain({"/u/t.py:main@1", "/u/t.py:f@5", kMul}));
  s.launch(s.chain({"/u/t.py:main@1", "/u/t.py:f@6", kLinear, kAddmm}));
  s.launch(s.chain({"/u/t.py:main@1", "/u/t.py:f@6", kLinear, kMul}));
  s.launch(s.chain({"/u/t.py:main@2"}));
  Read read(s);
  // A line that begins a function of the builder's is a function of its own: f@5, f@6, main@2.
  EXPECT_THAT(drawn(read),
              ElementsAre(Drawn{"/u/t.py(1): main", 0, 2}, Drawn{"/u/t.py(5): f", 0, 0},
                          Drawn{"aten::mul", 0, 0}, Drawn{"/u/t.py(6): f", 1, 2},
                          Drawn{"aten::linear", 1, 2}, Drawn{"aten::addmm", 1, 1},
                          Drawn{"aten::mul", 2, 2}, Drawn{"/u/t.py(2): main", 3, 3}));
}

TEST(AnalysisFrameSlices, OneFunctionGoesOnOverItsLines) {
  Script s;
  const std::uint32_t code = s.b.code("/u/t.py", "main", 1, std::string("\xf0\x00\xf0\x02", 4));
  const std::uint32_t first = s.b.node(0, code, 0), second = s.b.node(0, code, 2);
  CallOptions o;
  for (const std::uint32_t main : {first, second}) {
    o.python_stack = s.python(main, "/u/t.py:f@9");
    s.b.launch(s.now, s.now + 10, 1, o);
    s.now += 20;
  }
  Read read(s);
  // `main` is one call, but f is called twice, from two places.
  EXPECT_THAT(drawn(read), ElementsAre(Drawn{"/u/t.py(1): main", 0, 1},
                                       Drawn{"/u/t.py(9): f", 0, 0}, Drawn{"/u/t.py(9): f", 1, 1}));
}

TEST(AnalysisFrameSlices, ALoopBeginsItsOperatorsAnew) {
  Script s;
  const std::uint32_t add = s.chain({"/u/t.py:main@1", kLinear, kAddmm});
  const std::uint32_t mul = s.chain({"/u/t.py:main@1", kLinear, kMul});
  for (int i = 0; i < 2; ++i) {
    s.launch(add);
    s.launch(mul);
  }
  Read read(s);
  EXPECT_THAT(drawn(read), ElementsAre(Drawn{"/u/t.py(1): main", 0, 3}, Drawn{"aten::linear", 0, 1},
                                       Drawn{"aten::addmm", 0, 0}, Drawn{"aten::mul", 1, 1},
                                       Drawn{"aten::linear", 2, 3}, Drawn{"aten::addmm", 2, 2},
                                       Drawn{"aten::mul", 3, 3}));
}

TEST(AnalysisFrameSlices, AreCutWhereTheyWouldCross) {
  Script s;
  const std::uint32_t main = s.chain({"/u/t.py:main@1"});
  for (int i = 0; i < 6; ++i) s.launch(main);  // at 0, 20, … us
  Read read(s);
  const std::uint32_t thread = read.recording.calls[0].thread_id;
  const auto at = [](std::uint64_t us) { return kStart + us * 1000; };
  // Inside, round it, and of another thread: no cut.
  EXPECT_EQ(
      drawn(read, ByThread{{thread, {{at(35), at(55)}, {at(0), at(120)}}}, {1, {{at(0), at(50)}}}})
          .size(),
      1u);
  EXPECT_THAT(drawn(read, ByThread{{thread, {{at(35), at(500)}}}}),
              ElementsAre(Drawn{"/u/t.py(1): main", 0, 1}, Drawn{"/u/t.py(1): main", 2, 5}));
  // Steps.
  EXPECT_THAT(
      drawn(read, ByThread{{thread, {{kStart - 5, at(35)}, {at(35), at(75)}, {at(75), at(200)}}}}),
      ElementsAre(Drawn{"/u/t.py(1): main", 0, 1}, Drawn{"/u/t.py(1): main", 2, 3},
                  Drawn{"/u/t.py(1): main", 4, 5}));
  EXPECT_EQ(drawn(read, {}, 0).size(), 0u);
}

TEST(AnalysisFrameSlices, StandRoundTheCallsOfALibrary) {
  Script s;
  s.launch(s.chain({"/u/t.py:main@1", kLinear}));  // 0..10 us
  s.launch(s.chain({"/u/t.py:main@1", kAddmm}));   // 20..30
  s.launch(s.chain({"/u/t.py:main@1", kMul}));     // 40..50
  Read read(s);
  const std::uint32_t thread = read.recording.calls[0].thread_id;
  const auto at = [](std::uint64_t us) { return kStart + us * 1000; };
  const auto slices = [&](Interval library) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
    const ByThread calls = {{thread, {library}}};
    const FrameSlices all(read.recording, read.operators, 0, 3, calls, calls, 100);
    for (const FrameSlice& slice : all.slices()) {
      out.emplace_back((slice.begin_ns - kStart) / 1000, (slice.end_ns - kStart) / 1000);
    }
    return out;
  };
  using Times = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  EXPECT_EQ(slices({at(18), at(33)}), (Times{{0, 50}, {0, 10}, {18, 33}, {40, 50}}));
  // Two operators in one call of a library: it stands round both.
  EXPECT_EQ(slices({at(18), at(55)}), (Times{{0, 55}, {0, 10}, {18, 30}, {40, 55}}));
}

}  // namespace
}  // namespace gpubusy::analysis
