// SPDX-License-Identifier: Apache-2.0
//
// The rules of docs/trace.md, checked on parsed files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using Json = nlohmann::json;
using recording::WindowEvent;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::RecordingBuilder;
using ::testing::StartsWith;

std::string slurp(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files as well
  std::string text;
  char buffer[65536];
  for (int got; (got = gzread(file, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  EXPECT_EQ(gzclose(file), Z_OK) << path;
  return text;
}

class AnalysisTrace : public ::testing::Test {
 protected:
  AnalysisTrace() {
    char name[] = "/tmp/gpubusy-trace-XXXXXX";
    directory_ = mkdtemp(name);
    options_.directory = directory_;
  }
  ~AnalysisTrace() override { std::filesystem::remove_all(directory_); }

  ExportResult export_all(std::initializer_list<const RecordingBuilder*> builders) {
    recording::Session session;
    session.path = directory_;
    for (const RecordingBuilder* b : builders) session.processes.push_back(b->read());
    return export_traces(session, options_);
  }

  // The only trace of a recording, parsed.
  Json trace(const RecordingBuilder& b) {
    const ExportResult result = export_all({&b});
    EXPECT_EQ(result.problems.size(), 0u);
    EXPECT_EQ(result.written.size(), 1u);
    written_ = result.written.at(0);
    text_ = slurp(written_.path);
    return Json::parse(text_);  // strict; also refuses invalid UTF-8
  }

  std::string directory_, text_;
  ExportOptions options_;
  WrittenTrace written_;
};

std::uint64_t ns(const Json& microseconds) {
  return static_cast<std::uint64_t>(std::llround(microseconds.get<double>() * 1000));
}

// Rows of one (pid, tid) nest or are disjoint, at ns resolution.
void expect_nested(const Json& events) {
  std::map<std::pair<std::string, std::string>,
           std::vector<std::pair<std::uint64_t, std::uint64_t>>>
      rows;
  for (const Json& e : events) {
    if (e["ph"] == "X") {
      rows[{e["pid"].dump(), e["tid"].dump()}].emplace_back(ns(e["ts"]),
                                                            ns(e["ts"]) + ns(e["dur"]));
    }
  }
  for (auto& [row, slices] : rows) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<std::uint64_t> open;
    for (const auto& [begin, end] : slices) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end, open.back()) << row.first << " " << row.second << " at " << begin;
      }
      open.push_back(end);
    }
  }
}

void expect_rules(const Json& t, const std::string& text) {
  EXPECT_EQ(t["schemaVersion"], 1);
  EXPECT_EQ(t["displayTimeUnit"], "ms");
  expect_nested(t["traceEvents"]);
  std::map<std::string, int> arrows;
  std::map<std::pair<int, std::uint64_t>, int> call_rows;
  std::set<std::string> launch_starts;
  for (const Json& e : t["traceEvents"]) {
    const std::string phase = e["ph"];
    if (phase == "X") {
      EXPECT_GE(ns(e["ts"]), 0u);
      const std::string category = e["cat"];
      if (category.starts_with("cuda_")) {
        launch_starts.insert(e["pid"].dump() + " " + e["tid"].dump() + " " + e["ts"].dump());
        ++call_rows[{0, e["args"]["correlation"]}];
      } else if (category == "python_function") {
        EXPECT_TRUE(e["args"]["Python id"].is_number());
      } else if (category != "user_annotation" && category != "cpu_op") {
        EXPECT_LT(e["pid"].get<int>(), 64);
        EXPECT_GE(e["tid"].get<int>(), 1);
        EXPECT_GE(e["args"]["stream"].get<int>(), 1);
      }
    } else if (phase == "s") {
      ++arrows[e["id"].dump()];
      EXPECT_TRUE(
          launch_starts.contains(e["pid"].dump() + " " + e["tid"].dump() + " " + e["ts"].dump()));
    } else if (phase == "f") {
      --arrows[e["id"].dump()];
      EXPECT_EQ(e["bp"], "e");
    }
  }
  for (const auto& [id, open] : arrows) EXPECT_EQ(open, 0) << "arrow " << id;
  for (const auto& [key, count] : call_rows) EXPECT_EQ(count, 1) << "correlation " << key.second;
  // The last bracket closes the events; times have three decimals; the rank has its blank.
  const std::string tail = text.substr(text.rfind(']'));
  EXPECT_EQ(tail.find('['), std::string::npos);
  EXPECT_THAT(tail, StartsWith("],\n\"truncated\""));
  for (const std::string key : {"\"ts\": ", "\"dur\": "}) {
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
      const std::size_t begin = at + key.size();
      const std::size_t end = text.find_first_not_of("0123456789.", begin);
      const std::string number = text.substr(begin, end - begin);
      ASSERT_EQ(number.size() - number.find('.'), 4u) << number;
    }
  }
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

