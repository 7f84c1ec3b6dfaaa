// SPDX-License-Identifier: Apache-2.0
//
// The writer against the reader: what is committed is read, whatever becomes of the process.
#include "recording/writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::recording {
namespace {

namespace fs = std::filesystem;

class WriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "gpubusy-writer-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  int create(RecordingFile& file, std::uint64_t max_bytes = 1u << 30) {
    return file.create({directory_.c_str(), "host", "test", 1000, 2000, max_bytes, 3, 8, 1});
  }

  // A notice whose time is its number.
  static bool write_event(RecordingFile& file, ThreadWriter& writer, std::uint32_t thread,
                          std::uint64_t number) {
    constexpr std::size_t kSize = sizeof(StepEdgeRecord);
    auto* r = static_cast<StepEdgeRecord*>(writer.reserve(file, kSize, thread, number));
    if (r == nullptr) return false;
    *r = {};
    r->header = {RecordType::kStepEdge, kSize, static_cast<std::uint32_t>(number)};
    r->time_ns = number;
    r->thread_id = thread;
    writer.commit(kSize);
    return true;
  }

  // The descriptor that the writer keeps; -1: none.
  static int descriptor_of(const RecordingFile& file) {
    const fs::path wanted = fs::canonical(file.path());
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (fs::read_symlink(entry.path(), gone) == wanted) {
        return std::stoi(entry.path().filename().string());
      }
    }
    return -1;
  }

  std::string directory_;
};

TEST_F(WriterTest, HeaderSaysWhoWroteIt) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  file.finish(FileState::kFinished, 5000);
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value()) << r.error().message;
  EXPECT_EQ(r->pid, static_cast<std::uint32_t>(getpid()));
  EXPECT_EQ(r->rank, 3);
  EXPECT_EQ(r->world_size, 8);
  EXPECT_EQ(r->local_rank, 1);
  EXPECT_EQ(r->start_ns, 1000u);
  EXPECT_EQ(r->end_ns, 5000u);
  EXPECT_EQ(r->state, FileState::kFinished);
  EXPECT_EQ(r->host, "host");
  EXPECT_NE(r->executable.find("gpubusy_runtime_tests"), std::string::npos);
  EXPECT_FALSE(r->command_line.empty());
}

TEST_F(WriterTest, NamesAreNeverReused) {
  std::set<std::string> names;
  for (int i = 0; i < 20; ++i) {
    RecordingFile file;  // same pid, same nanosecond, as two PID name spaces may have
    ASSERT_EQ(create(file), 0);
    names.insert(file.path());
  }
  EXPECT_EQ(names.size(), 20u);
}

TEST_F(WriterTest, ManyThreadsManyBlocks) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  constexpr std::uint64_t kPerThread = 20000;  // 24 bytes each: 8 blocks
  std::vector<std::thread> threads;
  for (std::uint32_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&file, t] {
      ThreadWriter writer;
      for (std::uint64_t i = 0; i < kPerThread; ++i) {
        ASSERT_TRUE(write_event(file, writer, t, i * 4 + t));
      }
      writer.close(file);
    });
  }
  for (auto& t : threads) t.join();
  file.finish(FileState::kFinished, 1u << 30);
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value()) << r.error().message;
  ASSERT_EQ(r->steps.size(), 4 * kPerThread);
  std::set<std::uint64_t> seen;
  for (const StepEdge& s : r->steps) seen.insert(s.time_ns);
  EXPECT_EQ(seen.size(), 4 * kPerThread);
  EXPECT_EQ(*seen.begin(), 1u);
  EXPECT_EQ(*seen.rbegin(), (kPerThread - 1) * 4 + 4);
  EXPECT_EQ(r->lost_records, 0u);
  EXPECT_EQ(r->torn_blocks, 0u);
}

TEST_F(WriterTest, SurvivesSigkillWithEveryCommittedRecord) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    RecordingFile file;
    if (create(file) != 0) _exit(1);
    ThreadWriter writer;
    for (std::uint64_t i = 0;; ++i) {
      if (!write_event(file, writer, 7, i)) _exit(2);
      // Told behind the commit: whatever the parent has read must be in the file.
      if (i % 5000 == 4999 && write(pipe_ends[1], &i, sizeof i) != sizeof i) _exit(3);
    }
  }
  std::uint64_t told = 0;
  for (int i = 0; i < 4; ++i) ASSERT_EQ(read(pipe_ends[0], &told, sizeof told), 8);
  kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status));
  // Numbers that were on their way in the pipe.
  close(pipe_ends[1]);
  for (std::uint64_t more = 0; read(pipe_ends[0], &more, sizeof more) == 8;) told = more;
  close(pipe_ends[0]);

  const auto session = read_session(directory_);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  ASSERT_EQ(session->processes.size(), 1u);
  const Recording& r = session->processes[0];
  EXPECT_EQ(r.state, FileState::kOpen);
  ASSERT_GT(r.steps.size(), told);
  for (std::size_t i = 0; i < r.steps.size(); ++i) ASSERT_EQ(r.steps[i].time_ns, i);
}

