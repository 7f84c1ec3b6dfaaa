// SPDX-License-Identifier: Apache-2.0
//
// Captures from all sides at once: threads with changing stacks, exceptions, signal handlers in the
// middle of captures, libraries that come and go at the same addresses, forks. Nothing may crash or
// hang, memory must not grow, and every stack must reach the frames that are known to be there.
// Argument: number of captures.
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "runtime/keep_errno.hpp"
#include "runtime/native/capture.hpp"
#include "runtime/stack_table.hpp"
#include "tests/native/walk.hpp"

namespace {

using namespace gpubusy;
using test::thread_stack;
using native_end = runtime::native::End;
namespace native = runtime::native;

struct Sink final : runtime::DefinitionSink {
  bool define(recording::RecordHeader*, std::size_t, const runtime::Part*,
              std::size_t) noexcept override {
    return true;
  }
} g_sink;

std::atomic<long> g_captures{0}, g_in_handlers{0}, g_cut{0}, g_unloading{0}, g_cut_in_handlers{0},
    g_wrong{0}, g_loads{0}, g_forks{0}, g_thrown{0}, g_threads{0};
std::atomic<std::uintptr_t> g_last_cut{0};
std::atomic<bool> g_stop{false};
long g_wanted = 0;

thread_local std::uintptr_t t_root = 0;  // a return address that is on this thread's stack

thread_local const std::atomic<bool>* t_enough = nullptr;
bool is_over() {
  return g_stop.load(std::memory_order_relaxed) ||
         (t_enough != nullptr && t_enough->load(std::memory_order_relaxed));
}

[[gnu::noinline]] void capture() {
  native::ThreadStack& stack = thread_stack();
  const std::uint32_t node = native::capture_native_stack(g_sink, stack);
  g_captures.fetch_add(1, std::memory_order_relaxed);
  if (stack.end() == native_end::kUnloading) {
    g_unloading.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (stack.end() != native_end::kOutermost) g_cut.fetch_add(1, std::memory_order_relaxed);
  bool root = false;
  for (int i = 0; i < stack.count() && !root; ++i) root = stack.frames()[i].pc == t_root;
  if (!root || node == 0) g_wrong.fetch_add(1, std::memory_order_relaxed);
}

void on_signal(int) {
  const runtime::KeepErrno keep;
  native::ThreadStack& stack = thread_stack(true);
  const native_end end = stack.walk(native::current_registers());
  g_in_handlers.fetch_add(1, std::memory_order_relaxed);
  if (end == native_end::kUnloading) {
    g_unloading.fetch_add(1, std::memory_order_relaxed);
  } else if (end != native_end::kOutermost) {
    // At any instruction: also of the loader's assembly, and at the very begin or end of a thread.
    g_cut_in_handlers.fetch_add(1, std::memory_order_relaxed);
    g_last_cut = stack.count() == 0 ? 0 : stack.frames()[0].pc;
  }
}

struct AtEnd {
  ~AtEnd() { capture(); }
};
[[gnu::noinline]] void throw_through(int depth) {
  const AtEnd at_end;
  if (depth == 0) throw depth;
  throw_through(depth - 1);
}

[[gnu::noinline]] long work(std::mt19937& random, int depth) {
  long sum = 0;
  const unsigned turns = 1 + random() % 6;
  for (unsigned i = 0; i < turns; ++i) {
    for (unsigned k = random() % 8; k > 0; --k) capture();
    if (depth < 50 && random() % 4 != 0) sum += work(random, depth + 1);
    if (depth < 50 && random() % 512 == 0) {
      try {
        throw_through(static_cast<int>(random() % 6));
      } catch (int) {
        ++g_thrown;
      }
    }
    if (is_over()) break;
  }
  asm volatile("" ::: "memory");
  return sum;
}

[[gnu::noinline]] void root(unsigned seed, const std::atomic<bool>& enough) {
  t_root = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::mt19937 random(seed);
  t_enough = &enough;
  while (!is_over()) work(random, 0);
  asm volatile("" ::: "memory");
}

void take_signals(int how) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(how, &set, nullptr);
}

void thread_body(unsigned seed, const std::atomic<bool>* enough) {
  // Not before this is made, whose destructor would be registered twice, nor after its end.
  thread_stack(true);
  thread_stack();
  take_signals(SIG_UNBLOCK);
  root(seed, *enough);
  take_signals(SIG_BLOCK);
  asm volatile("" ::: "memory");
}

[[gnu::noinline]] void load_and_unload(int turn) {
  t_root = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  const std::string path = std::string(GPUBUSY_TEST_LIBRARIES) +
                           (turn % 2 == 0 ? "/libgpubusy_native_a.so" : "/libgpubusy_native_b.so");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  auto* call = reinterpret_cast<void (*)(void (*)())>(dlsym(library, "gpubusy_test_call"));
  for (int i = 0; i < 5; ++i) call(capture);
  native::before_unloading();
  dlclose(library);
  native::after_unloading(true);
  ++g_loads;
}

// libc does not make the lock of dl_iterate_phdr whole in a child, so no fork falls into it.
std::atomic<int> g_walks{0};
std::atomic<bool> g_forking{false};
void walk_objects(int (*step)(dl_phdr_info*, std::size_t, void*), void* data) {
  ++g_walks;
  while (g_forking) {
    --g_walks;
    while (g_forking) sched_yield();
    ++g_walks;
  }
  dl_iterate_phdr(step, data);
  --g_walks;
}

void fork_once() {
  g_forking = true;
  while (g_walks > 0) sched_yield();
  const pid_t child = fork();
  g_forking = false;
  if (child == 0) {
    alarm(20);
    native::rules_after_fork();
    runtime::reset_stack_table_after_fork();
    const long wrong = g_wrong, captures = g_captures;
    for (int i = 0; i < 200; ++i) load_and_unload(i);
    std::atomic<bool> enough{false};
    std::thread([&] { thread_body(9, &enough); }).detach();
    while (g_captures.load() < captures + 5000) usleep(100);
    _exit(g_wrong == wrong ? 0 : 3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) {
    std::printf("a child ended with %#x\n", status);
    ++g_wrong;
  }
  ++g_forks;
}

long resident_kib() {
  long pages = 0, resident = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr || std::fscanf(f, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(f);
  return resident * 4;
}

}  // namespace

int main(int count, char** arguments) {
  g_wanted = count > 1 ? std::atol(arguments[1]) : 1000000;
  const bool lock_free = std::getenv("GPUBUSY_TEST_ITERATE") == nullptr;
  test::use_objects(lock_free, walk_objects);
  native::set_up_walker(0, 0);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  thread_stack(true);
  thread_stack();

  take_signals(SIG_BLOCK);  // threads inherit it
  // Threads end and begin again: a new one gets the stack of an old one.
  constexpr int kThreads = 3;
  std::thread threads[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    threads[i] = std::thread([i, lock_free] {
      for (unsigned seed = static_cast<unsigned>(i); !g_stop; seed += kThreads) {
        std::atomic<bool> enough{false};
        std::thread inner(thread_body, seed, &enough);
        for (int k = 0; k < 1000 && !g_stop; ++k) {
          // A handler in the middle of libc's lock of dl_iterate_phdr would wait for itself.
          if (lock_free) pthread_kill(inner.native_handle(), SIGUSR1);
          usleep(30);
        }
        enough = true;
        inner.join();
        ++g_threads;
      }
    });
  }
  long settled = 0;
  for (int turn = 0; g_captures.load() < g_wanted; ++turn) {
    load_and_unload(turn);
    if (turn % 64 == 17) fork_once();
    if (settled == 0 && g_captures.load() > g_wanted / 4) settled = resident_kib();
  }
  g_stop = true;
  for (std::thread& t : threads) t.join();
  const long resident = resident_kib();
  const auto rules = native::rule_counts();
  const auto nodes = runtime::stack_table_counts();
  char last[300] = "-";
  Dl_info where{};
  if (g_last_cut != 0 && dladdr(reinterpret_cast<void*>(g_last_cut.load()), &where) != 0) {
    std::snprintf(last, sizeof last, "%s+%#zx", where.dli_fname,
                  g_last_cut - reinterpret_cast<std::uintptr_t>(where.dli_fbase));
  }
  std::printf(
      "%ld captures, %ld in handlers (%ld cut, last at %s), %ld cut, %ld cut by another's dlclose, "
      "%ld wrong; %ld loads, %ld forks, %ld thrown, "
      "%ld threads; "
      "%llu rules read, %llu waits given up; %u nodes, %llu refused; resident %ld KiB at a "
      "quarter, "
      "%ld KiB at the end\n",
      g_captures.load(), g_in_handlers.load(), g_cut_in_handlers.load(), last, g_cut.load(),
      g_unloading.load(), g_wrong.load(), g_loads.load(), g_forks.load(), g_thrown.load(),
      g_threads.load(), static_cast<unsigned long long>(rules.misses),
      static_cast<unsigned long long>(rules.timeouts), nodes.nodes,
      static_cast<unsigned long long>(nodes.refused), settled, resident);
  // The tree of stacks grows with new stacks up to its cap (32 bytes each).
  const bool bounded = resident - settled < 40 * 1024;
  // How many a dlclose() cuts depends on how long it was left waiting for a processor.
  const bool few_cut = g_cut == 0 && g_cut_in_handlers * 500 <= g_in_handlers + 500 &&
                       g_unloading / 9 < g_captures / 10;
  return g_wrong == 0 && few_cut && bounded ? 0 : 1;
}
