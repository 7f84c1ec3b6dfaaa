// SPDX-License-Identifier: Apache-2.0
//
// What the host did in gaps: which look says what, and how much time it stands for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/api.hpp"
#include "analysis/gaps.hpp"
#include "analysis/report.hpp"
#include "tests/support/reports.hpp"

namespace gpubusy::analysis {
namespace {

using recording::GapFile;
using recording::GapSample;
using testing::GapOptions;
using ::testing::HasSubstr;
using testing::kMs;
using testing::RecordingBuilder;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;
constexpr std::uint16_t kRead = 0, kWrite = 1, kPoll = 7, kSelect = 23, kFutex = 202, kSleep = 230,
                        kWaitId = 247;

GapSample in_call(std::uint16_t number, GapFile file = GapFile::kNone, std::uint64_t argument = 1) {
  GapSample look{};
  look.state = 'S';
  look.flags = recording::kGapInSystemCall;
  look.system_call = number;
  look.argument = argument;
  look.file = file;
  return look;
}

std::vector<SourceLine> frames(std::vector<std::pair<std::string, std::string>> of) {
  std::vector<SourceLine> out;
  for (auto& [file, function] : of) out.push_back({file, function, 1, false});
  return out;
}

TEST(Gaps, KindOfALook) {
  const std::string loader = "/x/lib/python3.11/site-packages/torch/utils/data/dataloader.py";
  const auto workers = frames({{"/x/lib/python3.11/selectors.py", "PollSelector.select"},
                               {loader, "_MultiProcessingDataLoaderIter._try_get_data"}});
  const auto in_process = frames({{loader, "_SingleProcessDataLoaderIter._next_data"}});
  const auto child = frames({{"/x/lib/python3.11/subprocess.py", "Popen._execute_child"}});
  EXPECT_EQ(kind_of(in_call(kPoll), workers, {}), GapKind::kWorkers);
  EXPECT_EQ(kind_of(in_call(kFutex), workers, {}), GapKind::kWorkers);  // with pin_memory
  EXPECT_EQ(kind_of(in_call(kPoll), in_process, {}), GapKind::kInput);
  EXPECT_EQ(kind_of(in_call(kRead, GapFile::kFile), in_process, {}), GapKind::kFileRead);
  EXPECT_EQ(kind_of(in_call(kRead, GapFile::kPipe), {}, {}), GapKind::kInput);
  EXPECT_EQ(kind_of(in_call(kRead, GapFile::kPipe), child, {}), GapKind::kChild);
  EXPECT_EQ(kind_of(in_call(kWaitId), {}, {}), GapKind::kChild);
  EXPECT_EQ(kind_of(in_call(kWrite, GapFile::kFile), {}, {}), GapKind::kFileWrite);
  EXPECT_EQ(kind_of(in_call(kWrite, GapFile::kCharacter), {}, {}), GapKind::kOutput);
  EXPECT_EQ(kind_of(in_call(kSleep), {}, {}), GapKind::kSleep);
  EXPECT_EQ(kind_of(in_call(kSelect, GapFile::kNone, 0), {}, {}), GapKind::kSleep);
  EXPECT_EQ(kind_of(in_call(kSelect, GapFile::kNone, 5), {}, {}), GapKind::kInput);
  EXPECT_EQ(kind_of(in_call(kFutex), {}, {}), GapKind::kLock);
  EXPECT_EQ(kind_of(in_call(kFutex), {}, {"futex_wait", "take_gil", "PyEval_RestoreThread"}),
            GapKind::kInterpreter);
  GapSample gil = in_call(kFutex);
  gil.flags |= recording::kGapInterpreter;
  EXPECT_EQ(kind_of(gil, workers, {}), GapKind::kInterpreter);
  EXPECT_EQ(kind_of(in_call(9999), {}, {}), GapKind::kOther);
  EXPECT_EQ(system_call_name(9999), "system call 9999");

  GapSample runs{};
  runs.state = 'R';
  EXPECT_EQ(kind_of(runs, {}, {}), GapKind::kRuns);
  runs.flags = recording::kGapCollecting;
  EXPECT_EQ(kind_of(runs, {}, {}), GapKind::kCollector);
  runs.flags = 0;
  runs.run_ns = 2 * kMs;
  runs.wait_ns = 3 * kMs;
  EXPECT_EQ(kind_of(runs, {}, {}), GapKind::kNoProcessor);
  GapSample fault{};
  fault.state = 'D';
  fault.flags = recording::kGapOutside;
  EXPECT_EQ(kind_of(fault, {}, {}), GapKind::kPageFault);
  fault.state = 'T';  // stopped by a debugger
  EXPECT_EQ(kind_of(fault, {}, {}), GapKind::kOther);
  // The page has come between two questions to the kernel; it is not known yet whether from a disk.
  fault.state = 'R';
  EXPECT_EQ(kind_of(fault, {}, {}), GapKind::kRuns);
  fault.time_ns = 3'000'000;
  fault.since_ns = 2'000'000;
  fault.run_ns = 100'000;
  fault.wait_ns = 300'000;
  EXPECT_EQ(kind_of(fault, {}, {}), GapKind::kNoProcessor);
  fault.major_faults = 3;
  EXPECT_EQ(kind_of(fault, {}, {}), GapKind::kPageFault);
}

TEST(Gaps, KindOfALookInBackward) {
  const std::string graph = "/x/lib/python3.11/site-packages/torch/autograd/graph.py";
  const auto backward = frames({{graph, "_engine_run_backward"}});
  const auto called_back =
      frames({{"/home/u/train.py", "Function.backward"}, {graph, "_engine_run_backward"}});
  EXPECT_EQ(kind_of(in_call(kFutex), backward, {}), GapKind::kAutograd);
  EXPECT_EQ(kind_of(in_call(kFutex), called_back, {}), GapKind::kLock);
  EXPECT_EQ(kind_of(in_call(kSleep), backward, {}), GapKind::kSleep);

  // What the thread that ends the silence is held up by counts; that it waits itself says nothing.
  GapSample own{};
  own.state = 'R';
  EXPECT_EQ(kind_of(in_call(kFutex), &own, backward, {}), GapKind::kAutograd);
  own.wait_ns = kMs;
  EXPECT_EQ(kind_of(in_call(kFutex), &own, backward, {}), GapKind::kNoProcessor);
  own = in_call(kFutex);
  EXPECT_EQ(kind_of(in_call(kSleep), &own, called_back, {}), GapKind::kSleep);
  own.flags |= recording::kGapInterpreter;
  EXPECT_EQ(kind_of(in_call(kFutex), &own, backward, {}), GapKind::kInterpreter);
}

TEST(Gaps, SystemCallsAreInOrder) {
  // Looked up by halves.
  for (const auto& [number, name] : {std::pair<std::uint16_t, std::string>{0, "read"},
                                     {7, "poll"},
                                     {61, "wait4"},
                                     {202, "futex"},
                                     {257, "openat"},
                                     {332, "statx"}}) {
    EXPECT_EQ(system_call_name(number), name);
  }
}

// Two steps with a gap of 100 ms at the start of each; `looks` puts its looks into one.
class Starved {
 public:
  Starved() {
    b.window(recording::WindowEvent::kBegin, kStart, 0, 0, 2);
    line = b.frame(0, "/home/u/train.py", "main", 57);
    inner = b.frame(b.frame(line, "/x/lib/python3.11/site-packages/a.py", "load", 3),
                    "/x/lib/python3.11/queue.py", "get", 9);
    other = b.frame(0, "/home/u/train.py", "main", 60);
    kernel = b.kernel("k");
    for (std::uint64_t step = 0; step < 2; ++step) {
      const std::uint64_t launch = begin(step) + 100 * kMs;
      const auto id = b.launch(launch, launch + 10'000, kernel, {.python_stack = line});
      b.device_time(id, launch + 20'000, launch + kMs);
      b.step_edge(launch + 2 * kMs, static_cast<std::uint32_t>(step));
    }
    b.window(recording::WindowEvent::kEnd, begin(2), 0, 0, 2);
  }
  // The launch before the first step is not there: the silence begins with the window.
  static std::uint64_t begin(std::uint64_t step) { return kStart + step * 102 * kMs; }

  Gaps gaps() const { return report().gaps; }
  ProcessReport report() const { return report_of(b.read()); }

  RecordingBuilder b;
  std::uint32_t line, inner, other, kernel;
};

std::uint64_t ns_of(const Gaps& gaps, int line, GapKind kind) {
  std::uint64_t ns = 0;
  for (const GapRow& row : gaps.rows) {
    if (row.line.line == line && row.kind == kind) ns += row.ns;
  }
  return ns;
}

TEST(Gaps, NothingIsSaidWithoutLooks) {
  const Gaps gaps = Starved().gaps();
  EXPECT_EQ(gaps.looks, 0u);
  EXPECT_EQ(gaps.seen_ns, 0u);
  EXPECT_GE(gaps.ns, 199 * kMs);
  EXPECT_TRUE(gaps.rows.empty());
}

TEST(Gaps, ALookStandsForItsTime) {
  Starved s;
  const std::uint64_t silence = s.begin(1) - 2 * kMs + 10'000;  // end of the first step's launch
  GapOptions sleeps{.python_stack = s.line,
                    .system_call = kSleep,
                    .state = 'S',
                    .flags = recording::kGapInSystemCall};
  GapOptions unmoved = sleeps;
  unmoved.flags |= recording::kGapUnmoved;
  GapOptions runs{.python_stack = s.other, .state = 'R'};
  // Sleeps from the start to at least 40 ms, runs at 60 ms: where it changed is not known.
  s.b.gap_sample(s.begin(1) + 10 * kMs, silence, sleeps);
  s.b.gap_sample(s.begin(1) + 40 * kMs, s.begin(1) + 10 * kMs, unmoved);
  s.b.gap_sample(s.begin(1) + 60 * kMs, s.begin(1) + 40 * kMs, runs);
  s.b.gap_sample(s.begin(1) + 90 * kMs, s.begin(1) + 60 * kMs, runs);
  const Gaps gaps = s.gaps();
  EXPECT_EQ(gaps.looks, 4u);
  EXPECT_NEAR(ns_of(gaps, 57, GapKind::kSleep), 51 * kMs,
              2 * kMs);  // 1 ms of it in the step before
  EXPECT_NEAR(ns_of(gaps, 60, GapKind::kRuns), 50 * kMs, 2 * kMs);
  EXPECT_NEAR(gaps.ns - gaps.seen_ns, 100 * kMs, 2 * kMs);  // the first step's gap
}

TEST(Gaps, LooksThatStopReachNoFurther) {
  Starved s;
  s.b.gap_sample(s.begin(1) + 2 * kMs, s.begin(1), {.python_stack = s.line});
  const Gaps gaps = s.gaps();
  EXPECT_NEAR(gaps.seen_ns, 22 * kMs, kMs);
}

TEST(Gaps, WhoWaitsForWorkIsNotTheCause) {
  Starved s;
  constexpr std::uint32_t kMain = 77;
  const GapOptions waits{.system_call = kFutex, .state = 'S', .flags = recording::kGapInSystemCall};
  // The thread that ends the gap has no Python frames; the one that it waits for has.
  s.b.gap_sample(s.begin(1) + 50 * kMs, s.begin(1), waits);
  s.b.gap_sample(s.begin(1) + 50 * kMs, s.begin(1),
                 {.thread = kMain, .python_stack = s.other, .state = 'R'});
  const Gaps gaps = s.gaps();
  EXPECT_GE(gaps.seen_ns, 99 * kMs);
  EXPECT_EQ(ns_of(gaps, 60, GapKind::kRuns), gaps.seen_ns);
}

// Between a look at a blocked thread and one at an active one, it was active for as long as was
// counted.
TEST(Gaps, AnActiveThreadWasSoForAsLongAsTheKernelCounted) {
  Starved s;
  const std::uint64_t t = s.begin(1);
  GapOptions sleeps{.python_stack = s.line,
                    .system_call = kSleep,
                    .state = 'S',
                    .flags = recording::kGapInSystemCall};
  s.b.gap_sample(t + 20 * kMs, t, sleeps);
  s.b.gap_sample(t + 40 * kMs, t + 20 * kMs,
                 {.python_stack = s.line, .run_ns = 5 * kMs, .state = 'R'});
  sleeps.run_ns = 2 * kMs;
  s.b.gap_sample(t + 60 * kMs, t + 40 * kMs, sleeps);
  const Gaps gaps = s.gaps();
  EXPECT_EQ(ns_of(gaps, 57, GapKind::kRuns), 7 * kMs);  // 35 to 42
  EXPECT_GE(ns_of(gaps, 57, GapKind::kSleep), 92 * kMs);
}

// The kernel counts a wait when it ends.
TEST(Gaps, AWaitForAProcessorIsWhereItWas) {
  Starved s;
  const std::uint64_t t = s.begin(1);
  const auto ready = [&](std::uint64_t at, std::uint64_t since, std::uint64_t wait) {
    s.b.gap_sample(t + at * kMs, t + since * kMs,
                   {.python_stack = s.line, .run_ns = kMs / 10, .wait_ns = wait, .state = 'R'});
  };
  ready(20, 0, 0);
  ready(40, 20, 0);
  ready(60, 40, 35 * kMs);  // waits since 25 ms or before
  const Gaps gaps = s.gaps();
  EXPECT_NEAR(ns_of(gaps, 57, GapKind::kRuns), 30 * kMs, 2 * kMs);  // to the middle of 20 and 40 ms
  EXPECT_GE(ns_of(gaps, 57, GapKind::kNoProcessor), 68 * kMs);
}

// A look says how long of its time was which; of two parts of it the longer is not all.
TEST(Gaps, ALookThatRanAndWaitedTellsOfBoth) {
  Starved s;
  const std::uint64_t t = s.begin(1);
  for (std::uint64_t i = 1; i < 10; ++i) {
    s.b.gap_sample(t + i * 10 * kMs, t + (i - 1) * 10 * kMs,
                   {.python_stack = s.line, .run_ns = 7 * kMs, .wait_ns = 3 * kMs, .state = 'R'});
  }
  const Gaps gaps = s.gaps();
  EXPECT_NEAR(ns_of(gaps, 57, GapKind::kRuns), 70 * kMs, 2 * kMs);
  EXPECT_NEAR(ns_of(gaps, 57, GapKind::kNoProcessor), 30 * kMs, 2 * kMs);
}

// A gap that nobody looked at is not told by the looks into the one before it.
TEST(Gaps, LooksTellOfTheirOwnSilenceOnly) {
  Starved s;
  s.b.gap_sample(s.begin(0) + 95 * kMs, s.begin(0) + 90 * kMs, {.python_stack = s.line});
  const Gaps gaps = s.gaps();
  EXPECT_NEAR(gaps.seen_ns, 10 * kMs, kMs / 2);
}

TEST(Gaps, FindingNamesLineAndDoing) {
  Starved s;
  for (std::uint64_t step = 0; step < 2; ++step) {
    s.b.gap_sample(s.begin(step) + 50 * kMs, s.begin(step) + (step == 0 ? 0 : kMs),
                   {.python_stack = s.inner,
                    .system_call = kPoll,
                    .state = 'S',
                    .flags = recording::kGapInSystemCall});
    s.b.gap_sample(s.begin(step) + 95 * kMs, s.begin(step) + 50 * kMs,
                   {.python_stack = s.inner,
                    .system_call = kPoll,
                    .state = 'S',
                    .flags = recording::kGapInSystemCall | recording::kGapUnmoved});
  }
  const ProcessReport report = s.report();
  ASSERT_FALSE(report.findings.empty());
  const Finding& f = report.findings.front();
  EXPECT_EQ(f.id, "data_starvation");
  EXPECT_THAT(f.where, HasSubstr("train.py:57 (main), "));
  EXPECT_THAT(f.evidence,
              HasSubstr("looked at for 100 % of it: 100 % train.py:57 (main) > a.py (load) > "
                        "queue.py (get): waits for input (poll)."));
  SessionReport session;
  session.processes.push_back(report);
  const std::string text = render_text(session, {});
  EXPECT_THAT(text, HasSubstr("What the host did in the gaps, per step"));
  EXPECT_THAT(text, HasSubstr("train.py:57 (main) > a.py (load) > queue.py (get): waits for"));
  EXPECT_THAT(render_json(session), HasSubstr("\"kind\": \"input\""));
}

}  // namespace
}  // namespace gpubusy::analysis
