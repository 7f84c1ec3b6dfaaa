// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "analysis/timeline.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::MemoryKind;
using testing::CallOptions;
using testing::RecordingBuilder;

TEST(AnalysisTimeline, JoinsTimesWithCalls) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  CallOptions d1;
  d1.device = 1;
  d1.stream = 13;
  const std::uint32_t first = b.launch(100, 110, kernel);
  const std::uint32_t second = b.launch(200, 210, kernel, d1);
  const std::uint32_t copy =
      b.copy(300, 310, 64, CopyDirection::kHostToDevice, MemoryKind::kPinned, true);
  b.device_time(second, 220, 260, d1);  // times come in any order
  b.device_time(first, 120, 150);
  b.device_time(copy, 140, 340);  // wrong clock, see below
  b.device_time(999, 1, 2);       // nobody asked for it
  const recording::Recording r = b.read();
  const Timeline t = build_timeline(r);
  ASSERT_EQ(t.ops.size(), 3u);
  EXPECT_EQ(t.coverage.orphan_times, 1u);
  EXPECT_EQ(t.coverage.expected, 3u);
  EXPECT_EQ(t.coverage.timed, 3u);
  ASSERT_EQ(t.devices.size(), 2u);
  EXPECT_EQ(t.devices.at(1).ops.size(), 1u);
  EXPECT_EQ(t.ops[t.devices.at(1).ops[0]].stream, 13u);
  // The copy seems to begin 160 ns before its call: all of device 0 moves by that.
  EXPECT_EQ(t.devices.at(0).clock_correction_ns, 160u);
  EXPECT_EQ(t.devices.at(0).busy, (std::vector<Interval>{{280, 500}}));
  EXPECT_EQ(t.devices.at(0).kernel_busy, (std::vector<Interval>{{280, 310}}));
  EXPECT_EQ(t.devices.at(1).clock_correction_ns, 0u);
  const auto [from, to] = t.ops_of(2);
  ASSERT_EQ(to - from, 1u);
  EXPECT_EQ(t.ops[t.ops_by_call[from]].kind, OpKind::kCopy);
}

TEST(AnalysisTimeline, AClockTooFarOffIsNotCorrectedButSaid) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  b.device_time(b.launch(10'000'000, 10'000'010, kernel), 5'000'000, 5'000'100);
  const Timeline t = build_timeline(b.read());
  EXPECT_EQ(t.coverage.early_ops, 1u);
  EXPECT_EQ(t.devices.at(0).clock_correction_ns, 0u);
}

