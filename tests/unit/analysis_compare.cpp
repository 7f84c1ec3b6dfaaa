// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/compare/comparison.hpp"
#include "analysis/markdown.hpp"
#include "analysis/names.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RecordingBuilder;

// ---- noise
// ---------------------------------------------------------------------------------------

// A made-up noise, the same on every machine.
std::vector<double> noisy(std::size_t n, double mean, double spread, unsigned seed) {
  std::vector<double> out;
  unsigned state = seed;
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int k = 0; k < 12; ++k) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<double>(state >> 8) / (1u << 24);
    }
    out.push_back(mean + spread * (sum - 6));  // about normal
  }
  return out;
}

TEST(CompareNoise, ValuesOfASeries) {
  EXPECT_EQ(value_of({3, 1, 2}, Statistic::kMedian), 2);
  EXPECT_EQ(value_of({4, 1, 2, 3}, Statistic::kMedian), 2.5);
  EXPECT_EQ(value_of({4, 1, 2, 3}, Statistic::kMean), 2.5);
  EXPECT_EQ(value_of({1, 1, 10}, Statistic::kMean), 4);
  EXPECT_EQ(value_of({}, Statistic::kMedian), 0);
}

TEST(CompareNoise, ADifferenceOfTenSpreadsIsNone) {
  const Difference d = difference(noisy(20, 100, 1, 1), noisy(20, 110, 1, 2), Statistic::kMean);
  ASSERT_TRUE(d.has_interval);
  EXPECT_TRUE(d.beyond_noise());
  EXPECT_NEAR(d.change, 10, 1);
  EXPECT_LT(d.low, d.change);
  EXPECT_GT(d.high, d.change);
  EXPECT_LT(d.high - d.low, 3);
}

// Of 200 pairs without a difference, an interval of 95 % misses 0 in some ten.
TEST(CompareNoise, SameSeriesAreSeldomCalledDifferent) {
  for (const std::size_t steps : {5u, 20u}) {
    for (const Statistic statistic : {Statistic::kMean, Statistic::kMedian}) {
      int different = 0;
      for (unsigned i = 0; i < 200; ++i) {
        different += difference(noisy(steps, 100, 5, 2 * i + 1), noisy(steps, 100, 5, 2 * i + 1000),
                                statistic)
                         .beyond_noise();
      }
      EXPECT_LE(different, 20) << steps;
    }
  }
}

TEST(CompareNoise, TheSameNumbersGiveTheSameInterval) {
  const auto a = noisy(30, 10, 1, 5), b = noisy(25, 10.5, 1, 6);
  const Difference first = difference(a, b, Statistic::kMean);
  const Difference again = difference(a, b, Statistic::kMean);
  EXPECT_EQ(first.low, again.low);
  EXPECT_EQ(first.high, again.high);
}

TEST(CompareNoise, FewStepsHaveNoInterval) {
  const Difference d = difference({1, 1, 1, 1}, {9, 9, 9, 9, 9, 9}, Statistic::kMean);
  EXPECT_EQ(d.change, 8);
  EXPECT_FALSE(d.has_interval);
  EXPECT_FALSE(d.beyond_noise());
}

// ---- conditions
// ----------------------------------------------------------------------------------

TEST(CompareConditions, Grammar) {
  const auto parse = [](const char* text) {
    auto c = parse_condition(text);
    EXPECT_TRUE(c) << text << (c ? "" : c.error());
    return c.value_or(Condition{});
  };
  Condition c = parse("step_time>5%");
  EXPECT_EQ(all_metrics()[c.metric].id, "step_time");
  EXPECT_TRUE(c.above);
  EXPECT_TRUE(c.relative);
  EXPECT_DOUBLE_EQ(c.threshold, 0.05);
  c = parse("gpu_busy < -3%");
  EXPECT_FALSE(c.above);
  EXPECT_FALSE(c.relative);  // points
  EXPECT_DOUBLE_EQ(c.threshold, -0.03);
  EXPECT_DOUBLE_EQ(parse("idle>2ms").threshold, 2);
  EXPECT_DOUBLE_EQ(parse("idle_after_sync>+250us").threshold, 0.25);
  EXPECT_DOUBLE_EQ(parse("step_time>0.1s").threshold, 100);
  EXPECT_DOUBLE_EQ(parse("kernels>12").threshold, 12);
}

