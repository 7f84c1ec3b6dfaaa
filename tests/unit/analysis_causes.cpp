// SPDX-License-Identifier: Apache-2.0
//
// Findings that name what the host or the device did: each beside a decoy, something that looks
// alike and must not be called by that name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "analysis/api.hpp"
#include "analysis/division.hpp"
#include "analysis/report.hpp"
#include "tests/support/reports.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::GapSampleRecord;
using recording::MemoryKind;
using recording::WindowEvent;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using testing::at;
using testing::CallOptions;
using testing::ids;
using testing::kMs;
using testing::kScript;
using testing::kUs;
using ::testing::Not;
using testing::RecordingBuilder;
using testing::work;

const Finding& first(const ProcessReport& report) {
  static const Finding kNone;
  return report.findings.empty() ? kNone : report.findings[0];
}

// A loop; `body(t, step)` writes one step and returns its length.
template <typename Body>
recording::Recording record(RecordingBuilder& b, std::uint32_t steps, Body body) {
  std::uint64_t t = RecordingBuilder::kStart;
  b.device(0, "A GPU of 132 multiprocessors");
  b.window(WindowEvent::kBegin, t, 0, 0, steps);
  for (std::uint32_t i = 0; i < steps; ++i) {
    t += body(t, i);
    b.step_edge(t, i);
  }
  b.window(WindowEvent::kEnd, t, 0, 0, steps);
  return b.read();
}
template <typename Body>
ProcessReport loop(RecordingBuilder& b, std::uint32_t steps, Body body) {
  return report_of(record(b, steps, body));
}

// ---- by the stacks of calls
// ------------------------------------------------------------------------

// Per step: 10 ms of kernels, and a copy down from `stack`, behind which the host is away for 6 ms.
ProcessReport copy_down_and_pause(RecordingBuilder& b, std::uint32_t stack, std::uint32_t train) {
  const std::uint32_t k = b.kernel("k");
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    work(b, t, t + 10 * kUs, t + 10 * kMs, k, at(train));
    b.device_time(b.copy(t + 20 * kUs, t + 10 * kMs + 20 * kUs, 64, CopyDirection::kDeviceToHost,
                         MemoryKind::kPageable, true, at(stack)),
                  t + 10 * kMs, t + 10 * kMs + 10 * kUs, at(stack));
    work(b, t + 16 * kMs, t + 16 * kMs + 10 * kUs, t + 20 * kMs, k, at(train));
    return 20 * kMs;
  });
}

struct Named {
  const char *file, *function, *finding;
};
class ByStack : public ::testing::TestWithParam<Named> {};

TEST_P(ByStack, NamesWhatTheHostDoes) {
  RecordingBuilder b;
  const std::uint32_t main = b.frame(0, kScript, "main", 40);
  const std::uint32_t train = b.frame(main, kScript, "step", 10);
  const std::uint32_t inner = b.frame(main, GetParam().file, GetParam().function, 5);
  const ProcessReport r = copy_down_and_pause(b, inner, train);
  EXPECT_EQ(first(r).id, GetParam().finding);
  // All of what is idle behind the copy, but for the way to the device.
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 6.0 * kMs, 10 * 0.1 * kMs);
  EXPECT_THAT(first(r).where,
              HasSubstr("/home/u/logging.py" == std::string_view(GetParam().file) ? "logging.py"
                                                                                  : "train.py"));
}

INSTANTIATE_TEST_SUITE_P(
    Causes, ByStack,
    ::testing::Values(
        Named{"/v/site-packages/torch/serialization.py", "_save", "checkpoint"},
        Named{"/v/site-packages/safetensors/torch.py", "save_file", "checkpoint"},
        Named{"/usr/lib/python3.11/logging/__init__.py", "Logger.info", "logging"},
        Named{"/v/site-packages/torch/_tensor_str.py", "_tensor_str", "logging"},
        Named{kScript, "evaluate", "evaluation"},
        Named{kScript, "Trainer._validate_epoch", "evaluation"},
        // decoys: a name that is alike, a file that is alike, a library's function of that name
        Named{kScript, "reevaluate", "synchronisation"},
        Named{"/home/u/logging.py", "info", "synchronisation"},
        Named{"/v/site-packages/lib/metrics.py", "evaluate", "synchronisation"}));

TEST(AnalysisCauses, ACheckpointWhileTheGpuWorksCostsNothing) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t save = b.frame(b.frame(0, kScript, "main", 40),
                                     "/v/site-packages/torch/serialization.py", "_save", 5);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    for (std::uint64_t i = 0; i < 2; ++i) {
      work(b, t + i * kUs * 10, t + 20 * kUs + i * 10 * kMs, t + (i + 1) * 10 * kMs, k);
    }
    CallOptions o = at(save);
    o.thread = 77;
    o.stream = 9;
    b.device_time(b.copy(t + 1 * kMs, t + 2 * kMs, 1 << 20, CopyDirection::kDeviceToHost,
                         MemoryKind::kPinned, true, o),
                  t + 1 * kMs, t + 2 * kMs, o);
    return 20 * kMs;
  });
  EXPECT_THAT(ids(r), ElementsAre("gpu_busy"));
}

// ---- by samples of the launching thread
// ------------------------------------------------------------

