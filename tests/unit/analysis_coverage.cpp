// SPDX-License-Identifier: Apache-2.0
#include "analysis/coverage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Category;
using recording::Layer;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RecordingBuilder;
using ::testing::StartsWith;

SessionReport report_on(std::initializer_list<const RecordingBuilder*> builders) {
  recording::Session session;
  session.path = "session";
  for (const RecordingBuilder* b : builders) session.processes.push_back(b->read());
  return analyse(session);
}

std::string in_one_line(std::string text) {
  std::string out;
  for (const char c : text) {
    const char ch = c == '\n' ? ' ' : c;
    if (ch != ' ' || out.empty() || out.back() != ' ') out += ch;
  }
  return out;
}

// Calls of two linked functions, one looked up, one handed out and never called.
void use_both_layers(RecordingBuilder& b) {
  const auto linked = b.api("cudaMalloc", Category::kOther);
  const auto other = b.api("cudaFree", Category::kOther);
  const auto asked = b.api("cuMemAlloc_v2", Category::kOther, Layer::kDriver);
  b.api("cuMemFree_v2", Category::kOther, Layer::kDriver);
  b.call(10, 20, linked, nullptr, 0);
  b.call(20, 30, other, nullptr, 0);
  b.call(30, 40, linked, nullptr, 0);
  b.call(40, 50, asked, nullptr, 0);
}

TEST(AnalysisCoverage, CountsCallsAndWaysByLayer) {
  RecordingBuilder b;
  use_both_layers(b);
  b.reach(true, {0, 0, recording::kReachProcAddress | recording::kReachDlsym,
                 recording::kReachProcAddress});
  const Reach reach = reach_of(b.read());
  EXPECT_TRUE(reach.known && reach.driver_loaded);
  EXPECT_EQ(reach.runtime().calls, 3u);
  EXPECT_EQ(reach.runtime().linked_calls, 3u);
  EXPECT_EQ(reach.runtime().functions_called, 2u);
  EXPECT_EQ(reach.runtime().handed_out(), 0u);
  EXPECT_EQ(reach.driver().calls, 1u);
  EXPECT_EQ(reach.driver().linked_calls, 0u);
  EXPECT_EQ(reach.driver().by_dlsym, 1u);
  EXPECT_EQ(reach.driver().by_proc_address, 2u);

  const SessionReport report = report_on({&b});
  const std::string text = in_one_line(render_text(report, {}));
  EXPECT_THAT(text, HasSubstr("Runtime API: 3 calls (linked); driver API: 1 call (1 function by "
                              "dlsym, 2 functions by cuGetProcAddress)."));
  const auto json = nlohmann::json::parse(render_json(report));
  const auto& layers = json["processes"][0]["coverage"]["layers"];
  EXPECT_EQ(layers["runtime"]["calls_of_linked_functions"], 3);
  EXPECT_EQ(layers["driver"]["functions_by_cuGetProcAddress"], 2);
}

TEST(AnalysisCoverage, NamesEachSourceOfDeviceTimes) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  b.device_time(b.launch(10, 20, kernel), 30, 40);
  b.device_time(b.launch(50, 60, kernel), 70, 80);
  const SessionReport one = report_on({&b});
  EXPECT_THAT(render_text(one, {}), Not(HasSubstr("Device times:")));
  b.device_time(b.launch(90, 100, kernel), 110, 120, {}, 0, recording::TimeSource::kCupti);
  const SessionReport two = report_on({&b});
  const auto json = nlohmann::json::parse(render_json(two))["processes"][0]["coverage"];
  EXPECT_EQ(json["device_times_by_source"].size(), 2u);
  EXPECT_THAT(in_one_line(render_text(two, {})),
              HasSubstr("Device times: 2 by cuda events, 1 by "));
}

TEST(AnalysisCoverage, OldRecordingsClaimNothing) {
  RecordingBuilder b;
  use_both_layers(b);
  const SessionReport report = report_on({&b});
  EXPECT_FALSE(report.processes[0].reach.known);
  EXPECT_THAT(in_one_line(render_text(report, {})),
              HasSubstr("Runtime API: 3 calls; driver API: 1 call."));
  const auto json = nlohmann::json::parse(render_json(report))["processes"][0]["coverage"];
  EXPECT_TRUE(json["layers"]["runtime"]["calls_of_linked_functions"].is_null());
  EXPECT_TRUE(json["driver_loaded"].is_null());
}

TEST(AnalysisCoverage, TheFirstLineSaysThatTheDriverWasLoadedForNothing) {
  RecordingBuilder silent(77), helper(78);
  silent.command({"./app", "-x"});
  silent.reach(true, {});
  helper.reach(false, {});
  const std::string text = render_text(report_on({&helper, &silent}), {.width = 200});
  EXPECT_THAT(text, StartsWith("No CUDA call was intercepted, although libcuda.so.1 was loaded by "
                               "pid 77 (./app -x).\n"));
  EXPECT_THAT(
      render_text(report_on({&helper}), {}),
      StartsWith("No CUDA call was intercepted in any process, or none in a window: there is"));
  // Where others did call CUDA it is a remark.
  RecordingBuilder works;
  use_both_layers(works);
  works.reach(true, {});
  EXPECT_THAT(
      render_text(report_on({&helper, &works, &silent}), {}),
      HasSubstr("2 more processes made no CUDA call (1 of them with libcuda.so.1 loaded)."));
}

TEST(AnalysisCoverage, ManySilentProcessesAreCounted) {
  std::vector<RecordingBuilder> all;
  for (std::uint32_t pid = 1; pid <= 5; ++pid) {
    all.emplace_back(pid).reach(true, {});
  }
  const std::string text =
      in_one_line(render_text(report_on({&all[0], &all[1], &all[2], &all[3], &all[4]}), {}));
  EXPECT_THAT(text, HasSubstr("pid 3 (python train.py) and 2 more."));
}

class EmbeddedRuntimeFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpubusy-coverage-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string file(const std::string& name, const std::string& bytes) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  EmbeddedRuntime find(const std::string& path) {
    why_.clear();
    return find_embedded_runtime(path, "", why_);
  }
  std::string directory_, why_;
};

TEST_F(EmbeddedRuntimeFiles, WhatCannotBeReadIsSaid) {
  EXPECT_EQ(find(directory_ + "/none"), EmbeddedRuntime::kUnreadable);
  EXPECT_EQ(why_, "No such file or directory");
  EXPECT_EQ(find(directory_), EmbeddedRuntime::kUnreadable);
  EXPECT_EQ(find(file("text", "/cudart.shm.%x dlsym")), EmbeddedRuntime::kUnreadable);
  EXPECT_EQ(why_, "not a 64-bit ELF file");
  EXPECT_EQ(find(file("libcudart.so.13", "anything")), EmbeddedRuntime::kNo);
}

// Any bytes are taken: our own program's, cut and changed everywhere in its headers.
TEST_F(EmbeddedRuntimeFiles, DamagedFilesAreHarmless) {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string bytes(std::size_t{64} << 10, '\0');
  self.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  for (std::size_t size = 0; size < 200; size += 7) find(file("cut", bytes.substr(0, size)));
  for (std::size_t at = 16; at < 64; ++at) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string changed = bytes;
      changed[at] = value;
      find(file("changed", changed));
    }
  }
}

}  // namespace
}  // namespace gpubusy::analysis
