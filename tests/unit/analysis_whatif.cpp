// SPDX-License-Identifier: Apache-2.0
//
// Predictions for programs whose answer can be worked out by hand. Times in the scripts are ms
// unless said otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "analysis/whatif/gains.hpp"
#include "analysis/whatif/whatif.hpp"
#include "tests/support/reports.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis::whatif {
namespace {

using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::WindowEvent;
using testing::CallOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kMs;
using testing::kScript;
using testing::kUs;
using testing::RecordingBuilder;

constexpr int kSteps = 12;

// A loop of steps; `body(t, i)` writes one and returns its length.
RecordingBuilder loop(
    const std::function<std::uint64_t(RecordingBuilder&, std::uint64_t, int)>& body,
    int steps = kSteps) {
  RecordingBuilder b;
  b.device(0, "NVIDIA H200");
  std::uint64_t t = RecordingBuilder::kStart;
  b.window(WindowEvent::kBegin, t, 0, 0, static_cast<std::uint32_t>(steps));
  for (int i = 0; i < steps; ++i) {
    t += body(b, t, i);
    b.step_edge(t, static_cast<std::uint32_t>(i));
  }
  b.window(WindowEvent::kEnd, t, 0, 0, static_cast<std::uint32_t>(steps));
  return b;
}

Predictions run(const RecordingBuilder& b, std::vector<std::string> changes,
                unsigned processors = 16, bool together = false) {
  Options options;
  options.processors = processors;
  options.together = together;
  std::vector<Change> parsed;
  for (const std::string& text : changes) {
    auto change = parse_change(text);
    if (!change) {
      ADD_FAILURE() << change.error();
      return {};
    }
    parsed.push_back(*change);
  }
  return predict(b.read(), options, parsed);
}

double step_ms(const RecordingBuilder& b, const std::string& change, unsigned processors = 16) {
  const Predictions p = run(b, {change}, processors);
  EXPECT_EQ(p.error, "");
  if (p.rows.size() != 1) {
    ADD_FAILURE() << p.rows.size() << " predictions";
    return -1;
  }
  EXPECT_LE(p.rows[0].low_ms, p.rows[0].step_ms);
  EXPECT_GE(p.rows[0].high_ms, p.rows[0].step_ms);
  return p.rows[0].step_ms;
}

// Ten kernels of 1 ms, a synchronisation, then the host works for 6 ms by itself.
RecordingBuilder synchronised() {
  return loop([](RecordingBuilder& b, std::uint64_t t, int) {
    const std::uint32_t kernel = b.kernel("forward_kernel");
    CallOptions o;
    for (std::uint64_t k = 0; k < 10; ++k) {
      const std::uint32_t l = b.launch(t + k * 10 * kUs, t + k * 10 * kUs + 5 * kUs, kernel, o);
      b.device_time(l, t + 5 * kUs + k * kMs, t + 5 * kUs + (k + 1) * kMs, o);
    }
    o.python_stack = b.frame(0, kScript, "main", 60);
    b.sync(t + 200 * kUs, t + 10 * kMs + 10 * kUs, o);
    return 16 * kMs + 10 * kUs;
  });
}

TEST(WhatIf, ModelWithNothingChangedIsTheRecording) {
  for (const RecordingBuilder& b :
       {synchronised(), testing::starved_loop(), testing::launch_bound_loop(10, 100, 20, 5)}) {
    const Predictions p = run(b, {});
    EXPECT_EQ(p.error, "");
    EXPECT_NEAR(p.model_ms / p.step_ms, 1, 0.002);
  }
}

TEST(WhatIf, WithoutTheSynchronisationHostAndDeviceRunSideBySide) {
  const RecordingBuilder b = synchronised();
  EXPECT_NEAR(step_ms(b, "no-sync"), 10, 0.1);  // the device's 10 ms; the host needs 6.2
  EXPECT_NEAR(step_ms(b, "no-sync:train.py:60"), 10, 0.1);
  EXPECT_NEAR(step_ms(b, "no-sync:main"), 10, 0.1);
  EXPECT_NEAR(step_ms(b, "kernel:forward*:*0.5"), 11.01, 0.1);
  EXPECT_NEAR(step_ms(b, "host:train.py:60*0.5"), 13.01, 0.1);

  const Predictions other = run(b, {"no-sync:train.py:61"});
  ASSERT_EQ(other.rows.size(), 1u);
  EXPECT_NEAR(other.rows[0].step_ms, 16.01, 0.1);
  EXPECT_THAT(other.rows[0].touched, ElementsAre(0u));
  EXPECT_THAT(render_text({other}, {}), HasSubstr("nothing in the recording is what"));
}

TEST(WhatIf, ChangesTogether) {
  const Predictions p = run(synchronised(), {"no-sync", "kernel*0.1"}, 16, true);
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_THAT(p.rows[0].changes, ElementsAre("no-sync", "kernel*0.1"));
  EXPECT_NEAR(p.rows[0].step_ms, 6.2, 0.1);  // the host's own time now
  EXPECT_NEAR(p.rows[0].gpu_busy, 1 / 6.2, 0.02);
}

TEST(WhatIf, PinnedMemoryFreesTheHost) {
  // 33 ms of the host, 2 of them in the pageable copy; the device is done long before.
  EXPECT_NEAR(step_ms(testing::starved_loop(), "pinned"), 31, 0.1);
  const Predictions p = run(testing::starved_loop(), {"pinned"});
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_THAT(p.rows[0].assumed, ElementsAre(HasSubstr("25 GB/s")));
  testing::StarvedOptions pinned;
  pinned.pinned = true;
  EXPECT_THAT(run(testing::starved_loop(pinned), {"pinned"}).rows.at(0).touched, ElementsAre(0u));
}

TEST(WhatIf, WorkersLoadBesideTheTraining) {
  // Loading takes 30 ms of 33. Eight workers: a batch each 3.75 ms, so copy and kernels decide: 10
  // ms.
  const double with_many = step_ms(testing::starved_loop(), "workers=8");
  EXPECT_GT(with_many, 9.8);
  EXPECT_LT(with_many, 10.7);
  EXPECT_NEAR(step_ms(testing::starved_loop(), "workers=2"), 15, 0.5);
  // On two processors, workers and the main process share: 30 ms and 1 ms of launching, by 2.
  EXPECT_NEAR(step_ms(testing::starved_loop(), "workers=8", 2), 15.5, 0.5);
  // Two workers that cannot keep up with 33 ms a step need 66 ms for a batch: four make it 16.5.
  EXPECT_NEAR(step_ms(testing::starved_loop(), "workers=2:4"), 16.5, 0.6);
}

TEST(WhatIf, WorkersTakeOverTheLoadingAlone) {
  // 20 ms of logging, then 20 of loading, 1 ms of training; two workers make a batch in 10 ms.
  const RecordingBuilder b = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    const std::uint32_t main = r.frame(0, kScript, "main", 8);
    const std::uint32_t log =
        r.frame(main, "/usr/lib/python3.11/logging/__init__.py", "Logger.info", 5);
    for (std::uint64_t k = 1; k <= 40; ++k) {
      testing::GapOptions look;
      look.python_stack = k <= 20 ? log : main;
      r.gap_sample(t + k * kMs, t + (k - 1) * kMs, look);
    }
    const std::uint32_t c = r.copy(t + 40 * kMs, t + 40 * kMs + 10 * kUs, 1 << 20,
                                   CopyDirection::kHostToDevice, MemoryKind::kPinned, true);
    r.device_time(c, t + 40 * kMs + 5 * kUs, t + 40 * kMs + 50 * kUs);
    const std::uint32_t l =
        r.launch(t + 40 * kMs + 20 * kUs, t + 40 * kMs + 25 * kUs, r.kernel("k"));
    r.device_time(l, t + 40 * kMs + 60 * kUs, t + 41 * kMs);
    r.sync(t + 40 * kMs + 30 * kUs, t + 41 * kMs);
    return 41 * kMs;
  });
  EXPECT_NEAR(step_ms(b, "workers=2"), 20.5 + 0.3 + 1, 0.3);
}

