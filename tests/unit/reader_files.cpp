// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "recording/reader.hpp"
#include "recording/recording.hpp"
#include "tests/support/memory_source.hpp"
#include "tests/support/recording_builder.hpp"

namespace gpubusy::recording {
namespace {

using gpubusy::testing::CallOptions;
using gpubusy::testing::MemorySource;
using gpubusy::testing::RecordingBuilder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReaderFiles : public ::testing::Test {
 protected:
  ReaderFiles() {
    char name[] = "/tmp/gpubusy-reader-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~ReaderFiles() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  std::string directory_;
};

tl::expected<Recording, Error> parse(const std::vector<std::byte>& bytes) {
  return read_source("memory", MemorySource(bytes.data(), bytes.size()));
}

TEST_F(ReaderFiles, SaysWhatIsWrong) {
  put("short", "GPUBUSY\n");
  EXPECT_THAT(read_file(path("short")).error().message,
              AllOf(HasSubstr(path("short")), HasSubstr("has 8 bytes"), HasSubstr("4096")));
  put("text", std::string(5000, 'x'));
  EXPECT_THAT(read_file(path("text")).error().message,
              AllOf(HasSubstr("not a recording"), HasSubstr("78 78 78"), HasSubstr("GPUBUSY")));
  EXPECT_THAT(read_file(path("none")).error().message,
              AllOf(HasSubstr(path("none")), HasSubstr("No such file")));
  EXPECT_THAT(read_file(directory_).error().message, HasSubstr("not a regular file"));
  RecordingBuilder newer;
  newer.version(2);
  EXPECT_THAT(parse(newer.bytes()).error().message,
              AllOf(HasSubstr("version 2"), HasSubstr("1 to 1")));
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(read_file(path("fifo")).error().message, HasSubstr("not a regular file"));
}

TEST_F(ReaderFiles, RejectsImpossibleSizesInTheHeader) {
  std::vector<std::byte> bytes = RecordingBuilder().bytes();
  const std::uint32_t zero = 0;
  std::memcpy(bytes.data() + offsetof(FileHeader, block_size), &zero, 4);
  EXPECT_THAT(parse(bytes).error().message, HasSubstr("blocks of 0 bytes"));
  bytes = RecordingBuilder().bytes();
  std::memcpy(bytes.data() + offsetof(FileHeader, header_size), &zero, 4);
  EXPECT_THAT(parse(bytes).error().message, HasSubstr("header of 0 bytes"));
}

TEST_F(ReaderFiles, SessionIsAllRecordingsOfADirectory) {
  EXPECT_THAT(read_session(path("nowhere")).error().message, HasSubstr("does not exist"));
  EXPECT_THAT(read_session(directory_).error().message, HasSubstr("no recording here"));
  RecordingBuilder(11).write(path("b.gpubusy"));
  RecordingBuilder(12).write(path("a.gpubusy"));
  put("c.gpubusy", "damaged");
  put("notes.txt", "not ours");
  const auto session = read_session(directory_);
  ASSERT_TRUE(session) << session.error().message;
  ASSERT_EQ(session->processes.size(), 2u);
  EXPECT_EQ(session->processes[0].pid, 12u);  // equal start times: by name
  ASSERT_EQ(session->skipped.size(), 1u);
  EXPECT_THAT(session->skipped[0].message, HasSubstr("c.gpubusy"));
  const auto single = read_session(path("b.gpubusy"));
  ASSERT_TRUE(single);
  EXPECT_EQ(single->processes.at(0).pid, 11u);
  EXPECT_FALSE(read_session(path("c.gpubusy")));
}

TEST_F(ReaderFiles, ReadsTheHeader) {
  RecordingBuilder b(77);
  b.rank(2, 4, 1).state(FileState::kOpen).lost(9).host("h\xff").command({"a", "", "b c", ""});
  b.step_edge(RecordingBuilder::kStart + 50, 0);
  const Recording r = b.read();
  EXPECT_EQ(r.pid, 77u);
  EXPECT_EQ(r.rank, 2);
  EXPECT_EQ(r.world_size, 4);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.state, FileState::kOpen);
  EXPECT_EQ(r.lost_records, 9u);
  EXPECT_EQ(r.steps_seen, 1u);
  EXPECT_EQ(r.end_ns, RecordingBuilder::kStart + 50);  // no orderly end: the last record's time
  EXPECT_EQ(r.host, "h\xef\xbf\xbd");
  EXPECT_THAT(r.command_line, ElementsAre("a", "", "b c"));
  EXPECT_EQ(r.executable, "/usr/bin/python3");
}

TEST_F(ReaderFiles, ReadsEveryRecord) {
  RecordingBuilder b;
  CallOptions o;
  o.python_stack = b.frame(0, "/x/train.py", "main", 58);
  o.stream = 13;
  o.flags = kCallTimed;
  const std::uint32_t kernel = b.kernel("_Z1kv");
  const std::uint32_t launch = b.launch(100, 110, kernel, o);
  b.device_time(launch, 120, 150, o, 7, TimeSource::kCupti, 3);
  b.copy(200, 210, 4096, CopyDirection::kDeviceToHost, MemoryKind::kPinned, true, o);
  b.alloc(220, 230, 512);
  const std::uint32_t graph = b.graph(1, 2, 3);
  b.graph_launch(240, 250, graph);
  b.stream(13, 1);
  b.device(1, "GPU");
  b.thread(4242, "py");
  b.notice(5, NoticeKind::kHooks, "text");
  b.setting("GPUBUSY_WAIT=1");
  b.module("", 0x1000, 0x2000);
  b.module("/lib/libx.so", 0x7000, 0x9000, "\x01\xab");
  b.reach(false, {0, kReachDlsym});
  b.reach(true, {kReachProcAddress, 0, kReachDlvsym});
  b.step_edge(300, 7, StepSource::kKernel);
  b.window(WindowEvent::kBegin, 90, 0, 7, 2);
  b.window(WindowEvent::kCut, 310, 0, 7, 1);
  b.lost_record(305, 4);
  const Recording r = b.read();
  EXPECT_EQ(r.torn_blocks + r.bad_records + r.bad_bytes + r.unknown_records, 0u);
  ASSERT_EQ(r.calls.size(), 4u);
  const Call& call = r.calls[0];
  EXPECT_EQ(call.category, Category::kLaunch);
  EXPECT_EQ(call.correlation, launch);
  EXPECT_EQ(call.start_ns, 100u);
  EXPECT_EQ(call.end_ns, 110u);
  EXPECT_EQ(call.thread_id, 4242u);
  EXPECT_EQ(call.stream, 13u);
  EXPECT_EQ(call.flags, kCallTimed);
  EXPECT_EQ(call.launch.kernel, kernel);
  EXPECT_EQ(call.launch.grid[0], 108u);
  EXPECT_EQ(r.calls[1].copy.bytes, 4096u);
  EXPECT_EQ(r.calls[1].copy.destination_kind, MemoryKind::kPinned);
  EXPECT_EQ(r.calls[2].alloc.bytes, 512u);
  EXPECT_EQ(r.calls[3].graph_launch.graph, graph);
  EXPECT_EQ(r.graphs.at(graph).copies, 2u);
  EXPECT_EQ(r.kernels.at(kernel).name, "_Z1kv");
  ASSERT_EQ(r.device_times.size(), 1u);
  EXPECT_EQ(r.device_times[0].graph_node, 3u);
  EXPECT_EQ(r.device_times[0].source, TimeSource::kCupti);
  EXPECT_EQ(r.codes.at(r.stack_nodes.at(o.python_stack).location >> 32).file, "/x/train.py");
  EXPECT_EQ(r.streams.at(13).device, 1);
  EXPECT_EQ(r.devices.at(1).properties.sm_count, 132u);
  EXPECT_EQ(r.threads.at(4242).name, "py");
  EXPECT_EQ(r.notices.at(0).kind, NoticeKind::kHooks);
  EXPECT_THAT(r.settings, ElementsAre("GPUBUSY_WAIT=1"));
  ASSERT_EQ(r.steps.size(), 1u);
  EXPECT_EQ(r.steps[0].step, 7u);
  EXPECT_EQ(r.steps[0].source, StepSource::kKernel);
  ASSERT_EQ(r.windows.size(), 1u);
  EXPECT_EQ(r.windows[0].planned_steps, 2u);
  EXPECT_EQ(r.windows[0].completed_steps, 1u);
  EXPECT_FALSE(r.windows[0].complete);
  EXPECT_EQ(r.lost_records, 4u);
  ASSERT_EQ(r.modules.size(), 2u);
  EXPECT_EQ(r.modules[0].path, "");
  EXPECT_EQ(r.modules[1].path, "/lib/libx.so");
  EXPECT_EQ(r.modules[1].build_id, "01ab");
  EXPECT_EQ(r.modules[1].base, 0x7000u);
  EXPECT_EQ(r.modules[1].end, 0x9000u);
  EXPECT_FALSE(r.modules[1].cut);
  // Later states add to earlier ones.
  EXPECT_TRUE(r.has_reach && r.driver_loaded);
  EXPECT_THAT(r.reach, ElementsAre(kReachProcAddress, kReachDlsym, kReachDlvsym));
}

TEST_F(ReaderFiles, DefinitionsMayComeAfterTheirUse) {
  // Thread 1's block comes first; the function is defined in the block of thread 2.
  RecordingBuilder b;
  b.use_thread(1);
  b.step_edge(5, 0);
  b.use_thread(2);
  const std::uint16_t api = b.api("cudaFree", Category::kDeviceFree);
  const AllocPayload payload = {16, 0};
  CallOptions o;
  o.thread = 1;
  b.call(10, 20, api, &payload, sizeof payload, o);
  const Recording r = b.read();
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].category, Category::kDeviceFree);
  EXPECT_EQ(r.calls[0].alloc.address, 16u);
}

