// SPDX-License-Identifier: Apache-2.0
//
// Findings for programs whose trouble is known. Times in the scripts are ms unless said otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "tests/support/reports.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::MemoryKind;
using recording::WindowEvent;
using testing::CallOptions;
using ::testing::ElementsAre;
using testing::finding;
using ::testing::HasSubstr;
using testing::ids;
using ::testing::IsEmpty;
using testing::kMs;
using testing::kScript;
using testing::RecordingBuilder;

std::string all_warnings(const ProcessReport& report) {
  std::string out;
  for (const std::string& w : report.warnings) out += w + "\n";
  return out;
}

// A loop of `steps` steps; `body(t)` writes one and returns its length.
template <typename Body>
ProcessReport loop(RecordingBuilder& b, int steps, Body body) {
  std::uint64_t t = RecordingBuilder::kStart;
  b.window(WindowEvent::kBegin, t, 0, 0, static_cast<std::uint32_t>(steps));
  for (int i = 0; i < steps; ++i) {
    t += body(t);
    b.step_edge(t, static_cast<std::uint32_t>(i));
  }
  b.window(WindowEvent::kEnd, t, 0, 0, static_cast<std::uint32_t>(steps));
  return report_of(b.read());
}

TEST(AnalysisVerdict, StarvedLoopIsNamedWithItsRegion) {
  const ProcessReport r = report_of(testing::starved_loop().read());
  EXPECT_THAT(ids(r), ElementsAre("data_starvation", "pageable_copies"));
  const Finding& f = r.findings[0];
  EXPECT_EQ(f.where, "train.py:58-63 in main (after line 63, before line 58)");
  EXPECT_EQ(f.after.line, 63);
  EXPECT_EQ(f.before.line, 58);
  EXPECT_EQ(f.steps, 20u);
  // Steps after the first: 30 ms outside CUDA less the 7.1 ms in which the device still runs.
  EXPECT_NEAR(f.ms_of_step.median, 22.9, 1e-9);
  EXPECT_NEAR(f.share_of_step.median, 22.9 / 33, 1e-9);
  EXPECT_NEAR(f.share_of_step.maximum, 30.0 / 33, 1e-9);
  EXPECT_NEAR(r.share(r.busy_ns), (2.8 + 19 * 9.9) / (20 * 33), 1e-9);
  EXPECT_THAT(r.warnings, IsEmpty());
  const Finding& pageable = r.findings[1];
  EXPECT_EQ(pageable.where, "train.py:58 (main)");
  EXPECT_NEAR(pageable.share, 2.0 / 33, 1e-9);  // no kernel runs in the 2 ms of the call
}

TEST(AnalysisVerdict, PinnedCopiesAreNotFlagged) {
  // The copy of 1.9 ms runs alone, and that is said.
  const ProcessReport r = report_of(testing::starved_loop({.pinned = true}).read());
  EXPECT_THAT(ids(r), ElementsAre("data_starvation", "copies_not_overlapped"));
}

TEST(AnalysisVerdict, ReadingTheLossBehindTheEdgeDoesNotHideStarvation) {
  // optimizer.step(); loss.item(); next batch: the wait comes first in the step.
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions item, copy, forward;
  item.python_stack = b.frame(0, kScript, "main", 64);
  copy.python_stack = b.frame(0, kScript, "main", 58);
  forward.python_stack = b.frame(0, kScript, "main", 60);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    // 5 ms of the last step's work, waited for; 30 ms of host; copy; 6 ms of kernels queued.
    b.device_time(
        b.copy(t, t + 5 * kMs, 4, CopyDirection::kDeviceToHost, MemoryKind::kPageable, true, item),
        t + 5 * kMs - 2000, t + 5 * kMs - 1000, item);
    b.device_time(b.copy(t + 35 * kMs, t + 35 * kMs + 10'000, 8 << 20, CopyDirection::kHostToDevice,
                         MemoryKind::kPinned, true, copy),
                  t + 35 * kMs + 5000, t + 36 * kMs, copy);
    b.device_time(b.launch(t + 35 * kMs + 20'000, t + 35 * kMs + 30'000, k, forward), t + 36 * kMs,
                  t + 41 * kMs - 10'000, forward);
    return 36 * kMs;
  });
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].id, "data_starvation");
  // Of the 30 ms, 5 are the wait's: so long had the host been held up.
  EXPECT_NEAR(r.findings[0].ms_of_step.median, 25, 0.1);
  EXPECT_EQ(r.findings[0].where, "train.py:58-64 in main (after line 64, before line 58)");
  EXPECT_EQ(finding(r, "synchronisation").where, "train.py:64 (main)");
}