// A step: the host loads for 8 ms at line 10 and writes for 4 ms at line 20, then evaluates with a
// kernel of 3 ms that it waits for, then trains with one of 5 ms.
RecordingBuilder looked_at() {
  return loop([](RecordingBuilder& b, std::uint64_t t, int) {
    CallOptions evaluate, train;
    const std::uint32_t main = b.frame(0, kScript, "main", 5);
    evaluate.python_stack = b.frame(main, kScript, "evaluate", 30);
    train.python_stack = b.frame(0, kScript, "main", 7);
    const std::uint32_t load = b.frame(main, kScript, "load", 10);
    const std::uint32_t save = b.frame(main, kScript, "save", 20);
    for (std::uint64_t k = 1; k <= 12; ++k) {
      testing::GapOptions look;
      look.python_stack = k <= 8 ? load : save;
      b.gap_sample(t + k * kMs, t + (k - 1) * kMs, look);
    }
    const std::uint32_t e = b.launch(t + 12 * kMs, t + 12 * kMs + 5 * kUs, b.kernel("e"), evaluate);
    b.device_time(e, t + 12 * kMs + 5 * kUs, t + 15 * kMs, evaluate);
    b.sync(t + 12 * kMs + 10 * kUs, t + 15 * kMs, evaluate);
    const std::uint32_t l = b.launch(t + 15 * kMs, t + 15 * kMs + 5 * kUs, b.kernel("l"), train);
    b.device_time(l, t + 15 * kMs + 5 * kUs, t + 20 * kMs, train);
    b.sync(t + 15 * kMs + 10 * kUs, t + 20 * kMs, train);
    return 20 * kMs;
  });
}

