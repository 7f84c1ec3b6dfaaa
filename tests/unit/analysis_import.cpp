// SPDX-License-Identifier: Apache-2.0
//
// Traces of torch.profiler as recordings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/timeline.hpp"
#include "analysis/trace_import/kineto.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

// Two steps: a runtime launch with the driver's below it, a copy, an event, a graph of two nodes.
constexpr const char* kTrace = R"json({"schemaVersion": 1,
 "deviceProperties": [{"id": 0, "name": "GPU A", "totalGlobalMem": 1}, {"id": 1, "name": "GPU B"}],
 "distributedInfo": {"rank": 3, "world_size": 4},
 "traceEvents": [
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#7","pid":99,"tid":99,"ts":1683564902136000.000,"dur":990},
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#8","pid":99,"tid":99,"ts":1683564902137000.000,"dur":1000},
 {"ph":"X","cat":"user_annotation","name":"## forward ##","pid":99,"tid":99,"ts":1683564902136010,"dur":500},
 {"ph":"X","cat":"python_function","name":"train.py(5): main","pid":99,"tid":99,"ts":1683564902136000,"dur":3000},
 {"ph":"X","cat":"python_function","name":"torch/nn/modules/linear.py(120): forward","pid":99,"tid":99,"ts":1683564902136040,"dur":100},
 {"ph":"X","cat":"python_function","name":"<built-in function linear>","pid":99,"tid":99,"ts":1683564902136045,"dur":50},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":99,"tid":99,"ts":1683564902136050,"dur":10,"args":{"correlation":5}},
 {"ph":"X","cat":"cuda_driver","name":"cuLaunchKernel","pid":99,"tid":99,"ts":1683564902136052,"dur":5,"args":{"correlation":5}},
 {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1683564902136065,"dur":300.5,"args":{"device":0,"stream":7,"correlation":5,"grid":[4,2,1],"block":[128,1,1],"registers per thread":40}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaMemcpyAsync","pid":99,"tid":99,"ts":1683564902136200,"dur":50,"args":{"correlation":6}},
 {"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pageable -> Device)","pid":0,"tid":7,"ts":1683564902136500,"dur":20,"args":{"device":0,"stream":7,"correlation":6,"bytes":4096}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaEventRecordWithFlags","pid":99,"tid":99,"ts":1683564902136300,"dur":5,"args":{"correlation":7}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaGraphLaunch","pid":99,"tid":99,"ts":1683564902137100,"dur":5,"args":{"correlation":8}},
 {"ph":"X","cat":"kernel","name":"node","pid":0,"tid":7,"ts":1683564902137200,"dur":10,"args":{"device":0,"stream":7,"correlation":8,"graph node id":1}},
 {"ph":"X","cat":"gpu_memset","name":"Memset (Device)","pid":0,"tid":7,"ts":1683564902137220,"dur":10,"args":{"device":0,"stream":7,"correlation":8,"bytes":64,"graph node id":2}},
 {"ph":"X","cat":"kernel","name":"nobody's","pid":0,"tid":7,"ts":1683564902137300,"dur":10,"args":{"device":0,"stream":7,"correlation":99}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaDeviceSynchronize","pid":99,"tid":99,"ts":1683564902137400,"dur":100,"args":{"correlation":10}},
 {"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":99,"tid":99,"ts":1683564902136000}],
 "traceName": "x"})json";

class Import : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "importXXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string folder_;
};

