// SPDX-License-Identifier: Apache-2.0
//
// Ranges in the trace and in the verdict (testing::ranges()).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/ranges.hpp"
#include "analysis/report.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RecordingBuilder;

constexpr std::uint32_t kThread = 6161;
constexpr std::uint64_t kMs = 1'000'000;

Json trace_of(const RecordingBuilder& b, std::uint64_t max_bytes = 0) {
  char name[] = "/tmp/gpubusy-ranges-XXXXXX";
  const std::string directory = mkdtemp(name);
  recording::Session session;
  session.path = directory;
  session.processes.push_back(b.read());
  ExportOptions options;
  options.directory = directory;
  options.max_bytes = max_bytes;
  const ExportResult result = export_traces(session, options);
  EXPECT_EQ(result.written.size(), 1u);
  gzFile file = gzopen(result.written.front().path.c_str(), "rb");
  std::string text;
  char buffer[65536];
  for (int got; (got = gzread(file, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  gzclose(file);
  std::filesystem::remove_all(directory);
  return Json::parse(text);
}

std::vector<Json> named(const Json& trace, const std::string& name) {
  std::vector<Json> out;
  for (const Json& e : trace["traceEvents"]) {
    if (e["name"] == name && e["ph"] != "M") out.push_back(e);
  }
  return out;
}

// us since the window's begin, as far as the base of the trace allows.
double since_begin(const Json& trace, const Json& event) {
  return event["ts"].get<double>() -
         named(trace, "Iteration Start: gpubusy").at(0)["ts"].get<double>();
}

TEST(AnalysisRanges, AreSlicesOnTheirThread) {
  const Json trace = trace_of(testing::ranges());
  const auto forward = named(trace, "forward");
  ASSERT_EQ(forward.size(), 4u);
  const Json& first = forward.front();
  EXPECT_EQ(first["cat"], "user_annotation");
  EXPECT_EQ(first["tid"], kThread);
  EXPECT_NEAR(since_begin(trace, first), 200, 0.01);
  EXPECT_EQ(first["dur"], 600);
  EXPECT_EQ(first["args"], Json({{"domain", "my \"domain\""},
                                 {"category", "io"},
                                 {"payload", -3},
                                 {"colour", "#ff00ff00"}}));
  const auto calls = named(trace, "cudnnBackendExecute");
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls.front()["tid"], kThread);
  EXPECT_EQ(calls.front()["args"]["domain"], "cuDNN");
  EXPECT_EQ(named(trace, "(no name)").size(), 4u);
}

TEST(AnalysisRanges, AreCutAtTheWindow) {
  const Json trace = trace_of(testing::ranges());
  const auto epoch = named(trace, "epoch");
  ASSERT_EQ(epoch.size(), 1u);  // it was written twice
  EXPECT_NEAR(since_begin(trace, epoch[0]), 0, 0.01);
  EXPECT_EQ(epoch[0]["dur"], 4000);
  EXPECT_EQ(epoch[0]["args"]["began before the window (us)"], 1000);
  EXPECT_EQ(epoch[0]["args"]["ended behind the window (us)"], 5000);
  EXPECT_EQ(epoch[0]["tid"], kThread);  // holds all steps: they nest
  EXPECT_TRUE(named(trace, "behind the window").empty());
}

TEST(AnalysisRanges, ThatCrossGoToRowsOfTheirOwn) {
  const Json trace = trace_of(testing::ranges());
  const auto late = named(trace, "late");
  ASSERT_EQ(late.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NE(late[i]["tid"], kThread) << i;
  EXPECT_EQ(late[3]["tid"], kThread);  // cut at the window's end, it lies in the last step
  const auto first = named(trace, "first"), second = named(trace, "second");
  ASSERT_EQ(first.size(), 4u);
  ASSERT_EQ(second.size(), 4u);
  EXPECT_EQ(first[0]["tid"], 900'000'000);
  EXPECT_EQ(first[0]["args"]["thread"], kThread + 1);
  EXPECT_EQ(second[0]["tid"], 900'000'001);
  std::map<std::uint64_t, std::string> rows;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == "M" && e["name"] == "thread_name") {
      rows[e["tid"].get<std::uint64_t>()] = e["args"]["name"].get<std::string>();
    }
  }
  EXPECT_EQ(rows[900'000'000], "ranges");
  EXPECT_EQ(rows[900'000'001], "ranges (overlapping, 1)");
}

TEST(AnalysisRanges, EveryRowNests) {
  const Json trace = trace_of(testing::ranges());
  std::map<std::pair<std::int64_t, std::int64_t>,
           std::vector<std::pair<std::int64_t, std::int64_t>>>
      rows;
  std::size_t slices = 0;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const auto start = static_cast<std::int64_t>(std::llround(e["ts"].get<double>() * 1000));
    const auto length = static_cast<std::int64_t>(std::llround(e["dur"].get<double>() * 1000));
    rows[{e["pid"].get<std::int64_t>(), e["tid"].get<std::int64_t>()}].push_back(
        {start, -(start + length)});
    ++slices;
  }
  // 4 steps, 4 launches and kernels, epoch, per step: cuDNN, forward, late, hostile, first, second,
  // no name.
  EXPECT_EQ(slices, 4u + 8 + 1 + 7 * 4);
  for (auto& [row, all] : rows) {
    std::sort(all.begin(), all.end());
    std::vector<std::int64_t> open;
    for (const auto& [start, minus_end] : all) {
      while (!open.empty() && open.back() <= start) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(-minus_end, open.back()) << "row " << row.second;
      }
      open.push_back(-minus_end);
    }
  }
}