TEST(WhatIf, PausesAreWhereTheyWereLookedAt) {
  const RecordingBuilder b = looked_at();
  // Between the looks at 8 and at 9 ms it went from one to the other.
  EXPECT_NEAR(step_ms(b, "host:load*0"), 11.5, 0.1);
  EXPECT_NEAR(step_ms(b, "host:save*0.5"), 18.25, 0.1);
  EXPECT_NEAR(step_ms(b, "host:train.py:20*0"), 16.5, 0.1);
  EXPECT_EQ(run(b, {"host:nowhere*0"}).rows.at(0).touched.at(0), 0u);
}

TEST(WhatIf, SeveralLinesAtOnce) {
  // Commas stand between places; both are taken away, or either.
  const RecordingBuilder b = looked_at();
  EXPECT_NEAR(step_ms(b, "host:load,save*0"), 20 - 8 - 4, 0.1);
  EXPECT_NEAR(step_ms(b, "host:nowhere,save*0"), step_ms(b, "host:save*0"), 0.01);
}

// 20 ms in a helper of the loop, between forward at line 7 and the next call, which looks fall into
// in some of four steps; then 1 ms at line 9. `thread`: of these calls; autograd's have no lines.
RecordingBuilder sleeps_in_mid_step(int looked_at_of_4, std::uint32_t thread) {
  return loop([=](RecordingBuilder& r, std::uint64_t t, int step) {
    CallOptions forward, backward;
    const std::uint32_t main = r.frame(0, kScript, "main", 8);
    forward.python_stack = r.frame(0, kScript, "main", 7);
    backward.thread = thread;
    if (thread == 0) backward.python_stack = r.frame(0, kScript, "main", 9);
    const auto launch = [&](std::uint64_t at, const CallOptions& o) {
      const std::uint32_t l = r.launch(at, at + 5 * kUs, r.kernel("k"), o);
      r.device_time(l, at + 4 * kUs, at + 100 * kUs, o);
    };
    launch(t, forward);
    if (step % 4 < looked_at_of_4) {
      testing::GapOptions look;
      look.python_stack = r.frame(main, kScript, "metric", 5);
      for (std::uint64_t k = 1; k <= 20; ++k) {
        r.gap_sample(t + k * kMs, k == 1 ? t + 5 * kUs : t + (k - 1) * kMs, look);
      }
    }
    launch(t + 20 * kMs, backward);
    launch(t + 21 * kMs, backward);
    return 21 * kMs + 100 * kUs;
  });
}