struct Look {
  std::uint32_t python_stack = 0;
  std::uint8_t flags = 0;
  char state = 'S';
  std::uint64_t run_ns = 0, wait_ns = 0;
  std::uint16_t system_call = 0;
  std::uint32_t holder = 0, holder_stack = 0;  // of the GIL
};

void look(RecordingBuilder& b, std::uint32_t thread, std::uint64_t since, std::uint64_t time,
          const Look& l) {
  GapSampleRecord r = {};
  r.time_ns = time;
  r.since_ns = since;
  r.run_ns = l.run_ns;
  r.wait_ns = l.wait_ns;
  r.python_stack = l.python_stack;
  r.state = static_cast<std::uint8_t>(l.state);
  r.flags = l.flags;
  r.system_call = l.system_call;
  b.raw(recording::RecordType::kGapSample, thread,
        std::string_view(reinterpret_cast<const char*>(&r) + sizeof r.header,
                         sizeof r - sizeof r.header));
  if (l.holder != 0) b.gil_holder(time, thread, l.holder, l.holder_stack);
}

// Per step: 2 ms of kernels, then the host is outside CUDA for 8 ms in mid-step, looked at each ms:
// look_of(2) to look_of(9).
template <typename LookOf>
ProcessReport pause_of(RecordingBuilder& b, LookOf look_of) {
  const std::uint32_t k = b.kernel("k");
  const CallOptions before = at(b.frame(0, kScript, "main", 10));
  const CallOptions after = at(b.frame(0, kScript, "main", 12));
  b.use_thread(4242);
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    work(b, t, t + 10 * kUs, t + 2 * kMs, k, before);
    for (std::uint64_t ms = 2; ms < 10; ++ms) {
      look(b, 4242, t + ms * kMs, t + (ms + 1) * kMs, look_of(ms));
    }
    work(b, t + 10 * kMs, t + 10 * kMs + 10 * kUs, t + 20 * kMs, k, after);
    return 20 * kMs;
  });
}
ProcessReport pause_with(RecordingBuilder& b, const Look& l) {
  return pause_of(b, [&](std::uint64_t) { return l; });
}

double ms_of(const ProcessReport& report, const std::string& id) {
  for (const Finding& f : report.findings) {
    if (f.id == id) return static_cast<double>(f.total_ns) / kMs;
  }
  return 0;
}

std::uint64_t idle_in_rows(const ProcessReport& report) {
  std::uint64_t ns = 0;
  for (const IdleRow& row : report.summary.idle) ns += row.ns;
  return ns;
}

constexpr const char* kLogger = "/usr/lib/python3.11/logging/__init__.py";

// Two causes in one gap: each has the time that looks saw it for.
TEST(AnalysisCauses, AGapIsCutWhereOneCauseEndsAndTheNextBegins) {
  RecordingBuilder b;
  Look logs, works;
  logs.python_stack = b.frame(b.frame(0, kScript, "main", 11), kLogger, "Logger.info", 5);
  works.python_stack = b.frame(0, kScript, "main", 12);
  // Logs as seen at 3, 4 and 5 ms, works from 6 ms on: changed over between 5 and 6.
  const ProcessReport r = pause_of(b, [&](std::uint64_t ms) { return ms < 5 ? logs : works; });
  EXPECT_THAT(ids(r), ElementsAre("host_elsewhere", "logging"));
  EXPECT_NEAR(ms_of(r, "logging"), 10 * 3.5, 10 * 0.1);
  EXPECT_NEAR(ms_of(r, "host_elsewhere"), 10 * 4.5, 10 * 0.1);
  // No instant twice, none forgotten; the division and the looks' table say the same.
  EXPECT_EQ(idle_in_rows(r) + r.busy_ns, r.wall_ns);
  EXPECT_EQ(r.division.total.at(Part::kLogging), r.findings[1].total_ns);
  for (const IdleRow& row : r.summary.idle) {
    if (row.cause == Cause::kLogging) {
      EXPECT_EQ(row.pieces, 10u);
    }
  }
  for (const GapRow& row : r.gaps.rows) {
    EXPECT_EQ(row.cause, row.line.line == 11 ? Cause::kLogging : Cause::kNone);
    EXPECT_NEAR(static_cast<double>(row.ns), (row.line.line == 11 ? 35.0 : 45.0) * kMs, kMs);
  }
}

