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

TEST(ReaderGaps, HoldersOfTheGil) {
  RecordingBuilder b(77);
  b.gil_holder(kStart + 30, 77, 81);
  b.gil_holder(kStart + 20, 78, 80, 5, "a name of sixteen", kGapTorn);
  const Recording r = b.read();
  EXPECT_EQ(r.bad_records + r.unknown_records, 0u);
  ASSERT_EQ(r.gil_holders.size(), 2u);
  const GilHolder& h = r.gil_holders[0];
  EXPECT_EQ(h.time_ns, kStart + 20);
  EXPECT_EQ(h.waiter, 78u);
  EXPECT_EQ(h.thread_id, 80u);
  EXPECT_EQ(h.python_stack, 5u);
  EXPECT_EQ(h.flags, kGapTorn);
  EXPECT_EQ(h.name, "a name of sixte");
  EXPECT_EQ(r.gil_holders[1].thread_id, 81u);
}

TEST(ReaderGaps, LooksAtWorkers) {
  RecordingBuilder b(77);
  b.worker_look(kStart + 30, kStart + 20, {.pid = 501, .name = "a name of sixteen"});
  b.worker_look(kStart + 20, 0,
                {.pid = 500,
                 .parent_pid = 77,
                 .python_stack = 5,
                 .system_call = 0,
                 .argument = 9,
                 .run_ns = 3,
                 .wait_ns = 4,
                 .process_run_ms = 10,
                 .storage_wait_ms = 20,
                 .major_faults = 6,
                 .state = 'D',
                 .flags = kGapInSystemCall,
                 .worker_flags = kWorkerForked | kWorkerForbidden,
                 .file = GapFile::kFile,
                 .left_out = 2});
  b.worker_look(kStart + 10, kStart + 20, {});  // looked at before it was
  const Recording r = b.read();
  EXPECT_EQ(r.bad_records, 1u);
  ASSERT_EQ(r.worker_looks.size(), 2u);
  const WorkerLook& w = r.worker_looks[0];
  EXPECT_EQ(w.time_ns, kStart + 20);
  EXPECT_EQ(w.since_ns, 0u);
  EXPECT_EQ(w.pid, 500u);
  EXPECT_EQ(w.parent_pid, 77u);
  EXPECT_EQ(w.python_stack, 5u);
  EXPECT_EQ(w.argument, 9u);
  EXPECT_EQ(w.run_ns, 3u);
  EXPECT_EQ(w.wait_ns, 4u);
  EXPECT_EQ(w.process_run_ms, 10u);
  EXPECT_EQ(w.storage_wait_ms, 20u);
  EXPECT_EQ(w.major_faults, 6u);
  EXPECT_EQ(w.state, 'D');
  EXPECT_EQ(w.flags, kGapInSystemCall);
  EXPECT_EQ(w.worker_flags, kWorkerForked | kWorkerForbidden);
  EXPECT_EQ(w.file, GapFile::kFile);
  EXPECT_EQ(w.left_out, 2u);
  EXPECT_EQ(w.name, "python");
  EXPECT_EQ(r.worker_looks[1].name, "a name of sixte");
}

}  // namespace
}  // namespace gpubusy::recording