TEST(WhatIf, AGainIsOfTheLinesThatTheTimeWasSeenAt) {
  for (const std::uint32_t thread : {0u, 777u}) {
    for (const int looked_at : {4, 3}) {
      const ProcessReport report = report_of(sleeps_in_mid_step(looked_at, thread).read());
      ASSERT_FALSE(report.findings.empty());
      const Finding& first = report.findings[0];
      EXPECT_EQ(first.id, "host_elsewhere");
      EXPECT_THAT(first.where, ::testing::StartsWith("train.py:5 (metric)"));
      EXPECT_EQ(first.gain.change, "host:train.py:5*0");
      EXPECT_NEAR(first.gain.now_ms, 21.1, 0.1);
      EXPECT_NEAR(first.gain.step_ms, 1.1, 0.1);
    }
  }
}

TEST(WhatIf, NoGainIsToldThatIsOfLittleOfTheCost) {
  // Too few looks to name the line that takes 20 of 21 ms; without the 1 ms at line 9 the step is
  // little shorter, which would say that the cure is not worth it.
  const ProcessReport report = report_of(sleeps_in_mid_step(1, 0).read());
  ASSERT_FALSE(report.findings.empty());
  const Finding& first = report.findings[0];
  EXPECT_EQ(first.id, "host_elsewhere");
  EXPECT_NEAR(first.ms_of_step.median, 21, 0.3);
  EXPECT_EQ(first.before.line, 9);
  EXPECT_FALSE(first.gain.known()) << gain_text(first.gain);
}

// 8 of 20 ms of each step the launching thread stands still: 6 in a pause, 2 in a launch.
TEST(WhatIf, WithoutTheQuota) {
  RecordingBuilder b;
  b.host_counts(RecordingBuilder::kStart - kMs, {{recording::HostCounter::kThrottledNs, 0}});
  std::uint64_t t = RecordingBuilder::kStart, throttled = 0;
  b.window(WindowEvent::kBegin, t, 0, 0, 10);
  for (std::uint32_t step = 0; step < 10; ++step) {
    const auto stopped = [&](std::uint64_t end, std::uint64_t ns) {
      throttled += ns;
      b.host_thread(end, 4242,
                    {{recording::HostCounter::kThreadRanNs, 0},
                     {recording::HostCounter::kThreadWaitedNs, ns},
                     {recording::HostCounter::kThreadSinceNs, kMs},
                     {recording::HostCounter::kThrottledNs, throttled}});
    };
    stopped(t + 9 * kMs, 6 * kMs);
    stopped(t + 14 * kMs, 2 * kMs);
    const std::uint32_t k = b.kernel("k");
    b.device_time(b.launch(t + 10 * kMs, t + 10 * kMs + 5 * kUs, k), t + 10 * kMs + 8 * kUs,
                  t + 11 * kMs);
    b.device_time(b.launch(t + 12 * kMs, t + 15 * kMs, k), t + 15 * kMs, t + 16 * kMs);
    b.step_edge(t += 20 * kMs, step);
  }
  b.window(WindowEvent::kEnd, t, 0, 0, 10);
  EXPECT_NEAR(step_ms(b, "quota"), 12, 0.1);
  EXPECT_THAT(run(b, {"quota"}).rows.at(0).assumed.at(0), HasSubstr("16 processors are free"));
  // Nothing was throttled.
  const Predictions none = run(synchronised(), {"quota"});
  EXPECT_THAT(none.rows.at(0).touched, ElementsAre(0u));
  EXPECT_NEAR(none.rows.at(0).step_ms, 16.01, 0.1);
}

TEST(WhatIf, CodeThatIsNotThere) {
  const RecordingBuilder b = looked_at();
  EXPECT_NEAR(step_ms(b, "drop:save"), 16.5, 0.1);
  EXPECT_NEAR(step_ms(b, "drop:evaluate"), 17, 0.1);  // the pause before it is not its own
  EXPECT_THAT(parse_change("drop").error(), HasSubstr("drop:evaluate"));
}

TEST(WhatIf, CheaperLaunchesUntilTheDeviceDecides) {
  const RecordingBuilder b = testing::launch_bound_loop(10, 100, 20, 5);  // 2 ms, 0.5 of the device
  EXPECT_NEAR(step_ms(b, "launches*0.5"), 1.0, 0.05);
  EXPECT_NEAR(step_ms(b, "launches*0.1"), 0.5, 0.05);
}