const Json* find(const Json& t, const std::function<bool(const Json&)>& wanted) {
  for (const Json& e : t["traceEvents"]) {
    if (wanted(e)) return &e;
  }
  return nullptr;
}

TEST_F(AnalysisTrace, KeepsAllRules) {
  for (const RecordingBuilder& b :
       {testing::everything(), testing::starved_loop(), testing::ranges(), testing::golden(),
        testing::launch_bound_loop(2, 50, 45, 6)}) {
    const Json t = trace(b);
    expect_rules(t, text_);
  }
}

TEST_F(AnalysisTrace, HasARowForEachCallAndEachPieceOfWork) {
  const Json t = trace(testing::everything());
  std::map<std::string, int> count;
  for (const Json& e : t["traceEvents"]) {
    if (e["ph"] == "X") ++count[e["cat"]];
  }
  EXPECT_EQ(count["cuda_runtime"], 68);
  EXPECT_EQ(count["cuda_driver"], 4);
  EXPECT_EQ(count["kernel"], 4 * (5 + 3 + 2 + 1));
  EXPECT_EQ(count["gpu_memcpy"], 4 * (3 + 1));
  EXPECT_EQ(count["gpu_memset"], 4);
  EXPECT_EQ(count["user_annotation"], 4);
  EXPECT_EQ(written_.steps, 4u);
  EXPECT_EQ(written_.events, 72u + 64u);
  EXPECT_EQ(written_.left_out, 0u);
  EXPECT_EQ(t["gpubusy"]["time source"], "cuda events, cupti");
  EXPECT_EQ(t["gpubusy"]["device work without time"], 4);
  EXPECT_EQ(t["gpubusy"]["window"]["complete"], true);
  EXPECT_EQ(t["truncated"], false);
}

TEST_F(AnalysisTrace, WhatTheHostDoesHasCounterTracks) {
  const Json t = trace(testing::everything());
  std::map<std::string, std::vector<Json>> counters;
  for (const Json& e : t["traceEvents"]) {
    if (e["ph"] == "C") counters[e["name"]].push_back(e);
  }
  // Rates from one sample to the next, each shown where its time begins; what was not counted has
  // no track.
  ASSERT_EQ(counters.size(), 4u);
  const std::vector<Json>& use = counters["host: processors in use"];
  ASSERT_EQ(use.size(), 3u);
  EXPECT_EQ(use[1]["args"], Json({{"user", 1.0}, {"system", 0.5}}));
  EXPECT_EQ(ns(use[1]["ts"]) - ns(use[0]["ts"]), 1'000'000u);
  EXPECT_EQ(use[0]["pid"], 5151);
  EXPECT_EQ(counters["host: page faults per s"][0]["args"], Json({{"major", 2000.0}}));
  EXPECT_EQ(counters["host: processors throttled"][0]["args"], Json({{"throttled", 0.25}}));
  EXPECT_EQ(counters["host: pressure (%)"][0]["args"], Json({{"cpu", 10.0}}));
}

TEST_F(AnalysisTrace, NodesOfAGraphAreShownAsWhatTheyAre) {
  const Json t = trace(testing::everything());
  std::map<std::string, int> names;
  for (const Json& e : t["traceEvents"]) {
    if (e["ph"] != "X" || !e["args"].contains("graph node id")) continue;
    ++names[e["cat"]];
    EXPECT_EQ(e["args"]["graph id"], 5);
    EXPECT_EQ(e["args"]["stream"], 20);
    EXPECT_EQ(e["args"]["time source"], "cupti");
    if (e["cat"] == "kernel") {
      EXPECT_EQ(e["args"]["grid"], Json({64, 2, 1}));
      EXPECT_EQ(e["args"]["registers per thread"], 40);
      EXPECT_EQ(e["args"]["shared memory"], 1536);
    } else {
      EXPECT_EQ(e["name"], "Memcpy DtoH (Device -> Pinned)");
      EXPECT_EQ(e["args"]["bytes"], 4096);
    }
  }
  EXPECT_EQ(names["kernel"], 8);
  EXPECT_EQ(names["gpu_memcpy"], 4);
  const Json* unhooked = find(t, [](const Json& e) { return e["name"] == "cudaLaunchNew"; });
  ASSERT_TRUE(unhooked);
  EXPECT_EQ((*unhooked)["args"]["seen by"], "CUPTI only");
}

