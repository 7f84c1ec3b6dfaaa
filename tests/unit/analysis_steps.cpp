// SPDX-License-Identifier: Apache-2.0
//
// Where the time of a step goes. All numbers in the scripts are microseconds.
#include <gtest/gtest.h>

#include <numeric>

#include "analysis/steps.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::MemoryKind;
using recording::WindowEvent;
using recording::WindowKind;
using testing::CallOptions;
using testing::RecordingBuilder;

constexpr std::uint64_t kOrigin = RecordingBuilder::kStart;
std::uint64_t us(std::uint64_t value) { return kOrigin + value * 1000; }

// Writes calls and device times given in us since kOrigin.
class Script {
 public:
  RecordingBuilder b;

  void launch(std::uint64_t at, std::uint64_t length, std::uint64_t from, std::uint64_t to,
              CallOptions o = {}) {
    b.device_time(b.launch(us(at), us(at + length), kernel_, o), us(from), us(to), o);
  }
  void untimed(std::uint64_t at, std::uint64_t length) {
    b.launch(us(at), us(at + length), kernel_);
  }
  void sync(std::uint64_t from, std::uint64_t to, CallOptions o = {}) {
    b.sync(us(from), us(to), o);
  }
  void window(std::uint64_t begin, const std::vector<std::uint64_t>& edges) {
    b.window(WindowEvent::kBegin, us(begin), 0, 0, static_cast<std::uint32_t>(edges.size()));
    std::uint32_t step = 0;
    for (const std::uint64_t edge : edges) b.step_edge(us(edge), step++);
    b.window(WindowEvent::kEnd, us(edges.back()), 0, 0, static_cast<std::uint32_t>(edges.size()));
  }

 private:
  std::uint32_t kernel_ = b.kernel("k");
};

struct Split {
  recording::Recording recording;
  StepSelection selection;
  DeviceSteps device;

  double idle(std::size_t step, IdleClass c) const {
    return static_cast<double>(device.steps.at(step).idle(c)) / 1000;
  }
  double busy(std::size_t step) const {
    return static_cast<double>(device.steps.at(step).busy_ns) / 1000;
  }
};

Split split(const RecordingBuilder& b, std::int16_t device = 0) {
  Split out{b.read(), {}, {}};
  const Timeline timeline = build_timeline(out.recording);
  out.selection = select_steps(out.recording, timeline);
  out.device = split_time(out.recording, timeline, host_segments(out.recording),
                          out.selection.steps, device);
  // Whatever the script: each ns is busy or idle of one class.
  for (const StepTimes& t : out.device.steps) {
    EXPECT_EQ(t.wall_ns, std::accumulate(t.idle_ns.begin(), t.idle_ns.end(), t.busy_ns));
  }
  std::uint64_t pieces = 0, idle = 0;
  for (const IdlePiece& p : out.device.pieces) pieces += p.ns;
  for (const StepTimes& t : out.device.steps) idle += t.wall_ns - t.busy_ns;
  EXPECT_EQ(pieces, idle);
  return out;
}