TEST(WhatIf, AllocationsWaitForTheDeviceAndCost) {
  const RecordingBuilder b = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    const std::uint32_t l = r.launch(t, t + 5 * kUs, r.kernel("k"));
    r.device_time(l, t + 5 * kUs, t + 5 * kMs);
    r.free(t + 10 * kUs, t + 6 * kMs);  // waits 5 ms, takes 1
    r.alloc(t + 6 * kMs, t + 8 * kMs, 1 << 20);
    return 9 * kMs;
  });
  EXPECT_NEAR(step_ms(b, "alloc*1"), 9, 0.05);
  EXPECT_NEAR(step_ms(b, "alloc*0"), 5, 0.05);
  EXPECT_NEAR(step_ms(b, "kernel*0.2"), 5, 0.05);
}

TEST(WhatIf, StreamsThatWaitForEachOther) {
  // Stream 13 works for 4 ms, an event makes stream 14 wait; 2 ms there; then the host waits.
  const RecordingBuilder b = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    const std::uint16_t record = r.api("cudaEventRecord", Category::kEvent);
    const std::uint16_t wait = r.api("cudaStreamWaitEvent", Category::kStream);
    CallOptions first, second;
    first.stream = 13;
    second.stream = 14;
    const std::uint32_t a = r.launch(t, t + 5 * kUs, r.kernel("first"), first);
    r.device_time(a, t + 5 * kUs, t + 4 * kMs, first);
    recording::SyncPayload recorded{0x77, 0x1300}, waited{0x1400, 0x77};
    r.call(t + 10 * kUs, t + 11 * kUs, record, &recorded, sizeof recorded, first);
    r.call(t + 12 * kUs, t + 13 * kUs, wait, &waited, sizeof waited, second);
    const std::uint32_t c = r.launch(t + 20 * kUs, t + 25 * kUs, r.kernel("second"), second);
    r.device_time(c, t + 4 * kMs, t + 6 * kMs, second);
    r.sync(t + 30 * kUs, t + 6 * kMs + 5 * kUs, second);
    return 6 * kMs + 10 * kUs;
  });
  EXPECT_NEAR(step_ms(b, "kernel:first*0.5"), 4.0, 0.05);
  EXPECT_NEAR(step_ms(b, "kernel:second*0.5"), 5.0, 0.05);
}

TEST(WhatIf, BackwardOnAnotherThreadIsPartOfTheChain) {
  const RecordingBuilder b = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    CallOptions engine;
    engine.thread = 777;
    const auto launch = [&](std::uint64_t at, const CallOptions& o) {
      const std::uint32_t l = r.launch(at, at + 5 * kUs, r.kernel("k"), o);
      r.device_time(l, at + 4 * kUs, at + 100 * kUs, o);
    };
    launch(t, {});
    for (std::uint64_t k = 0; k < 10; ++k) launch(t + kMs + k * 300 * kUs, engine);
    launch(t + 5 * kMs, {});
    return 6 * kMs;
  });
  // The engine's nine pauses of 295 us between launches, and its launches, take half as long.
  EXPECT_NEAR(step_ms(b, "launches*0.5"), 6 - 9 * 0.15, 0.2);
}

TEST(WhatIf, InputCopiedAheadOverlapsKernels) {
  const RecordingBuilder b = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    const std::uint32_t c =
        r.copy(t, t + 10 * kUs, 40 << 20, CopyDirection::kHostToDevice, MemoryKind::kPinned, true);
    r.device_time(c, t + 5 * kUs, t + 4 * kMs);
    const std::uint32_t l = r.launch(t + 20 * kUs, t + 25 * kUs, r.kernel("k"));
    r.device_time(l, t + 4 * kMs, t + 10 * kMs);
    r.sync(t + 30 * kUs, t + 10 * kMs);
    return 10 * kMs + 10 * kUs;
  });
  EXPECT_NEAR(step_ms(b, "prefetch"), 6, 0.1);
  EXPECT_NEAR(step_ms(b, "copies:htod*0.5"), 8, 0.1);
  EXPECT_NEAR(step_ms(b, "copies:dtod*0"), 10.01, 0.05);
}

