// SPDX-License-Identifier: Apache-2.0
//
// The tree of stacks without an interpreter: native frames take the same way.
#include "runtime/stack_table.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace gpubusy::runtime {
namespace {

class Sink final : public DefinitionSink {
 public:
  bool define(recording::RecordHeader* record, std::size_t, const Part*,
              std::size_t) noexcept override {
    if (refuse) return false;
    recording::StackNodeRecord node;
    std::memcpy(&node, record, sizeof node);
    std::lock_guard guard(mutex_);
    EXPECT_TRUE(nodes.emplace(node.header.value, node).second) << "an id is defined once";
    return true;
  }
  std::vector<std::uint64_t> frames(std::uint32_t id) {
    std::lock_guard guard(mutex_);
    std::vector<std::uint64_t> out;
    for (; id != 0; id = nodes.at(id).parent) out.push_back(nodes.at(id).location);
    return out;
  }

  std::map<std::uint32_t, recording::StackNodeRecord> nodes;
  std::atomic<bool> refuse{false};

 private:
  std::mutex mutex_;
};

struct StackTable : testing::Test {
  StackTable() { reset_stack_table(); }
  Sink sink;

  std::uint32_t intern(const std::vector<std::uint64_t>& frames, bool cut = false) {
    return intern_native_stack(sink, frames.data(), static_cast<int>(frames.size()), cut);
  }
};

TEST_F(StackTable, CommonFramesAreStoredOnce) {
  const std::uint32_t a = intern({1, 2, 3}), b = intern({9, 2, 3});
  EXPECT_NE(a, b);
  EXPECT_EQ(intern({1, 2, 3}), a);
  EXPECT_EQ(sink.nodes.size(), 4u);
  EXPECT_EQ(sink.frames(b), (std::vector<std::uint64_t>{9, 2, 3}));
  EXPECT_EQ(intern({}), 0u);
  EXPECT_EQ(stack_table_counts().nodes, 4u);
}

TEST_F(StackTable, CutStacksAreOthers) {
  const std::uint32_t whole = intern({1, 2}), cut = intern({1, 2}, true);
  EXPECT_NE(whole, cut);
  EXPECT_EQ(sink.nodes.at(sink.nodes.at(cut).parent).flags, 1);
  EXPECT_EQ(sink.nodes.at(cut).flags, 0);
}

TEST_F(StackTable, RefusedDefinitionsAreTriedAgain) {
  const std::uint32_t known = intern({2, 3});
  sink.refuse = true;
  EXPECT_EQ(intern({1, 2, 3}), known) << "the deepest known";
  EXPECT_EQ(intern({8}), 0u);
  EXPECT_EQ(stack_table_counts().refused, 2u);
  sink.refuse = false;
  EXPECT_EQ(sink.frames(intern({1, 2, 3})), (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST_F(StackTable, ResetDefinesAnew) {
  const std::uint32_t a = intern({1, 2, 3});
  reset_stack_table();
  sink.nodes.clear();
  EXPECT_EQ(intern({1, 2, 3}), a);
  EXPECT_EQ(sink.nodes.size(), 3u);
}

TEST_F(StackTable, ChildOfAForkStartsEmpty) {
  intern({1, 2, 3});
  const pid_t pid = fork();
  if (pid == 0) {
    reset_stack_table_after_fork();
    Sink fresh;
    const std::uint64_t frames[] = {7, 2, 3};
    const bool good = intern_native_stack(fresh, frames, 3, false) == 3 &&
                      fresh.nodes.size() == 3 && stack_table_counts().nodes == 3;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(StackTable, FullIsThePrefix) {
  for (std::uint64_t i = 0; i < kMaxStackNodes + 10; ++i) intern({i, 1});
  const StackTableCounts counts = stack_table_counts();
  EXPECT_EQ(counts.nodes, kMaxStackNodes - 1);
  EXPECT_GT(counts.refused, 0u);
  const std::uint32_t root = intern({1});
  EXPECT_NE(root, 0u);
  EXPECT_EQ(intern({77777777777, 1}), root);
  reset_stack_table();
}

TEST_F(StackTable, ThreadsAgree) {
  constexpr int kThreads = 8, kStacks = 300;
  std::vector<std::vector<std::uint64_t>> stacks;
  std::mt19937 random(3);
  for (int i = 0; i < kStacks; ++i) {
    std::vector<std::uint64_t> s;
    for (unsigned d = 1 + random() % 12; d > 0; --d) s.push_back(random() % 4 + 10 * d);
    stacks.push_back(s);
  }
  std::vector<std::vector<std::uint32_t>> ids(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        for (const auto& s : stacks) ids[static_cast<unsigned>(t)].push_back(intern(s));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (unsigned t = 0; t < kThreads; ++t) EXPECT_EQ(ids[t], ids[0]);
  for (unsigned i = 0; i < kStacks; ++i) EXPECT_EQ(sink.frames(ids[0][i]), stacks[i]);
}

TEST(PythonCapture, NothingWithoutAnInterpreter) {
  Sink sink;
  python::OptimizerCall call;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(capture_python_stack(sink, &call), 0u);
  EXPECT_FALSE(call);
  EXPECT_TRUE(sink.nodes.empty());
}

}  // namespace
}  // namespace gpubusy::runtime