TEST_F(Import, CallsWorkAndSteps) {
  const auto r = import_trace(write("a.json", kTrace));
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->rank, 3);
  EXPECT_EQ(r->world_size, 4);
  EXPECT_EQ(r->pid, 99u);
  EXPECT_EQ(r->devices.at(1).name, "GPU B");
  ASSERT_EQ(r->calls.size(), 5u);  // the driver's launch is part of the runtime's
  EXPECT_EQ(r->apis[r->calls[0].api].name, "cudaLaunchKernel");
  EXPECT_EQ(r->calls[0].category, Category::kLaunch);
  EXPECT_EQ(r->calls[0].launch.grid[0], 4u);
  EXPECT_EQ(r->calls[0].launch.block[0], 128u);
  EXPECT_EQ(r->calls[1].copy.bytes, 4096u);
  EXPECT_EQ(r->calls[1].copy.direction, CopyDirection::kHostToDevice);
  EXPECT_EQ(r->calls[1].copy.source_kind, MemoryKind::kPageable);
  EXPECT_EQ(r->calls[1].copy.asynchronous, 1);
  EXPECT_EQ(r->calls[2].category, Category::kEvent);
  EXPECT_EQ(r->calls[3].category, Category::kGraphLaunch);
  EXPECT_EQ(r->calls[4].category, Category::kSync);
  EXPECT_EQ(r->orphan_activities, 1u);
  const Timeline timeline = build_timeline(*r);
  ASSERT_EQ(timeline.ops.size(), 4u);
  EXPECT_EQ(timeline.ops[0].end_ns - timeline.ops[0].start_ns, 300'500u);
  EXPECT_EQ(r->kernels.at(kernel_of(*r, timeline.ops[0])).name, "gemm");
  ASSERT_EQ(r->steps.size(), 2u);
  EXPECT_EQ(r->steps[0].step, 7u);
  EXPECT_EQ(r->steps[1].time_ns - r->steps[0].time_ns, 1'000'000u);
  EXPECT_EQ(r->steps[0].time_ns - r->windows.at(0).begin_ns, 1'000'000u);  // until the next begins
  EXPECT_EQ(r->ranges.size(), 1u);

  SourceLines lines(*r);
  const SourceLine& launch = lines.of_stack(r->calls[0].python_stack);
  EXPECT_EQ(launch.file, "train.py");  // linear.py is a library's
  EXPECT_EQ(launch.function, "main");
  EXPECT_EQ(lines.frames(r->calls[0].python_stack, 9).size(), 2u);
  EXPECT_EQ(lines.frames(r->calls[1].python_stack, 9).size(), 1u);
}