TEST(WhatIf, SmallCopiesPacked) {
  const RecordingBuilder b = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    for (std::uint64_t k = 0; k < 100; ++k) {
      const std::uint32_t c = r.copy(t + k * 20 * kUs, t + k * 20 * kUs + 10 * kUs, 1024,
                                     CopyDirection::kHostToDevice, MemoryKind::kPinned, true);
      r.device_time(c, t + k * 20 * kUs + 5 * kUs, t + k * 20 * kUs + 7 * kUs);
    }
    const std::uint32_t l = r.launch(t + 2 * kMs, t + 2 * kMs + 5 * kUs, r.kernel("k"));
    r.device_time(l, t + 2 * kMs + 5 * kUs, t + 3 * kMs);
    r.sync(t + 2 * kMs + 10 * kUs, t + 3 * kMs);
    return 3 * kMs + 5 * kUs;
  });
  EXPECT_NEAR(step_ms(b, "packed-copies"), 1.05, 0.1);
}

TEST(WhatIf, LaunchesThatWaitForRoomInTheQueue) {
  // Kernels of 1 ms, launched one behind the other; from the 40th on each launch waits for room.
  std::uint64_t device = RecordingBuilder::kStart + 5 * kUs, host = RecordingBuilder::kStart;
  RecordingBuilder b;
  std::vector<std::uint64_t> ends;
  b.window(WindowEvent::kBegin, host, 0, 0, 10);
  for (std::uint32_t step = 0; step < 10; ++step) {
    for (int k = 0; k < 20; ++k) {
      std::uint64_t end = host + 5 * kUs;
      if (ends.size() >= 40) end = std::max(end, ends[ends.size() - 40] + 5 * kUs);
      const std::uint32_t l = b.launch(host, end, b.kernel("k"));
      device = std::max(device, host + 5 * kUs);
      b.device_time(l, device, device + kMs);
      device += kMs;
      ends.push_back(device);
      host = end;
    }
    b.step_edge(host, step);
  }
  b.window(WindowEvent::kEnd, host, 0, 0, 10);
  EXPECT_NEAR(step_ms(b, "kernel*0.5"), 10, 0.2);
  EXPECT_NEAR(step_ms(b, "launches*0.1"), 20, 0.2);
}

TEST(WhatIf, WhatCannotBePredictedIsSaid) {
  EXPECT_THAT(run(testing::starved_loop({.steps = 2}), {}).error, HasSubstr("3 steps"));
  RecordingBuilder untimed = loop([](RecordingBuilder& r, std::uint64_t t, int) {
    r.launch(t, t + 5 * kUs, r.kernel("k"));
    return kMs;
  });
  EXPECT_THAT(run(untimed, {}).error, HasSubstr("device times are known for 0 of 12"));
  RecordingBuilder idle;
  idle.launch(RecordingBuilder::kStart, RecordingBuilder::kStart + 5, idle.kernel("k"));
  EXPECT_THAT(run(idle, {}).error, HasSubstr("no steps"));
}

TEST(WhatIf, ChangesFollowFromFindings) {
  ProcessReport report;
  report.has_loader = true;
  const auto add = [&](const char* id, int line) {
    Finding f;
    f.id = id;
    f.before = {kScript, "main", line, true};
    report.findings.push_back(f);
  };
  add("data_starvation", 58);
  add("synchronisation", 60);
  add("pageable_copies", 58);
  add("launch_bound", 61);
  add("allocation_churn", 62);
  add("host_elsewhere", 63);
  add("gpu_busy", 64);
  std::vector<std::string> texts;
  for (const Change& change : standard_changes(report, 4)) texts.push_back(change.text);
  EXPECT_THAT(texts, ElementsAre("workers=4", "no-sync:train.py:60", "pinned", "launches*0.1",
                                 "alloc*0", "host:train.py:63*0"));
  // What no loader makes, no worker of one can make ahead.
  report.has_loader = false;
  EXPECT_EQ(change_for(report.findings[0], report, 4), "");
}