// The commonest loop there is: it logs at the end of one step and reads the input of the next.
TEST(AnalysisCauses, LoggingAndInputInOneGap) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t main = b.frame(0, kScript, "main", 20);
  const std::uint32_t emit = b.frame(b.frame(main, kLogger, "Logger.info", 5), kScript, "emit", 4);
  const std::uint32_t read = b.frame(b.frame(0, kScript, "main", 12), kScript, "read_batch", 7);
  b.use_thread(4242);
  const ProcessReport r = loop(b, 20, [&](std::uint64_t t, std::uint32_t) {
    for (std::uint64_t ms = 1; ms <= 35; ++ms) {
      look(b, 4242, t + (ms - 1) * kMs, t + ms * kMs, {.python_stack = ms <= 15 ? emit : read});
    }
    b.device_time(b.copy(t + 35 * kMs, t + 35 * kMs + 10 * kUs, 1 << 20,
                         CopyDirection::kHostToDevice, MemoryKind::kPinned, true, at(main)),
                  t + 35 * kMs + 5 * kUs, t + 35 * kMs + 50 * kUs);
    work(b, t + 35 * kMs + 20 * kUs, t + 35 * kMs + 60 * kUs, t + 40 * kMs, k, at(main));
    return 40 * kMs;
  });
  EXPECT_THAT(ids(r), ElementsAre("data_starvation", "logging"));
  EXPECT_NEAR(first(r).share, 19.5 / 40, 0.01);
  EXPECT_NEAR(r.findings[1].share, 15.5 / 40, 0.01);
  EXPECT_EQ(r.division.total.at(Part::kLogging), r.findings[1].total_ns);
  EXPECT_EQ(r.division.total.at(Part::kLoading) + r.division.total.at(Part::kInput),
            first(r).total_ns);
  EXPECT_THAT(first(r).where, ::testing::StartsWith("train.py:7 (read_batch), "));
  EXPECT_THAT(r.findings[1].where, ::testing::StartsWith("train.py:4 (emit), "));
  EXPECT_THAT(r.findings[1].evidence,
              HasSubstr("looked at for 100 % of it: 100 % train.py:4 (emit)"));
}

// What is left over when the looks stop is like what was seen if most was; else nothing is known of
// it.
TEST(AnalysisCauses, WhatWasNotLookedAt) {
  for (const std::uint64_t seen_from : {20u, 60u}) {
    RecordingBuilder b;
    const std::uint32_t k = b.kernel("k");
    const std::uint32_t main = b.frame(0, kScript, "main", 20);
    const std::uint32_t log = b.frame(main, kLogger, "Logger.info", 5);
    b.use_thread(4242);
    const ProcessReport r = loop(b, 4, [&](std::uint64_t t, std::uint32_t) {
      work(b, t, t + 10 * kUs, t + 10 * kMs, k, at(main));
      // A silence of 80 ms that is looked at late: from `seen_from` on.
      look(b, 4242, t + seen_from * kMs, t + (seen_from + 20) * kMs, {.python_stack = log});
      work(b, t + 90 * kMs, t + 90 * kMs + 10 * kUs, t + 100 * kMs, k, at(main));
      return 100 * kMs;
    });
    if (seen_from == 20) {  // until 40 + 40 ms
      EXPECT_THAT(ids(r), ElementsAre("logging"));
      EXPECT_NEAR(ms_of(r, "logging"), 4 * 80, 1);
    } else {
      EXPECT_THAT(ids(r), ElementsAre("host_elsewhere", "logging"));
      EXPECT_NEAR(ms_of(r, "logging"), 4 * 30, 1);
      EXPECT_NEAR(ms_of(r, "host_elsewhere"), 4 * 50, 1);
    }
  }
}

// The call before was one of an evaluation; whole frames show that the host has left it.
TEST(AnalysisCauses, LooksAreBelievedBeforeTheCallsRoundThePause) {
  for (const bool torn : {false, true}) {
    RecordingBuilder b;
    const std::uint32_t k = b.kernel("k");
    const std::uint32_t main = b.frame(0, kScript, "main", 20);
    const CallOptions evaluates = at(b.frame(main, kScript, "evaluate", 5));
    Look l;
    l.python_stack = b.frame(0, kScript, "main", 22);
    l.flags = torn ? recording::kGapTorn : 0;  // inner frames may be missing: not known
    b.use_thread(4242);
    const ProcessReport r = loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
      work(b, t, t + 10 * kUs, t + 2 * kMs, k, evaluates);
      for (std::uint64_t ms = 2; ms < 10; ++ms) look(b, 4242, t + ms * kMs, t + (ms + 1) * kMs, l);
      work(b, t + 10 * kMs, t + 10 * kMs + 10 * kUs, t + 20 * kMs, k, at(main));
      return 20 * kMs;
    });
    EXPECT_THAT(ids(r), ElementsAre(torn ? "evaluation" : "host_elsewhere"));
  }
}

TEST(AnalysisCauses, LinesOfOneFunctionAreOnePlace) {
  RecordingBuilder b;
  const std::uint32_t main = b.frame(0, kScript, "main", 11);
  Look at_line[3];
  for (int i = 0; i < 3; ++i) at_line[i].python_stack = b.frame(main, kScript, "env_step", 19 + i);
  const ProcessReport r = pause_of(b, [&](std::uint64_t ms) { return at_line[ms % 3]; });
  EXPECT_THAT(ids(r), ElementsAre("host_elsewhere"));
  EXPECT_THAT(first(r).where,
              ::testing::StartsWith("train.py:19-21 (env_step), train.py:10-12 in"));
  ASSERT_EQ(first(r).lines.size(), 3u);
}

// Main waits in backward() for autograd's thread, which ends the pause and has no frames.
ProcessReport backward_with(RecordingBuilder& b, const Look& main_look, const Look& autograd_look) {
  constexpr std::uint32_t kMain = 4242, kAutograd = 4243;
  const std::uint32_t k = b.kernel("k");
  const CallOptions main = at(b.frame(0, kScript, "main", 10));
  CallOptions autograd;
  autograd.thread = kAutograd;
  b.use_thread(kMain);
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    work(b, t, t + 10 * kUs, t + 2 * kMs, k, main);
    for (std::uint64_t ms = 2; ms < 10; ++ms) {
      look(b, kMain, t + ms * kMs, t + (ms + 1) * kMs, main_look);
      look(b, kAutograd, t + ms * kMs, t + (ms + 1) * kMs, autograd_look);
    }
    work(b, t + 10 * kMs, t + 10 * kMs + 10 * kUs, t + 20 * kMs, k, autograd);
    return 20 * kMs;
  });
}