TEST(CompareConditions, WrongOnesSayWhatIsAllowed) {
  for (const auto& [text, words] : {std::pair{"step_time", "METRIC>VALUE"},
                                    {"speed>5%", "allowed: step_time, step_median"},
                                    {"step_time>", "not a number"},
                                    {"step_time>fast", "not a number"},
                                    {"step_time>nan%", "not a number"},
                                    {"step_time>5", "%, ms, us or s"},
                                    {"step_time>5%%", "%, ms, us or s"},
                                    {"gpu_busy<3ms", "percentage points"},
                                    {"kernels>3ms", "% or none"},
                                    {"step_time>0x5ms", "not a number"},
                                    {"", "METRIC>VALUE"}}) {
    const auto c = parse_condition(text);
    ASSERT_FALSE(c) << text;
    EXPECT_THAT(c.error(), HasSubstr(words));
    EXPECT_THAT(c.error(), HasSubstr("--fail-if="));
  }
}

// ---- pairs and values
// ----------------------------------------------------------------------------

MeasuredProcess process(int rank, std::vector<double> walls, double busy,
                        const char* command = "") {
  MeasuredProcess p;
  p.rank = rank;
  p.command = command;
  p.has_times = true;
  for (const double w : walls) {
    MeasuredStep step;
    step.wall = w;
    step.busy = busy;
    step.kernels = 7;
    p.steps.push_back(step);
  }
  return p;
}

// One run on each side.
Comparison compare(const MeasuredRun& before, const MeasuredRun& after,
                   const std::vector<Condition>& conditions, bool strict) {
  return analysis::compare(std::vector{before}, std::vector{after}, conditions, strict);
}

const MetricChange& change_of(const Pair& pair, const std::string& id) {
  for (const MetricChange& change : pair.changes) {
    if (all_metrics()[change.metric].id == id) return change;
  }
  abort();
}

std::vector<Condition> conditions(std::initializer_list<const char*> texts) {
  std::vector<Condition> out;
  for (const char* text : texts) out.push_back(*parse_condition(text));
  return out;
}

TEST(Compare, ProcessesAreMatchedByRankThenByCommand) {
  const MeasuredRun before{"a",
                           {process(0, noisy(9, 10, .1, 1), 5), process(1, noisy(9, 20, .1, 2), 5),
                            process(-1, {1}, 1, "x"), process(-1, {2}, 1, "y")}};
  const MeasuredRun after{"b",
                          {process(1, noisy(9, 20, .1, 3), 5), process(-1, {3}, 1, "y"),
                           process(-1, {4}, 1, "x"), process(7, {5}, 1)}};
  const Comparison c = compare(before, after, {}, false);
  ASSERT_EQ(c.pairs.size(), 3u);
  EXPECT_EQ(c.pairs[0].after[0].rank, 1);
  EXPECT_NEAR(change_of(c.pairs[0], "step_time").difference.change, 0, 0.2);
  EXPECT_EQ(c.pairs[1].after[0].steps[0].wall, 4);
  EXPECT_EQ(c.pairs[2].after[0].steps[0].wall, 3);
  EXPECT_THAT(c.only_before, ElementsAre("rank 0"));
  EXPECT_THAT(c.only_after, ElementsAre("rank 7"));
}

