// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "analysis/intervals.hpp"
#include "analysis/json_text.hpp"
#include "analysis/names.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/summary.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::analysis {
namespace {

TEST(AnalysisIntervals, UnionAndWhatItCovers) {
  std::vector<Interval> busy;
  for (const Interval i : {Interval{10, 20}, {15, 18}, {20, 30}, {40, 40}, {50, 60}}) {
    append_union(busy, i);
  }
  EXPECT_EQ(busy, (std::vector<Interval>{{10, 30}, {50, 60}}));
  EXPECT_EQ(covered(busy, 0, 100), 30u);
  EXPECT_EQ(covered(busy, 25, 55), 10u);
  EXPECT_EQ(covered(busy, 30, 50), 0u);
  EXPECT_EQ(uncovered(busy, 0, 55), (std::vector<Interval>{{0, 10}, {30, 50}}));
  EXPECT_EQ(uncovered(busy, 12, 28), (std::vector<Interval>{}));
  EXPECT_EQ(uncovered({}, 3, 9), (std::vector<Interval>{{3, 9}}));
}

TEST(AnalysisIntervals, TwoUnionsAsOne) {
  EXPECT_EQ(united({{0, 10}, {20, 30}}, {{5, 12}, {30, 40}}),
            (std::vector<Interval>{{0, 12}, {20, 40}}));
  EXPECT_EQ(united({}, {{1, 2}}), (std::vector<Interval>{{1, 2}}));
}

TEST(AnalysisNames, SourceFilesByWhatTellsThemApart) {
  EXPECT_EQ(source_name("/home/u/train.py"), "train.py");
  EXPECT_EQ(source_name("/home/u/data/__init__.py"), "data/__init__.py");
  EXPECT_EQ(source_name("data/__main__.py"), "data/__main__.py");
  EXPECT_EQ(source_name("__init__.py"), "__init__.py");
  EXPECT_EQ(source_name("/__init__.py"), "__init__.py");
}

TEST(AnalysisNames, CallsWithoutSuffixes) {
  EXPECT_EQ(api_base_name("cudaLaunchKernel"), "cudaLaunchKernel");
  EXPECT_EQ(api_base_name("cuMemcpyHtoDAsync_v2_ptsz"), "cuMemcpyHtoDAsync");
  EXPECT_EQ(api_base_name("cuMemcpyDtoH_v2_ptds"), "cuMemcpyDtoH");
  EXPECT_EQ(api_base_name("cudaLaunchKernelExC_v11060"), "cudaLaunchKernelExC");
  EXPECT_EQ(api_base_name("cudaGraph_vX"), "cudaGraph_vX");
  EXPECT_EQ(api_base_name("_v2"), "_v2");
}

TEST(AnalysisNames, Demangled) {
  EXPECT_EQ(demangle("_Z6kernelPfi"), "kernel(float*, int)");
  EXPECT_EQ(demangle("triton_poi_fused_0"), "triton_poi_fused_0");
  EXPECT_EQ(demangle("_Zgarbage"), "_Zgarbage");
  EXPECT_EQ(demangle("i"), "i");  // not the type "int"
}

TEST(AnalysisNames, Shortened) {
  EXPECT_EQ(shorten("short", 5, false), "short");
  EXPECT_EQ(shorten("longer", 5, false), "long…");
  EXPECT_EQ(shorten("longer", 5, true), "lo...");
  EXPECT_EQ(shorten("\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", 2, false), "\xe6\x97\xa5…");
}

TEST(AnalysisJson, StrictPieces) {
  EXPECT_EQ(json_string("a\"b\\c\n\x01\x7f\xc3\xa9"), "\"a\\\"b\\\\c\\n\\u0001\\u007f\xc3\xa9\"");
  std::string out;
  append_microseconds(out, 1'234'567);
  out += ' ';
  append_microseconds(out, 5);
  out += ' ';
  append_number(out, 1.0 / 0.0);
  EXPECT_EQ(out, "1234.567 0.005 0");
}

TEST(AnalysisSummary, SpreadOfSets) {
  EXPECT_EQ(spread_of({}).median, 0);
  EXPECT_EQ(spread_of({3, 1, 2}).median, 2);
  const Spread even = spread_of({4, 1, 2, 3});
  EXPECT_EQ(even.minimum, 1);
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.maximum, 4);
}

TEST(AnalysisSourceLines, WhoseFileItIs) {
  for (const char* file :
       {"/home/u/train.py", "train.py", "<stdin>", "<ipython-input-3-abc>",
        "/home/u/lib/python3.x/a.py", "/mnt/python3.11/train.py", "/tmp/ipykernel_33/1234.py"}) {
    EXPECT_TRUE(is_user_file(file)) << file;
  }
  for (const char* file :
       {"", "<string>", "<frozen runpy>", "<eval_with_key>.3", "/usr/lib/python3.11/queue.py",
        "/opt/conda/lib/python3.10/site-packages/torch/optim/sgd.py",
        "/usr/lib/python3/dist-packages/torch/x.py", "/usr/lib64/python3.13t/threading.py"}) {
    EXPECT_FALSE(is_user_file(file)) << file;
  }
}

TEST(AnalysisSourceLines, TheInnermostFrameOfTheUserCounts) {
  testing::RecordingBuilder b;
  const std::uint32_t module = b.frame(0, "/home/u/train.py", "<module>", 70);
  const std::uint32_t main = b.frame(module, "/home/u/train.py", "main", 57);
  const std::uint32_t torch = b.frame(main, "/v/site-packages/torch/_tensor.py", "item", 900);
  const std::uint32_t library = b.frame(0, "/v/site-packages/torch/_dynamo.py", "run", 3);
  const recording::Recording r = b.read();
  SourceLines lines(r);
  EXPECT_EQ(to_text(lines.of_stack(torch)), "train.py:57 (main)");
  EXPECT_EQ(lines.id_of(torch), lines.id_of(main));
  EXPECT_EQ(to_text(lines.of_stack(library)), "_dynamo.py:3 (run)");
  EXPECT_FALSE(lines.of_stack(library).user);
  EXPECT_FALSE(lines.of_stack(0).known());
  EXPECT_FALSE(lines.of_stack(12'345).known());
  const std::vector<SourceLine> frames = lines.frames(torch, 10);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].function, "item");
  EXPECT_EQ(frames[2].function, "<module>");
}

TEST(AnalysisSourceLines, ACycleOfFramesEnds) {
  testing::RecordingBuilder b;
  const std::uint32_t code = b.code("/v/site-packages/a.py", "f", 1, "");
  b.node(2, code, 0);
  b.node(1, code, 0);
  const recording::Recording r = b.read();
  SourceLines lines(r);
  EXPECT_EQ(lines.of_stack(1).function, "f");
}

TEST(AnalysisSourceLines, RegionsInWords) {
  const SourceLine a = {"/x/train.py", "main", 63, true};
  const SourceLine b = {"/x/train.py", "main", 58, true};
  const SourceLine c = {"/x/data.py", "load", 12, true};
  EXPECT_EQ(to_text(Region{a, b}), "train.py:58-63 in main (after line 63, before line 58)");
  EXPECT_EQ(to_text(Region{a, a}), "train.py:63 (main)");
  EXPECT_EQ(to_text(Region{a, c}), "after train.py:63 (main), before data.py:12 (load)");
  EXPECT_EQ(to_text(Region{{}, c}), "before data.py:12 (load)");
  EXPECT_EQ(to_text(Region{a, {}}), "after train.py:63 (main)");
  EXPECT_EQ(to_text(Region{}), "");
}

}  // namespace
}  // namespace gpubusy::analysis