TEST(AnalysisCauses, WhoWaitsInBackwardWaitsForAutogradsThreads) {
  const auto backward = [](RecordingBuilder& b) {
    return b.frame(b.frame(0, kScript, "main", 11), "/v/site-packages/torch/autograd/graph.py",
                   "_engine_run_backward", 7);
  };
  const auto waiting = [&](RecordingBuilder& b) {
    Look l;
    l.python_stack = backward(b);
    l.flags = recording::kGapInSystemCall;
    l.system_call = 202;
    return l;
  };
  Look runs, starved, gil;
  runs.state = starved.state = 'R';
  runs.run_ns = starved.wait_ns = 900 * kUs;
  gil.flags = recording::kGapInterpreter | recording::kGapInSystemCall;
  gil.system_call = 202;
  {
    RecordingBuilder b;
    const ProcessReport r = backward_with(b, waiting(b), runs);
    EXPECT_THAT(ids(r), ElementsAre("host_elsewhere"));
    EXPECT_THAT(first(r).evidence, HasSubstr("waits for autograd's threads"));
    EXPECT_THAT(first(r).cure, HasSubstr("CUDA graphs"));
    EXPECT_THAT(first(r).cure, Not(HasSubstr("lock")));
    EXPECT_TRUE(first(r).lines.empty());  // no work of the line's own
  }
  {
    RecordingBuilder b;
    const ProcessReport r = backward_with(b, waiting(b), gil);
    EXPECT_THAT(ids(r), ElementsAre("gil_contention"));
    EXPECT_THAT(first(r).where, ::testing::StartsWith("train.py:11 (main)"));
    EXPECT_THAT(first(r).evidence, HasSubstr("Which thread holds it was not seen."));
  }
  {
    RecordingBuilder b;
    EXPECT_THAT(ids(backward_with(b, waiting(b), starved)), ElementsAre("no_processor"));
  }
  {
    // Main waits for the GIL beside it, but what the device waits for goes on.
    RecordingBuilder b;
    Look main = waiting(b);
    main.flags |= recording::kGapInterpreter;
    EXPECT_THAT(ids(backward_with(b, main, runs)), ElementsAre("host_elsewhere"));
  }
}

TEST(AnalysisCauses, TheInterpretersLock) {
  RecordingBuilder b;
  Look l;
  l.python_stack = b.frame(0, kScript, "main", 11);
  l.flags = recording::kGapInterpreter;
  const ProcessReport r = pause_with(b, l);
  ASSERT_THAT(ids(r), ElementsAre("gil_contention"));
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 8.0 * kMs, 10 * 0.1 * kMs);
  EXPECT_EQ(first(r).where,
            "train.py:11 (main), train.py:10-12 in main (after line 10, before line 12)");
  EXPECT_THAT(first(r).evidence, HasSubstr("Which thread holds it was not seen."));
  EXPECT_EQ(r.gaps.gil.looks, 80u);
  EXPECT_EQ(r.gaps.gil.known_looks, 0u);
}

// The holders of the GIL in that pause, by the ms of the look; the other looks do not know it.
ProcessReport held_by(RecordingBuilder& b,
                      const std::function<std::pair<std::uint32_t, int>(std::uint64_t)>& holder) {
  Look l;
  l.python_stack = b.frame(0, kScript, "main", 11);
  l.flags = recording::kGapInterpreter;
  return pause_of(b, [&, l](std::uint64_t ms) mutable {
    const auto [thread, line] = holder(ms);
    l.holder = thread;
    l.holder_stack = thread == 0 ? 0 : b.frame(0, "/home/u/stats.py", "count", line);
    return l;
  });
}

TEST(AnalysisCauses, TheHolderOfTheInterpretersLock) {
  {
    RecordingBuilder b;
    const ProcessReport r = held_by(b, [](std::uint64_t ms) {
      return ms == 9 ? std::pair(0u, 0) : std::pair(77u, ms == 2 ? 33 : 31);
    });
    ASSERT_THAT(ids(r), ElementsAre("gil_contention"));
    EXPECT_THAT(first(r).evidence,
                HasSubstr("The lock was held by thread 77 'python' (stats.py:31 (count)) in 70 of "
                          "80 looks."));
    EXPECT_THAT(first(r).where, ::testing::StartsWith("stats.py:31 (count), train.py:11 (main)"));
    EXPECT_THAT(first(r).cure, HasSubstr("at stats.py:31 (count) to another process"));
    EXPECT_EQ(r.gaps.gil.looks, 80u);
    EXPECT_EQ(r.gaps.gil.known_looks, 70u);
    ASSERT_EQ(r.gaps.gil.rows.size(), 2u);
    EXPECT_EQ(r.gaps.gil.rows[0].line.line, 31);
    EXPECT_EQ(r.gaps.gil.rows[0].looks, 60u);
    EXPECT_EQ(r.gaps.gil.rows[0].thread_id, 77u);
  }
  {
    // All over a function.
    RecordingBuilder b;
    const ProcessReport r =
        held_by(b, [](std::uint64_t ms) { return std::pair(77u, 31 + static_cast<int>(ms % 4)); });
    EXPECT_THAT(first(r).where, ::testing::StartsWith("stats.py:31-34 (count), train.py:11"));
  }
  {
    // Threads that share it: neither is what to change first.
    RecordingBuilder b;
    const ProcessReport r = held_by(b, [](std::uint64_t ms) {
      return ms > 7 ? std::pair(0u, 0) : std::pair(77u + static_cast<std::uint32_t>(ms % 2), 31);
    });
    EXPECT_THAT(first(r).where, ::testing::StartsWith("train.py:11 (main)"));
    EXPECT_THAT(first(r).evidence, HasSubstr("in 30 of 80 looks, thread 78"));
    EXPECT_THAT(first(r).cure, ::testing::StartsWith("Move that thread's work"));
  }
}