TEST(AnalysisVerdict, AWaitForMuchQueuedWorkIsNotTheCause) {
  // D03 A: 50 ms of kernels are queued, then .item().
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("big_kernel");
  CallOptions item;
  item.python_stack = b.frame(0, kScript, "main", 70);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    for (std::uint64_t i = 0; i < 10; ++i) {
      b.device_time(b.launch(t + i * 20'000, t + i * 20'000 + 5000, k), t + 10'000 + i * 5 * kMs,
                    t + 10'000 + (i + 1) * 5 * kMs);
    }
    b.device_time(b.copy(t + 300'000, t + 50 * kMs + 30'000, 4, CopyDirection::kDeviceToHost,
                         MemoryKind::kPageable, false, item),
                  t + 50 * kMs + 15'000, t + 50 * kMs + 20'000, item);
    return 50 * kMs + 100'000;
  });
  EXPECT_THAT(ids(r), ElementsAre("gpu_busy"));
  EXPECT_FALSE(r.findings[0].problem);
  EXPECT_EQ(r.findings[0].where, "train.py:70 (main)");
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("not the cause"));
  EXPECT_GT(r.share(r.busy_ns), 0.99);
}

TEST(AnalysisVerdict, ManySmallWaitsAreNamedByLine) {
  // D03 C: 20 times 2 ms of kernel and .item(), with 0.3 ms of Python between.
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions item;
  item.python_stack = b.frame(0, kScript, "main", 71);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t begin) {
    std::uint64_t t = begin;
    for (int i = 0; i < 20; ++i) {
      b.device_time(b.launch(t, t + 5000, k), t + 8000, t + 2 * kMs);
      b.device_time(b.copy(t + 10'000, t + 2 * kMs + 15'000, 4, CopyDirection::kDeviceToHost,
                           MemoryKind::kPageable, true, item),
                    t + 2 * kMs + 5000, t + 2 * kMs + 10'000, item);
      t += 2 * kMs + 315'000;
    }
    return t - begin;
  });
  ASSERT_THAT(ids(r), ::testing::Contains("synchronisation"));
  const Finding& f = finding(r, "synchronisation");
  EXPECT_EQ(f.where, "train.py:71 (main)");
  // Per item: 5 us before the copy begins (queued: not the wait's), then 5 + 300 + 8 us.
  EXPECT_NEAR(f.ms_of_step.median, 20 * 0.313, 0.01);
  EXPECT_THAT(f.evidence, HasSubstr("20 times per step"));
  EXPECT_THAT(f.evidence, HasSubstr("cudaMemcpyAsync"));
}

TEST(AnalysisVerdict, WhatFewStepsMeetIsToldOfThem) {
  // In every tenth step a wait, and 60 ms of host behind it; in the median step nothing.
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  int step = 0;
  const ProcessReport r = loop(b, 20, [&](std::uint64_t t) -> std::uint64_t {
    b.device_time(b.launch(t, t + 5'000, k), t + 10'000, t + 10 * kMs);
    if (step++ % 10 != 4) return 10 * kMs;
    b.sync(t + 10'000, t + 70 * kMs);
    return 70 * kMs;
  });
  const Finding& f = finding(r, "synchronisation");
  EXPECT_EQ(f.dear_steps, 2u);
  EXPECT_THAT(f.evidence,
              HasSubstr("Idle 120.2 ms in all (37.5 %; in 2 of 20 steps, up to 60.0 ms in one)"));
  EXPECT_THAT(f.evidence, ::testing::Not(HasSubstr("median")));
}

TEST(AnalysisVerdict, LaunchBound) {
  // D06: 1,200 kernels of 6 us with 45 us of host each.
  const ProcessReport r = report_of(testing::launch_bound_loop(10, 1200, 45, 6).read());
  ASSERT_THAT(ids(r), ElementsAre("launch_bound"));
  EXPECT_NEAR(r.share(r.busy_ns), 6.0 / 45, 1e-3);
  EXPECT_EQ(r.summary.median_launch_gap_ns, 45'000u);
  EXPECT_EQ(r.summary.median_kernel_ns, 6'000u);
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("1200 launches per step"));
  EXPECT_EQ(r.findings[0].where, "train.py:12 (predict)");
}

TEST(AnalysisVerdict, GraphsAreNotLaunchBoundAndTheirKernelsAreNotLost) {
  RecordingBuilder b;
  const std::uint32_t g = b.graph(1172, 0, 0);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    b.device_time(b.graph_launch(t, t + 30'000, g), t + 20'000, t + 10 * kMs);
    b.sync(t + 40'000, t + 10 * kMs);
    return 10 * kMs + 20'000;
  });
  EXPECT_THAT(ids(r), ElementsAre("gpu_busy"));
  EXPECT_EQ(r.summary.graph_launches, 10u);
  EXPECT_EQ(r.summary.kernels.at(0).name, "CUDA graph 1");
}

TEST(AnalysisVerdict, CopiesThatKeepTheGpuBusyAreNotComputing) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("small");
  CallOptions load;
  load.python_stack = b.frame(0, kScript, "main", 21);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    b.device_time(b.copy(t, t + 10'000, 64'000'000, CopyDirection::kHostToDevice,
                         MemoryKind::kPinned, true, load),
                  t + 5'000, t + 4 * kMs + 5'000, load);
    b.device_time(b.launch(t + 20'000, t + 30'000, k), t + 4 * kMs + 5'000, t + 4 * kMs + 105'000);
    b.sync(t + 40'000, t + 4 * kMs + 110'000);
    return 4 * kMs + 115'000;
  });
  ASSERT_THAT(ids(r), ElementsAre("copy_bound"));
  EXPECT_TRUE(r.findings[0].problem);
  EXPECT_EQ(r.findings[0].where, "train.py:21 (main)");
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("only 2.4 % with kernels"));
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("HtoD copies, 4.00 ms per step at 16.0 GB/s"));
}