TEST(AnalysisSteps, StarvedLoop) {
  const Split s = split(testing::starved_loop({.steps = 3, .pinned = true}));
  ASSERT_EQ(s.selection.steps.size(), 3u);
  EXPECT_EQ(s.selection.steps[0].number, 7u);
  // Step 0: copy 30.1 to 32, kernels 32.1 to 33. Later steps begin with 7.1 ms of the step before.
  EXPECT_EQ(s.busy(0), 1900 + 900);
  EXPECT_EQ(s.idle(0, IdleClass::kStepStart), 30'100);
  EXPECT_EQ(s.idle(0, IdleClass::kLaunch), 100);  // the way of the first kernel to the device
  EXPECT_EQ(s.busy(1), 7100 + 1900 + 900);
  EXPECT_EQ(s.idle(1, IdleClass::kStepStart), 23'000);
  EXPECT_EQ(s.device.steps[1].ops, 17u);
  EXPECT_EQ(s.device.steps[1].kernels, 16u);
}

TEST(AnalysisSteps, WorkBelongsToTheStepThatLaunchedIt) {
  Script s;
  // Launched in step 0, runs in step 1 only: step 1's start lasts until its own first work.
  s.launch(80, 5, 120, 140);
  s.launch(150, 5, 160, 200);
  s.window(0, {100, 200});
  const Split t = split(s.b);
  EXPECT_EQ(t.device.steps[0].ops, 1u);
  EXPECT_EQ(t.busy(0), 0);
  EXPECT_EQ(t.idle(0, IdleClass::kStepStart), 100);
  EXPECT_EQ(t.busy(1), 60);
  // 100 to 120: the work was asked for before the gap's end but in it; 140 to 160 start of step.
  EXPECT_EQ(t.idle(1, IdleClass::kStepStart), 40);
}

TEST(AnalysisSteps, ASynchronisationIsBlamedForAtMostWhatItWaited) {
  Script s;
  s.launch(0, 5, 5, 100);
  s.sync(60, 102);  // waited 40 us for the device, which is dry from 100
  s.launch(600, 5, 610, 700);
  s.sync(600 + 6, 702);  // waited 94 us
  s.launch(720, 5, 725, 800);
  s.window(0, {800});
  const Split t = split(s.b);
  // 100..102 the wait's return, then 40 us; the rest is below kLaunchPauseNs of "outside":
  // launching.
  EXPECT_EQ(t.idle(0, IdleClass::kAfterSync), (2 + 40) + (2 + 18 + 5));
  EXPECT_EQ(t.idle(0, IdleClass::kLaunch), 468);
  EXPECT_EQ(t.idle(0, IdleClass::kStepStart), 5);
}

TEST(AnalysisSteps, ALongPauseBehindAWaitIsTheHosts) {
  Script s;
  s.launch(0, 5, 5, 100);
  s.sync(60, 100);
  s.launch(1100, 5, 1110, 1200);  // 1 ms outside CUDA
  s.window(0, {1200});
  const Split t = split(s.b);
  EXPECT_EQ(t.idle(0, IdleClass::kAfterSync), 40);
  EXPECT_EQ(t.idle(0, IdleClass::kHostElsewhere), 960);
  EXPECT_EQ(t.idle(0, IdleClass::kLaunch), 10);
}

TEST(AnalysisSteps, AWaitAtTheEdgeComesBeforeTheStartOfTheStep) {
  Script s;
  s.launch(0, 5, 5, 500);
  s.sync(10, 500);             // torch.cuda.synchronize() at the end of the step
  s.launch(800, 5, 805, 900);  // the wait hid nothing but these 300 us
  s.window(0, {510, 900});
  const Split t = split(s.b);
  EXPECT_EQ(t.idle(1, IdleClass::kAfterSync), 805 - 510);
  EXPECT_EQ(t.idle(1, IdleClass::kStepStart), 0);
}

TEST(AnalysisSteps, AnotherThreadsWaitThatStillLastsIsNotBlamed) {
  Script s;
  CallOptions watchdog;
  watchdog.thread = 99;
  s.launch(0, 5, 5, 100);
  s.sync(10, 5000, watchdog);
  s.launch(300, 5, 310, 400);
  s.window(0, {400});
  const Split t = split(s.b);
  // The watchdog's call covers the pause, so the process is "waiting", but not because of a wait
  // that had to end before the launch.
  EXPECT_EQ(t.idle(0, IdleClass::kStepStart), 5);
  EXPECT_EQ(t.idle(0, IdleClass::kAfterSync), 200);
  EXPECT_EQ(t.idle(0, IdleClass::kLaunch), 10);
}

TEST(AnalysisSteps, QueuedWorkThatDoesNotBeginIsTheDevices) {
  Script s;
  s.launch(0, 5, 5, 50);
  s.launch(10, 5, 90, 100);  // asked for at 10, begins at 90
  s.window(0, {100});
  const Split t = split(s.b);
  EXPECT_EQ(t.idle(0, IdleClass::kQueued), 40);
}

TEST(AnalysisSteps, BlockingCallsAreTheirOwnClass) {
  Script s;
  s.launch(0, 5, 5, 50);
  s.b.alloc(us(60), us(360), 1 << 20);
  s.launch(370, 5, 380, 400);
  s.window(0, {400});
  const Split t = split(s.b);
  EXPECT_EQ(t.idle(0, IdleClass::kBlockedCall), 300);
  EXPECT_EQ(t.idle(0, IdleClass::kLaunch), 10 + 10 + 10);
}

TEST(AnalysisSteps, WorkWithoutTimesMakesTheGapUnknown) {
  Script s;
  s.launch(0, 5, 5, 50);
  s.untimed(60, 5);
  s.launch(200, 5, 210, 300);
  s.untimed(220, 5);  // queued behind work that ends at 300
  s.window(0, {400});
  const Split t = split(s.b);
  EXPECT_EQ(t.idle(0, IdleClass::kUnknown), 150 + 100);
  EXPECT_EQ(t.idle(0, IdleClass::kLaunch), 10);
}

TEST(AnalysisSteps, AStepWithoutWorkIsAllStart) {
  Script s;
  s.launch(0, 5, 5, 50);
  s.b.alloc(us(150), us(151), 1);
  s.window(0, {100, 200});
  const Split t = split(s.b);
  EXPECT_EQ(t.idle(1, IdleClass::kStepStart), 100);
}

TEST(AnalysisSteps, TwoThreadsLaunchForOneDevice) {
  Script s;
  CallOptions autograd;
  autograd.thread = 99;
  s.launch(0, 10, 12, 30);
  for (std::uint64_t i = 0; i < 10; ++i) {
    s.launch(40 + i * 20, 10, 42 + i * 20, 50 + i * 20, autograd);
  }
  s.window(0, {240});
  const Split t = split(s.b);
  EXPECT_EQ(t.busy(0), 18 + 80);
  EXPECT_EQ(t.idle(0, IdleClass::kLaunch), 240 - 98 - 12);
}

TEST(AnalysisSteps, EachDeviceIsSplitAlone) {
  Script s;
  CallOptions d1;
  d1.device = 1;
  s.launch(0, 5, 10, 50);
  s.launch(6, 5, 20, 90, d1);
  s.window(0, {100});
  EXPECT_EQ(split(s.b, 0).busy(0), 40);
  EXPECT_EQ(split(s.b, 1).busy(0), 70);
}

TEST(AnalysisSteps, ScheduledWindowsWithStepsAreJudged) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  b.window(WindowEvent::kBegin, us(0), 0, 0, 0, WindowKind::kPrelude);
  b.launch(us(1), us(2), k);
  b.step_edge(us(10), 0);
  b.window(WindowEvent::kEnd, us(10), 0, 0, 1, WindowKind::kPrelude);
  b.step_edge(us(20), 1);  // warm-up
  b.window(WindowEvent::kBegin, us(20), 1, 2, 2);
  b.step_edge(us(30), 2);
  b.step_edge(us(42), 3);
  b.window(WindowEvent::kEnd, us(42), 1, 2, 2);
  b.step_edge(us(50), 4);
  b.window(WindowEvent::kBegin, us(50), 2, 5, 2);
  b.step_edge(us(60), 5);
  b.window(WindowEvent::kCut, us(65), 2, 5, 1);
  const Split t = split(b);
  ASSERT_EQ(t.selection.steps.size(), 3u);
  EXPECT_EQ(t.selection.mode, StepMode::kSteps);
  EXPECT_EQ(t.selection.steps[0].begin_ns, us(20));
  EXPECT_EQ(t.selection.steps[1].number, 3u);
  EXPECT_EQ(t.selection.steps[1].wall_ns(), 12'000u);
  EXPECT_EQ(t.selection.steps[2].begin_ns, us(50));
  EXPECT_EQ(t.selection.cut_windows, 1u);
  EXPECT_EQ(t.selection.windows.size(), 2u);
}

TEST(AnalysisSteps, WithoutStepsTheWholeSpanIsJudged) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  b.window(WindowEvent::kBegin, us(0), 0, 0, 0, WindowKind::kPrelude);
  b.alloc(us(100), us(110), 8);  // before the first work: initialisation
  b.device_time(b.launch(us(1000), us(1005), k), us(1010), us(1100));
  b.window(WindowEvent::kCut, us(5000), 0, 0, 0, WindowKind::kPrelude);
  const Split t = split(b);
  EXPECT_EQ(t.selection.mode, StepMode::kWholeSpan);
  ASSERT_EQ(t.selection.steps.size(), 1u);
  EXPECT_EQ(t.selection.steps[0].begin_ns, us(1000));
  EXPECT_EQ(t.selection.steps[0].end_ns, us(1100));
  EXPECT_EQ(t.busy(0), 90);
}

TEST(AnalysisSteps, WhereTheHostIs) {
  Script s;
  CallOptions other;
  other.thread = 99;
  s.launch(0, 10, 5, 50);
  s.sync(20, 60);
  s.launch(50, 4, 52, 53, other);  // another thread launches meanwhile
  s.b.alloc(us(700), us(800), 1);  // behind 640 us outside
  s.window(0, {100, 1000});
  const recording::Recording r = s.b.read();
  const Timeline timeline = build_timeline(r);
  const std::vector<Step> steps = select_steps(r, timeline).steps;
  const std::vector<HostSegment> host = host_segments(r);
  const auto times = host_times(host, steps);
  const auto of = [&](HostState state) { return times[static_cast<std::size_t>(state)] / 1000; };
  EXPECT_EQ(of(HostState::kLaunching), 10u + 4u);
  EXPECT_EQ(of(HostState::kWaiting), 30u + 6u);
  EXPECT_EQ(of(HostState::kOtherCall), 100u);
  EXPECT_EQ(of(HostState::kOutside), 10u + 40u + 600u + 200u);
  const std::vector<IdlePiece> pauses = host_pauses(host, steps);
  ASSERT_EQ(pauses.size(), 2u);  // the pause of 640 us, in two steps
  EXPECT_EQ(pauses[0].ns, 40'000u);
  EXPECT_EQ(pauses[1].ns, 600'000u);
  EXPECT_EQ(pauses[1].before_call, 1u);
  EXPECT_EQ(pauses[1].call, 3u);
}

TEST(AnalysisSteps, NoWindowNoCallsNothing) {
  const Split t = split(RecordingBuilder());
  EXPECT_TRUE(t.selection.steps.empty());
}

}  // namespace
}  // namespace gpubusy::analysis
