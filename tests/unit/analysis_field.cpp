// SPDX-License-Identifier: Apache-2.0
//
// Field cases T02, T04 and T12 as recordings: slices that viewers drop unless they are put on
// another row, runs shorter than their schedule, recordings that stopped early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::analysis {
namespace {

using Json = nlohmann::json;
using recording::WindowEvent;
using ::testing::HasSubstr;
using testing::RecordingBuilder;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;

std::uint64_t ns(const Json& microseconds) {
  return static_cast<std::uint64_t>(std::llround(microseconds.get<double>() * 1000));
}

Json trace_of(const RecordingBuilder& builder) {
  char name[] = "/tmp/gpubusy-field-XXXXXX";
  const std::string directory = mkdtemp(name);
  recording::Session session;
  session.path = directory;
  session.processes.push_back(builder.read());
  ExportOptions options;
  options.directory = directory;
  const ExportResult result = export_traces(session, options);
  EXPECT_EQ(result.written.size(), 1u);
  std::string text;
  gzFile file = gzopen(result.written.at(0).path.c_str(), "rb");
  char buffer[65536];
  for (int got; (got = gzread(file, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  gzclose(file);
  std::filesystem::remove_all(directory);
  return Json::parse(text);
}

ExportResult export_all(const RecordingBuilder& builder) {
  char name[] = "/tmp/gpubusy-field-XXXXXX";
  ExportOptions options;
  options.directory = mkdtemp(name);
  recording::Session session;
  session.path = options.directory;
  session.processes.push_back(builder.read());
  ExportResult result = export_traces(session, options);
  std::filesystem::remove_all(options.directory);
  return result;
}

std::string warnings(const RecordingBuilder& builder) {
  recording::Session session;
  session.processes.push_back(builder.read());
  std::string all;
  const SessionReport report = analyse(session);
  for (const std::string& w : report.processes.at(0).warnings) all += w + "\n";
  return all;
}

struct Slice {
  std::string row, name;
  std::uint64_t begin, end;
};

std::vector<Slice> slices(const Json& trace) {
  std::vector<Slice> out;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    out.push_back({e["pid"].dump() + "/" + e["tid"].dump(), e["name"], ns(e["ts"]),
                   ns(e["ts"]) + ns(e["dur"])});
  }
  return out;
}

// Pairs on one row that neither nest nor are disjoint.
int crossings(const std::vector<Slice>& all) {
  int count = 0;
  for (const Slice& a : all) {
    for (const Slice& b : all) {
      count += a.row == b.row && a.begin < b.begin && b.begin < a.end && a.end < b.end;
    }
  }
  return count;
}

const Slice& slice(const std::vector<Slice>& all, const std::string& name) {
  for (const Slice& s : all) {
    if (s.name == name) return s;
  }
  ADD_FAILURE() << name << " is not in the trace";
  return all.front();
}

TEST(AnalysisField, TwoKernelsThatOverlapOnOneStream) {
  RecordingBuilder b;
  const auto first = b.launch(kStart + 1000, kStart + 1100, b.kernel("first"));
  const auto second = b.launch(kStart + 1200, kStart + 1300, b.kernel("second"));
  b.device_time(first, kStart + 3000, kStart + 6776);
  b.device_time(second, kStart + 5000, kStart + 7000);
  const std::vector<Slice> all = slices(trace_of(b));
  EXPECT_EQ(crossings(all), 0);
  EXPECT_EQ(all.size(), 4u);
  EXPECT_NE(slice(all, "first").row, slice(all, "second").row);
  EXPECT_EQ(slice(all, "first").end - slice(all, "first").begin, 3776u);
  EXPECT_EQ(slice(all, "second").begin - slice(all, "first").begin, 2000u);
}

TEST(AnalysisField, OverlapsOfANanosecondAndEqualStarts) {
  // As far from the common base as a recording can be: a double then steps by 0.98 ns.
  constexpr std::uint64_t kUnit = 7'889'238ull * 1'000'000'000;
  const std::uint64_t to_unit_end = kUnit - RecordingBuilder::kUnixStart % kUnit;
  for (const std::uint64_t far : {std::uint64_t{0}, to_unit_end - 1'000'000'000}) {
    RecordingBuilder b;
    const std::uint64_t t = kStart + far;
    const char* names[] = {"a", "b", "c", "d", "e", "f"};
    // a-b: 1 ns; b-c: touch; c-d: equal starts; d-e: equal; f: 1 ns long.
    const std::uint64_t times[][2] = {{100, 201}, {200, 300}, {300, 400},
                                      {300, 350}, {300, 350}, {399, 400}};
    for (int i = 0; i < 6; ++i) {
      const auto call = b.launch(t + static_cast<std::uint64_t>(i),
                                 t + static_cast<std::uint64_t>(i) + 1, b.kernel(names[i]));
      b.device_time(call, t + times[i][0], t + times[i][1]);
    }
    const std::vector<Slice> all = slices(trace_of(b));
    EXPECT_EQ(crossings(all), 0);
    EXPECT_EQ(all.size(), 12u);
    for (int i = 0; i < 6; ++i) {
      const Slice& s = slice(all, names[i]);
      EXPECT_EQ(s.end - s.begin, times[i][1] - times[i][0]) << names[i];
      EXPECT_EQ(s.begin - slice(all, "a").begin, times[i][0] - 100) << names[i];
    }
  }
}

TEST(AnalysisField, AChildThatEndsBehindItsParent) {
  RecordingBuilder b;
  b.window(WindowEvent::kBegin, kStart, 0, 0, 1);
  // The edge lies 1 ns inside the last call: a step that ends there would cross it.
  b.launch(kStart + 100, kStart + 200, b.kernel("inside"));
  b.launch(kStart + 900, kStart + 1001, b.kernel("across"));
  b.step_edge(kStart + 1000, 0);
  b.window(WindowEvent::kEnd, kStart + 1000, 0, 0, 1);
  const std::vector<Slice> all = slices(trace_of(b));
  EXPECT_EQ(crossings(all), 0);
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(slice(all, "ProfilerStep#0").end - slice(all, "ProfilerStep#0").begin, 1001u);
}

TEST(AnalysisField, ACutWindowSaysWhatWasSeenOfIt) {
  RecordingBuilder b;
  b.window(WindowEvent::kBegin, kStart, 0, 2, 3);
  b.launch(kStart + 100, kStart + 200, b.kernel("k"));
  b.step_edge(kStart + 1000, 2);
  b.launch(kStart + 1100, kStart + 1200, b.kernel("k"));
  b.step_edge(kStart + 2000, 3);
  b.window(WindowEvent::kCut, kStart + 2500, 0, 2, 2);
  EXPECT_THAT(warnings(b), HasSubstr("of the last, 2 of 3 steps were seen"));
}

TEST(AnalysisField, AMissedWindowSaysWhatItNeeded) {
  const auto missed = [](std::vector<std::string> settings) {
    RecordingBuilder b;
    for (const std::string& s : settings) b.setting(s);
    b.window(WindowEvent::kBegin, 5, 0, 0, 0, recording::WindowKind::kPrelude);
    b.launch(kStart + 10, kStart + 20, b.kernel("k"));
    b.step_edge(kStart + 50, 0);
    b.window(WindowEvent::kEnd, kStart + 50, 0, 0, 1, recording::WindowKind::kPrelude);
    b.steps_seen(3);
    return warnings(b);
  };
  EXPECT_THAT(missed({}), HasSubstr("(3 steps were seen)"));
  // 5 + 2 + 20 by default, the last of which is step 26.
  EXPECT_THAT(missed({"GPUBUSY_OUTPUT=out"}), HasSubstr("the first window ends with step 26"));
  EXPECT_THAT(missed({"GPUBUSY_WAIT=1", "GPUBUSY_WARMUP=1", "GPUBUSY_ACTIVE=3"}),
              HasSubstr("the first window ends with step 4)"));
  EXPECT_THAT(missed({"GPUBUSY_SKIP_FIRST_WAIT=1", "GPUBUSY_ACTIVE=3", "GPUBUSY_SKIP_FIRST=4"}),
              HasSubstr("the first window ends with step 8)"));
}

TEST(AnalysisField, AWindowInWhichNothingHappenedIsNoTrace) {
  RecordingBuilder b;
  b.window(WindowEvent::kBegin, kStart, 0, 0, 1);
  b.launch(kStart + 100, kStart + 200, b.kernel("k"));
  b.step_edge(kStart + 1000, 0);
  b.window(WindowEvent::kEnd, kStart + 1000, 0, 0, 1);
  b.window(WindowEvent::kBegin, kStart + 1001, 1, 1, 1);
  b.window(WindowEvent::kCut, kStart + 1100, 1, 1, 0);
  EXPECT_EQ(export_all(b).written.size(), 1u);
}

TEST(AnalysisField, ARecordingThatStoppedEarlyIsTruncated) {
  for (const bool stopped : {false, true}) {
    RecordingBuilder b;
    b.window(WindowEvent::kBegin, kStart, 0, 7, 2);
    b.launch(kStart + 100, kStart + 200, b.kernel("k"));
    b.step_edge(kStart + 1000, 7);
    b.launch(kStart + 1100, kStart + 1200, b.kernel("k"));
    if (stopped) b.state(recording::FileState::kBudgetSpent).lost(12);
    const Json t = trace_of(b);
    EXPECT_EQ(t["truncated"], stopped);
    int marks = 0;
    for (const Json& e : t["traceEvents"]) {
      if (!e["name"].get<std::string>().starts_with("Truncated: ")) continue;
      ++marks;
      EXPECT_THAT(e["name"].get<std::string>(), HasSubstr("12 records lost"));
    }
    EXPECT_EQ(marks, stopped);
    if (stopped) {
      EXPECT_THAT(warnings(b), HasSubstr("stopped early in step 8, after 1 of 2 steps"));
    }
  }
}

}  // namespace
}  // namespace gpubusy::analysis
