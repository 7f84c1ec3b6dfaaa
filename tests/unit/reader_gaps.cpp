// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/recording_builder.hpp"

namespace gpubusy::recording {
namespace {

using testing::RecordingBuilder;
constexpr std::uint64_t kStart = RecordingBuilder::kStart;

TEST(ReaderGaps, FieldsAndOrder) {
  RecordingBuilder b(77);
  b.gap_sample(kStart + 30, kStart + 20, {.thread = 78, .state = 'R'});
  b.gap_sample(kStart + 20, kStart + 10,
               {.thread = 79,
                .python_stack = 5,
                .native_stack = 6,
                .system_call = 202,
                .argument = 0x7f00,
                .run_ns = 3,
                .wait_ns = 4,
                .state = 'S',
                .flags = kGapInSystemCall | kGapTorn,
                .file = GapFile::kPipe});
  const Recording r = b.read();
  ASSERT_EQ(r.gap_samples.size(), 2u);
  const GapSample& g = r.gap_samples[0];
  EXPECT_EQ(g.time_ns, kStart + 20);
  EXPECT_EQ(g.since_ns, kStart + 10);
  EXPECT_EQ(g.thread_id, 79u);
  EXPECT_EQ(g.python_stack, 5u);
  EXPECT_EQ(g.native_stack, 6u);
  EXPECT_EQ(g.system_call, 202u);
  EXPECT_EQ(g.argument, 0x7f00u);
  EXPECT_EQ(g.run_ns, 3u);
  EXPECT_EQ(g.wait_ns, 4u);
  EXPECT_EQ(g.state, 'S');
  EXPECT_EQ(g.flags, kGapInSystemCall | kGapTorn);
  EXPECT_EQ(g.file, GapFile::kPipe);
  EXPECT_EQ(r.gap_samples[1].thread_id, 78u);
  EXPECT_EQ(r.bad_records + r.unknown_records, 0u);
}

TEST(ReaderGaps, ImpossibleTimesAreDamage) {
  RecordingBuilder b(77);
  b.gap_sample(kStart + 10, kStart + 20, {});
  const Recording r = b.read();
  EXPECT_TRUE(r.gap_samples.empty());
  EXPECT_EQ(r.bad_records, 1u);
}

}  // namespace
}  // namespace gpubusy::recording