TEST(Compare, AConditionOnAnyRankFails) {
  const MeasuredRun before{
      "a", {process(0, noisy(20, 10, .1, 1), 5), process(1, noisy(20, 10, .1, 2), 5)}};
  const MeasuredRun after{
      "b", {process(0, noisy(20, 10, .1, 3), 5), process(1, noisy(20, 11, .1, 4), 5)}};
  const Comparison c = compare(before, after, conditions({"step_time>5%", "step_time>2ms"}), false);
  ASSERT_EQ(c.results.size(), 4u);
  EXPECT_EQ(c.results[0].judgement, Judgement::kNo);
  EXPECT_EQ(c.results[1].judgement, Judgement::kHolds);
  EXPECT_NEAR(c.results[1].change, 0.1, 0.02);
  EXPECT_EQ(c.results[1].process, "rank 1");
  EXPECT_EQ(c.results[3].judgement, Judgement::kNo);
  EXPECT_TRUE(c.failed);
}

TEST(Compare, WithinNoiseDoesNotFail) {
  const MeasuredRun before{"a", {process(0, noisy(20, 100, 30, 1), 5)}};
  MeasuredRun after{"b", {process(0, noisy(20, 100, 30, 1), 5)}};
  for (MeasuredStep& step : after.processes[0].steps) step.wall += 6;  // of a spread of 30
  const Comparison c = compare(before, after, conditions({"step_time>5%"}), true);
  EXPECT_EQ(c.results[0].judgement, Judgement::kWithinNoise);
  EXPECT_FALSE(c.failed);
  EXPECT_THAT(render_text(c, {}), HasSubstr("within noise"));
  EXPECT_THAT(render_text(c, {}), HasSubstr("The length of a step is the same, within noise."));
}

TEST(Compare, TheChangeIsShownAtAnyWidth) {
  MeasuredRun before{"a", {process(0, noisy(20, 100, 30, 1), 5)}};
  before.processes[0].has_classes = true;
  for (MeasuredStep& step : before.processes[0].steps) {
    for (double& idle : step.idle) idle = 9;
  }
  MeasuredRun after{"b", {process(0, noisy(20, 300, 30, 2), 5)}};
  after.processes[0].first_finding = before.processes[0].first_finding = "host_elsewhere";
  const Comparison c = compare(before, after, {}, false);
  for (const int width : {60, 80, 100}) {
    std::istringstream lines(render_text(c, {.width = width}));
    std::string text;
    for (std::string line; std::getline(lines, line); text += line + "\n") {
      EXPECT_LE(length_of(line), static_cast<std::size_t>(width)) << line;
    }
    EXPECT_THAT(text, HasSubstr(" change")) << width;
    EXPECT_EQ(text.find("95 % interval") != text.npos, width >= 80) << text;
    EXPECT_THAT(text, HasSubstr("First finding: host_elsewhere before"));
  }
}

TEST(Compare, NothingFallsByMoreThanAll) {
  const MeasuredRun before{"a", {process(0, noisy(6, 10, 3, 1), 5)}};
  const MeasuredRun after{"b", {process(0, {0, 0, 0, 0, 0, 0}, 0)}};
  const MetricChange step = change_of(compare(before, after, {}, false).pairs[0], "step_time");
  EXPECT_DOUBLE_EQ(step.difference.low, -*step.before);
  EXPECT_TRUE(step.difference.beyond_noise());
}

TEST(Compare, TooFewStepsFailOnlyStrictly) {
  const MeasuredRun before{"a", {process(0, {10, 10, 10}, 5)}};
  const MeasuredRun after{"b", {process(0, {20, 20, 20}, 5)}};
  const auto asked = conditions({"step_time>5%"});
  const Comparison c = compare(before, after, asked, false);
  EXPECT_EQ(c.results[0].judgement, Judgement::kTooFewSteps);
  EXPECT_FALSE(c.failed);
  EXPECT_TRUE(compare(before, after, asked, true).failed);
  EXPECT_FALSE(compare(before, before, asked, true).failed);
  EXPECT_THAT(render_text(c, {}), HasSubstr("Fewer than 5 steps"));
}