TEST(AnalysisVerdict, AllocationChurn) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions o;
  o.python_stack = b.frame(0, kScript, "grow", 33);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    b.alloc(t, t + 1 * kMs, 1 << 30, o);
    b.free(t + 1 * kMs, t + 6 * kMs, o);
    b.alloc(t + 6 * kMs, t + 7 * kMs, 1 << 30, o);
    b.device_time(b.launch(t + 7 * kMs, t + 7 * kMs + 5000, k), t + 7 * kMs + 4000, t + 17 * kMs);
    return 17 * kMs;
  });
  ASSERT_THAT(ids(r), ElementsAre("allocation_churn"));
  EXPECT_EQ(r.findings[0].where, "train.py:33 (grow)");
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("2 cudaMalloc, 1 cudaFree"));
  EXPECT_NEAR(r.findings[0].share, 7.0 / 17, 1e-3);
}

TEST(AnalysisVerdict, AllocatingInTheFirstStepsOnlyIsNotFlagged) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  int step = 0;
  const ProcessReport r = loop(b, 20, [&](std::uint64_t t) {
    if (step++ < 5) b.alloc(t, t + 1 * kMs, 1 << 20);
    b.device_time(b.launch(t + 1 * kMs, t + 1 * kMs + 5000, k), t + 1 * kMs, t + 20 * kMs);
    return 20 * kMs;
  });
  EXPECT_THAT(ids(r), ::testing::Not(::testing::Contains("allocation_churn")));
}

TEST(AnalysisVerdict, HostWorkInMidStep) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions before, after;
  before.python_stack = b.frame(0, kScript, "main", 80);
  after.python_stack = b.frame(0, kScript, "main", 85);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    b.device_time(b.launch(t, t + 5000, k, before), t + 5000, t + 5 * kMs, before);
    b.device_time(b.launch(t + 9 * kMs, t + 9 * kMs + 5000, k, after), t + 9 * kMs + 5000,
                  t + 12 * kMs, after);
    return 12 * kMs;
  });
  ASSERT_THAT(ids(r), ElementsAre("host_elsewhere"));
  EXPECT_EQ(r.findings[0].where, "train.py:80-85 in main (after line 80, before line 85)");
  EXPECT_NEAR(r.findings[0].ms_of_step.median, 4, 1e-9);
}

TEST(AnalysisVerdict, OneSlowStepIsNoStarvation) {
  // D11: a checkpoint in one step of ten.
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  int step = 0;
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    const std::uint64_t pause = ++step == 5 ? 100 * kMs : 0;
    b.device_time(b.launch(t + pause, t + pause + 5000, k), t + pause + 4000, t + pause + 10 * kMs);
    return pause + 10 * kMs;
  });
  EXPECT_THAT(ids(r), ::testing::Not(::testing::Contains("data_starvation")));
  EXPECT_EQ(r.outlier_steps, 1u);
  EXPECT_NEAR(r.step_ms.median, 10, 1e-9);
  EXPECT_NEAR(r.step_ms.maximum, 110, 1e-9);
}

TEST(AnalysisVerdict, SaysWhatWasNotSeen) {
  RecordingBuilder open;
  open.state(recording::FileState::kOpen).lost(12);
  const std::uint32_t k = open.kernel("k");
  open.launch(10, 20, k);
  const ProcessReport r = report_of(open.read());
  EXPECT_THAT(all_warnings(r), HasSubstr("did not end in an orderly way"));
  EXPECT_THAT(all_warnings(r), HasSubstr("12 records were lost"));
  EXPECT_THAT(all_warnings(r), HasSubstr("No step was seen"));
  EXPECT_THAT(all_warnings(r), HasSubstr("No device time was measured (0 of 1"));
  EXPECT_FALSE(r.has_device_times());
  EXPECT_THAT(r.findings, IsEmpty());
  open.setting("GPUBUSY_DEVICE_TIME=off");
  EXPECT_THAT(all_warnings(report_of(open.read())),
              HasSubstr("(0 of 1 pieces of work; --device-time is off)"));

  recording::Session session;
  session.processes.push_back(RecordingBuilder().read());
  const SessionReport silent = analyse(session);
  EXPECT_TRUE(silent.processes.empty());
  EXPECT_EQ(silent.helpers, 1u);
  EXPECT_THAT(render_text(silent, {}), HasSubstr("No CUDA call was intercepted"));
}

