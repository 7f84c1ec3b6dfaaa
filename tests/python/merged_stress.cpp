// SPDX-License-Identifier: Apache-2.0
//
// For merged_stress.py: whole stacks from all sides at once. Python's threads call gbs_captures();
// meanwhile signal handlers take stacks in the middle of everything, and libraries come and go at
// the same addresses.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "runtime/keep_errno.hpp"
#include "runtime/native/capture.hpp"
#include "runtime/stack_table.hpp"
#include "tests/native/walk.hpp"

using namespace gpubusy;
using namespace gpubusy::test;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Sink final : runtime::DefinitionSink {
  bool define(recording::RecordHeader*, std::size_t, const runtime::Part*,
              std::size_t) noexcept override {
    return true;
  }
} g_sink;

struct Counts {
  std::atomic<std::uint64_t> captures{0}, in_handlers{0}, cut{0}, unloading{0}, wrong{0}, thrown{0},
      loads{0}, python_frames{0};
} g_counts;
std::atomic<bool> g_stop{false};
bool g_python_in_handlers = false;
std::thread* g_threads[2] = {};

constexpr int kTargets = 8;
std::atomic<pthread_t> g_targets[kTargets] = {};
pthread_mutex_t g_targets_lock = PTHREAD_MUTEX_INITIALIZER;  // a target does not end under it

// The hooks' busy flag: a call from a handler that interrupts a hook gets no stack.
thread_local volatile bool t_inside = false;
thread_local bool t_runs_python = false;

[[gnu::noinline]] void capture() {
  struct Inside {
    Inside() { t_inside = true; }
    ~Inside() { t_inside = false; }
  } inside;
  runtime::PythonFrames python;
  runtime::capture_python_stack(g_sink, nullptr, python);
  native::ThreadStack& stack = thread_stack();
  const std::uint64_t unplaced = native::unplaced_stacks();
  const std::uint64_t refused = runtime::stack_table_counts().refused;
  const std::uint32_t node = native::capture_native_stack(g_sink, stack, &python);
  g_counts.captures.fetch_add(1, std::memory_order_relaxed);
  if (stack.end() == native::End::kUnloading) {
    g_counts.unloading.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (stack.end() != native::End::kOutermost) g_counts.cut.fetch_add(1, std::memory_order_relaxed);
  g_counts.python_frames.fetch_add(static_cast<unsigned>(python.count), std::memory_order_relaxed);
  // Others may add to these meanwhile: then it is they who are cut, or refused.
  const bool excused =
      native::unplaced_stacks() != unplaced || runtime::stack_table_counts().refused != refused;
  const bool all_placed = python.count > 0 && python.count == stack.placed_count;
  if (!excused && (node == 0 || (t_runs_python && !all_placed))) ++g_counts.wrong;
}

void on_signal(int) {
  const runtime::KeepErrno keep;
  runtime::PythonFrames python;
  if (!g_python_in_handlers) {
    thread_stack(true).walk(native::current_registers());
  } else if (t_inside) {  // reading alone must be safe at any instruction
    runtime::python::walk(python.frames, runtime::kMaxStackFrames);
    thread_stack(true).walk(native::current_registers());
  } else {
    t_inside = true;
    runtime::capture_python_stack(g_sink, nullptr, python);
    native::capture_native_stack(g_sink, thread_stack(true), &python);
    t_inside = false;
  }
  g_counts.in_handlers.fetch_add(1, std::memory_order_relaxed);
}

[[gnu::noinline]] void throw_through(int depth) {
  struct AtEnd {
    ~AtEnd() { capture(); }
  } at_end;
  if (depth == 0) throw depth;
  throw_through(depth - 1);
}

[[gnu::noinline]] void deeper(int depth, int each) {
  for (int i = 0; i < each; ++i) capture();
  if (depth > 0) deeper(depth - 1, each);
  if (each % 5 == 1 && depth == 2) {
    try {
      throw_through(4);
    } catch (int) {
      ++g_counts.thrown;
    }
  }
  capture();
}

void load_and_unload(const std::string& folder, int turn) {
  const std::string path =
      folder + (turn % 2 == 0 ? "/libgpubusy_native_a.so" : "/libgpubusy_native_b.so");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  auto* call = reinterpret_cast<void (*)(void (*)())>(dlsym(library, "gpubusy_test_call"));
  for (int i = 0; i < 5; ++i) call(capture);
  native::before_unloading();
  const bool unloaded = dlclose(library) == 0;
  native::after_unloading(unloaded);
  ++g_counts.loads;
}

}  // namespace

// `folder`: of the two libraries. `python`: signal handlers read Python's frames as well.
EXPORT void gbs_start(const char* folder, int python) {
  g_python_in_handlers = python != 0;
  use_objects(true);
  native::set_up_walker(0, 0);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  g_threads[0] = new std::thread([] {
    while (!g_stop) {
      pthread_mutex_lock(&g_targets_lock);
      for (auto& target : g_targets) {
        if (const pthread_t thread = target.load()) pthread_kill(thread, SIGUSR2);
      }
      pthread_mutex_unlock(&g_targets_lock);
      usleep(200);
    }
  });
  g_threads[1] = new std::thread([folder = std::string(folder)] {
    for (int turn = 0; !g_stop; ++turn) {
      load_and_unload(folder, turn);
      usleep(500);
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
EXPORT void gbs_stop() {
  g_stop = true;
  for (std::thread* thread : g_threads) thread->join();
}

// The calling thread is hit by signals from `place` on, until -1 - place.
EXPORT void gbs_target(int place) {
  thread_stack(true);
  thread_stack();
  pthread_mutex_lock(&g_targets_lock);
  g_targets[place < 0 ? -1 - place : place] = place < 0 ? 0 : pthread_self();
  pthread_mutex_unlock(&g_targets_lock);
}

EXPORT void gbs_captures(int depth, int each) {
  t_runs_python = true;
  deeper(depth, each);
}

EXPORT void gbs_in_child() {
  for (auto& target : g_targets) target = 0;
  native::rules_after_fork();
  runtime::reset_stack_table_after_fork();
}

EXPORT void gbs_counts(std::uint64_t* out) {
  const std::atomic<std::uint64_t>* all[] = {
      &g_counts.captures, &g_counts.in_handlers, &g_counts.cut,   &g_counts.unloading,
      &g_counts.wrong,    &g_counts.thrown,      &g_counts.loads, &g_counts.python_frames};
  for (std::size_t i = 0; i < 8; ++i) out[i] = all[i]->load();
  const runtime::StackTableCounts table = runtime::stack_table_counts();
  out[8] = native::unplaced_stacks();
  out[9] = table.nodes;
  out[10] = table.refused;
}