TEST(WhatIf, AReportHoldsWhatWouldBePredictedOfIt) {
  recording::Session session;
  session.processes.push_back(synchronised().read());
  const SessionReport report = analyse(session, {.predictions = true});
  ASSERT_TRUE(report.processes.at(0).predictions);
  const auto asked = predict(session, {});
  ASSERT_TRUE(asked);
  EXPECT_EQ(render_json({*report.processes[0].predictions}), render_json(*asked));
  EXPECT_FALSE(asked->at(0).rows.empty());
  EXPECT_FALSE(analyse(session).processes.at(0).predictions);
}

TEST(WhatIf, FindingsSayWhatTheirCureBrings) {
  const ProcessReport report = report_of(synchronised().read());
  ASSERT_FALSE(report.findings.empty());
  const Finding& first = report.findings[0];
  EXPECT_EQ(first.id, "synchronisation");
  EXPECT_EQ(first.gain.change, "no-sync:train.py:60");
  EXPECT_NEAR(first.gain.now_ms, 16.01, 0.1);
  EXPECT_NEAR(first.gain.step_ms, 10, 0.1);
  EXPECT_THAT(gain_text(first.gain), HasSubstr("step 16.0 -> 10.0 ms"));
  SessionReport session;
  session.processes.push_back(report);
  EXPECT_THAT(analysis::render_text(session, {}), HasSubstr("gain   step 16.0"));
  for (const Finding& f : report.findings) EXPECT_TRUE(f.problem || !f.gain.known());
}

TEST(WhatIf, WhatDoesNotHelpIsToldOnlyWhereAskedFor) {
  const RecordingBuilder b = synchronised();
  for (const Prediction& row : run(b, {}).rows) EXPECT_LT(row.step_ms, 16.01);
  EXPECT_EQ(run(b, {"pinned"}).rows.size(), 1u);
}

TEST(WhatIf, ChangesAreReadStrictly) {
  const auto error = [](const char* text) { return parse_change(text).error(); };
  EXPECT_THAT(error("faster"), HasSubstr("'faster': allowed are pinned, no-sync"));
  EXPECT_THAT(error(""), HasSubstr("allowed are"));
  EXPECT_THAT(error("launches"), HasSubstr("needs a factor"));
  EXPECT_THAT(error("pinned*2"), HasSubstr("takes no factor"));
  EXPECT_THAT(error("pinned:x"), HasSubstr("takes no target"));
  EXPECT_THAT(error("kernel:*0.5"), HasSubstr("empty"));
  EXPECT_THAT(error("launches*-1"), HasSubstr("allowed are"));
  EXPECT_THAT(error("launches*nan"), HasSubstr("allowed are"));
  EXPECT_THAT(error("launches*1e9"), HasSubstr("allowed are"));
  EXPECT_THAT(error("copies:up*0.5"), HasSubstr("copies:htod"));
  EXPECT_THAT(error("host*0"), HasSubstr("host needs"));
  EXPECT_THAT(error("workers=0"), HasSubstr("workers=N"));
  EXPECT_THAT(error("workers=2:"), HasSubstr("workers=N"));
  EXPECT_THAT(error("workers"), HasSubstr("workers=N"));
  EXPECT_EQ(parse_change("kernel:at::*gemm**0.25")->target, "at::*gemm*");
  EXPECT_EQ(parse_change("kernel:at::*gemm**0.25")->factor, 0.25);
  EXPECT_EQ(parse_change("workers=2:6")->workers, 6u);
  EXPECT_EQ(parse_change("workers=2:6")->workers_before, 2u);
}

TEST(WhatIf, AsJson) {
  const auto json =
      nlohmann::json::parse(render_json({run(synchronised(), {"no-sync", "pinned"})}));
  EXPECT_EQ(json["schema"], 1);
  const auto& process = json["processes"][0];
  EXPECT_EQ(process["error"], nullptr);
  EXPECT_NEAR(process["step_ms"], 16.01, 0.1);
  EXPECT_EQ(process["predictions"][0]["changes"][0], "no-sync");
  EXPECT_NEAR(process["predictions"][0]["step_ms"], 10, 0.1);
  EXPECT_EQ(process["predictions"][1]["touched"][0], 0);
}

}  // namespace
}  // namespace gpubusy::analysis::whatif