TEST(Compare, WhatIsNotMeasuredIsNotKnown) {
  MeasuredProcess no_times = process(0, noisy(9, 10, .1, 1), 0);
  no_times.has_times = false;
  const MeasuredRun before{"a", {no_times}}, after{"b", {process(0, noisy(9, 10, .1, 2), 5)}};
  const auto asked = conditions({"gpu_busy<-1%"});
  const Comparison c = compare(before, after, asked, false);
  EXPECT_EQ(c.results[0].judgement, Judgement::kUnknown);
  EXPECT_FALSE(c.failed);
  EXPECT_TRUE(compare(before, after, asked, true).failed);
  EXPECT_FALSE(change_of(c.pairs[0], "idle_launch").before);
}

// A run without steps was once compared by its totals with the other's values per step.
TEST(Compare, TotalsAndValuesPerStepAreNotMixed) {
  RecordingBuilder b;
  const auto kernel = b.kernel("k");
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::uint64_t at = RecordingBuilder::kStart + i * 100'000'000;
    b.device_time(b.launch(at, at + 10'000, kernel), at + 10'000, at + 50'000'000);
  }
  recording::Session without;
  without.processes.push_back(b.read());
  recording::Session with;
  with.processes.push_back(testing::starved_loop().read());
  const MeasuredRun a = measured_of(analyse(without)), z = measured_of(analyse(with));
  ASSERT_TRUE(a.processes[0].steps.empty());
  const Comparison c = compare(a, z, {}, false);
  for (const MetricChange& change : c.pairs[0].changes) EXPECT_FALSE(change.known());
  EXPECT_THAT(render_text(c, {}), HasSubstr("Before has no steps"));
  const Comparison both = compare(a, a, {}, false);
  EXPECT_TRUE(change_of(both.pairs[0], "gpu_busy").known());
  EXPECT_FALSE(change_of(both.pairs[0], "gpu_busy").difference.has_interval);
  EXPECT_FALSE(change_of(both.pairs[0], "busy").known());
}

TEST(Compare, NumbersAreThoseOfTheReport) {
  recording::Session slow, fast;
  slow.processes.push_back(testing::starved_loop().read());
  fast.processes.push_back(testing::launch_bound_loop(10, 100, 10, 8).read());
  const Comparison c = compare(measured_of(analyse(slow)), measured_of(analyse(fast)), {}, false);
  const std::string text = render_text(c, {});
  EXPECT_THAT(text, HasSubstr("28.9 %"));
  EXPECT_THAT(text, HasSubstr("80.0 %"));
  EXPECT_THAT(text, HasSubstr("Steps are 33.0 times as fast."));
  const auto& idle = change_of(c.pairs[0], "idle_step_start");
  EXPECT_NEAR(*change_of(c.pairs[0], "step_time").before, 33, 1e-9);
  EXPECT_NEAR(*idle.before, analyse(slow).processes[0].idle(IdleClass::kStepStart) / 20e6, 1e-9);
  EXPECT_THAT(render_text(compare(MeasuredRun{}, measured_of(analyse(fast)), {}, false), {}),
              HasSubstr("Nothing to compare"));
  EXPECT_TRUE(is_empty(MeasuredRun{}));
  EXPECT_FALSE(is_empty(measured_of(analyse(fast))));
}

TEST(Compare, JsonAndMarkdown) {
  MeasuredRun before{"a", {process(0, noisy(20, 10, .1, 1), 5)}};
  MeasuredRun after{"b", {process(0, noisy(20, 11, .1, 4), 5)}};
  before.processes[0].first_finding = "launch_bound";
  const Comparison c =
      compare(before, after, conditions({"step_time>5%", "idle_launch>1ms"}), false);
  const auto json = nlohmann::json::parse(render_json(c));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["failed"], true);
  const auto& step = json["pairs"][0]["metrics"]["step_time"];
  EXPECT_NEAR(step["relative"].get<double>(), 0.1, 0.02);
  EXPECT_EQ(step["within_noise"], false);
  EXPECT_LT(step["low"].get<double>(), step["change"].get<double>());
  EXPECT_TRUE(json["pairs"][0]["metrics"]["idle_launch"]["change"].is_null());
  EXPECT_EQ(json["pairs"][0]["before"]["first_finding"], "launch_bound");
  EXPECT_EQ(json["conditions"][0]["result"], "holds");
  EXPECT_EQ(json["conditions"][1]["result"], "not_known");
  const std::string markdown = render_markdown(c);
  EXPECT_THAT(markdown, HasSubstr("| step (mean) | 9.99 ms | 11.0 ms | +10.2 % | +"));
  EXPECT_THAT(markdown, HasSubstr("| `step_time>5%` | rank 0 | **HOLDS** |"));
}