TEST_F(WriterTest, ABlockThatWasCopiedButNotYetEmptiedCountsOnce) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  BlockHeader* block = file.acquire_block(9, 1);
  ASSERT_NE(block, nullptr);
  auto* r = reinterpret_cast<StepEdgeRecord*>(block + 1);
  *r = {};
  r->header = {RecordType::kStepEdge, sizeof *r, 1};
  r->time_ns = 11;
  block->committed.store(sizeof *r);
  ASSERT_TRUE(file.flush_block(block, 2));
  // As a death between the copy and the emptying leaves it.
  --block->sequence;
  block->committed.store(sizeof *r);
  const auto read = read_file(file.path());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->steps.size(), 1u);
}

TEST_F(WriterTest, BudgetIsKeptAndTheLossCounted) {
  RecordingFile file;
  ASSERT_EQ(create(file, 4 * kBlockSize), 0);
  ThreadWriter writer;
  std::uint64_t written = 0, refused = 0;
  for (std::uint64_t i = 0; i < 40000; ++i) {
    (write_event(file, writer, 1, i) ? written : refused) += 1;
  }
  EXPECT_GT(written, 3 * kBlockSize / sizeof(StepEdgeRecord) - 100);
  EXPECT_EQ(written + refused, 40000u);
  EXPECT_LE(fs::file_size(file.path()), kHeaderSize + 5 * kBlockSize);
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->state, FileState::kBudgetSpent);
  EXPECT_EQ(r->steps.size(), written);
  EXPECT_EQ(r->lost_records, refused);
}

// Beyond RLIMIT_FSIZE a write, and on some file systems an allocation, raises SIGXFSZ.
TEST_F(WriterTest, TheLimitForFilesIsNotReached) {
  constexpr rlim_t kLimit = 5 * kBlockSize;
  const auto with_limit = [&](rlim_t limit, auto&& body) {
    const pid_t pid = fork();
    if (pid == 0) {
      signal(SIGXFSZ, SIG_DFL);
      const rlimit small{limit, limit};
      if (setrlimit(RLIMIT_FSIZE, &small) != 0) _exit(99);
      _exit(body());
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(with_limit(kLimit,
                       [&] {
                         RecordingFile file;
                         if (create(file) != 0) return 1;
                         ThreadWriter writer, other;
                         for (std::uint64_t i = 0; i < 40000; ++i) write_event(file, writer, 1, i);
                         if (write_event(file, other, 2, 1)) return 2;
                         file.finish(FileState::kFinished, 50000);
                         return 0;
                       }),
            0);
  const auto session = read_session(directory_);
  ASSERT_TRUE(session.has_value());
  ASSERT_EQ(session->processes.size(), 1u);
  const Recording& r = session->processes[0];
  EXPECT_EQ(r.state, FileState::kFileLimit);
  EXPECT_LE(fs::file_size(r.path), kLimit);
  EXPECT_EQ(r.steps.size() + r.lost_records, 40001u);
  EXPECT_GT(r.steps.size(), 4 * (kBlockSize - 100) / sizeof(StepEdgeRecord));
  EXPECT_EQ(r.torn_blocks, 0u);

  EXPECT_EQ(with_limit(kHeaderSize,
                       [&] {
                         RecordingFile file;
                         return create(file);
                       }),
            EFBIG);
}

// What a daemon that closes every descriptor and then opens its own files does to us.
class LostDescriptor : public WriterTest {
 protected:
  // The user's file now has the writer's number.
  int replace_descriptor(const RecordingFile& file) {
    user_path_ = directory_ + "/user";
    const int number = descriptor_of(file);
    const int opened = open(user_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(write(opened, "USERDATA", 8), 8);
    EXPECT_EQ(dup2(opened, number), number);
    close(opened);
    return number;
  }
  void expect_user_file_whole(int number) {
    struct stat by_number {
    }, by_path{};
    EXPECT_EQ(fstat(number, &by_number), 0) << "the program's descriptor was closed";
    EXPECT_EQ(stat(user_path_.c_str(), &by_path), 0);
    EXPECT_EQ(by_number.st_ino, by_path.st_ino);
    EXPECT_EQ(by_path.st_size, 8);
  }
  std::string user_path_;
};

TEST_F(LostDescriptor, ReplacedByTheProgram) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  ThreadWriter writer, late;
  ASSERT_TRUE(write_event(file, writer, 1, 0));
  const int number = replace_descriptor(file);
  std::uint64_t written = 1, refused = 0;
  for (std::uint64_t i = 1; i < 10000; ++i) {
    (write_event(file, writer, 1, i) ? written : refused) += 1;
  }
  EXPECT_FALSE(write_event(file, late, 2, 1));
  writer.close(file);
  file.finish(FileState::kFinished, 5);
  expect_user_file_whole(number);
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value()) << r.error().message;
  EXPECT_EQ(r->state, FileState::kDescriptorLost);
  EXPECT_EQ(r->steps.size(), written);  // the live block was a mapping: no descriptor needed
  EXPECT_GT(written, 2000u);
  EXPECT_EQ(r->lost_records, refused + 1);
  close(number);
}

TEST_F(LostDescriptor, ClosedByTheProgram) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  const int number = descriptor_of(file);
  ASSERT_EQ(close(number), 0);
  ThreadWriter writer;
  EXPECT_FALSE(write_event(file, writer, 1, 1));
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->state, FileState::kDescriptorLost);
}

