// SPDX-License-Identifier: Apache-2.0
//
// The runtime's Python parts as C functions, for scripts that call them through ctypes. The
// definitions go into memory instead of a recording.
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "analysis/python_lines.hpp"
#include "runtime/python/frames.hpp"
#include "runtime/python/gil.hpp"
#include "runtime/python/layout.hpp"
#include "runtime/python/optimizer.hpp"
#include "runtime/python/remote.hpp"
#include "runtime/stack_table.hpp"
#include "tests/python/memory_sink.hpp"

using namespace gpubusy;
using namespace gpubusy::runtime;
using test::MemorySink;

namespace {

MemorySink* g_sink = new MemorySink;  // never destroyed: threads may outlive main
MemorySink& sink() { return *g_sink; }

}  // namespace

MemorySink& gpubusy::test::sink_of_probe() { return ::sink(); }

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int gb_probe(void) { return static_cast<int>(python::probe().state); }
EXPORT const char* gb_text(void) { return python::probe().text; }
EXPORT void gb_pretend(int minor) {
  python::pretend_minor_for_test(minor);
  python::forget_for_test();
}

EXPORT int gb_walk(std::uint64_t* codes, int* offsets, std::uint64_t* entries, int max) {
  std::vector<python::Frame> frames(static_cast<std::size_t>(max));
  const int n = python::walk(frames.data(), max);
  for (int i = 0; i < n; ++i) {
    codes[i] = reinterpret_cast<std::uint64_t>(frames[i].code);
    offsets[i] = frames[i].offset;
    entries[i] = frames[i].entry;
  }
  return n;
}

EXPORT std::uint32_t gb_capture(void) { return capture_python_stack(sink()); }

// Keeps errno? 0: yes.
EXPORT int gb_errno_kept(void) {
  errno = 77;
  capture_python_stack(sink());
  python::current_optimizer_call();
  return errno == 77 ? 0 : 1;
}

EXPORT int gb_describe(std::uint32_t id, char* out, int size) {
  const std::string text = sink().describe(id);
  const auto n = std::min<std::size_t>(text.size(), static_cast<std::size_t>(size));
  std::memcpy(out, text.data(), n);
  return static_cast<int>(n);
}

EXPORT void gb_counts(std::uint64_t* out) {
  const StackTableCounts c = stack_table_counts();
  out[0] = c.nodes;
  out[1] = c.codes;
  out[2] = c.refused;
}

EXPORT void gb_refuse(int on) { sink().refuse(on != 0); }
EXPORT void gb_reset(void) {
  reset_stack_table();
  sink().clear();
}
EXPORT void gb_reset_after_fork(void) {
  reset_stack_table_after_fork();
  g_sink = new MemorySink;  // another thread may have held the old one's lock, half-way in a change
}

// In a thread that Python does not know.
EXPORT int gb_foreign(void) {
  int frames = -1;
  std::uint32_t node = 1;
  const void* optimizer = &frames;
  std::thread([&] {
    python::Frame out[8];
    frames = python::walk(out, 8);
    node = capture_python_stack(sink());
    optimizer = python::current_optimizer_call().frame;
  }).join();
  return frames == 0 && node == 0 && optimizer == nullptr ? 0 : 1;
}

EXPORT std::uint64_t gb_optimizer(std::uint64_t* frame) {
  const python::OptimizerCall call = python::current_optimizer_call();
  *frame = reinterpret_cast<std::uint64_t>(call.frame);
  return reinterpret_cast<std::uint64_t>(call.optimizer);
}

EXPORT std::uint64_t gb_capture_optimizer(std::uint64_t* frame) {
  python::OptimizerCall call;
  capture_python_stack(sink(), &call);
  *frame = reinterpret_cast<std::uint64_t>(call.frame);
  return reinterpret_cast<std::uint64_t>(call.optimizer);
}