// ---- several runs
// --------------------------------------------------------------------------------

// Runs of one process each, 20 steps of about `means`.
std::vector<MeasuredRun> runs_of(std::initializer_list<double> means, unsigned seed) {
  std::vector<MeasuredRun> out;
  for (const double mean : means) {
    out.push_back({"run" + std::to_string(seed), {process(0, noisy(20, mean, .1, seed), 5)}});
    ++seed;
  }
  return out;
}

TEST(CompareRuns, WhatRunsDifferByIsNoise) {
  const auto asked = conditions({"step_time>5%"});
  const auto before = runs_of({100, 108, 95}, 1), after = runs_of({109, 104, 112}, 9);
  // By one run of each the steps are far apart …
  EXPECT_TRUE(analysis::compare({before[0]}, {after[0]}, asked, false).failed);
  // … and by three within what runs differ by: 101 and 108.33, spread 5.43, t(4) = 2.776.
  const Comparison c = analysis::compare(before, after, asked, true);
  ASSERT_EQ(c.pairs.size(), 1u);
  const MetricChange& step = change_of(c.pairs[0], "step_time");
  EXPECT_NEAR(*step.before, 101, 0.1);
  EXPECT_NEAR(*step.after, 108.33, 0.1);
  EXPECT_NEAR(step.difference.low, 7.33 - 12.3, 0.3);
  EXPECT_NEAR(step.difference.high, 7.33 + 12.3, 0.3);
  EXPECT_EQ(c.results[0].judgement, Judgement::kWithinNoise);
  EXPECT_FALSE(c.failed);
  EXPECT_TRUE(analysis::compare(before, runs_of({130, 126, 133}, 20), asked, false).failed);
  EXPECT_THAT(render_text(c, {}), HasSubstr("3 runs of 20 steps before, 3 runs of 20 steps after"));
}

TEST(CompareRuns, OneRunOnASideIsJudgedByTheOthersSpread) {
  const auto before = runs_of({100, 102, 98, 101}, 1);
  const Comparison c = analysis::compare(before, runs_of({103}, 9), {}, false);
  const Difference& d = change_of(c.pairs[0], "step_time").difference;
  ASSERT_TRUE(d.has_interval);
  // Spread 1.71, t(3) = 3.182, sqrt(1/4 + 1): 6.08 to each side of 2.75.
  EXPECT_NEAR(d.high - d.low, 12.2, 0.5);
  EXPECT_FALSE(d.beyond_noise());
}

TEST(CompareRuns, RanksMeetTheirRepeats) {
  std::vector<MeasuredRun> before = {
      {"a", {process(0, {10, 10}, 5), process(1, {20, 20}, 5)}},
      {"b", {process(1, {22, 22}, 5), process(0, {11, 11}, 5), process(2, {9, 9}, 5)}}};
  const std::vector<MeasuredRun> after = {
      {"c", {process(1, {30, 30}, 5), process(0, {10, 10}, 5)}}};
  const Comparison c = analysis::compare(before, after, {}, false);
  ASSERT_EQ(c.pairs.size(), 2u);
  EXPECT_THAT(change_of(c.pairs[0], "step_time").before_runs, ElementsAre(10, 11));
  EXPECT_THAT(change_of(c.pairs[1], "step_time").before_runs, ElementsAre(20, 22));
  EXPECT_THAT(change_of(c.pairs[1], "step_time").after_runs, ElementsAre(30));
  EXPECT_THAT(c.only_before, ElementsAre("rank 2"));
}