TEST_F(AnalysisTrace, NamesSurviveOrAreReplacedVisibly) {
  const Json t = trace(testing::everything());
  EXPECT_EQ(t["host_name"],
            "n\xc3\xb8"
            "de-\xe6\x97\xa5");
  EXPECT_THAT(written_.path, HasSubstr("/n\xc3\xb8"
                                       "de-\xe6\x97\xa5_5151."));
  EXPECT_THAT(written_.path, EndsWith(".pt.trace.json.gz"));
  EXPECT_TRUE(find(t, [](const Json& e) {
    return e["name"] ==
           "quote\" back\\slash \n\t\x01 \xef\xbf\xbd \xe6\x97\xa5 "
           "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd";
  }));
  const Json* cut = find(t, [](const Json& e) {
    return e["name"].get<std::string>().find("(long name 2)") != std::string::npos;
  });
  ASSERT_TRUE(cut);
  EXPECT_EQ(t["gpubusy"]["long names"]["2"].get<std::string>().size(), 10'006u);
  EXPECT_TRUE(find(t, [](const Json& e) { return e["name"] == "kernel(float*, int)"; }));
  EXPECT_TRUE(find(t, [](const Json& e) { return e["name"] == "cuEventRecord"; }));
  EXPECT_TRUE(find(t, [](const Json& e) {
    return e["name"] == "Memcpy HtoD (Pageable -> Device)" &&
           std::abs(e["args"]["memory bandwidth (GB/s)"].get<double>() - (1 << 20) / 80e3) < 1e-4;
  }));
  const Json* launch = find(t, [](const Json& e) { return e["name"] == "cudaLaunchKernel"; });
  EXPECT_EQ((*launch)["args"]["Python"], "model.py:21 (f)");
  EXPECT_THAT((*launch)["args"]["Call stack"].get<std::string>(),
              StartsWith("/home/x/model.py(21): f;/home/"));
}

TEST_F(AnalysisTrace, TimesAreUnixTimesOverACommonBase) {
  RecordingBuilder b;
  b.window(WindowEvent::kBegin, RecordingBuilder::kStart, 0, 0, 1);
  b.launch(RecordingBuilder::kStart + 1'234'567, RecordingBuilder::kStart + 1'234'600,
           b.kernel("k"));
  b.step_edge(RecordingBuilder::kStart + 2'000'000, 0);
  b.window(WindowEvent::kEnd, RecordingBuilder::kStart + 2'000'000, 0, 0, 1);
  const Json t = trace(b);
  const std::uint64_t base = t["baseTimeNanoseconds"];
  EXPECT_EQ(base % (7'889'238ull * 1'000'000'000), 0u);
  EXPECT_LE(base, RecordingBuilder::kUnixStart);
  const Json* launch = find(t, [](const Json& e) { return e["name"] == "cudaLaunchKernel"; });
  EXPECT_EQ(base + ns((*launch)["ts"]), RecordingBuilder::kUnixStart + 1'234'567);
  EXPECT_EQ(ns((*launch)["dur"]), 33u);
  EXPECT_EQ((*launch)["args"]["device time"], "not measured");
}

TEST_F(AnalysisTrace, TheRankIsWhereReadersLookForIt) {
  trace(testing::everything());
  const std::size_t at = text_.find("\"rank\": 1");
  ASSERT_NE(at, std::string::npos);
  EXPECT_LT(at, text_.find("\"traceEvents\""));
  EXPECT_EQ(text_.find("\"rank\": ", at + 1), std::string::npos);
  EXPECT_NE(text_.find("\"local rank\": 1"), std::string::npos);
  trace(testing::starved_loop());
  EXPECT_EQ(text_.find("\"rank\""), std::string::npos);  // not known: not said
}

TEST_F(AnalysisTrace, NothingIsEverOverwritten) {
  const RecordingBuilder a = testing::starved_loop({.steps = 2});
  const RecordingBuilder b = testing::starved_loop({.steps = 2});  // same host, pid and times
  std::set<std::string> paths;
  for (int run = 0; run < 2; ++run) {
    const ExportResult result = export_all({&a, &b});
    ASSERT_EQ(result.written.size(), 2u);
    for (const WrittenTrace& w : result.written) {
      EXPECT_TRUE(paths.insert(w.path).second);
      EXPECT_NO_THROW(Json::parse(slurp(w.path)));
    }
  }
  EXPECT_EQ(paths.size(), 4u);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    EXPECT_THAT(entry.path().string(), EndsWith(".json.gz"));  // no temporary file stays
    ++files;
  }
  EXPECT_EQ(files, 4u);
}

TEST_F(AnalysisTrace, TheSizeLimitCutsWholeRowsAndSaysSo) {
  options_.max_bytes = 100'000;
  options_.compress = false;
  const Json t = trace(testing::launch_bound_loop(2, 1000, 45, 6));
  expect_rules(t, text_);
  EXPECT_LE(text_.size(), 100'000u);
  EXPECT_GT(text_.size(), 90'000u);
  EXPECT_EQ(t["truncated"], true);
  EXPECT_EQ(t["rows left out"], written_.left_out);
  EXPECT_EQ(written_.events, 4000u);
  std::uint64_t rows = 0;
  for (const Json& e : t["traceEvents"]) {
    rows += e["ph"] == "X" && e["cat"] != "user_annotation" && e["cat"] != "python_function";
  }
  EXPECT_EQ(rows + written_.left_out, 4000u);
  EXPECT_GT(t["frame rows"], 0);
  EXPECT_TRUE(find(
      t, [](const Json& e) { return e["name"].get<std::string>().starts_with("Truncated: "); }));
}

TEST_F(AnalysisTrace, ProblemsNameThePathAndTheReason) {
  options_.directory = directory_ + "/missing";
  const RecordingBuilder b = testing::starved_loop({.steps = 2});
  ExportResult result = export_all({&b});
  EXPECT_TRUE(result.written.empty());
  ASSERT_EQ(result.problems.size(), 1u);
  EXPECT_THAT(result.problems[0].message,
              AllOf(HasSubstr("/missing"), HasSubstr("No such file or directory")));
}

TEST_F(AnalysisTrace, OneTracePerWindowAndOnlyTheOneAskedFor) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const auto us = [](std::uint64_t t) { return RecordingBuilder::kStart + t * 1000; };
  b.window(WindowEvent::kBegin, us(0), 0, 0, 0, recording::WindowKind::kPrelude);
  b.launch(us(1), us(2), k);
  b.step_edge(us(10), 0);
  b.window(WindowEvent::kEnd, us(10), 0, 0, 1, recording::WindowKind::kPrelude);
  for (std::uint32_t w = 1; w <= 2; ++w) {
    b.window(WindowEvent::kBegin, us(10 * w), w, w, 1);
    b.launch(us(10 * w), us(10 * w + 1), k);  // at the edge: belongs to the step that begins
    b.step_edge(us(10 * w + 10), w);
    b.window(WindowEvent::kEnd, us(10 * w + 10), w, w, 1);
  }
  ExportResult result = export_all({&b});
  ASSERT_EQ(result.written.size(), 2u);
  EXPECT_EQ(result.written[0].window, 1u);
  EXPECT_EQ(result.written[0].events, 1u);
  EXPECT_EQ(result.written[1].events, 1u);
  options_.include_prelude = true;
  EXPECT_EQ(export_all({&b}).written.size(), 3u);
  options_.window = 2;
  result = export_all({&b});
  ASSERT_EQ(result.written.size(), 1u);
  EXPECT_EQ(result.written[0].window, 2u);
  options_.window = 0;
  options_.last_window = 1;
  result = export_all({&b});
  ASSERT_EQ(result.written.size(), 2u);
  EXPECT_EQ(result.written[0].window, 0u);
  EXPECT_EQ(result.written[1].window, 1u);
  options_.last_window.reset();
  options_.window = 7;
  result = export_all({&b});
  EXPECT_TRUE(result.written.empty());
  EXPECT_THAT(result.problems.at(0).message, HasSubstr("no window 7"));
}

TEST_F(AnalysisTrace, AStepEdgeInsideACallMovesToItsEnd) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const auto us = [](std::uint64_t t) { return RecordingBuilder::kStart + t * 1000; };
  b.window(WindowEvent::kBegin, us(0), 0, 0, 2);
  b.launch(us(5), us(12), k);
  b.step_edge(us(10), 0, recording::StepSource::kKernel);
  b.launch(us(15), us(30), k);
  b.step_edge(us(20), 1, recording::StepSource::kKernel);
  b.window(WindowEvent::kEnd, us(20), 0, 0, 2);
  const Json t = trace(b);
  expect_rules(t, text_);
  const Json* step = find(t, [](const Json& e) { return e["name"] == "ProfilerStep#1"; });
  EXPECT_EQ(ns((*step)["dur"]), 18'000u);  // 12 to 30
}

TEST_F(AnalysisTrace, ASmallProcessIdDoesNotMeetADevice) {
  RecordingBuilder b(1);
  b.device_time(b.launch(RecordingBuilder::kStart, RecordingBuilder::kStart + 5, b.kernel("k")),
                RecordingBuilder::kStart + 5, RecordingBuilder::kStart + 9, {.device = 1});
  const Json t = trace(b);
  expect_rules(t, text_);
  const Json* launch = find(t, [](const Json& e) { return e["name"] == "cudaLaunchKernel"; });
  EXPECT_EQ((*launch)["pid"], 1'000'000'001);
  EXPECT_EQ(t["gpubusy"]["process id"], 1);
}

}  // namespace
}  // namespace gpubusy::analysis