TEST(AnalysisRanges, MarksAreInstants) {
  const Json trace = trace_of(testing::ranges());
  const auto marks = named(trace, "mark");
  ASSERT_EQ(marks.size(), 4u);
  EXPECT_EQ(marks[0]["ph"], "i");
  EXPECT_EQ(marks[0]["s"], "t");
  EXPECT_EQ(marks[0]["tid"], kThread);
  EXPECT_NEAR(since_begin(trace, marks[0]), 650, 0.01);
  EXPECT_EQ(marks[0]["args"], Json({{"category", 9}, {"payload", "NaN"}}));
}

TEST(AnalysisRanges, CountAsRowsThatTheLimitLeavesOut) {
  const Json whole = trace_of(testing::ranges());
  const Json cut = trace_of(testing::ranges(), 10'000);
  EXPECT_EQ(cut["truncated"], true);
  const auto rows = [](const Json& t) {
    std::uint64_t n = 0;
    for (const Json& e : t["traceEvents"]) {
      n += e["ph"] == "X" || (e["ph"] == "i" && e["s"] == "t");
    }
    return n - 4;  // the steps
  };
  EXPECT_EQ(rows(cut) + cut["rows left out"].get<std::uint64_t>(), rows(whole));
}

TEST(AnalysisRanges, PayloadsOfAllTypes) {
  using recording::RangePayload;
  recording::Range r{};
  const auto text = [&](RangePayload type, std::uint64_t payload) {
    r.payload_type = type;
    r.payload = payload;
    return range_payload(r);
  };
  EXPECT_EQ(text(RangePayload::kNone, 7), "");
  EXPECT_EQ(text(RangePayload::kUint64, ~0ull), "18446744073709551615");
  EXPECT_EQ(text(RangePayload::kInt64, ~0ull), "-1");
  EXPECT_EQ(text(RangePayload::kUint32, 0xffffffff), "4294967295");
  EXPECT_EQ(text(RangePayload::kInt32, 0xffffffff), "-1");
  EXPECT_EQ(text(RangePayload::kDouble, std::bit_cast<std::uint64_t>(2.5)), "2.5");
  EXPECT_EQ(text(RangePayload::kFloat, std::bit_cast<std::uint32_t>(0.25f)), "0.25");
  EXPECT_EQ(text(RangePayload::kDouble, 0xfff0000000000000), "\"-Infinity\"");
  EXPECT_EQ(text(RangePayload::kBytes, 12), "12");
}

TEST(AnalysisRanges, TableOfTheJudgedSteps) {
  recording::Session session;
  session.processes.push_back(testing::ranges().read());
  const SessionReport report = analyse(session);
  const ProcessReport& p = report.processes.at(0);
  std::map<std::string, RangeRow> rows;
  for (const RangeRow& row : p.ranges) rows[row.domain + ":" + row.name] = row;
  EXPECT_EQ(rows.count(":mark"), 0u);
  EXPECT_EQ(rows.count(":behind the window"), 0u);
  const RangeRow& epoch = rows[":epoch"];
  EXPECT_EQ(epoch.count, 1u);
  EXPECT_EQ(epoch.total_ns, 4 * kMs);
  EXPECT_EQ(epoch.gpu_idle_ns, 4 * 600'000u);  // busy from 320 to 720 us of each step
  EXPECT_DOUBLE_EQ(epoch.share, 1);
  const RangeRow& forward = rows["my \"domain\":forward"];
  EXPECT_EQ(forward.count, 4u);
  EXPECT_EQ(forward.total_ns, 4 * 600'000u);
  EXPECT_EQ(forward.longest_ns, 600'000u);
  EXPECT_EQ(forward.gpu_idle_ns, 4 * 200'000u);
  EXPECT_DOUBLE_EQ(forward.share, 0.6);
  EXPECT_EQ(p.ranges.front().name, "epoch");

  EXPECT_EQ(p.step_source, recording::StepSource::kNvtx);
  const std::string text = render_text(report, {.width = 100});
  EXPECT_THAT(text, HasSubstr("Ranges by time (top 8 of "));
  EXPECT_THAT(text, HasSubstr("my \"domain\":forward"));
  EXPECT_THAT(text, HasSubstr("steps end with: NVTX range"));
  const Json json = Json::parse(render_json(report));
  EXPECT_EQ(json["processes"][0]["ranges"][0]["name"], "epoch");
  EXPECT_EQ(json["processes"][0]["ranges"][0]["gpu_idle_ms"], 2.4);
}

TEST(AnalysisRanges, NoTableWhereThereAreNone) {
  recording::Session session;
  session.processes.push_back(testing::starved_loop().read());
  const SessionReport report = analyse(session);
  EXPECT_THAT(render_text(report, {}), Not(HasSubstr("Ranges")));
  EXPECT_EQ(Json::parse(render_json(report))["processes"][0]["ranges"], Json::array());
}

TEST(AnalysisRanges, StepsOfACapturedWindowAreJudged) {
  RecordingBuilder b;
  const std::uint64_t t = RecordingBuilder::kStart + 10 * kMs;
  const std::uint32_t kernel = b.kernel("k");
  b.window(recording::WindowEvent::kBegin, t, 0, 0, 0, recording::WindowKind::kCaptured);
  for (std::uint32_t i = 0; i < 3; ++i) {
    b.launch(t + i * kMs + 100, t + i * kMs + 200, kernel);
    b.step_edge(t + (i + 1) * kMs, i, recording::StepSource::kCall);
  }
  b.launch(t + 3 * kMs + 100, t + 3 * kMs + 200, kernel);
  b.window(recording::WindowEvent::kCut, t + 4 * kMs, 0, 0, 3, recording::WindowKind::kCaptured);
  recording::Session session;
  session.processes.push_back(b.read());
  const ProcessReport p = analyse(session).processes.at(0);
  EXPECT_EQ(p.steps.size(), 3u);
  EXPECT_EQ(p.cut_windows, 1u);
  EXPECT_EQ(trace_of(b)["gpubusy"]["window"]["kind"], "captured");
}

}  // namespace
}  // namespace gpubusy::analysis