TEST(CompareRuns, RunsOfTheLauncherThatShareADirectoryAreSeveral) {
  MeasuredRun all{"d", {process(0, {1}, 1), process(1, {2}, 1), process(0, {3}, 1)}};
  all.processes[0].run = all.processes[1].run = 7;
  all.processes[2].run = 8;
  const auto runs = split_by_run(all);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].processes.size(), 2u);
  EXPECT_EQ(runs[1].processes[0].steps[0].wall, 3);
  EXPECT_EQ(runs[1].path, "d");
}

TEST(CompareNotes, OtherProgramsAndDevicesAreNamed) {
  MeasuredRun before{"a", {process(0, noisy(9, 10, .1, 1), 5)}}, after = before;
  before.processes[0].program = "train.py";
  before.processes[0].device = "H100";
  before.processes[0].host = after.processes[0].host = "node1";
  after.processes[0].program = "eval.py";
  after.processes[0].device = "A100";
  const std::string text = render_text(compare(before, after, {}, false), {});
  EXPECT_THAT(text, HasSubstr("Different programs: train.py before, eval.py after."));
  EXPECT_THAT(text, HasSubstr("Different devices: H100 before, A100 after."));
  EXPECT_THAT(text, Not(HasSubstr("Different hosts")));
  after.processes[0].device.clear();  // not known
  EXPECT_THAT(render_text(compare(before, after, {}, false), {}),
              Not(HasSubstr("Different devices")));
}

TEST(CompareNotes, ProgramOfACommand) {
  EXPECT_EQ(program_of("/usr/bin/python3 -u -X dev src/train.py --lr 1"), "train.py");
  EXPECT_EQ(program_of("python -m torch.distributed.run x.py"), "torch.distributed.run");
  EXPECT_EQ(program_of("./bench -n 3"), "bench");
  EXPECT_EQ(program_of("python3"), "python3");
  EXPECT_EQ(program_of(""), "");
}

// ---- Markdown
// ------------------------------------------------------------------------------------

TEST(Markdown, NamesStayText) {
  EXPECT_EQ(markdown_text("a*b <b> @user #1 [x](y) | `z`"),
            "a&#42;b &#60;b&#62; &#64;user &#35;1 &#91;x&#93;(y) &#124; &#96;z&#96;");
  EXPECT_EQ(markdown_text("- item\n# head"), "\\- item &#35; head");
  EXPECT_EQ(markdown_code("k<int>|x"), "`k<int>\\|x`");
  EXPECT_EQ(markdown_code("a`b``c"), "``` a`b``c ```");
  EXPECT_EQ(markdown_code("a\nb"), "`a?b`");
  EXPECT_EQ(markdown_code(""), "");
}

TEST(Markdown, ReportOfHostileNamesHasWholeTables) {
  recording::Session session;
  session.processes.push_back(testing::everything().read());
  const std::string text = render_markdown(analyse(session));
  EXPECT_THAT(text, HasSubstr("**GPU busy"));
  std::istringstream lines(text);
  std::size_t cells = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('|')) {
      cells = 0;
      continue;
    }
    std::size_t bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    }
    if (cells == 0) cells = bars;
    EXPECT_EQ(bars, cells) << line;
  }
}

// ---- traces
// --------------------------------------------------------------------------------------

class CompareTraces : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpubusy-compare-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    if (name.ends_with(".gz")) {
      gzFile file = gzopen(path.c_str(), "wb");
      gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
      gzclose(file);
    } else {
      std::ofstream(path) << text;
    }
    return path;
  }
  std::string folder_;
};