TEST_F(ReaderFiles, AnUnfinishedWindowEndsWithTheLastRecord) {
  RecordingBuilder b;
  b.window(WindowEvent::kBegin, 100, 3, 10, 5);
  b.step_edge(200, 10);
  b.step_edge(300, 11);
  b.launch(310, 320, b.kernel("k"));
  const Recording r = b.read();
  ASSERT_EQ(r.windows.size(), 1u);
  EXPECT_EQ(r.windows[0].end_ns, 320u);
  EXPECT_EQ(r.windows[0].completed_steps, 2u);
  EXPECT_FALSE(r.windows[0].complete);
}

TEST_F(ReaderFiles, CountsWhatItCannotRead) {
  RecordingBuilder b;
  b.raw(static_cast<RecordType>(200), 1, "a type of the future");
  b.raw(RecordType::kCall, 1, "too short");
  b.raw(RecordType::kPadding, 0, "");
  const AllocPayload payload = {};
  b.call(10, 20, b.api("cudaMemcpy", Category::kCopy), &payload, sizeof payload);  // too short
  b.call(30, 40, 999, &payload, sizeof payload);                                   // no such api
  b.device_time(1, 50, 45);  // ends before it starts
  const Recording r = b.read();
  EXPECT_EQ(r.unknown_records, 1u);
  EXPECT_EQ(r.bad_records, 4u);
  EXPECT_EQ(r.calls.size(), 2u);  // the calls without payload stay, as "other"
  EXPECT_EQ(r.calls[0].category, Category::kOther);
  EXPECT_EQ(r.torn_blocks, 0u);
}

