// SPDX-License-Identifier: Apache-2.0
//
// Native stacks as nodes of the table of stacks.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>

#include "runtime/native/capture.hpp"
#include "runtime/stack_table.hpp"
#include "tests/native/walk.hpp"

namespace gpubusy::test {
namespace {

class Sink final : public runtime::DefinitionSink {
 public:
  bool define(recording::RecordHeader* record, std::size_t, const runtime::Part*,
              std::size_t) noexcept override {
    if (refuse) return false;
    recording::StackNodeRecord node;
    std::memcpy(&node, record, sizeof node);
    nodes[node.header.value] = node;
    return true;
  }
  std::vector<std::uintptr_t> locations(std::uint32_t id) const {
    std::vector<std::uintptr_t> out;
    for (; id != 0; id = nodes.at(id).parent) {
      EXPECT_EQ(nodes.at(id).kind, recording::FrameKind::kNative);
      out.push_back(nodes.at(id).location);
    }
    return out;
  }
  const recording::StackNodeRecord& outermost(std::uint32_t id) const {
    while (nodes.at(id).parent != 0) id = nodes.at(id).parent;
    return nodes.at(id);
  }

  std::map<std::uint32_t, recording::StackNodeRecord> nodes;
  bool refuse = false;
};

struct Captures : testing::Test {
  Captures() {
    use_objects(true);
    runtime::reset_stack_table();
    truth.clear();
  }
  std::uint32_t capture() { return native::capture_native_stack(sink, thread_stack()); }
  Sink sink;
};

[[gnu::noinline]] std::uint32_t deeper(int depth, Captures& test,
                                       std::uint32_t (*then)(Captures&)) {
  GPUBUSY_KNOWN();
  const std::uint32_t node = depth > 1 ? deeper(depth - 1, test, then) : then(test);
  asm volatile("" ::: "memory");
  return node;
}

TEST_F(Captures, NodesAreTheFrames) {
  for (int depth : {3, 40, 200, 40}) {
    std::uint32_t before = 0;
    for (int i = 0; i < 3; ++i) {
      asm volatile("" : "+r"(i));
      const std::uint32_t node = deeper(depth, *this, [](Captures& t) {
        const std::uint32_t id = t.capture();
        const Walked w = result_of(thread_stack(), thread_stack().end());
        EXPECT_EQ(t.sink.locations(id), w.pcs);
        EXPECT_TRUE(std::is_sorted(w.cfas.begin(), w.cfas.end()));
        const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
        EXPECT_GE(w.cfas[1], here);
        auto at = w.pcs.begin();
        for (auto known = truth.rbegin(); known != truth.rend(); ++known) {
          at = std::find(at, w.pcs.end(), *known);
        }
        EXPECT_NE(at, w.pcs.end());
        return id;
      });
      if (before != 0) {
        EXPECT_EQ(node, before);
      }
      before = node;
      EXPECT_EQ(sink.outermost(node).flags, 0);
    }
  }
}

TEST_F(Captures, CutStacksAreFlagged) {
  const std::uint32_t node =
      deeper(native::kMaxFrames + 50, *this, [](Captures& t) { return t.capture(); });
  EXPECT_EQ(sink.locations(node).size(), std::size_t{native::kMaxFrames});
  EXPECT_EQ(sink.outermost(node).flags, 1);
  const std::uint32_t shorter = deeper(10, *this, [](Captures& t) { return t.capture(); });
  EXPECT_EQ(sink.outermost(shorter).flags, 0);
}

TEST_F(Captures, ANewFileGetsItsNodesAnew) {
  const auto body = [](Captures& t) { return t.capture(); };
  std::uint32_t first = 0;
  for (int i = 0; i < 3; ++i) {
    asm volatile("" : "+r"(i));
    runtime::reset_stack_table();
    sink.nodes.clear();
    const std::uint32_t node = deeper(10, *this, body);
    EXPECT_GT(sink.locations(node).size(), 10u) << "all nodes are in the new file";
    if (i == 0) first = node;
    EXPECT_EQ(node, first);
  }
}

TEST_F(Captures, ARefusingSinkIsAskedAgain) {
  const auto body = [](Captures& t) { return t.capture(); };
  std::uint32_t nodes[3];
  for (int i = 0; i < 3; ++i) {
    asm volatile("" : "+r"(i));
    sink.refuse = i == 0;
    nodes[i] = deeper(10, *this, body);
  }
  EXPECT_EQ(nodes[0], 0u);
  EXPECT_EQ(nodes[1], nodes[2]);
  EXPECT_GT(sink.locations(nodes[1]).size(), 10u);
}

TEST_F(Captures, ErrnoIsKept) {
  errno = 4711;
  std::thread([this] {
    errno = 4712;
    capture();
    EXPECT_EQ(errno, 4712);
  }).join();
  capture();
  EXPECT_EQ(errno, 4711);
}

Captures* g_test;
std::uint32_t g_interrupted_node;
TEST_F(Captures, InterruptedInstructionsCountFromTheirOwn) {
  g_test = this;
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { g_interrupted_node = g_test->capture(); };
  sigaction(SIGUSR1, &action, &before);
  raise(SIGUSR1);
  sigaction(SIGUSR1, &before, nullptr);
  native::ThreadStack& stack = thread_stack();
  const auto locations = sink.locations(g_interrupted_node);
  int interrupted = 0;
  for (int i = stack.count() - 1, k = 0; i >= 0; --i, ++k) {
    const native::Frame& f = stack.frames()[i];
    interrupted += f.interrupted;
    EXPECT_EQ(locations[static_cast<std::size_t>(k)], f.pc + (f.interrupted ? 1 : 0));
  }
  EXPECT_EQ(interrupted, 1);
}

// A handler at every instruction of a walk.
int g_busy, g_steps;
TEST_F(Captures, AHandlerInTheMiddleSpoilsNothing) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {
    ++g_steps;
    if (thread_stack().walk(native::current_registers()) == native::End::kBusy) ++g_busy;
  };
  sigaction(SIGTRAP, &action, &before);
  g_busy = g_steps = 0;
  deeper(10, *this, [](Captures&) -> std::uint32_t {
    native::ThreadStack& stack = thread_stack();
    stack.walk(native::current_registers());
    asm volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    stack.walk(native::current_registers());
    asm volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    for (int i = 0; i < 2; ++i) {
      const Walked w = walk_here(), plain = walk_here(false);
      EXPECT_TRUE(
          std::equal(w.pcs.begin() + 1, w.pcs.end(), plain.pcs.begin() + 1, plain.pcs.end()));
    }
    return 0;
  });
  sigaction(SIGTRAP, &before, nullptr);
  EXPECT_GT(g_busy, 10);
  EXPECT_GT(g_steps, g_busy);
}

}  // namespace
}  // namespace gpubusy::test