// Two steps of 1 ms; kernels that overlap on two streams, a copy, a memset, and a kernel of another
// device; args that hold names of fields; the same annotation once more among the GPU's rows.
const char* const kModern = R"({"schemaVersion": 1,
 "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 4, "pg_config": [{"rank": 9}]},
 "traceEvents": [
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#7","pid":99,"tid":99,"ts":1683564902136000.000,"dur":1000.000,"args":{"ts":5,"dur":7}},
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#8","pid":99,"tid":99,"ts":1683564902137000.250,"dur":1000,"args":{}},
 {"ph":"X","cat":"gpu_user_annotation","name":"ProfilerStep#8","pid":0,"tid":7,"ts":1683564902137000,"dur":900},
 {"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1683564902136100,"dur":300.500,"args":{"device":0,"stream":7}},
 {"ph":"X","cat":"kernel","name":"b","pid":0,"tid":8,"ts":1683564902136200,"dur":300.500},
 {"ph":"X","cat":"gpu_memcpy","name":"Memcpy","pid":0,"tid":7,"ts":1683564902136900,"dur":200},
 {"ph":"X","cat":"gpu_memset","name":"Memset","pid":0,"tid":7,"ts":1683564902137500,"dur":100},
 {"ph":"X","cat":"kernel","name":"other","pid":1,"tid":7,"ts":1683564902137500,"dur":10},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":99,"tid":99,"ts":1683564902136050,"dur":10},
 {"ph":"M","name":"process_name","pid":99,"args":{"name":"python"}}],
 "traceName": "x"})";

TEST_F(CompareTraces, Kineto) {
  for (const char* name : {"a.pt.trace.json", "b.pt.trace.json.gz"}) {
    const auto run = load_traces(write(name, kModern));
    ASSERT_TRUE(run) << run.error().message;
    ASSERT_EQ(run->processes.size(), 1u);
    const MeasuredProcess& p = run->processes[0];
    EXPECT_EQ(p.rank, 3);
    EXPECT_EQ(p.pid, 99u);
    ASSERT_EQ(p.steps.size(), 2u);
    EXPECT_DOUBLE_EQ(p.steps[0].wall, 1);
    EXPECT_NEAR(p.steps[0].busy, 0.4005 + 0.1, 1e-9);
    EXPECT_NEAR(p.steps[1].busy, 0.09975 + 0.1, 1e-9);  // begins 0.25 us later
    EXPECT_EQ(p.steps[0].kernels, 2);
    EXPECT_EQ(p.steps[1].kernels, 0);
    EXPECT_FALSE(p.has_classes);
  }
}

TEST_F(CompareTraces, KinetoBefore2022) {
  const auto run = load_traces(write("old.json", R"([
   {"ph":"X","cat":"Operator","name":"ProfilerStep#6","pid":1,"tid":"1","ts":1000,"dur":400},
   {"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":"stream 7","ts":1100,"dur":50},
   {"ph":"X","cat":"Memcpy","name":"m","pid":0,"tid":"stream 7","ts":1150,"dur":50},
   {"ph":"X","cat":"Memset","name":"s","pid":0,"tid":"stream 7","ts":1390,"dur":50}])"));
  ASSERT_TRUE(run) << run.error().message;
  ASSERT_EQ(run->processes[0].steps.size(), 1u);
  EXPECT_NEAR(run->processes[0].steps[0].busy, 0.11, 1e-9);
  EXPECT_EQ(run->processes[0].steps[0].kernels, 1);
  EXPECT_EQ(run->processes[0].rank, -1);
}