TEST(AnalysisCauses, ACollectionThatPythonBeganByItself) {
  RecordingBuilder b;
  Look l;
  l.python_stack = b.frame(0, kScript, "main", 11);
  l.state = 'R';
  l.flags = recording::kGapCollecting;
  EXPECT_THAT(ids(pause_with(b, l)), ElementsAre("garbage_collection"));
}

TEST(AnalysisCauses, NoProcessor) {
  RecordingBuilder b;
  Look l;
  l.python_stack = b.frame(0, kScript, "main", 11);
  l.state = 'R';
  l.run_ns = 100 * kUs;
  l.wait_ns = 900 * kUs;
  EXPECT_THAT(ids(pause_with(b, l)), ElementsAre("no_processor"));
}

TEST(AnalysisCauses, InputThatIsLateForWantOfAProcessorIsLateInput) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t main = b.frame(0, kScript, "main", 10);
  Look starved;
  starved.python_stack = b.frame(0, kScript, "main", 11);
  starved.state = 'R';
  starved.wait_ns = 900 * kUs;
  b.use_thread(4242);
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    work(b, t, t + 10 * kUs, t + 2 * kMs, k, at(main));
    for (std::uint64_t ms = 2; ms < 10; ++ms) {
      look(b, 4242, t + ms * kMs, t + (ms + 1) * kMs, starved);
    }
    b.device_time(b.copy(t + 10 * kMs, t + 10 * kMs + 10 * kUs, 1 << 20,
                         CopyDirection::kHostToDevice, MemoryKind::kPinned, true, at(main)),
                  t + 10 * kMs + 5 * kUs, t + 10 * kMs + 50 * kUs);
    work(b, t + 10 * kMs + 20 * kUs, t + 10 * kMs + 60 * kUs, t + 20 * kMs, k, at(main));
    return 20 * kMs;
  });
  EXPECT_THAT(ids(r), ElementsAre("data_starvation"));
  EXPECT_THAT(first(r).evidence, HasSubstr("waits for a processor"));
}

TEST(AnalysisCauses, AThreadOfAutogradWithoutAProcessor) {
  RecordingBuilder b;
  Look l;  // no Python frames
  l.state = 'R';
  l.run_ns = 100 * kUs;
  l.wait_ns = 900 * kUs;
  EXPECT_THAT(ids(pause_with(b, l)), ElementsAre("no_processor"));
}

TEST(AnalysisCauses, AThreadThatComputesIsNeither) {
  RecordingBuilder b;
  Look l;
  l.python_stack = b.frame(0, kScript, "main", 11);
  l.state = 'R';
  l.run_ns = 900 * kUs;
  l.wait_ns = 100 * kUs;
  EXPECT_THAT(ids(pause_with(b, l)), ElementsAre("host_elsewhere"));
}

TEST(AnalysisCauses, StartingWorkers) {
  RecordingBuilder b;
  Look l;
  const std::uint32_t loader =
      b.frame(b.frame(0, kScript, "main", 11), "/v/site-packages/torch/utils/data/dataloader.py",
              "_MultiProcessingDataLoaderIter.__init__", 7);
  l.python_stack =
      b.frame(loader, "/usr/lib/python3.11/multiprocessing/process.py", "BaseProcess.start", 9);
  const ProcessReport r = pause_with(b, l);
  ASSERT_THAT(ids(r), ElementsAre("worker_restart"));
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 8.0 * kMs, 10 * 0.1 * kMs);
}

TEST(AnalysisCauses, LoadingInTheProcessItselfIsStarvation) {
  RecordingBuilder b;
  Look l;
  l.python_stack = b.frame(b.frame(b.frame(0, kScript, "main", 11),
                                   "/v/site-packages/torch/utils/data/_utils/fetch.py", "fetch", 7),
                           kScript, "Pictures.__getitem__", 30);
  EXPECT_THAT(ids(pause_with(b, l)), ElementsAre("data_starvation"));
}