// Median nanoseconds of one call in batches of 64. 0: capture, 1: walk, 2: optimizer test,
// 3: capture with optimizer test.
EXPORT double gb_bench(int what, int batches) {
  std::vector<double> times;
  python::Frame out[kMaxStackFrames];
  for (int b = 0; b < batches; ++b) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 64; ++i) {
      python::OptimizerCall call;
      switch (what) {
        case 0: capture_python_stack(sink()); break;
        case 1: python::walk(out, kMaxStackFrames); break;
        case 2: call = python::current_optimizer_call(); break;
        case 3: capture_python_stack(sink(), &call); break;
      }
      asm volatile("" ::"r"(&call), "r"(out) : "memory");
    }
    const std::chrono::duration<double, std::nano> d = std::chrono::steady_clock::now() - start;
    times.push_back(d.count() / 64);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

EXPORT int gb_line(const char* table, int size, int first_line, int minor, unsigned offset) {
  return analysis::line_of(std::string(table, static_cast<std::size_t>(size)), first_line, minor,
                           offset);
}

namespace {

python::RemoteMemory g_memory;
std::uintptr_t g_gil = 0;
int g_number_at = -1;

// The lock that a thread waits for in the interpreter; 0: for none within some seconds.
std::uint64_t lock_of(const python::Interpreter& python, int thread_id) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread_id);
  for (int i = 0; i < 5000; ++i) {
    unsigned long number = 0, lock = 0;
    if (std::FILE* file = std::fopen(path, "r")) {
      if (std::fscanf(file, "%lu %lx", &number, &lock) != 2) lock = 0;
      std::fclose(file);
    }
    if (lock != 0 && python::lies_in_runtime(python, lock)) return lock;
    usleep(1000);
  }
  return 0;
}

}  // namespace

// With the GIL held, while that thread waits for it. 0: all that is found of it is true; else what
// is not.
EXPORT int gb_find_gil(int waiter, std::uint64_t ident) {
  const python::Interpreter* python = python::ready_interpreter_or_probe();
  if (python == nullptr) return 1;
  const std::uint64_t lock = lock_of(*python, waiter);
  if (lock == 0) return 2;
  const char* own = python::current_thread_state(*python);
  const auto interpreter = python::load<std::uintptr_t>(own, python::kThreadInterpreter);
  g_memory.look_into(0);
  g_gil = python::find_gil(g_memory, lock, interpreter);
  if (g_gil == 0) return 3;
  if (python::holder_of(g_memory, g_gil) != reinterpret_cast<std::uintptr_t>(own)) return 4;
  if (python::is_refuted_by_caller(*python, g_gil)) return 5;
  if (!python::is_refuted_by_caller(*python, g_gil + 8)) return 6;
  g_number_at = python::find_thread_number(g_memory, ident, static_cast<std::uint32_t>(waiter));
  if (g_number_at < 0) return 7;
  const auto number =
      g_memory.load<std::uint32_t>(reinterpret_cast<const void*>(pthread_self()), g_number_at);
  return number == static_cast<std::uint32_t>(gettid()) ? 0 : 8;
}

// Without the GIL: who holds it. Its state's number of the kernel's, and the innermost frame; 0
// frames: it ran on, or none holds it.
EXPORT int gb_gil_holder(std::uint64_t* code, int* offset, int* thread_id) {
  const python::Interpreter& python = *python::ready_interpreter();
  usleep(300);  // for another thread to take it
  g_memory.look_into(0);
  const std::uintptr_t holder = python::holder_of(g_memory, g_gil);
  if (holder == 0) return 0;
  const auto* state = reinterpret_cast<const char*>(holder);
  const auto ident = g_memory.load<std::uint64_t>(state, python.thread_ident);
  *thread_id = g_memory.load<int>(reinterpret_cast<const void*>(ident), g_number_at);
  static python::RemoteFrame frames[64], second[64];
  const python::RemoteStack stack =
      python::walk_remote(g_memory, {&python, state, ident}, frames, second, 64);
  if (stack.count == 0) return 0;
  *code = reinterpret_cast<std::uint64_t>(frames[0].code);
  *offset = frames[0].offset;
  return stack.count;
}

// After Py_Finalize: prints what a capture finds.
EXPORT void gb_check_at_exit(void) {
  std::atexit([] { std::fprintf(stderr, "at exit: %u\n", capture_python_stack(sink())); });
}
