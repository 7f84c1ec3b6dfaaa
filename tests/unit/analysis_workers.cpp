// SPDX-License-Identifier: Apache-2.0
//
// What loader workers did while the device idled, and what the verdict makes of it.
#include "analysis/workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/report.hpp"
#include "tests/support/reports.hpp"

namespace gpubusy::analysis {
namespace {

using recording::GapFile;
using ::testing::HasSubstr;
using testing::kMs;
using ::testing::Not;
using testing::RecordingBuilder;
using testing::WorkerOptions;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;
constexpr std::uint16_t kRead = 0, kPoll = 7, kFlock = 73, kFutex = 202, kOpen = 257;

double share(const LoadingShares& of, Loading doing) { return of[static_cast<std::size_t>(doing)]; }

// Steps in each `every`th of which the launching thread waits for workers for 100 ms; then 1 ms of
// work.
struct Starved {
  explicit Starved(std::uint64_t step_count = 4, std::uint64_t stall_every = 1)
      : steps(step_count), every(stall_every) {
    b.api("cudaLaunchKernel", recording::Category::kLaunch);
    b.api("cudaMemcpyAsync", recording::Category::kCopy);
    b.window(recording::WindowEvent::kBegin, kStart, 0, 0, static_cast<std::uint32_t>(steps));
    const std::string torch = "/x/lib/python3.11/site-packages/torch/utils/data/";
    const auto main = b.frame(0, "/home/u/train.py", "main", 57);
    const auto get = b.frame(b.frame(main, torch + "dataloader.py", "_next_data", 3),
                             torch + "dataloader.py", "_try_get_data", 9);
    const auto forked =
        b.frame(b.frame(main, torch + "dataloader.py", "__init__", 3),
                "/x/lib/python3.11/multiprocessing/process.py", "BaseProcess._bootstrap", 300);
    loop = b.frame(forked, torch + "_utils/worker.py", "_worker_loop", 40);
    idle = b.frame(b.frame(loop, "/x/lib/python3.11/multiprocessing/queues.py", "get", 113),
                   "/x/lib/python3.11/multiprocessing/connection.py", "poll", 257);
    fetch = b.frame(loop, torch + "_utils/fetch.py", "fetch", 50);
    line = b.frame(fetch, "/home/u/dataset.py", "Samples.__getitem__", 31);
    inner = b.frame(line, "/x/lib/python3.11/site-packages/PIL/Image.py", "convert", 5);
    const auto kernel = b.kernel("k");
    for (std::uint64_t step = 0; step < steps; ++step) {
      const std::uint64_t launch = begin(step) + (stalls(step) ? 100 * kMs : 0);
      const auto copy =
          b.copy(launch, launch + 5'000, 1 << 20, recording::CopyDirection::kHostToDevice,
                 recording::MemoryKind::kPinned, true, {.python_stack = main});
      b.device_time(copy, launch + 6'000, launch + 9'000);
      const auto id = b.launch(launch + 10'000, launch + 20'000, kernel, {.python_stack = main});
      b.device_time(id, launch + 20'000, launch + kMs);
      b.step_edge(launch + 2 * kMs, static_cast<std::uint32_t>(step));
      for (std::uint64_t look = 0; stalls(step) && look < 9; ++look) {
        b.gap_sample(begin(step) + (look + 1) * 10 * kMs, begin(step) + look * 10 * kMs,
                     {.python_stack = get,
                      .system_call = kPoll,
                      .state = 'S',
                      .flags = recording::kGapInSystemCall});
      }
    }
    b.window(recording::WindowEvent::kEnd, begin(steps), 0, 0, static_cast<std::uint32_t>(steps));
  }
  bool stalls(std::uint64_t step) const { return step % every == 0; }
  std::uint64_t begin(std::uint64_t step) const {
    return kStart + step * 2 * kMs + (step + every - 1) / every * 100 * kMs;
  }

  // Each worker is looked at every 20 ms.
  void look_at(std::uint32_t workers, WorkerOptions options) {
    for (std::uint64_t step = 0; step < steps; step += every) {
      for (std::uint64_t look = 0; look < 4; ++look) {
        for (std::uint32_t w = 0; w < workers; ++w) {
          options.pid = 500 + w;
          const std::uint64_t time = begin(step) + (look + 1) * 20 * kMs;
          b.worker_look(time, step + look == 0 ? 0 : time - 20 * kMs, options);
        }
      }
    }
  }
  void have_processors(std::uint32_t count) {
    recording::HostRecord host{};
    host.online_processors = host.usable_processors = count;
    b.host_offer(host);
  }
  Finding finding() {
    report = report_of(b.read());
    EXPECT_FALSE(report.findings.empty());
    if (report.findings.empty()) return {};
    EXPECT_EQ(report.findings.front().id, "data_starvation");
    return report.findings.front();
  }
  const Workers& workers() const { return report.workers; }

  std::uint64_t steps, every;
  RecordingBuilder b;
  std::uint32_t loop, idle, fetch, line, inner;
  ProcessReport report;
};

WorkerOptions waits(std::uint32_t stack, std::uint16_t call, GapFile file = GapFile::kNone) {
  return {.python_stack = stack,
          .system_call = call,
          .argument = 1,
          .state = 'S',
          .flags = recording::kGapInSystemCall,
          .file = file};
}

TEST(Workers, ComputingAllTheTimeWithProcessorsFree) {
  Starved s;
  s.have_processors(16);
  s.look_at(2, {.python_stack = s.inner, .run_ns = 19 * kMs, .wait_ns = kMs, .process_run_ms = 20});
  const Finding f = s.finding();
  EXPECT_EQ(s.workers().count, 2u);
  EXPECT_EQ(s.workers().looks, 32u);
  EXPECT_NEAR(share(s.workers().doing, Loading::kComputes), 0.95, 0.001);
  EXPECT_NEAR(share(s.workers().doing, Loading::kNoProcessor), 0.05, 0.001);
  ASSERT_EQ(s.workers().lines.size(), 1u);
  EXPECT_EQ(s.workers().lines[0].line.line, 31);
  EXPECT_EQ(s.workers().lines[0].share, 1);
  EXPECT_THAT(f.evidence,
              HasSubstr("Meanwhile the 2 workers were looked at 32 times: 95 % compute, "
                        "5 % wait for a processor; the program has 16 processors. "
                        "Where they are: 100 % dataset.py:31 (Samples.__getitem__)."));
  EXPECT_THAT(f.cure, HasSubstr("13 processors are free"));
}

TEST(Workers, ComputingAllTheTimeWithNoProcessorFree) {
  Starved s;
  s.have_processors(2);
  s.look_at(2, {.python_stack = s.line, .run_ns = 20 * kMs});
  EXPECT_THAT(s.finding().cure, HasSubstr("there is no processor for more of them (2 workers, 2 "
                                          "processors)"));
}

TEST(Workers, MoreThanProcessors) {
  Starved s;
  s.have_processors(2);
  s.look_at(8, {.python_stack = s.line, .run_ns = 5 * kMs, .wait_ns = 15 * kMs});
  EXPECT_THAT(s.finding().cure,
              HasSubstr("more workers (8) than processors for them (2 processors)"));
  EXPECT_EQ(bottleneck_of(s.workers().doing), Bottleneck::kNoProcessor);
}

TEST(Workers, ProcessorsTakenBySomethingElse) {
  Starved s;
  s.have_processors(8);
  s.look_at(2, {.python_stack = s.line, .run_ns = 5 * kMs, .wait_ns = 15 * kMs});
  EXPECT_THAT(s.finding().cure, HasSubstr("something else takes these"));
}

// Each look finds a worker ready to run; that it waited is counted when the wait ends, at every
// fourth.
struct Stopped : Starved {
  explicit Stopped(std::uint64_t throttled_ms) {
    have_processors(8);
    b.host_counts(kStart, {{recording::HostCounter::kThrottledNs, 0}});
    for (std::uint64_t step = 0; step < steps; ++step) {
      for (std::uint64_t look = 0; look < 4; ++look) {
        const std::uint64_t time = begin(step) + (look + 1) * 20 * kMs;
        const bool last = look == 3;
        b.worker_look(time,
                      step + look == 0 ? 0
                      : look == 0      ? begin(step) - 22 * kMs
                                       : time - 20 * kMs,
                      {.python_stack = line,
                       .run_ns = (last ? 10 : 0) * kMs,
                       .wait_ns = (last ? 70 : 0) * kMs});
        if (last) {
          b.host_counts(time - kMs,
                        {{recording::HostCounter::kThrottledNs, (step + 1) * throttled_ms * kMs},
                         {recording::HostCounter::kThrottledPeriods, step + 1},
                         {recording::HostCounter::kQuotaPeriods, step + 1}});
        }
      }
    }
  }
};

TEST(Workers, StoppedByTheQuota) {
  Stopped s(70);
  const Finding f = s.finding();
  EXPECT_EQ(bottleneck_of(s.workers().doing), Bottleneck::kQuota);
  EXPECT_NEAR(share(s.workers().doing, Loading::kQuota), 70.0 / 80, 0.01);
  EXPECT_EQ(share(s.workers().doing, Loading::kNoProcessor), 0);
  // Of the time between looks: 382 ms, 4 times 70 of them stopped.
  EXPECT_NEAR(s.workers().quota_share, s.workers().ready_share, 1e-9);
  EXPECT_THAT(f.evidence, HasSubstr("88 % wait for the CPU quota"));
  EXPECT_THAT(f.evidence, HasSubstr("in 3 of 3 periods"));
  EXPECT_THAT(f.cure, HasSubstr("processor time that the quota allows"));
}

TEST(Workers, ReadyWithoutAProcessorThoughThereIsAQuota) {
  Stopped s(0);
  const Finding f = s.finding();
  EXPECT_EQ(bottleneck_of(s.workers().doing), Bottleneck::kNoProcessor);
  EXPECT_EQ(share(s.workers().doing, Loading::kQuota), 0);
  EXPECT_THAT(f.cure, HasSubstr("something else takes these"));
}

TEST(Workers, WaitingForStorage) {
  for (WorkerOptions options : {waits(0, kOpen), waits(0, kRead, GapFile::kFile),
                                WorkerOptions{.state = 'D', .flags = recording::kGapOutside}}) {
    Starved s;
    options.python_stack = s.line;
    s.look_at(2, options);
    const Finding f = s.finding();
    EXPECT_EQ(bottleneck_of(s.workers().doing), Bottleneck::kStorage);
    EXPECT_THAT(f.evidence, HasSubstr("100 % wait for storage"));
    EXPECT_THAT(f.cure, HasSubstr("many small files into few large ones"));
  }
}

TEST(Workers, AFileThatIsLockedIsALock) {
  Starved s;
  s.look_at(2, waits(s.line, kFlock, GapFile::kFile));
  s.finding();
  EXPECT_EQ(share(s.workers().doing, Loading::kLock), 1);
}

TEST(Workers, WaitingToBeAskedIsIdleAndHasNoLine) {
  Starved s;
  s.look_at(3, waits(s.idle, kPoll));
  const Finding f = s.finding();
  EXPECT_EQ(share(s.workers().doing, Loading::kIdle), 1);
  EXPECT_TRUE(s.workers().lines.empty());
  EXPECT_THAT(f.cure, HasSubstr("Most workers wait to be asked"));
  EXPECT_THAT(f.evidence, Not(HasSubstr("Where they are")));
}

TEST(Workers, WaitingInADatasetIsNotIdle) {
  Starved s;
  s.look_at(2, waits(s.inner, kPoll));
  s.finding();
  EXPECT_EQ(share(s.workers().doing, Loading::kInput), 1);
}

TEST(Workers, LinesOfTheForkingProcessAreNotTheWorkers) {
  Starved s;
  s.look_at(2, {.python_stack = s.loop, .run_ns = kMs});
  s.finding();
  ASSERT_EQ(s.workers().lines.size(), 1u);
  EXPECT_EQ(s.workers().lines[0].line.function, "_worker_loop");
}

TEST(Workers, ProcessesThatAreNoWorkersAreLeftOut) {
  Starved s;
  s.look_at(1, {.run_ns = kMs, .worker_flags = 0, .name = "ffmpeg"});
  const Finding f = s.finding();
  EXPECT_EQ(s.workers().looks, 0u);
  EXPECT_THAT(f.evidence, Not(HasSubstr("worker was looked at")));
  EXPECT_THAT(f.cure, HasSubstr("they do not keep up"));
}

TEST(Workers, OfSeveralKindsTheLoadersCount) {
  Starved s;
  s.look_at(2, {.python_stack = s.line, .run_ns = kMs});
  const auto serve = s.b.frame(
      s.b.frame(0, "/x/lib/python3.11/multiprocessing/process.py", "BaseProcess._bootstrap", 300),
      "/home/u/store.py", "serve", 8);
  WorkerOptions server = waits(serve, kPoll);
  server.pid = 400;
  s.b.worker_look(s.begin(1) + 30 * kMs, 0, server);
  s.finding();
  EXPECT_EQ(s.workers().count, 2u);
  EXPECT_EQ(s.workers().looks, 32u);
}

TEST(Workers, LooksOutsideOfGapsAreNotAboutThem) {
  Starved s;
  for (std::uint64_t step = 0; step < s.steps; ++step) {
    s.b.worker_look(s.begin(step) + 100 * kMs + 500'000, 0, {.python_stack = s.line});
  }
  s.finding();
  EXPECT_EQ(s.workers().count, 1u);
  EXPECT_EQ(s.workers().looks, 0u);
}

TEST(Workers, WhatIsNotKnownIsSaid) {
  Starved s;
  s.look_at(2, {.run_ns = kMs, .worker_flags = recording::kWorkerSpawned, .left_out = 3});
  const Finding f = s.finding();
  EXPECT_EQ(s.workers().without_line, 32u);
  EXPECT_THAT(f.evidence, HasSubstr("interpreters of their own: their lines are not known"));
  EXPECT_THAT(f.evidence, HasSubstr("3 more were not looked at"));
}

TEST(Workers, ThatKeepPaceAreNotStartedAnew) {
  Starved s(13, 3);
  s.look_at(3, {.python_stack = s.line, .run_ns = 20 * kMs});
  EXPECT_EQ(s.finding().id, "data_starvation");
  // The same without looks at workers, or with new ones, is what epochs look like.
  Starved unseen(13, 3);
  EXPECT_EQ(report_of(unseen.b.read()).findings.front().id, "worker_restart");
  Starved anew(13, 3);
  anew.look_at(3, {.python_stack = anew.line, .run_ns = 20 * kMs});
  anew.b.worker_look(anew.begin(9) + 50 * kMs, 0, {.pid = 700, .python_stack = anew.line});
  anew.b.worker_look(anew.begin(9) + 99 * kMs, 0, {.pid = 500, .python_stack = anew.line});
  const ProcessReport report = report_of(anew.b.read());
  EXPECT_EQ(report.workers.started, 4u);
  EXPECT_EQ(report.findings.front().id, "worker_restart");
}

TEST(Workers, OneAfterTheOtherIsOneAtATime) {
  Starved s;
  for (std::uint64_t step = 0; step < s.steps; ++step) {
    const auto pid = static_cast<std::uint32_t>(600 + step);
    s.b.worker_look(s.begin(step) + 20 * kMs, 0, {.pid = pid, .python_stack = s.line});
    s.b.worker_look(s.begin(step) + 40 * kMs, s.begin(step) + 20 * kMs,
                    {.pid = pid, .python_stack = s.line, .run_ns = 20 * kMs});
  }
  s.finding();
  EXPECT_EQ(s.workers().count, 1u);
  EXPECT_EQ(s.workers().started, 4u);
  EXPECT_NEAR(s.workers().run_share, 1, 0.001);
}

}  // namespace
}  // namespace gpubusy::analysis
