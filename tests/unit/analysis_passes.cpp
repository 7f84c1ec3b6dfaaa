// SPDX-License-Identifier: Apache-2.0
//
// Programs that mark no steps: turns of their loop are steps, where there is one. Times in the
// scripts are microseconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "analysis/passes.hpp"
#include "analysis/report.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::MemoryKind;
using recording::WindowEvent;
using recording::WindowKind;
using testing::CallOptions;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RecordingBuilder;

constexpr const char* kScript = "/home/u/infer.py";
std::uint64_t us(std::uint64_t value) { return RecordingBuilder::kStart + value * 1000; }

// A program by what its thread does, in order.
class Program {
 public:
  RecordingBuilder b;
  std::uint64_t now = 0;

  Program() { b.window(WindowEvent::kBegin, us(0), 0, 0, 0, WindowKind::kPrelude); }
  // A stack: functions by first line, and the instruction that each is at.
  std::uint32_t at(std::initializer_list<std::pair<int, std::uint32_t>> frames) {
    std::uint32_t node = 0;
    for (const auto& [function, offset] : frames) {
      auto& code = codes_[function];  // 0: not written yet
      // One line for each code unit: the line tells the instruction.
      if (code == 0) {
        std::string table;
        for (int i = 0; i < 200; ++i) {
          table += static_cast<char>(0x80 | (13 << 3));
          table += static_cast<char>(i == 0 ? 0 : 2);  // +1
        }
        code = b.code(kScript, "f" + std::to_string(function), function, table);
      }
      std::uint32_t& known = nodes_[{node, code, offset}];
      if (known == 0) known = b.node(node, code, offset);
      node = known;
    }
    return node;
  }
  void kernel(std::uint32_t stack, std::uint64_t length) {
    const CallOptions o = options(stack);
    const std::uint64_t begin = std::max(now + 5, device_);
    device_ = begin + length;
    b.device_time(b.launch(us(now), us(now + 5), kernel_, o), us(begin), us(device_), o);
    now += 5;
  }
  void up(std::uint32_t stack, std::uint64_t bytes = 1 << 20) {
    const CallOptions o = options(stack);
    const std::uint64_t begin = std::max(now + 5, device_);
    device_ = begin + 10;
    b.device_time(b.copy(us(now), us(device_), bytes, CopyDirection::kHostToDevice,
                         MemoryKind::kPageable, false, o),
                  us(begin), us(device_), o);
    now = device_;
  }
  void down(std::uint32_t stack, std::uint64_t bytes = 64) {
    const CallOptions o = options(stack);
    const std::uint64_t begin = std::max(now + 5, device_);
    device_ = begin + 5;
    b.device_time(b.copy(us(now), us(device_), bytes, CopyDirection::kDeviceToHost,
                         MemoryKind::kPageable, false, o),
                  us(begin), us(device_), o);
    now = device_;
  }
  void sync(std::uint32_t stack) {
    b.sync(us(now), us(std::max(now + 5, device_)), options(stack));
    now = std::max(now + 5, device_);
  }
  ProcessReport report() {
    b.window(WindowEvent::kCut, us(now + 10), 0, 0, 0, WindowKind::kPrelude);
    return report_of(b.read());
  }

 private:
  static CallOptions options(std::uint32_t stack) {
    CallOptions o;
    o.python_stack = stack;
    return o;
  }
  std::uint32_t kernel_ = b.kernel("k");
  std::uint64_t device_ = 0;
  std::map<int, std::uint32_t> codes_;
  std::map<std::array<std::uint32_t, 3>, std::uint32_t> nodes_;
};

const Finding* find(const ProcessReport& r, const std::string& id) {
  for (const Finding& f : r.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}
std::vector<std::string> problems(const ProcessReport& r) {
  std::vector<std::string> out;
  for (const Finding& f : r.findings) {
    if (f.problem) out.push_back(f.id);
  }
  return out;
}

// Weights are copied for 20 us each; then `turns` turns of `main`: 8 ms of preparing, a copy up,
// two layers (a loop of their own), a copy down; then 500 ms of something else, and a last call.
ProcessReport inference(std::uint32_t turns, std::uint64_t prepare, std::uint64_t bytes = 1 << 20) {
  Program p;
  for (int i = 0; i < 5; ++i) p.up(p.at({{100, 10}, {400, 6}}));
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    p.now += prepare;
    p.up(p.at({{100, 40}}), bytes);
    for (int layer = 0; layer < 2; ++layer) {
      p.kernel(p.at({{100, 44}, {200, 10}, {300, 4}}), 500);
      p.kernel(p.at({{100, 44}, {200, 10}, {300, 8}}), 500);
    }
    p.down(p.at({{100, 50}}));
  }
  p.now += 500'000;
  p.sync(p.at({{100, 90}}));
  return p.report();
}