TEST_F(CompareTraces, OursAgreeWithTheirRecording) {
  testing::starved_loop().write(folder_ + "/a.gpubusy");
  const auto session = load_session(folder_);
  ASSERT_TRUE(session);
  const ExportResult exported = export_traces(*session, {});
  ASSERT_EQ(exported.written.size(), 1u);
  EXPECT_FALSE(is_trace_path(folder_));
  ASSERT_TRUE(is_trace_path(exported.written[0].path));
  const auto trace = load_traces(exported.written[0].path);
  ASSERT_TRUE(trace) << trace.error().message;
  const Comparison c = compare(measured_of(analyse(*session)), *trace, {}, false);
  for (const char* id : {"step_time", "busy", "gpu_busy"}) {
    EXPECT_NEAR(change_of(c.pairs[0], id).difference.change, 0, 1e-3) << id;
  }
  EXPECT_NEAR(*change_of(c.pairs[0], "step_time").after, 33, 1e-3);
  // 16 are launched in each step; those of the last run on behind it.
  EXPECT_EQ(*change_of(c.pairs[0], "kernels").before, 16);
  EXPECT_NEAR(*change_of(c.pairs[0], "kernels").after, 16, 0.9);
  EXPECT_THAT(render_text(c, {}), HasSubstr("Before is a recording, after a trace"));
}

TEST_F(CompareTraces, OddNumbersDoNoHarm) {
  const auto run = load_traces(write("odd.json", R"({"traceEvents": [
   {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":99999999999999999999,"dur":99999999999999999},
   {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":-5,"dur":1},
   {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1e3,"dur":2.5e1},
   {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":"1100.5","dur":"1.25"},
   {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":null,"dur":true},
   {"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":"x","tid":7,"ts":1000,"dur":200}]})"));
  ASSERT_TRUE(run) << run.error().message;
  ASSERT_EQ(run->processes[0].steps.size(), 1u);
  EXPECT_NEAR(run->processes[0].steps[0].busy, 0.02625, 1e-9);
}

TEST_F(CompareTraces, ADirectoryOfRanks) {
  write("b.json", kModern);
  std::string other = kModern;
  other.replace(other.find("\"rank\": 3"), 9, "\"rank\": 1");
  write("c.json.gz", other);
  ASSERT_TRUE(is_trace_path(folder_));
  const auto run = load_traces(folder_);
  ASSERT_TRUE(run);
  ASSERT_EQ(run->processes.size(), 2u);
  EXPECT_EQ(run->processes[0].rank, 1);
  EXPECT_EQ(run->processes[1].rank, 3);
}

TEST_F(CompareTraces, WhatIsNoTraceIsNamed) {
  for (const auto& [name, text, words] :
       {std::tuple{"cut.json", std::string(kModern).substr(0, 700), "no JSON at byte"},
        std::tuple{"other.json", std::string("{\"a\": 1}"), "no traceEvents"},
        std::tuple{"bytes.json.gz", std::string("\x00\xff", 2), "no JSON"}}) {
    const auto run = load_traces(write(name, text));
    ASSERT_FALSE(run) << name;
    EXPECT_THAT(run.error().message, HasSubstr(words));
    EXPECT_THAT(run.error().message, HasSubstr(name));
  }
  EXPECT_FALSE(load_traces(folder_ + "/missing.json"));
}

TEST(AnalysisWarnings, AnOpenWindowOfTheCaptureRangeHasNoNumberOfPlannedSteps) {
  RecordingBuilder b;
  const auto kernel = b.kernel("k");
  const std::uint64_t start = RecordingBuilder::kStart;
  b.window(recording::WindowEvent::kBegin, start, 0, 5, 0, recording::WindowKind::kCaptured);
  for (std::uint32_t i = 0; i <= 3; ++i) {
    const std::uint64_t at = start + i * 1'000'000;
    b.step_edge(at, 5 + i);
    b.device_time(b.launch(at + 1000, at + 2000, kernel), at + 2000, at + 500'000);
  }
  recording::Session session;
  session.processes.push_back(b.read());
  const std::string text = render_text(analyse(session), {});
  EXPECT_THAT(text, Not(HasSubstr("of 0 steps")));
  EXPECT_THAT(text, HasSubstr("1 of 1 windows of the capture range were still open"));
  EXPECT_THAT(text, HasSubstr("the last holds 3"));
}

}  // namespace
}  // namespace gpubusy::analysis