TEST(AnalysisCauses, ACollectiveNamesTheSlowRankOnlyWhereOneIsSeen) {
  recording::Session session;
  for (const int rank : {0, 1}) {
    RecordingBuilder b(static_cast<std::uint32_t>(5000 + rank));
    b.rank(rank, 2, rank);
    Look l;
    const std::uint32_t main = b.frame(0, kScript, "main", 11);
    l.python_stack = rank == 0
                         ? b.frame(main, "/v/site-packages/torch/distributed/distributed_c10d.py",
                                   "all_reduce", 7)
                         : main;
    l.state = rank == 0 ? 'S' : 'R';
    const std::uint32_t k = b.kernel("k");
    b.use_thread(4242);
    session.processes.push_back(record(b, 10, [&](std::uint64_t t, std::uint32_t) {
      work(b, t, t + 10 * kUs, t + 2 * kMs, k, at(main));
      for (std::uint64_t ms = 2; ms < 10; ++ms) look(b, 4242, t + ms * kMs, t + (ms + 1) * kMs, l);
      work(b, t + 10 * kMs, t + 10 * kMs + 10 * kUs, t + 20 * kMs, k, at(main));
      return 20 * kMs;
    }));
  }
  const SessionReport both = analyse(session);
  ASSERT_EQ(both.processes.size(), 2u);
  EXPECT_THAT(ids(both.processes[0]), ElementsAre("slow_rank"));
  EXPECT_THAT(first(both.processes[0]).title, HasSubstr("rank 1"));
  EXPECT_THAT(first(both.processes[0]).evidence, HasSubstr("host_elsewhere"));
  EXPECT_THAT(ids(both.processes[1]), ElementsAre("host_elsewhere"));

  session.processes.pop_back();
  EXPECT_THAT(ids(analyse(session).processes[0]), ElementsAre("collective_wait"));
}

// ---- by what the calls are
// -------------------------------------------------------------------------

// Per step: kernels, `down` bytes to the host, 6 ms outside CUDA, `up` bytes to the device,
// kernels.
ProcessReport down_and_up(std::uint64_t down, std::uint64_t up) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const CallOptions o = at(b.frame(0, kScript, "forward", 20));
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    work(b, t, t + 10 * kUs, t + 10 * kMs, k, o);
    b.device_time(b.copy(t + 20 * kUs, t + 10 * kMs + 20 * kUs, down, CopyDirection::kDeviceToHost,
                         MemoryKind::kPageable, true, o),
                  t + 10 * kMs, t + 10 * kMs + 10 * kUs, o);
    b.device_time(b.copy(t + 16 * kMs, t + 16 * kMs + 10 * kUs, up, CopyDirection::kHostToDevice,
                         MemoryKind::kPageable, true, o),
                  t + 16 * kMs + 5 * kUs, t + 16 * kMs + 10 * kUs, o);
    work(b, t + 16 * kMs + 20 * kUs, t + 16 * kMs + 30 * kUs, t + 20 * kMs, k, o);
    return 20 * kMs;
  });
}

TEST(AnalysisCauses, APartOfTheModelOnTheCpu) {
  const ProcessReport r = down_and_up(32 << 10, 32 << 10);
  EXPECT_EQ(first(r).id, "cpu_part_of_model");
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 6.0 * kMs, 10 * 0.1 * kMs);
}

TEST(AnalysisCauses, AReadLossBeforeABatchIsNoPartOfTheModel) {
  EXPECT_THAT(ids(down_and_up(4, 32 << 10)), Not(Contains("cpu_part_of_model")));
}

// Per step: `count` copies of 1 KiB, one each 20 us, then 5 ms of kernels. `behind`: the device
// still works on the last step's kernels meanwhile.
ProcessReport small_copies(std::uint64_t count, bool behind) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const CallOptions load = at(b.frame(0, kScript, "load", 30));
  CallOptions other = load;
  other.stream = 9;
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t c = t + i * 20 * kUs;
      b.device_time(b.copy(c, c + 8 * kUs, 1024, CopyDirection::kHostToDevice,
                           MemoryKind::kPageable, true, other),
                    c + 6 * kUs, c + 7 * kUs, other);
    }
    const std::uint64_t end = t + count * 20 * kUs;
    if (behind) work(b, t + 9 * kUs, t + 12 * kUs, end + 4 * kMs, k);
    work(b, end, behind ? end + 4 * kMs : end + 10 * kUs, end + 9 * kMs, k);
    b.sync(end + 10 * kUs, end + 9 * kMs);
    return end + 9 * kMs - t;
  });
}

TEST(AnalysisCauses, ManySmallCopies) {
  const ProcessReport r = small_copies(400, false);
  ASSERT_THAT(ids(r), Contains("small_copies"));
  EXPECT_EQ(first(r).id, "small_copies");
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 8.0 * kMs, 10 * 0.1 * kMs);
  EXPECT_EQ(first(r).where, "train.py:30 (load)");
  EXPECT_THAT(first(r).evidence, HasSubstr("400 copies per step of 1.0 kB"));
  EXPECT_THAT(ids(r), Not(Contains("launch_bound")));
}

TEST(AnalysisCauses, SmallCopiesBesideKernelsCostNothing) {
  EXPECT_THAT(ids(small_copies(400, true)), Not(Contains("small_copies")));
}

TEST(AnalysisCauses, AFewSmallCopiesAreABatch) {
  EXPECT_THAT(ids(small_copies(10, false)), Not(Contains("small_copies")));
}