TEST(AnalysisPasses, TurnsOfTheLoopAreSteps) {
  const ProcessReport r = inference(20, 8000);
  EXPECT_EQ(r.mode, StepMode::kPasses);
  // The first and the last turn are left out: where they begin or end is not known.
  ASSERT_EQ(r.steps.size(), 18u);
  EXPECT_NEAR(r.step_ms.minimum, r.step_ms.maximum, 1e-9);
  EXPECT_EQ(r.pass_line.line, 120);  // 40 bytes are 20 code units
  ASSERT_THAT(problems(r), Not(IsEmpty()));
  EXPECT_EQ(r.findings[0].id, "data_starvation");
  EXPECT_EQ(r.findings[0].title, "The GPU waits for data that the host makes");
  // Of the 8 ms, 2 are the wait's: so long had the host been held up.
  EXPECT_NEAR(r.findings[0].ms_of_step.median, 6.0, 0.1);
  // What the program does behind the last device work is no part of it.
  EXPECT_NEAR(static_cast<double>(r.wall_ns) / 18e6, 8.0 + 2.05, 0.1);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_THAT(r.warnings[0], HasSubstr("18 turns of the loop"));
  EXPECT_THAT(r.warnings[0], HasSubstr("infer.py:120 (f100)"));
}

TEST(AnalysisPasses, ABusyLoopHasNoProblem) {
  EXPECT_THAT(problems(inference(40, 20, 64 << 10)), IsEmpty());
}

TEST(AnalysisPasses, AFewTurnsAreNoSteps) {
  const ProcessReport r = inference(6, 8000);
  EXPECT_EQ(r.mode, StepMode::kWholeSpan);
  ASSERT_EQ(r.steps.size(), 1u);
  // From the first request to the end of the last device work, not to the last call.
  EXPECT_LT(r.wall_ns, 6u * 11'000'000u);
  const Finding* input = find(r, "data_starvation");
  ASSERT_NE(input, nullptr);
  EXPECT_EQ(input->title, "The GPU waits for data from the host");
  EXPECT_THAT(input->evidence, HasSubstr("the work that follows is a copy from the host"));
  // What comes behind the last work is in no finding.
  const Finding* waits = find(r, "synchronisation");
  ASSERT_NE(waits, nullptr);
  EXPECT_LE(waits->total_ns, 6u * 2'100'000u);
  EXPECT_THAT(problems(r), Not(Contains("host_elsewhere")));
}

// A server: each request is answered by a function that is called from one place, and the copy up
// and the one down are in it.
TEST(AnalysisPasses, CallsOfOneFunctionAreTurns) {
  Program p;
  for (int i = 0; i < 12; ++i) {
    p.now += 3000;
    p.up(p.at({{100, 20}, {200, 10}}));
    p.kernel(p.at({{100, 20}, {200, 20}}), 1000);
    p.down(p.at({{100, 20}, {200, 30}}));
  }
  const ProcessReport r = p.report();
  EXPECT_EQ(r.mode, StepMode::kPasses);
  EXPECT_EQ(r.steps.size(), 10u);
  EXPECT_EQ(r.pass_line.function, "f200");
}

// What is read at the end of a turn and copied at the begin of the next is no part of the model on
// the CPU.
TEST(AnalysisPasses, ResultsOfATurnAreNotComputedOnForTheNext) {
  Program p;
  for (int i = 0; i < 30; ++i) {
    p.now += 1000;
    p.up(p.at({{100, 20}}), 16 << 10);
    p.kernel(p.at({{100, 30}}), 200);
    p.down(p.at({{100, 40}}), 16 << 10);
    p.now += 100;
    p.sync(p.at({{100, 40}}));
  }
  const ProcessReport r = p.report();
  EXPECT_EQ(r.mode, StepMode::kPasses);
  EXPECT_THAT(problems(r), Not(Contains("cpu_part_of_model")));
}

TEST(AnalysisPasses, WarmingUpInTheSameFunctionIsAnotherLoop) {
  Program p;
  const auto turn = [&](std::uint32_t offset) {
    p.kernel(p.at({{100, offset}, {200, 10}}), 1000);
    p.kernel(p.at({{100, offset}, {200, 20}}), 1000);
    p.down(p.at({{100, offset + 4}}));
  };
  for (int i = 0; i < 9; ++i) turn(20);
  for (int i = 0; i < 30; ++i) turn(60);
  const ProcessReport r = p.report();
  EXPECT_EQ(r.mode, StepMode::kPasses);
  EXPECT_EQ(r.steps.size(), 28u);
  EXPECT_EQ(r.pass_line.line, 130);
}

TEST(AnalysisPasses, ATreeOfDifferentLengthsIsNone) {
  // Decoy: 12 turns, each of 3 times the work of the one before.
  Program p;
  for (int i = 0, n = 1; i < 9; ++i, n *= 3) {
    for (int k = 0; k < std::min(n, 2000); ++k) p.kernel(p.at({{100, 20}}), 10);
    p.down(p.at({{100, 24}}));
  }
  EXPECT_EQ(p.report().mode, StepMode::kWholeSpan);
}

TEST(AnalysisPasses, NoStepsWereAskedFor) {
  Program p;
  p.b.setting("GPUBUSY_STEP=none");
  for (int i = 0; i < 20; ++i) {
    p.kernel(p.at({{100, 20}}), 1000);
    p.down(p.at({{100, 24}}));
  }
  EXPECT_EQ(p.report().mode, StepMode::kWholeSpan);
}

}  // namespace
}  // namespace gpubusy::analysis