// CUPTI's clock of the device is 5 ms early, and 9 ms from a jump on; events' times are right.
TEST(AnalysisTimeline, AClockThatJumpsIsCorrectedByPieces) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  constexpr std::uint64_t kMs = 1'000'000;
  b.recording_edge(100 * kMs, true);
  const auto launch = [&](std::uint64_t at, std::uint64_t begins, std::uint64_t error,
                          recording::TimeSource source) {
    b.device_time(b.launch(at, at + 5'000, kernel), begins - error, begins - error + 10'000, {}, 20,
                  source);
  };
  using enum recording::TimeSource;
  launch(110 * kMs, 111 * kMs, 5 * kMs, kCupti);
  launch(120 * kMs, 120 * kMs + 1'000, 5 * kMs, kCupti);
  launch(130 * kMs, 130 * kMs + 2'000, 0, kEvents);
  launch(160 * kMs, 170 * kMs, 5 * kMs, kCupti);  // queued for long: alone it proves nothing
  launch(310 * kMs, 310 * kMs + 1'000, 9 * kMs, kCupti);
  const Timeline t = build_timeline(b.read());
  ASSERT_EQ(t.ops.size(), 5u);
  // The least that is right: the work of 120 ms then begins with its launch.
  EXPECT_EQ(t.ops[0].start_ns, 111 * kMs - 1'000);
  EXPECT_EQ(t.ops[1].start_ns, 120 * kMs);
  EXPECT_EQ(t.ops[2].start_ns, 130 * kMs + 2'000);
  EXPECT_EQ(t.ops[3].start_ns, 170 * kMs - 1'000);
  EXPECT_EQ(t.ops[4].start_ns, 310 * kMs);
  EXPECT_EQ(t.coverage.early_ops, 0u);
}

TEST(AnalysisTimeline, ABacklogFromBeforeTheRecordingIsBusy) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  b.recording_edge(1'000, true);  // the file's begin: nothing ran before it
  b.device_time(b.launch(1'100, 1'200, kernel), 500'000, 600'000);
  b.recording_edge(700'000, false);
  b.recording_edge(2'000'000, true);
  // Asked for at 2.1 ms, begun at 9 ms: behind work from the pause. The next one is behind this.
  b.device_time(b.launch(2'100'000, 2'101'000, kernel), 9'000'000, 9'100'000);
  b.device_time(b.launch(2'200'000, 2'201'000, kernel), 9'200'000, 9'300'000);
  // A second pause, and no backlog behind it: begun within microseconds.
  b.recording_edge(10'000'000, false);
  b.recording_edge(12'000'000, true);
  b.device_time(b.launch(12'100'000, 12'101'000, kernel), 12'105'000, 12'200'000);
  const Timeline t = build_timeline(b.read());
  EXPECT_EQ(t.devices.at(0).earlier, (std::vector<Interval>{{2'000'000, 9'000'000}}));
  EXPECT_EQ(t.devices.at(0).busy, (std::vector<Interval>{{500'000, 600'000},
                                                         {2'000'000, 9'100'000},
                                                         {9'200'000, 9'300'000},
                                                         {12'105'000, 12'200'000}}));
}

TEST(AnalysisTimeline, AStreamThatWaitsForAnotherIsNoBacklog) {
  // Behind a pause, a second stream's first work is asked for early and begins when the work of the
  // first has ended: it waited for an event, and the device was idle before that work.
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  b.recording_edge(1'000, true);
  b.device_time(b.launch(1'100, 1'200, kernel), 500'000, 600'000);
  b.recording_edge(700'000, false);
  b.recording_edge(2'000'000, true);
  b.device_time(b.launch(5'000'000, 5'001'000, kernel), 5'005'000, 9'000'000);
  CallOptions second;
  second.stream = 13;
  b.device_time(b.launch(5'100'000, 5'101'000, kernel, second), 9'004'000, 9'100'000, second);
  // Decoy: a third one, behind nothing that was recorded.
  CallOptions third;
  third.stream = 14;
  const Timeline before = build_timeline(b.read());
  EXPECT_TRUE(before.devices.at(0).earlier.empty());
  b.device_time(b.launch(5'200'000, 5'201'000, kernel, third), 11'000'000, 11'100'000, third);
  const Timeline t = build_timeline(b.read());
  EXPECT_EQ(t.devices.at(0).earlier, (std::vector<Interval>{{2'000'000, 11'000'000}}));
}

TEST(AnalysisTimeline, SaysWhyWorkHasNoTime) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  const auto launch = [&](std::uint64_t at, std::uint16_t flags, std::int32_t result = 0) {
    CallOptions o;
    o.flags = flags;
    o.result = result;
    return b.launch(at, at + 1, kernel, o);
  };
  launch(10, recording::kCallUntimedCapture);
  launch(20, recording::kCallUntimedLimit);
  launch(30, recording::kCallTimed);
  launch(40, 0);
  launch(45, recording::kCallUntimedFailed);
  launch(50, recording::kCallCaptured);  // no work of its own
  launch(60, 0, 700);                    // failed: no work
  b.device_time(launch(70, recording::kCallTimed), 80, 90);
  b.copy(100, 101, 0, CopyDirection::kHostToDevice, MemoryKind::kPinned, true);   // nothing to do
  b.copy(110, 111, 8, CopyDirection::kHostToHost, MemoryKind::kPageable, false);  // no device
  const Timeline t = build_timeline(b.read());
  EXPECT_EQ(t.coverage.expected, 6u);
  EXPECT_EQ(t.coverage.timed, 1u);
  EXPECT_EQ(t.coverage.untimed_capture, 1u);
  EXPECT_EQ(t.coverage.untimed_limit, 1u);
  EXPECT_EQ(t.coverage.untimed_pending, 1u);
  EXPECT_EQ(t.coverage.untimed_off, 1u);
  EXPECT_EQ(t.coverage.untimed_failed, 1u);
  EXPECT_EQ(t.coverage.captured, 1u);
  EXPECT_EQ(t.coverage.failed_calls, 1u);
  EXPECT_EQ(t.untimed_ns, (std::vector<std::uint64_t>{10, 20, 30, 40, 45}));
}

TEST(AnalysisTimeline, AGraphLaunchMayHaveManyTimes) {
  RecordingBuilder b;
  const std::uint32_t g = b.graph_launch(10, 20, b.graph(2, 0, 0));
  b.device_time(g, 30, 40, {}, 0, recording::TimeSource::kCupti, 1);
  b.device_time(g, 45, 50, {}, 0, recording::TimeSource::kCupti, 2);
  const Timeline t = build_timeline(b.read());
  EXPECT_EQ(t.ops.size(), 2u);
  EXPECT_EQ(t.coverage.expected, 1u);
  EXPECT_EQ(t.coverage.timed, 1u);
  const auto [from, to] = t.ops_of(0);
  EXPECT_EQ(to - from, 2u);
}

TEST(AnalysisTimeline, WhichCallsWaitForTheDevice) {
  RecordingBuilder b;
  b.sync(10, 20);
  b.copy(30, 40, 8, CopyDirection::kDeviceToHost, MemoryKind::kPinned, false);
  b.copy(50, 60, 8, CopyDirection::kDeviceToHost, MemoryKind::kPageable, true);
  b.copy(70, 80, 8, CopyDirection::kDeviceToHost, MemoryKind::kPinned, true);
  b.copy(90, 91, 8, CopyDirection::kDeviceToDevice, MemoryKind::kDevice, false);
  b.launch(95, 96, b.kernel("k"));
  const recording::Recording r = b.read();
  std::vector<bool> waits;
  for (const auto& call : r.calls) waits.push_back(waits_for_device(call));
  EXPECT_EQ(waits, (std::vector<bool>{true, true, true, false, false, false}));
}

}  // namespace
}  // namespace gpubusy::analysis