TEST(AnalysisVerdict, StepsOutsideWindowsAreCountedButNotJudged) {
  // T02: the schedule never came to its window.
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  b.window(WindowEvent::kBegin, 5, 0, 0, 0, recording::WindowKind::kPrelude);
  b.device_time(b.launch(10, 20, k), 20, 40);
  b.step_edge(50, 0);
  b.window(WindowEvent::kEnd, 50, 0, 0, 1, recording::WindowKind::kPrelude);
  b.step_edge(90, 1);
  b.steps_seen(3);
  const ProcessReport r = report_of(b.read());
  EXPECT_EQ(r.mode, StepMode::kWholeSpan);
  EXPECT_THAT(all_warnings(r), HasSubstr("3 steps were seen"));
  EXPECT_NEAR(r.share(r.busy_ns), 20.0 / 30, 1e-9);
}

TEST(AnalysisVerdict, WithoutDeviceTimesTheHostIsAllThereIs) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions o;
  o.python_stack = b.frame(0, kScript, "main", 9);
  const ProcessReport r = loop(b, 4, [&](std::uint64_t t) {
    b.launch(t + 3 * kMs, t + 4 * kMs, k, o);
    return 4 * kMs;
  });
  ASSERT_THAT(ids(r), ElementsAre("host_outside"));
  EXPECT_FALSE(r.findings[0].problem);
  EXPECT_NEAR(r.findings[0].share, 0.75, 1e-9);
  EXPECT_EQ(r.findings[0].where, "train.py:9 (main)");
  EXPECT_EQ(r.host_time(HostState::kLaunching), 4 * kMs);
  const std::string text = render_text(
      [&] {
        SessionReport session;
        session.processes.push_back(r);
        return session;
      }(),
      {});
  EXPECT_THAT(text, HasSubstr("GPU busy: not known in 4 steps (0–3); step 4.00 ms"));
  EXPECT_THAT(text, HasSubstr("where the host's time goes"));
}

TEST(AnalysisVerdict, StepsOfSeveralWindowsAndThoseBetween) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  std::uint64_t t = RecordingBuilder::kStart;
  for (std::uint32_t step = 0; step < 12; ++step) {
    const std::uint32_t window = step < 6 ? 0 : 1;
    if (step % 6 == 4) b.window(WindowEvent::kBegin, t, window, step, 2);
    if (step % 6 >= 4) b.device_time(b.launch(t, t + 1000, k), t + 1000, t + 5 * kMs);
    t += (step % 6 >= 4 ? 10 : 8) * kMs;
    b.step_edge(t, step);
    if (step % 6 == 5) b.window(WindowEvent::kEnd, t, window, step - 1, 2);
  }
  const ProcessReport r = report_of(b.read());
  EXPECT_EQ(r.steps.size(), 4u);
  EXPECT_EQ(r.other_steps, 7u);  // not the first: its begin is not known
  EXPECT_NEAR(r.other_step_ms.median, 8, 1e-9);
  SessionReport session;
  session.processes.push_back(r);
  EXPECT_THAT(render_text(session, {.ascii = true}), HasSubstr("4 steps (4-5, 10-11); step 10.0"));
}

TEST(AnalysisVerdict, RanksInOrderAndHelpersCounted) {
  recording::Session session;
  for (const int rank : {1, 0}) {
    RecordingBuilder b =
        testing::starved_loop({.steps = 2, .pid = static_cast<std::uint32_t>(4000 + rank)});
    b.rank(rank, 2, rank);
    session.processes.push_back(b.read());
  }
  session.processes.push_back(RecordingBuilder(99).read());
  session.skipped.push_back({"x.gpubusy: damaged"});
  const SessionReport report = analyse(session);
  ASSERT_EQ(report.processes.size(), 2u);
  EXPECT_EQ(report.processes[0].rank, 0);
  EXPECT_EQ(report.helpers, 1u);
  const std::string text = render_text(report, {});
  EXPECT_THAT(text, HasSubstr("2 processes used CUDA"));
  EXPECT_THAT(text, HasSubstr("1 more process made no CUDA call"));
  EXPECT_THAT(text, HasSubstr("Not read: x.gpubusy: damaged"));
}

}  // namespace
}  // namespace gpubusy::analysis