// Per step 10 ms of kernels and a pinned copy of `copy_ms`, with them or before them.
ProcessReport pinned_copy(std::uint64_t copy_ms, bool beside, bool all_timed = true) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions copy = at(b.frame(0, kScript, "prefetch", 25));
  copy.stream = 9;
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    const std::uint64_t begin = beside ? t : t + copy_ms * kMs;
    b.device_time(b.copy(t, t + 5 * kUs, 8 << 20, CopyDirection::kHostToDevice, MemoryKind::kPinned,
                         true, copy),
                  t, t + copy_ms * kMs, copy);
    b.device_time(b.launch(t + 10 * kUs, t + 12 * kUs, k), begin + 15 * kUs, begin + 10 * kMs);
    if (!all_timed) b.launch(t + 13 * kUs, t + 15 * kUs, k);  // where it ran is not known
    return begin + 10 * kMs - t;
  });
}

TEST(AnalysisCauses, WhatUntimedWorkRanBesideIsNotGuessed) {
  EXPECT_THAT(ids(pinned_copy(5, false, false)), Not(Contains("copies_not_overlapped")));
}

TEST(AnalysisCauses, CopiesThatDoNotOverlap) {
  const ProcessReport r = pinned_copy(5, false);
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(first(r).id, "copies_not_overlapped");
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 5.0 * kMs, 1.0 * kMs);
  EXPECT_EQ(first(r).where, "train.py:25 (prefetch)");
}

TEST(AnalysisCauses, CopiesThatOverlapAreFine) {
  EXPECT_THAT(ids(pinned_copy(5, true)), Not(Contains("copies_not_overlapped")));
}

// Per step 10 ms of a matrix product, and copies within the device of `copy_us`, and a kernel
// `name`.
ProcessReport device_copy(std::uint64_t copy_us, const std::string& name) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("gemm"), copying = b.kernel(name);
  const CallOptions o = at(b.frame(0, kScript, "forward", 27));
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    const std::uint64_t a = t + 10 * kUs, c = a + copy_us * kUs, d = c + copy_us * kUs;
    b.device_time(b.copy(t, t + 2 * kUs, 1 << 20, CopyDirection::kDeviceToDevice,
                         MemoryKind::kDevice, true, o),
                  a, c, o);
    b.device_time(b.launch(t + 3 * kUs, t + 4 * kUs, copying, o), c, d, o);
    b.device_time(b.launch(t + 5 * kUs, t + 6 * kUs, k, o), d, d + 10 * kMs, o);
    return d + 10 * kMs - t;
  });
}

TEST(AnalysisCauses, ClonesAndLayouts) {
  const ProcessReport r = device_copy(
      1500, "_ZN2at6native29vectorized_elementwise_kernelIZZZNS0_23direct_copy_kernel_cuda");
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(first(r).id, "device_copies");
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 3.0 * kMs, 1.0 * kUs);
  EXPECT_EQ(first(r).where, "train.py:27 (forward)");
}

TEST(AnalysisCauses, KernelsThatComputeAreNoCopies) {
  EXPECT_THAT(ids(device_copy(800, "relu")), ElementsAre("gpu_busy"));
}

// Two streams with 5 ms of kernels of `blocks` blocks each per step, at once or one after the
// other.
ProcessReport two_streams(std::uint32_t blocks, bool at_once) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("small");
  const std::uint16_t api = b.api("cudaLaunchKernel", recording::Category::kLaunch);
  CallOptions one = at(b.frame(0, kScript, "branch", 29)),
              two = at(b.frame(0, kScript, "branch", 30));
  one.stream = 13;
  two.stream = 14;
  const recording::LaunchPayload p = {k, 0, blocks, 1, 1, 256, 1, 1, 0};
  return loop(b, 10, [&](std::uint64_t t, std::uint32_t) {
    const std::uint64_t second = at_once ? t : t + 5 * kMs;
    b.device_time(b.call(t, t + 5 * kUs, api, &p, sizeof p, one), t + 10 * kUs, t + 5 * kMs, one);
    b.device_time(b.call(t + 10 * kUs, t + 15 * kUs, api, &p, sizeof p, two), second + 20 * kUs,
                  second + 5 * kMs, two);
    return second + 5 * kMs - t;
  });
}

TEST(AnalysisCauses, StreamsInSeries) {
  const ProcessReport r = two_streams(32, false);
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(first(r).id, "serial_streams");
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 4.98 * kMs, 0.2 * kMs);
  EXPECT_TRUE(first(r).where == "train.py:29 (branch)" || first(r).where == "train.py:30 (branch)");
}

TEST(AnalysisCauses, StreamsSideBySideOrOfLargeKernelsAreFine) {
  EXPECT_THAT(ids(two_streams(32, true)), Not(Contains("serial_streams")));
  EXPECT_THAT(ids(two_streams(132, false)), Not(Contains("serial_streams")));
}

