// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/names.hpp"
#include "analysis/report.hpp"
#include "recording/reader.hpp"
#include "tests/support/memory_source.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RecordingBuilder;

SessionReport report_on(const RecordingBuilder& b) {
  recording::Session session;
  session.path = "session";
  session.processes.push_back(b.read());
  return analyse(session);
}

TEST(AnalysisText, FitsTheWidthAndStaysPlain) {
  for (const RecordingBuilder& b : {testing::starved_loop(), testing::everything(),
                                    testing::ranges(), testing::launch_bound_loop(3, 40, 45, 6)}) {
    const SessionReport report = report_on(b);
    for (const int width : {60, 80, 100, 160}) {
      std::istringstream text(render_text(report, {.width = width}));
      for (std::string line; std::getline(text, line);) {
        EXPECT_LE(length_of(line), static_cast<std::size_t>(width)) << line;
        EXPECT_EQ(line.find('\x1b'), std::string::npos) << line;
      }
    }
  }
}

TEST(AnalysisText, AsciiMeansAscii) {
  const std::string text = render_text(report_on(testing::starved_loop()), {.ascii = true});
  for (const char c : text) ASSERT_LT(static_cast<unsigned char>(c), 0x80) << text;
}

TEST(AnalysisText, ColoursOnlyWhenAsked) {
  EXPECT_THAT(render_text(report_on(testing::starved_loop()), {.colour = true}),
              HasSubstr("\x1b[1;31mGPU busy 28.9 %"));
}

TEST(AnalysisText, ControlCharactersDoNotReachTheTerminal) {
  const std::string text = render_text(report_on(testing::everything()), {});
  for (const char c : text) ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
}

TEST(AnalysisText, TheHeadlineHasTheNumbers) {
  const std::string text = render_text(report_on(testing::starved_loop()), {.ascii = true});
  EXPECT_THAT(text, HasSubstr("GPU busy 28.9 % of 20 steps (7-26); step 33.0 ms (33.0-33.0)"));
  EXPECT_THAT(text, HasSubstr("1. The GPU waits for input data"));
  EXPECT_THAT(text, HasSubstr("where  train.py:58-63 in main"));
  EXPECT_THAT(text, HasSubstr("340 of 340 pieces of device work timed by cuda events"));
}

TEST(AnalysisJsonReport, HoldsTheSameNumbers) {
  const std::string text = render_json(report_on(testing::starved_loop()));
  const nlohmann::json j = nlohmann::json::parse(text);
  EXPECT_EQ(j["schema"], 1);
  const auto& p = j["processes"].at(0);
  EXPECT_EQ(p["pid"], 4242);
  EXPECT_TRUE(p["rank"].is_null());
  EXPECT_NEAR(p["busy_share"].get<double>(), 0.2892424, 1e-6);
  EXPECT_EQ(p["findings"].at(0)["id"], "data_starvation");
  EXPECT_EQ(p["findings"].at(0)["after"]["line"], 63);
  EXPECT_EQ(p["findings"].at(0)["before"]["file"], "/home/user/job/train.py");
  EXPECT_EQ(p["steps"].size(), 20u);
  double sum = p["busy_ms"];
  for (const auto& [name, value] : p["idle_ms"].items()) sum += value.get<double>();
  EXPECT_NEAR(sum, p["wall_ms"].get<double>(), 1e-6);
  EXPECT_EQ(p["copies"].at(0)["bytes"], 20u * 8'000'000u);
  EXPECT_EQ(p["state"], "finished");
}

TEST(AnalysisJsonReport, UnknownIsNullNotZero) {
  RecordingBuilder b;
  b.launch(10, 20, b.kernel("k"));
  const auto p = nlohmann::json::parse(render_json(report_on(b)))["processes"].at(0);
  EXPECT_TRUE(p["busy_share"].is_null());
  EXPECT_TRUE(p["idle_ms"].is_null());
  EXPECT_EQ(p["coverage"]["device_work_expected"], 1);
}

// Whatever the reader makes of damaged files, analysis bears it and its output stays well-formed.
TEST(AnalysisRobustness, DamagedRecordings) {
  char name[] = "/tmp/gpubusy-robust-XXXXXX";
  const std::string directory = mkdtemp(name);
  std::mt19937_64 random(7);
  const std::vector<std::byte> files[] = {testing::golden().bytes(), testing::everything().bytes(),
                                          testing::starved_loop({.steps = 4}).bytes(),
                                          testing::ranges().bytes()};
  for (int round = 0; round < 400; ++round) {
    std::vector<std::byte> bytes = files[random() % 4];
    for (std::uint64_t n = 1 + random() % 40; n > 0; --n) {
      const std::size_t at =
          recording::kHeaderSize + random() % (bytes.size() - recording::kHeaderSize);
      bytes[at] = random() % 3 ? static_cast<std::byte>(random()) : std::byte{0xff};
    }
    auto r = recording::read_source("mutated", testing::MemorySource(bytes.data(), bytes.size()));
    if (!r) continue;
    recording::Session session;
    session.path = directory;
    session.processes.push_back(std::move(*r));
    const SessionReport report = analyse(session);
    for (const ProcessReport& p : report.processes) {
      for (const StepTimes& t : p.times) {
        std::uint64_t sum = t.busy_ns;
        for (const std::uint64_t idle : t.idle_ns) sum += idle;
        ASSERT_EQ(sum, t.wall_ns);
      }
    }
    ASSERT_FALSE(render_text(report, {}).empty());
    ASSERT_NO_THROW(nlohmann::json::parse(render_json(report)));
    ExportOptions options;
    options.compress = false;
    const ExportResult result = export_traces(session, options);
    for (const WrittenTrace& w : result.written) {
      FILE* file = std::fopen(w.path.c_str(), "rb");
      ASSERT_TRUE(file);
      ASSERT_NO_THROW(nlohmann::json::parse(file)) << w.path;
      std::fclose(file);
      std::filesystem::remove(w.path);
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpubusy::analysis
