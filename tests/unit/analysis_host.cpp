// SPDX-License-Identifier: Apache-2.0
//
// What the kernel counted, over the judged steps, and the findings that go by it: each beside a
// decoy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/api.hpp"
#include "analysis/host_counters.hpp"
#include "analysis/report.hpp"
#include "analysis/throttling.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/reports.hpp"

namespace gpubusy::analysis {
namespace {

using recording::HostCounter;
using recording::HostSource;
using recording::WindowEvent;
using testing::CallOptions;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::GapOptions;
using ::testing::HasSubstr;
using testing::HostValues;
using testing::ids;
using testing::kMs;
using testing::kUs;
using ::testing::Not;
using testing::RecordingBuilder;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;
constexpr std::uint32_t kSteps = 10;
constexpr std::uint64_t kStep = 20 * kMs;

const Finding& of(const ProcessReport& report, std::string_view id) {
  static const Finding kNone;
  for (const Finding& f : report.findings) {
    if (f.id == id) return f;
  }
  return kNone;
}

// Ten steps of 20 ms; the GPU works for `busy_ms` of each, and the host is away from 2 to 12 ms.
// `beside` writes what else there is.
template <typename Beside>
recording::Recording record(Beside beside, std::uint64_t busy_ms = 10) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  CallOptions before, after;
  before.python_stack = b.frame(0, "/home/u/train.py", "main", 10);
  after.python_stack = b.frame(0, "/home/u/train.py", "main", 12);
  b.device(0, "A GPU of 132 multiprocessors");
  b.window(WindowEvent::kBegin, kStart, 0, 0, kSteps);
  for (std::uint32_t i = 0; i < kSteps; ++i) {
    const std::uint64_t t = kStart + i * kStep;
    b.device_time(b.launch(t, t + 5 * kUs, k, before), t + 10 * kUs,
                  t + (busy_ms > 10 ? 12 : 2) * kMs, before);
    b.device_time(b.launch(t + 12 * kMs, t + 12 * kMs + 5 * kUs, k, after), t + 12 * kMs + 10 * kUs,
                  t + kStep, after);
    b.step_edge(t + kStep, i);
    beside(b, t, i);
  }
  b.window(WindowEvent::kEnd, kStart + kSteps * kStep, 0, 0, kSteps);
  return b.read();
}

// ---- numbers
// -------------------------------------------------------------------------------------

TEST(AnalysisHost, StepsAreCountedFromEdgeToEdge) {
  const ProcessReport r =
      report_of(record([](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
        if (i == 7) b.use_thread(5555);  // another thread makes this edge
        b.host_edge(t + kStep, i,
                    {{HostCounter::kUserNs, 100 * kMs + i * 7 * kMs},
                     {HostCounter::kSystemNs, i * kMs},
                     {HostCounter::kMinorFaults, 1000 + i * 30},
                     {HostCounter::kMajorFaults, i * 2},
                     {HostCounter::kVoluntarySwitches, i * 5},
                     {HostCounter::kInvoluntarySwitches, i},
                     {HostCounter::kThreadUserNs, i * 3 * kMs}});
        if (i == 7) b.use_thread(4242);
      }));
  const HostReport& h = r.host_counters;
  ASSERT_EQ(h.steps.size(), kSteps);
  EXPECT_FALSE(h.steps[0].process.known());  // nothing was counted at its begin
  EXPECT_EQ(h.counted_steps, kSteps - 1);
  EXPECT_EQ(h.steps[3].process.user_ns, 7 * kMs);
  EXPECT_EQ(h.steps[3].process.major_faults, 2u);
  EXPECT_EQ(h.steps[3].thread.user_ns, 3 * kMs);
  EXPECT_EQ(h.steps[3].thread.major_faults, std::nullopt);  // was not told
  EXPECT_FALSE(h.steps[7].thread.known() || h.steps[8].thread.known());
  EXPECT_EQ(h.process.minor_faults, 30u * (kSteps - 1));
  EXPECT_EQ(h.process.voluntary_switches, 5u * (kSteps - 1));
  EXPECT_EQ(h.thread.user_ns, std::nullopt);  // not of all steps
  EXPECT_FALSE(h.beside.throttled_ns.has_value());

  SessionReport session;
  session.processes.push_back(r);
  const auto json = nlohmann::json::parse(render_json(session))["processes"][0];
  EXPECT_EQ(json["host_counters"]["process"]["minor_faults"], 30 * (kSteps - 1));
  EXPECT_TRUE(json["host_counters"]["quota"]["throttled_periods"].is_null());
  EXPECT_EQ(json["host_counters"]["quota"]["source"], "not_counted");
  EXPECT_TRUE(json["steps"][0]["host"].is_null());
  EXPECT_DOUBLE_EQ(json["steps"][3]["host"]["user_ms"].get<double>(), 7);
  EXPECT_TRUE(json["host_offer"].is_null());
}

TEST(AnalysisHost, CountersThatFallAreNotKnown) {
  const recording::Recording r = record([](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
    b.host_edge(t + kStep, i, {{HostCounter::kUserNs, 100 - i}, {HostCounter::kMinorFaults, i}});
  });
  const HostReport h = report_of(r).host_counters;
  EXPECT_EQ(h.counted_steps, 0u);
  EXPECT_FALSE(h.process.known());
}

// Samples lie across the ends of the judged time: their part counts.
TEST(AnalysisHost, SamplesCountForTheirPartOfTheJudgedTime) {
  const ProcessReport r = report_of(record([](RecordingBuilder& b, std::uint64_t, std::uint32_t i) {
    if (i != 0) return;
    const std::array<HostSource, recording::kHostTopics> sources = {
        HostSource::kGroup, HostSource::kNoFile, HostSource::kMachine, HostSource::kNotNeeded};
    const auto sample = [&](std::uint64_t time, std::uint64_t n, std::uint32_t helper) {
      b.host_counts(time,
                    {{HostCounter::kThrottledNs, n * kMs},
                     {HostCounter::kThrottledPeriods, n},
                     {HostCounter::kQuotaPeriods, 2 * n},
                     {HostCounter::kCpuSomeNs, n * kUs}},
                    sources, helper);
    };
    sample(kStart - 100 * kMs, 0, 1);
    sample(kStart + 100 * kMs, 40, 1);  // half of it is judged
    sample(kStart + 120 * kMs, 90, 2);  // another helper: what lies between is not known
    sample(kStart + 200 * kMs, 94, 2);
  }));
  const HostBeside& b = r.host_counters.beside;
  EXPECT_EQ(b.ns, 180 * kMs);
  EXPECT_EQ(b.throttled_ns, 24 * kMs);
  EXPECT_EQ(b.throttled_periods, 24u);
  EXPECT_EQ(b.quota_periods, 48u);
  EXPECT_EQ(b.cpu_some_ns, 24 * kUs);
  EXPECT_FALSE(b.memory_max.has_value() || b.swap_in_pages.has_value());
  EXPECT_EQ(r.host_counters.samples, 4u);
  SessionReport session;
  session.processes.push_back(r);
  const auto json = nlohmann::json::parse(render_json(session))["processes"][0]["host_counters"];
  EXPECT_EQ(json["quota"]["source"], "control_group");
  EXPECT_EQ(json["memory"]["source"], "no_file");
  EXPECT_TRUE(json["memory"]["max_events"].is_null());
  EXPECT_EQ(json["pressure"]["source"], "machine");
  EXPECT_EQ(json["swap"]["source"], "no_swap_space");
  EXPECT_THAT(render_text(session, {}), HasSubstr("throttled in 24 of 48 periods"));
}

// ---- the quota
// -----------------------------------------------------------------------------------

constexpr std::uint32_t kThread = 4242;

// What the helper asked of a launching thread at a time of each step, and by how much the group's
// throttled time had risen. Times: us of the step.
struct Asked {
  std::uint64_t at_us, since_us, ran_us, waited_us, throttled_us;
  std::uint32_t thread = kThread;
};

auto quota(std::vector<Asked> asked) {
  auto throttled = std::make_shared<std::uint64_t>(0);
  return [=](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
    if (i == 0) {
      recording::HostRecord offer{};
      offer.header.value = recording::kHostTellsQuota;
      offer.cpu_quota_us = 50'000;
      offer.cpu_period_us = 100'000;
      offer.online_processors = 16;
      offer.usable_processors = 8;
      b.host_offer(offer);
      b.host_counts(kStart - kMs, {{HostCounter::kThrottledNs, 0},
                                   {HostCounter::kThrottledPeriods, 0},
                                   {HostCounter::kQuotaPeriods, 0}});
    }
    for (const Asked& a : asked) {
      *throttled += a.throttled_us * kUs;
      b.host_thread(t + a.at_us * kUs, a.thread,
                    {{HostCounter::kThreadRanNs, a.ran_us * kUs},
                     {HostCounter::kThreadWaitedNs, a.waited_us * kUs},
                     {HostCounter::kThreadSinceNs, (a.at_us - a.since_us) * kUs},
                     {HostCounter::kThrottledNs, *throttled}});
    }
    b.host_counts(t + 15 * kMs, {{HostCounter::kThrottledNs, *throttled},
                                 {HostCounter::kThrottledPeriods, i + 1},
                                 {HostCounter::kQuotaPeriods, i + 1}});
  };
}

std::vector<Interval> stretches_of_first_step(const recording::Recording& recording,
                                              std::uint32_t thread = kThread) {
  std::vector<Interval> out;
  const Throttling throttling(recording);
  for (const Interval& stretch : throttling.of(thread)) {
    if (stretch.begin < kStart + kStep)
      out.push_back({stretch.begin - kStart, stretch.end - kStart});
  }
  return out;
}

Interval us(std::uint64_t begin, std::uint64_t end) { return {begin * kUs, end * kUs}; }

// The helper was not stopped; the group was, on two processors.
TEST(AnalysisHost, AQuotaThatIsUsedUp) {
  const recording::Recording recording = record(quota({{11'500, 10'500, 500, 8'000, 16'000}}));
  EXPECT_THAT(stretches_of_first_step(recording), ElementsAre(us(3'000, 11'000)));
  EXPECT_EQ(Throttling(recording).of(kThread).size(), kSteps);
  const ProcessReport r = report_of(recording);
  // What is left of the pause, 2 of 10 ms, is what it was.
  ASSERT_THAT(ids(r), ElementsAre("cpu_quota", "host_elsewhere"));
  const Finding& f = r.findings[0];
  EXPECT_EQ(f.total_ns, kSteps * 8 * kMs);
  EXPECT_NEAR(static_cast<double>(r.findings[1].total_ns), kSteps * 2.0 * kMs, kSteps * 0.1 * kMs);
  EXPECT_THAT(f.evidence, HasSubstr("in 10 of 10 periods"));
  EXPECT_THAT(f.evidence, HasSubstr("50.0 ms in each 100.0 ms: 0.5 processors"));
  EXPECT_EQ(f.steps, kSteps);
  EXPECT_EQ(f.gain.change, "quota");
  EXPECT_NEAR(f.gain.step_ms, 12, 0.1);
  SessionReport session;
  session.processes.push_back(r);
  EXPECT_THAT(render_text(session, {}), HasSubstr("8 of 16 processors may be used"));
}

// The group's time is counted before the thread runs again, and its wait later.
TEST(AnalysisHost, AWaitThatIsCountedBehindTheThrottling) {
  const recording::Recording recording =
      record(quota({{10'900, 2'500, 0, 0, 9'000}, {11'500, 10'900, 500, 8'000, 0}}));
  EXPECT_THAT(stretches_of_first_step(recording), ElementsAre(us(3'000, 11'000)));
}

// The helper was stopped as well, and had asked just before: what was counted until then lies
// before.
TEST(AnalysisHost, AWaitBeforeTheThrottlingIsNotTheQuotas) {
  const recording::Recording recording =
      record(quota({{10'900, 2'000, 300, 700, 7'900}, {11'500, 10'900, 500, 8'000, 0}}));
  EXPECT_THAT(stretches_of_first_step(recording), ElementsAre(us(3'000, 10'900)));
}

// A processor taken by others makes a thread wait too; then the quota is not what is missing.
TEST(AnalysisHost, AWaitWithoutThrottlingIsNoQuota) {
  const recording::Recording recording = record(quota({{11'500, 10'500, 500, 8'000, 0}}));
  EXPECT_TRUE(Throttling(recording).of(kThread).empty());
  EXPECT_THAT(ids(report_of(recording)), ElementsAre("host_elsewhere"));
}

TEST(AnalysisHost, ThrottlingWithoutAWaitIsNotTheThreads) {
  const recording::Recording recording = record(
      quota({{11'500, 10'500, 500, 0, 16'000}, {11'600, 10'500, 500, 8'000, 0, kThread + 1}}));
  EXPECT_TRUE(Throttling(recording).of(kThread).empty());
  EXPECT_THAT(stretches_of_first_step(recording, kThread + 1), ElementsAre(us(3'100, 11'100)));
  EXPECT_THAT(ids(report_of(recording)), ElementsAre("host_elsewhere"));
}

// Throttled for a moment only: so much of the pause is the quota's, and no more.
TEST(AnalysisHost, AShortThrottlingDoesNotExplainALongPause) {
  const recording::Recording recording = record(quota({{11'500, 10'500, 500, 8'000, 500}}));
  EXPECT_THAT(stretches_of_first_step(recording), ElementsAre(us(3'000, 3'500)));
  const ProcessReport r = report_of(recording);
  EXPECT_THAT(ids(r), ElementsAre("host_elsewhere"));
  EXPECT_EQ(r.division.total.at(Part::kQuota), kSteps * 500 * kUs);
}

TEST(AnalysisHost, ThrottledWhileTheGpuWorks) {
  const recording::Recording recording = record(quota({{11'500, 10'500, 500, 8'000, 16'000}}), 20);
  EXPECT_THAT(ids(report_of(recording)), ElementsAre("gpu_busy"));
}

// ---- faults
// --------------------------------------------------------------------------------------

// In each step, while the host is away: a look at each ms.
template <typename Look>
auto looks(Look look) {
  return [=](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
    const std::uint32_t line = b.frame(0, "/home/u/train.py", "main", 11);
    for (std::uint64_t ms = 1; ms < 12; ++ms) {
      GapOptions o = look(ms);
      o.thread = 4242;
      o.python_stack = line;
      b.gap_sample(t + (ms + 1) * kMs, t + ms * kMs, o);
    }
    b.host_edge(t + kStep, i,
                {{HostCounter::kUserNs, i * kMs}, {HostCounter::kMajorFaults, i * 40}});
  };
}

GapOptions in_fault(std::uint64_t) {
  GapOptions o;
  o.state = 'D';
  o.flags = recording::kGapOutside;
  return o;
}

TEST(AnalysisHost, PageFaults) {
  const ProcessReport r = report_of(record(looks(in_fault)));
  ASSERT_THAT(ids(r), ElementsAre("page_faults"));
  const Finding& f = r.findings[0];
  EXPECT_NEAR(static_cast<double>(f.total_ns), kSteps * 10.0 * kMs, kSteps * 0.1 * kMs);
  EXPECT_THAT(f.evidence, HasSubstr("40 major faults per step"));
  EXPECT_THAT(f.where, HasSubstr("train.py:11"));
}

// Between two faults a thread runs for a moment: it was off the processor all the same. On a busy
// machine it then waits to get one back.
TEST(AnalysisHost, PageFaultsOfAThreadThatRunsWhenItIsSeen) {
  const ProcessReport r = report_of(record(looks([](std::uint64_t) {
    GapOptions o;
    o.state = 'R';
    o.run_ns = 200 * kUs;
    o.wait_ns = 500 * kUs;
    o.major_faults = 5;
    return o;
  })));
  EXPECT_THAT(ids(r), Contains("page_faults"));
}

// A fast disk: half of each fault is what the kernel does for it on the thread's processor. The
// first look at a thread that runs has no counts yet, and tells nothing of the time before it.
TEST(AnalysisHost, PageFaultsOfAFastDisk) {
  const ProcessReport r = report_of(record(looks([](std::uint64_t ms) {
    GapOptions o;
    o.state = 'R';
    o.run_ns = ms == 1 ? 0 : 520 * kUs;
    o.major_faults = ms == 1 ? 0 : 20;
    return o;
  })));
  ASSERT_THAT(ids(r), ElementsAre("page_faults"));
  EXPECT_NEAR(static_cast<double>(r.findings[0].total_ns), kSteps * 10.0 * kMs, kSteps * 0.1 * kMs);
}

// One fault does not explain that it waits for a processor for so long.
TEST(AnalysisHost, AFaultBesideALongWaitForAProcessor) {
  const ProcessReport r = report_of(record(looks([](std::uint64_t ms) {
    GapOptions o;
    o.state = 'R';
    o.wait_ns = 1000 * kUs;
    o.major_faults = ms == 3;
    return o;
  })));
  EXPECT_THAT(ids(r), ElementsAre("no_processor"));
}

TEST(AnalysisHost, AFileThatIsReadIsNoPageFault) {
  const ProcessReport r = report_of(record(looks([](std::uint64_t) {
    GapOptions o;
    o.state = 'D';
    o.flags = recording::kGapInSystemCall;
    o.file = recording::GapFile::kFile;
    o.major_faults = 1;
    return o;
  })));
  EXPECT_THAT(ids(r), Not(Contains("page_faults")));
  EXPECT_THAT(ids(r), Contains("host_elsewhere"));
}

TEST(AnalysisHost, AThreadThatComputesAndFaultsIsNotWaiting) {
  const ProcessReport r = report_of(record(looks([](std::uint64_t) {
    GapOptions o;
    o.state = 'R';
    o.run_ns = 900 * kUs;
    o.major_faults = 5;
    return o;
  })));
  EXPECT_THAT(ids(r), Not(Contains("page_faults")));
}

TEST(AnalysisHost, MemoryThatWasSwappedOut) {
  const auto faults = looks(in_fault);
  const ProcessReport r =
      report_of(record([&](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
        faults(b, t, i);
        if (i == 0) b.host_counts(kStart, {{HostCounter::kSwapInPages, 100}});
        b.host_counts(t + kStep, {{HostCounter::kSwapInPages, 100 + (i + 1) * 64},
                                  {HostCounter::kSwappedBytes, 3u << 20}});
      }));
  ASSERT_THAT(ids(r), ElementsAre("swapping"));
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("swapped in by the machine meanwhile: 640"));
  EXPECT_THAT(r.findings[0].evidence, HasSubstr("3 MiB were swapped out"));
}

// Faults that need no disk, however many, cost nothing by themselves.
TEST(AnalysisHost, MinorFaultsAreNotBlamed) {
  const ProcessReport r = report_of(record(
      [](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
        b.host_edge(t + kStep, i,
                    {{HostCounter::kUserNs, i * kMs}, {HostCounter::kMinorFaults, i * 100'000}});
      },
      20));
  EXPECT_THAT(ids(r), ElementsAre("gpu_busy"));
  SessionReport session;
  session.processes.push_back(r);
  EXPECT_THAT(render_text(session, {}), Not(HasSubstr("faults")));
}

// Ten steps in which the launching thread waits for one of two processors; the process runs for
// `ms_per_step` of each.
ProcessReport starved_of_processors(std::uint64_t ms_per_step) {
  const auto waits = looks([](std::uint64_t) {
    GapOptions o;
    o.state = 'R';
    o.run_ns = 50 * kUs;
    o.wait_ns = 950 * kUs;
    return o;
  });
  return report_of(record([&](RecordingBuilder& b, std::uint64_t t, std::uint32_t i) {
    if (i == 0) {
      recording::HostRecord offer{};
      offer.online_processors = offer.usable_processors = 2;
      b.host_offer(offer);
    }
    waits(b, t, i);
    b.host_edge(t + kStep + kUs, i,
                {{HostCounter::kUserNs, i * (ms_per_step - 1) * kMs},
                 {HostCounter::kSystemNs, i * kMs},
                 {HostCounter::kInvoluntarySwitches, i * 12},
                 {HostCounter::kThreadInvoluntarySwitches, i * 9}});
    b.host_counts(t + kMs, {{HostCounter::kCpuSomeNs, i * 15 * kMs}},
                  {HostSource::kNoFile, HostSource::kNoFile, HostSource::kMachine});
  }));
}

TEST(AnalysisHost, NoProcessorHasNumbers) {
  const ProcessReport r = starved_of_processors(2);
  ASSERT_THAT(ids(r), ElementsAre("no_processor"));
  const std::string& evidence = of(r, "no_processor").evidence;
  EXPECT_THAT(evidence, HasSubstr("The process has 2 processors and uses 0.1."));
  EXPECT_THAT(evidence,
              HasSubstr("put off a processor 12 times per step, the launching one 9 times"));
  EXPECT_THAT(evidence, HasSubstr("For 75 % of the time some task of the machine waited"));
  EXPECT_THAT(of(r, "no_processor").cure, HasSubstr("Other programs take the processors"));
}

TEST(AnalysisHost, AProcessThatTakesItsProcessorsItselfIsToldSo) {
  const ProcessReport r = starved_of_processors(30);
  EXPECT_THAT(of(r, "no_processor").evidence, HasSubstr("2 processors and uses 1.5."));
  EXPECT_THAT(of(r, "no_processor").cure, HasSubstr("Run fewer busy threads and processes"));
}

}  // namespace
}  // namespace gpubusy::analysis
