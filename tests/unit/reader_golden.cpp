// SPDX-License-Identifier: Apache-2.0
//
// Old recordings stay readable. When the format grows, add a file; never rewrite one.
#include <gtest/gtest.h>

#include "recording/recording.hpp"

#ifndef GPUBUSY_TEST_DATA
#error "GPUBUSY_TEST_DATA: the tests directory"
#endif

namespace gpubusy::recording {
namespace {

TEST(ReaderGolden, Format1) {
  const auto read = read_file(GPUBUSY_TEST_DATA "/golden/format-1.gpubusy");
  ASSERT_TRUE(read) << read.error().message;
  const Recording& r = *read;
  EXPECT_EQ(r.version, 1u);
  EXPECT_EQ(r.pid, 4242u);
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world_size, 8);
  EXPECT_EQ(r.state, FileState::kFinished);
  EXPECT_EQ(r.lost_records, 5u);
  EXPECT_EQ(r.host, "node1");
  EXPECT_EQ(r.library_version, "0.1.0");
  EXPECT_EQ(r.command_line, (std::vector<std::string>{"python", "-u", "train.py"}));
  EXPECT_EQ(r.settings, std::vector<std::string>{"GPUBUSY_ACTIVE=2"});
  ASSERT_EQ(r.notices.size(), 1u);
  EXPECT_EQ(r.notices[0].text, "Python 3.99 is not known");
  EXPECT_EQ(r.devices.at(0).name, "NVIDIA H200");
  EXPECT_EQ(r.devices.at(0).properties.total_memory, 80ull << 30);
  EXPECT_EQ(r.kernels.at(1).name, "_Z6kernelPfi");
  EXPECT_EQ(r.graphs.at(1).kernels, 3u);
  EXPECT_EQ(r.streams.at(7).device, 0);
  EXPECT_EQ(r.threads.at(4242).name, "python");

  ASSERT_EQ(r.calls.size(), 14u);
  EXPECT_EQ(r.device_times.size(), 6u);
  EXPECT_EQ(r.apis.at(r.calls[0].api).name, "cudaMemcpyAsync");
  EXPECT_EQ(r.calls[0].copy.bytes, 4096u);
  EXPECT_EQ(r.calls[1].category, Category::kLaunch);
  EXPECT_EQ(r.calls[1].launch.block[0], 256u);
  EXPECT_EQ(r.calls[2].thread_id, 4243u);
  EXPECT_EQ(r.calls[2].graph_launch.graph, 1u);
  EXPECT_EQ(r.calls[3].memset.bytes, 64u);
  EXPECT_EQ(r.calls[4].alloc.bytes, 1u << 20);
  EXPECT_EQ(r.calls[6].category, Category::kSync);
  const StackNode& node = r.stack_nodes.at(r.calls[0].python_stack);
  EXPECT_EQ(r.codes.at(static_cast<std::uint32_t>(node.location >> 32)).first_line, 58);

  ASSERT_EQ(r.windows.size(), 1u);
  EXPECT_TRUE(r.windows[0].complete);
  EXPECT_EQ(r.windows[0].first_step, 4u);
  ASSERT_EQ(r.steps.size(), 2u);
  EXPECT_EQ(r.steps[1].step, 5u);
  EXPECT_EQ(r.torn_blocks + r.unknown_records + r.bad_records + r.bad_bytes, 0u);
}

}  // namespace
}  // namespace gpubusy::recording