TEST_F(ReaderFiles, ATornBlockEndsThereAndIsCounted) {
  RecordingBuilder b;
  b.step_edge(10, 0);
  b.step_edge(20, 1);
  b.step_edge(30, 2);
  std::vector<std::byte> bytes = b.bytes();
  std::vector<std::byte> cut = bytes;
  cut.resize(cut.size() - 8);
  Recording r = parse(cut).value();
  EXPECT_EQ(r.steps.size(), 2u);
  EXPECT_EQ(r.torn_blocks, 1u);
  EXPECT_EQ(r.bad_bytes, 8u + 16u);  // 8 are not there, 16 make no record

  std::vector<std::byte> zero = bytes;  // as a page that never reached the disk
  std::memset(zero.data() + kHeaderSize + sizeof(BlockHeader) + sizeof(StepEdgeRecord), 0,
              sizeof(StepEdgeRecord));
  r = parse(zero).value();
  EXPECT_EQ(r.steps.size(), 1u);
  EXPECT_EQ(r.torn_blocks, 1u);
  EXPECT_EQ(r.bad_bytes, 2 * sizeof(StepEdgeRecord));

  std::vector<std::byte> large = bytes;
  const std::uint32_t committed = 0xffffffff;
  std::memcpy(large.data() + kHeaderSize + offsetof(BlockHeader, committed), &committed, 4);
  r = parse(large).value();
  EXPECT_EQ(r.steps.size(), 3u);
  EXPECT_EQ(r.torn_blocks, 1u);
}