TEST_F(Import, ItsVerdict) {
  const auto session = load_session(write("a.json", kTrace));
  ASSERT_TRUE(session) << session.error().message;
  const SessionReport report = analyse(*session);
  ASSERT_EQ(report.processes.size(), 1u);
  const ProcessReport& p = report.processes[0];
  EXPECT_EQ(p.device_name, "GPU A");
  EXPECT_EQ(p.steps.size(), 2u);
  EXPECT_EQ(p.busy_ns, 340'500u);
  EXPECT_THAT(p.notices, Contains(HasSubstr("1 pieces of device work have no call")));
}

// The device was at work when the trace began: it is busy until the first kernel of the trace.
TEST_F(Import, WorkFromBeforeTheTrace) {
  const auto session = load_session(write("a.json", R"json({"traceEvents": [
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":9,"tid":9,"ts":1000,"dur":1000},
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#2","pid":9,"tid":9,"ts":2000,"dur":1000},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":1100,"dur":10,"args":{"correlation":1}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":2100,"dur":10,"args":{"correlation":2}},
 {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":9000,"dur":10,"args":{"device":0,"stream":7,"correlation":1}},
 {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":9010,"dur":10,"args":{"device":0,"stream":7,"correlation":2}}]})json"));
  ASSERT_TRUE(session) << session.error().message;
  const ProcessReport p = analyse(*session).processes.at(0);
  EXPECT_EQ(p.busy_ns, p.wall_ns);
  EXPECT_THAT(p.warnings, Contains(HasSubstr("runs far ahead")));
}

// Our own traces are of the same dialect: nothing that counts gets lost on the way.
TEST_F(Import, OurOwnTraceGivesTheSameVerdict) {
  for (const bool starved : {true, false}) {
    const std::string name = starved ? "/s" : "/l";
    std::filesystem::create_directory(folder_ + name);
    (starved ? testing::starved_loop() : testing::launch_bound_loop(10, 100, 20, 5))
        .write(folder_ + name + "/a.gpubusy");
    const auto session = load_session(folder_ + name);
    ASSERT_TRUE(session);
    const ExportResult exported = export_traces(*session, {});
    ASSERT_EQ(exported.written.size(), 1u);
    const auto imported = load_session(exported.written[0].path);
    ASSERT_TRUE(imported) << imported.error().message;
    const SessionReport before = analyse(*session), after = analyse(*imported);
    ASSERT_EQ(after.processes.size(), 1u);
    const ProcessReport &a = before.processes[0], &b = after.processes[0];
    EXPECT_EQ(a.steps.size(), b.steps.size());
    EXPECT_NEAR(static_cast<double>(b.wall_ns), static_cast<double>(a.wall_ns), 2e3);
    EXPECT_NEAR(b.share(b.busy_ns), a.share(a.busy_ns), 0.01);
    ASSERT_EQ(a.findings.size(), b.findings.size());
    for (std::size_t i = 0; i < a.findings.size(); ++i) {
      EXPECT_EQ(a.findings[i].id, b.findings[i].id);
      EXPECT_NEAR(a.findings[i].share, b.findings[i].share, 0.01);
    }
    EXPECT_EQ(a.summary.launches, b.summary.launches);
  }
}

TEST_F(Import, WhatIsNoTraceIsNamed) {
  for (const auto& [text, why] :
       {std::pair{"{}", "no traceEvents"}, std::pair{"", "no JSON"},
        std::pair{"{\"traceEvents\": "
                  "[{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"a\",\"ts\":1,\"dur\":1}]}",
                  "without CUDA calls"}}) {
    const auto r = import_trace(write("b.json", text));
    ASSERT_FALSE(r) << text;
    EXPECT_THAT(r.error().message, HasSubstr(why));
    EXPECT_THAT(r.error().message, HasSubstr("b.json"));
  }
  EXPECT_FALSE(import_trace(folder_ + "/none.json"));
}

// Any bytes give an error or a recording that can be judged.
TEST_F(Import, DamagedTraces) {
  const std::string whole = kTrace;
  std::mt19937 random(7);
  int imported = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = whole;
    for (unsigned k = 0; k <= random() % 3; ++k) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>("0123456789-\"{}[],:."[random() % 19]); break;
        case 1: text.erase(at, random() % 20); break;
        case 2: text.insert(at, "18446744073709551615"); break;
        case 3: text[at] = static_cast<char>(random()); break;
      }
    }
    if (i % 10 == 0) text.resize(random() % text.size());
    const auto session = load_session(write("d.json", text));
    if (!session) continue;
    ++imported;
    const SessionReport report = analyse(*session);
    EXPECT_LE(report.processes.size(), 1u);
    EXPECT_FALSE(render_text(report, {}).empty());
    EXPECT_FALSE(render_json(report).empty());
  }
  EXPECT_GT(imported, 300);
}

TEST(ApiCategories, ComeFromTheHookTable) {
  EXPECT_EQ(category_of_api("cudaLaunchKernel"), Category::kLaunch);
  EXPECT_EQ(category_of_api("cuLaunchKernel"), Category::kLaunch);
  EXPECT_EQ(category_of_api("cudaMemcpyAsync"), Category::kCopy);
  EXPECT_EQ(category_of_api("cuMemcpyHtoDAsync"), Category::kCopy);
  EXPECT_EQ(category_of_api("cuMemcpyHtoDAsync_v2"), Category::kCopy);
  EXPECT_EQ(category_of_api("cudaStreamSynchronize"), Category::kSync);
  EXPECT_EQ(category_of_api("cudaHostAlloc"), Category::kHostAlloc);
  EXPECT_EQ(category_of_api("cudaFree"), Category::kDeviceFree);
  EXPECT_EQ(category_of_api("cudaNoSuchCall"), Category::kOther);
}

}  // namespace
}  // namespace gpubusy::analysis
