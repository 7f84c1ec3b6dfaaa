// SPDX-License-Identifier: Apache-2.0
//
// What one native stack costs, in ns: median and 99th percentile of single captures at the bottom
// of a recursion, timer included (its own cost is printed). For comparison glibc's backtrace() and,
// where it is installed, libunwind's unw_backtrace(). Not a test.
#include <dlfcn.h>
#include <execinfo.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/native/capture.hpp"

namespace {

namespace native = gpubusy::runtime::native;
using gpubusy::runtime::now_ns;

struct Sink final : gpubusy::runtime::DefinitionSink {
  bool define(gpubusy::recording::RecordHeader*, std::size_t, const gpubusy::runtime::Part*,
              std::size_t) noexcept override {
    return true;
  }
};

thread_local native::ThreadStack* t_stack = native::ThreadStack::map();
Sink g_sink;
int (*g_unw_backtrace)(void**, int);

[[gnu::noinline]] int nothing() {
  asm volatile("");
  return 0;
}
[[gnu::noinline]] int walk() {
  t_stack->walk(native::current_registers(), false);
  asm volatile("");
  return t_stack->count();
}
[[gnu::noinline]] int walk_with_memo() {
  t_stack->walk(native::current_registers());
  asm volatile("");
  return t_stack->count();
}
[[gnu::noinline]] int capture() {
  const std::uint32_t node = native::capture_native_stack(g_sink, *t_stack);
  asm volatile("");
  return static_cast<int>(node);
}
[[gnu::noinline]] int glibc() {
  void* frames[512];
  const int n = backtrace(frames, 512);
  asm volatile("");
  return n;
}
[[gnu::noinline]] int libunwind() {
  void* frames[512];
  const int n = g_unw_backtrace(frames, 512);
  asm volatile("");
  return n;
}

struct Times {
  std::vector<std::uint64_t> all;
  std::uint64_t at(double part) {
    std::sort(all.begin(), all.end());
    return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
  }
};

// Some frames between captures change, as in a training loop.
[[gnu::noinline]] int leaf(int (*f)(), Times& times) {
  const std::uint64_t begin = now_ns();
  const int n = f();
  times.all.push_back(now_ns() - begin);
  return n;
}
[[gnu::noinline]] int other_leaf(int (*f)(), Times& times) {
  volatile int pad[8] = {};
  const int n = leaf(f, times);
  return n + pad[1];
}
[[gnu::noinline]] int recurse(int depth, int (*f)(), Times& times, int rounds) {
  int n = 0;
  if (depth > 1) {
    n = recurse(depth - 1, f, times, rounds);
  } else {
    for (int i = 0; i < rounds; ++i) n = i % 2 == 0 ? leaf(f, times) : other_leaf(f, times);
  }
  asm volatile("");
  return n;
}

// The body of the thread, on a stack that it has made itself.
thread_local const std::function<void()>* t_body;
thread_local ucontext_t t_thread, t_fiber;
void on_fiber(const std::function<void()>& body) {
  std::vector<char> stack(1 << 18);
  t_body = &body;
  getcontext(&t_fiber);
  t_fiber.uc_stack.ss_sp = stack.data();
  t_fiber.uc_stack.ss_size = stack.size();
  t_fiber.uc_link = &t_thread;
  makecontext(
      &t_fiber, [] { (*t_body)(); }, 0);
  swapcontext(&t_thread, &t_fiber);
}

void measure(const char* name, int (*f)(), int threads = 1, bool fiber = false) {
  std::printf("%-34s", name);
  for (int depth : {8, 16, 32, 64}) {
    std::vector<Times> times(static_cast<std::size_t>(threads));
    std::vector<std::thread> running;
    const auto body = [&](int i) {
      Times warm;
      recurse(depth - 5, f, warm, 1000);
      Times& mine = times[static_cast<std::size_t>(i)];
      mine.all.reserve(50000);
      recurse(depth - 5, f, mine, f == glibc ? 10000 : 50000);
    };
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&body, i, fiber] {
        if (fiber) {
          on_fiber([&] { body(i); });
        } else {
          body(i);
        }
      });
    }
    for (std::thread& t : running) t.join();
    Times all;
    for (Times& t : times) all.all.insert(all.all.end(), t.all.begin(), t.all.end());
    std::printf("  %6llu/%-6llu", static_cast<unsigned long long>(all.at(0.5)),
                static_cast<unsigned long long>(all.at(0.99)));
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main() {
  native::ObjectSource source{};
  source.find_object =
      reinterpret_cast<decltype(source.find_object)>(dlsym(RTLD_DEFAULT, "_dl_find_object"));
  native::set_object_source(source);
  native::set_up_walker(0, 0);
  const std::uint64_t begin = now_ns();
  const int n = walk();
  std::printf("first capture: %llu ns, %d frames, %llu rules read\n",
              static_cast<unsigned long long>(now_ns() - begin), n,
              static_cast<unsigned long long>(native::rule_counts().misses));
  std::printf(
      "ns, median/p99, at depth                    8              16              32"
      "              64\n");
  measure("timer alone", nothing);
  measure("walker", walk);
  measure("walker with memo", walk_with_memo);
  measure("walker with memo, to node id", capture);
  measure("walker with memo, 2 threads", walk_with_memo, 2);
  measure("walker on a fiber", walk, 1, true);
  measure("glibc backtrace", glibc);
  if (void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL)) {
    g_unw_backtrace = reinterpret_cast<int (*)(void**, int)>(dlsym(library, "unw_backtrace"));
    if (g_unw_backtrace != nullptr) measure("libunwind unw_backtrace", libunwind);
  }
}