TEST_F(ReaderFiles, AZeroedBlockIsSkippedAndTheNextIsRead) {
  RecordingBuilder b(1, 512);
  for (std::uint32_t i = 0; i < 60; ++i) b.step_edge(10 + i, i);
  std::vector<std::byte> bytes = b.bytes();
  const std::size_t whole = parse(bytes).value().steps.size();
  std::memset(bytes.data() + kHeaderSize + 512, 0, 512);
  const Recording r = parse(bytes).value();
  EXPECT_EQ(whole, 60u);
  EXPECT_EQ(r.steps.size(), 60u - (512 - 64) / sizeof(StepEdgeRecord));
  EXPECT_EQ(r.torn_blocks, 1u);
}

TEST_F(ReaderFiles, BlocksThatAFinishedFileHasLostAreCounted) {
  RecordingBuilder b(1, 512);
  for (std::uint32_t i = 0; i < 60; ++i) b.step_edge(10 + i, i);
  std::vector<std::byte> bytes = b.bytes();
  const auto set = [&](std::size_t offset, auto value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  };
  const std::uint64_t blocks = (bytes.size() - kHeaderSize + 511) / 512;
  set(offsetof(FileHeader, blocks), blocks);
  set(offsetof(FileHeader, state), static_cast<std::uint32_t>(FileState::kFinished));
  bytes.resize(kHeaderSize + (blocks - 2) * 512);
  EXPECT_EQ(parse(bytes).value().torn_blocks, 2u);
  // One that still runs, or died, may not have begun them.
  set(offsetof(FileHeader, state), static_cast<std::uint32_t>(FileState::kOpen));
  EXPECT_EQ(parse(bytes).value().torn_blocks, 0u);
}

TEST_F(ReaderFiles, ReservedBlocksBehindTheLastAreNotTorn) {
  RecordingBuilder b;
  b.step_edge(10, 0);
  std::vector<std::byte> bytes = b.bytes();
  bytes.resize(kHeaderSize + 3 * kBlockSize);
  const Recording r = parse(bytes).value();
  EXPECT_EQ(r.steps.size(), 1u);
  EXPECT_EQ(r.torn_blocks, 0u);
}

TEST_F(ReaderFiles, EveryCutOfAFileIsReadable) {
  RecordingBuilder b(1, 1024);
  const std::uint32_t kernel = b.kernel("k");
  for (std::uint32_t i = 0; i < 40; ++i) b.launch(10 + i, 11 + i, kernel);
  const std::vector<std::byte> bytes = b.bytes();
  std::size_t last = 0;
  for (std::size_t size = kHeaderSize; size <= bytes.size(); ++size) {
    const auto r = read_source("cut", MemorySource(bytes.data(), size));
    ASSERT_TRUE(r) << size;
    ASSERT_GE(r->calls.size(), last) << size;
    last = r->calls.size();
  }
  EXPECT_EQ(last, 40u);
}

}  // namespace
}  // namespace gpubusy::recording
