// SPDX-License-Identifier: Apache-2.0
//
// What /proc says of a thread, as the gap sampler reads it.
#include "runtime/gaps/evidence.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace gpubusy::runtime::gaps {
namespace {

TEST(GapEvidence, SystemCall) {
  const SystemCall call =
      parse_system_call("202 0x7f10 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe34a1b2c0 0x7f575eeed545\n");
  EXPECT_EQ(call.state, SystemCall::State::kInside);
  EXPECT_EQ(call.number, 202);
  EXPECT_EQ(call.argument, 0x7f10u);
  EXPECT_EQ(call.sp, 0x7ffe34a1b2c0u);
  EXPECT_EQ(call.pc, 0x7f575eeed545u);

  const SystemCall outside = parse_system_call("-1 0x7ffe34a1b2c0 0x55aa\n");
  EXPECT_EQ(outside.state, SystemCall::State::kOutside);
  EXPECT_EQ(outside.sp, 0x7ffe34a1b2c0u);
  EXPECT_EQ(outside.pc, 0x55aau);

  EXPECT_EQ(parse_system_call("running\n").state, SystemCall::State::kRuns);
  for (const char* text : {"", "\n", "-1", "7 0x1", "not this"}) {
    EXPECT_EQ(parse_system_call(text).state, SystemCall::State::kUnknown) << text;
  }
}

TEST(GapEvidence, ProcessorUseAndState) {
  EXPECT_EQ(parse_processor_use("57577 33529 4\n"), (ProcessorUse{57577, 33529, 4}));
  EXPECT_FALSE(parse_processor_use("").known());
  const TaskState state =
      parse_task_state("31533 (a) b (c) D 31476 31476 25232 0 -1 4194368 4 6564 12 0 0 0 3 1\n");
  EXPECT_EQ(state.state, 'D');
  EXPECT_EQ(state.major_faults, 12u);
  EXPECT_EQ(parse_task_state("no state").state, 0);
}

TEST(GapEvidence, OfALivingThread) {
  std::atomic<long> id{0};
  std::atomic<bool> stop{false};
  std::thread sleeper([&] {
    id = syscall(SYS_gettid);
    while (!stop) usleep(1000);
  });
  while (id == 0) usleep(100);
  TaskFiles files;
  files.open(static_cast<std::uint32_t>(id.load()));
  char text[512];
  bool slept = false;
  for (int i = 0; i < 2000 && !slept; ++i) {
    ASSERT_GT(files.read(TaskFiles::kSystemCall, text, sizeof text), 0u);
    const SystemCall call = parse_system_call(text);
    slept = call.state == SystemCall::State::kInside && call.number == SYS_clock_nanosleep;
  }
  EXPECT_TRUE(slept);
  ASSERT_GT(files.read(TaskFiles::kState, text, sizeof text), 0u);
  EXPECT_NE(parse_task_state(text).state, 0);
  EXPECT_EQ(thread_count(), 2u);
  stop = true;
  sleeper.join();
  EXPECT_EQ(files.read(TaskFiles::kSystemCall, text, sizeof text), 0u);
  EXPECT_STREQ(text, "");
  files.close();
}

TEST(GapEvidence, Descriptors) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto self = static_cast<std::uint32_t>(getpid());
  EXPECT_EQ(kind_of_descriptor(self, static_cast<std::uint64_t>(ends[0])),
            recording::GapFile::kPipe);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(kind_of_descriptor(self, 100'000), recording::GapFile::kNone);
  EXPECT_TRUE(takes_descriptor(SYS_read));
  EXPECT_FALSE(takes_descriptor(SYS_futex));
}

}  // namespace
}  // namespace gpubusy::runtime::gaps