TEST_F(LostDescriptor, AForkedChildLeavesTheProgramsDescriptorOpen) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  const int number = replace_descriptor(file);
  file.forget_after_fork();
  expect_user_file_whole(number);
  close(number);
}

TEST_F(LostDescriptor, AForkedChildClosesOurs) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  const int number = descriptor_of(file);
  ASSERT_GE(number, 0);
  file.forget_after_fork();
  struct stat status {};
  EXPECT_NE(fstat(number, &status), 0);
}

TEST_F(WriterTest, WithoutMemoryNoDiskIsUsed) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  ThreadWriter writer;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  std::uint64_t refused = 0;  // no memory is asked for by this loop itself
  constexpr std::uint64_t kFirst = 1'000'000'000;
  for (std::uint64_t i = 0; i < 3000; ++i) refused += !write_event(file, writer, 1, kFirst + i);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(refused, 3000u);
  EXPECT_EQ(fs::file_size(file.path()), kHeaderSize);
  EXPECT_FALSE(write_event(file, writer, 1, kFirst + 1000)) << "asked again at once";
  EXPECT_TRUE(write_event(file, writer, 1, kFirst + 1'000'000'000)) << "never asked again";
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->state, FileState::kOpen);
  EXPECT_EQ(r->lost_records, 3001u);
  EXPECT_EQ(r->steps.size(), 1u);
}

TEST_F(WriterTest, AnOversizedRecordIsRefusedAndCounted) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  ThreadWriter writer;
  EXPECT_EQ(writer.reserve(file, kMaxRecordSize + 8, 1, 1), nullptr);
  EXPECT_TRUE(write_event(file, writer, 1, 5));
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->lost_records, 1u);
  EXPECT_EQ(r->steps.size(), 1u);
}

TEST_F(WriterTest, UnwritableDirectoryIsAnErrorCode) {
  RecordingFile file;
  EXPECT_EQ(file.create({"/nonexistent/directory", "h", "t", 1, 2, 1 << 20, -1, -1, -1}), ENOENT);
  EXPECT_FALSE(file.is_open());
}

TEST_F(WriterTest, ThreadChurnDoesNotFillTheDisk) {
  RecordingFile file;
  ASSERT_EQ(create(file), 0);
  for (std::uint32_t i = 0; i < 200; ++i) {
    ThreadWriter writer;
    ASSERT_TRUE(write_event(file, writer, i + 1, i));
    writer.close(file);
  }
  struct stat status {};
  ASSERT_EQ(stat(file.path(), &status), 0);
  // Holes where the file system knows them: one page per thread instead of 16.
  const auto on_disk = static_cast<std::uint64_t>(status.st_blocks) * 512;
  EXPECT_LE(on_disk, 200u * 2 * 4096 + kHeaderSize + 65536) << "no holes on this file system?";
  const auto r = read_file(file.path());
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->steps.size(), 200u);
}

}  // namespace
}  // namespace gpubusy::recording
