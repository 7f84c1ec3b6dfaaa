// SPDX-License-Identifier: Apache-2.0
//
// What CUPTI saw, joined with what the hooks saw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/recording_builder.hpp"

namespace gpubusy::recording {
namespace {

using testing::CallOptions;
using testing::RecordingBuilder;
using Options = RecordingBuilder::ActivityOptions;

constexpr std::uint64_t us(std::uint64_t n) { return RecordingBuilder::kStart + n * 1'000; }

const Call& call_of(const Recording& r, const DeviceTime& time) {
  for (const Call& call : r.calls) {
    if (call.correlation == time.correlation) return call;
  }
  ADD_FAILURE() << "no call " << time.correlation;
  return r.calls.front();
}

TEST(ReaderActivities, BelongToTheCallThatTheirCorrelationNames) {
  RecordingBuilder b;
  const std::uint32_t hooked = b.kernel("hooked"), seen = b.kernel("seen");
  // Records come in any order: here the work first, as from another thread's block.
  b.kernel_activity(71, us(20), us(25), seen, {.stream = 13, .context = 2, .device = 1});
  const std::uint32_t first = b.launch(us(1), us(3), hooked);
  const std::uint32_t second =
      b.copy(us(4), us(6), 4096, CopyDirection::kHostToDevice, MemoryKind::kPinned, true);
  b.copy_activity(72, us(30), us(31), 4096, CopyDirection::kHostToDevice, {});
  b.correlation(first, 71, us(1), us(3));
  b.correlation(second, 72, us(4), us(6));
  const Recording r = b.read();
  ASSERT_EQ(r.device_times.size(), 2u);
  EXPECT_EQ(r.device_times[0].correlation, first);
  EXPECT_EQ(r.device_times[0].source, TimeSource::kCupti);
  EXPECT_EQ(r.device_times[0].start_ns, us(20));
  EXPECT_EQ(r.device_times[0].stream, 13u);
  EXPECT_EQ(r.device_times[0].device, 1);
  const Activity& kernel = r.activities[r.device_times[0].activity];
  EXPECT_EQ(kernel.kernel.kernel, seen);
  EXPECT_EQ(kernel.kernel.registers, 40);
  EXPECT_EQ(kernel.context, 2u);
  EXPECT_EQ(r.device_times[1].correlation, second);
  EXPECT_EQ(r.activities[r.device_times[1].activity].copy.bytes, 4096u);
  EXPECT_EQ(r.calls.size(), 2u);
  EXPECT_EQ(r.unhooked_calls, 0u);
  EXPECT_EQ(r.orphan_activities, 0u);
  EXPECT_EQ(r.activity_clock_error_ns, 0u);
}

TEST(ReaderActivities, AllNodesOfAGraphBelongToItsLaunch) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("node");
  const std::uint32_t launch = b.graph_launch(us(1), us(3), b.graph(2, 1, 0));
  b.correlation(launch, 9);
  b.kernel_activity(9, us(10), us(11), kernel, {.graph = 4, .graph_node = 1});
  b.kernel_activity(9, us(11), us(12), kernel, {.graph = 4, .graph_node = 2});
  b.copy_activity(9, us(12), us(13), 64, CopyDirection::kDeviceToDevice,
                  {.graph = 4, .graph_node = 3});
  const Recording r = b.read();
  ASSERT_EQ(r.device_times.size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(r.device_times[i].correlation, launch);
    EXPECT_EQ(r.device_times[i].graph_node, i + 1);
  }
}

// A runtime of its own inside a library: CUPTI reports the outer call, the hook saw the inner one.
TEST(ReaderActivities, ACallInsideTheOneThatCuptiSawIsTheSame) {
  RecordingBuilder b;
  b.use_thread(50);
  b.thread(50, "python");
  const std::uint32_t kernel = b.kernel("gemm");
  const std::uint16_t api = b.api("cudaLaunchKernelExC", Category::kOther);
  CallOptions other;
  other.thread = 51;
  b.launch(us(11), us(12), kernel, other);  // at the same time on another thread
  const std::uint32_t inner = b.launch(us(11), us(13), kernel);
  b.api_activity(300, us(10), us(14), 50, api);
  b.kernel_activity(300, us(20), us(25), kernel, {});
  const Recording r = b.read();
  ASSERT_EQ(r.device_times.size(), 1u);
  EXPECT_EQ(r.device_times[0].correlation, inner);
  EXPECT_EQ(r.unhooked_calls, 0u);
  EXPECT_EQ(r.calls.size(), 2u);
}

TEST(ReaderActivities, ACallThatNoHookSawBecomesOne) {
  RecordingBuilder b;
  b.use_thread(50);
  b.thread(50, "python");
  const std::uint32_t kernel = b.kernel("hidden");
  const std::uint16_t batch = b.api("cudaMemcpyBatchAsync", Category::kOther);
  const std::uint32_t before = b.launch(us(1), us(2), kernel);
  b.correlation(before, 1);
  b.kernel_activity(1, us(3), us(4), kernel, {});
  b.api_activity(2, us(10), us(12), 50, batch);
  b.copy_activity(2, us(13), us(14), 100, CopyDirection::kHostToDevice, {});
  b.copy_activity(2, us(14), us(15), 200, CopyDirection::kHostToDevice, {});
  b.api_activity(3, us(16), us(17), 50, batch);  // it led to no work: not a call of ours
  const Recording r = b.read();
  EXPECT_EQ(r.unhooked_calls, 1u);
  ASSERT_EQ(r.calls.size(), 2u);
  const Call& made = r.calls[1];
  EXPECT_EQ(made.start_ns, us(10));
  EXPECT_EQ(made.end_ns, us(12));
  EXPECT_EQ(made.api, batch);
  EXPECT_EQ(made.thread_id, 50u);
  EXPECT_EQ(made.category, Category::kCopy);
  EXPECT_EQ(made.copy.source_kind, MemoryKind::kPinned);
  EXPECT_TRUE(made.flags & kCallUnhooked);
  EXPECT_NE(made.correlation, before);
  ASSERT_EQ(r.device_times.size(), 3u);
  EXPECT_EQ(&call_of(r, r.device_times[1]), &made);
  EXPECT_EQ(&call_of(r, r.device_times[2]), &made);
}

TEST(ReaderActivities, WorkWithoutAnyCallIsCounted) {
  RecordingBuilder b;
  b.kernel_activity(5, us(3), us(4), b.kernel("k"), {});
  b.dropped(us(5), 7);
  b.overhead(OverheadKind::kLaunchQueueFull, us(6), us(8));
  const Recording r = b.read();
  EXPECT_EQ(r.orphan_activities, 1u);
  EXPECT_EQ(r.device_times.size(), 0u);
  EXPECT_EQ(r.dropped_activities, 7u);
  ASSERT_EQ(r.overheads.size(), 1u);
  EXPECT_EQ(r.overheads[0].kind, OverheadKind::kLaunchQueueFull);
}

TEST(ReaderActivities, ATimeByEventsGivesWayToCuptis) {
  RecordingBuilder b;
  const std::uint32_t kernel = b.kernel("k");
  const std::uint32_t launch = b.launch(us(1), us(2), kernel);  // while CUPTI was switched on
  b.device_time(launch, us(2), us(9));
  b.correlation(launch, 1);
  b.kernel_activity(1, us(4), us(8), kernel, {});
  const Recording r = b.read();
  ASSERT_EQ(r.device_times.size(), 1u);
  EXPECT_EQ(r.device_times[0].source, TimeSource::kCupti);
}

TEST(ReaderActivities, ClocksThatDisagreeAreMeasured) {
  RecordingBuilder b;
  const std::uint32_t launch = b.launch(us(10), us(12), b.kernel("k"));
  b.correlation(launch, 1, us(15), us(16));
  const Recording r = b.read();
  EXPECT_EQ(r.activity_clock_error_ns, 4'000u);
}

TEST(ReaderActivities, BadOnesAreCounted) {
  RecordingBuilder b;
  b.kernel_activity(1, us(9), us(4), b.kernel("k"), {});   // ends before it starts
  b.raw(RecordType::kActivity, 1, std::string(48, '\0'));  // no kind
  b.raw(RecordType::kActivity, 1, "short");
  b.raw(RecordType::kCorrelation, 1, "short");
  b.raw(RecordType::kApiActivity, 1, "short");
  b.raw(RecordType::kOverhead, 1, "short");
  b.raw(RecordType::kDropped, 1, "");
  const Recording r = b.read();
  EXPECT_EQ(r.bad_records, 7u);
  EXPECT_TRUE(r.activities.empty());
}

}  // namespace
}  // namespace gpubusy::recording