// Pins for 4 ms in each of the first `pinning` steps, then 6 ms of kernels.
ProcessReport pins(std::uint32_t pinning) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint16_t api = b.api("cudaHostRegister", recording::Category::kHostAlloc);
  const recording::AllocPayload p = {0x7000, 8 << 20};
  const CallOptions o = at(b.frame(0, kScript, "load", 33));
  return loop(b, 20, [&](std::uint64_t t, std::uint32_t step) {
    if (step < pinning) b.call(t, t + 4 * kMs, api, &p, sizeof p, o);
    work(b, t + 4 * kMs, t + 4 * kMs + 10 * kUs, t + 10 * kMs, k, o);
    return 10 * kMs;
  });
}

TEST(AnalysisCauses, PinningInEachStep) {
  const ProcessReport r = pins(20);
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(first(r).id, "pinning_churn");
  EXPECT_EQ(first(r).total_ns, 20 * 4 * kMs);
  EXPECT_EQ(first(r).where, "train.py:33 (load)");
  EXPECT_THAT(ids(r), Not(Contains("allocation_churn")));
}

TEST(AnalysisCauses, PinningBeforeSteadyStateIsFine) {
  EXPECT_THAT(ids(pins(3)), Not(Contains("pinning_churn")));
}

// Input is late by 30 ms in the steps given; each step has 10 ms of kernels.
ProcessReport stalls(const std::vector<std::uint32_t>& steps, bool from_loader = true) {
  RecordingBuilder b;
  if (from_loader) {
    b.frame(0, "/v/site-packages/torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__",
            7);
  }
  const std::uint32_t k = b.kernel("k");
  const CallOptions o = at(b.frame(0, kScript, "main", 50));
  return loop(b, 16, [&](std::uint64_t t, std::uint32_t step) {
    const bool late = std::find(steps.begin(), steps.end(), step) != steps.end();
    const std::uint64_t begin = t + (late ? 30 * kMs : 10 * kUs);
    b.device_time(b.copy(begin, begin + 5 * kUs, 1 << 20, CopyDirection::kHostToDevice,
                         MemoryKind::kPinned, true, o),
                  begin + 5 * kUs, begin + 20 * kUs, o);
    work(b, begin + 6 * kUs, begin + 20 * kUs, begin + 10 * kMs, k, o);
    b.sync(begin + 20 * kUs, begin + 30 * kUs, o);  // an event: the host goes on
    return begin + 10 * kMs - t;
  });
}

TEST(AnalysisCauses, EpochsThatBeginAnew) {
  const ProcessReport r = stalls({1, 5, 9, 13});
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(first(r).id, "worker_restart");
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 4 * 30.0 * kMs, 1.0 * kMs);
  EXPECT_THAT(first(r).evidence, HasSubstr("every 4. step (4 of 16)"));
}

TEST(AnalysisCauses, WhatStallsWithoutALoaderDoesNotBeginOneAnew) {
  const ProcessReport r = stalls({1, 5, 9, 13}, false);
  EXPECT_THAT(ids(r), ElementsAre("data_starvation"));
  EXPECT_EQ(first(r).title, "The GPU waits for data that the host makes");
  EXPECT_THAT(first(r).evidence, HasSubstr("in 4 of 16 steps, up to 30.0 ms in one"));
}

TEST(AnalysisCauses, StallsAtOddTimesAreNoEpochs) {
  EXPECT_THAT(ids(stalls({1, 4, 9, 13})), Not(Contains("worker_restart")));
  EXPECT_THAT(ids(stalls({4, 12})), Not(Contains("worker_restart")));
}

// A series of launches from one line, of which some come late; `seen`: looks find the host at
// another line meanwhile.
ProcessReport series(std::uint64_t late_every, bool seen = false) {
  RecordingBuilder b;
  const std::uint32_t other = b.frame(0, kScript, "refresh", 5);
  const std::uint32_t k = b.kernel("k");
  const CallOptions o = at(b.frame(0, kScript, "average", 21));
  return loop(b, 10, [&](std::uint64_t begin, std::uint32_t) {
    std::uint64_t t = begin;
    for (std::uint64_t i = 1; i <= 200; ++i) {
      work(b, t, t + 6 * kUs, t + 8 * kUs, k, o);
      const bool late = i % late_every == 0;
      if (late && seen) {
        b.gap_sample(t + 1900 * kUs, t + 6 * kUs,
                     {.python_stack = other, .run_ns = 1800 * kUs, .state = 'R'});
      }
      t += late ? 2 * kMs : 30 * kUs;
    }
    return t - begin;
  });
}

TEST(AnalysisCauses, HiccupsOfASeriesOfLaunchesBelongToIt) {
  const ProcessReport r = series(50);
  EXPECT_THAT(ids(r), ElementsAre("launch_bound"));
  EXPECT_GT(first(r).share, 0.9);
}

TEST(AnalysisCauses, WhatWasSeenElsewhereIsNoHiccup) {
  const ProcessReport r = series(50, true);
  ASSERT_THAT(ids(r), ElementsAre("host_elsewhere", "launch_bound"));
  EXPECT_NEAR(static_cast<double>(first(r).total_ns), 10 * 4 * 2.0 * kMs, 10 * 4 * 0.1 * kMs);
  EXPECT_THAT(first(r).where, HasSubstr("train.py:5 (refresh)"));
}

TEST(AnalysisCauses, PausesBetweenMostLaunchesAreNoHiccups) {
  EXPECT_EQ(first(series(2)).id, "host_elsewhere");
}

}  // namespace
}  // namespace gpubusy::analysis
