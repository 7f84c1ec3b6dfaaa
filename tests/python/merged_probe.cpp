// SPDX-License-Identifier: Apache-2.0
//
// For merged.py: whole stacks as a hook takes them, and what glibc's backtrace() says at the same
// place.
#include <algorithm>
#include <vector>

#include "runtime/native/capture.hpp"
#include "runtime/stack_table.hpp"
#include "tests/native/walk.hpp"
#include "tests/python/memory_sink.hpp"

using namespace gpubusy;
using namespace gpubusy::test;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
thread_local std::vector<std::uintptr_t> t_truth;
thread_local std::uint32_t t_python = 0;
}  // namespace

EXPORT void gbm_start() {
  use_objects(true);
  native::set_up_walker(0, 0);
}

EXPORT [[gnu::noinline]] std::uint32_t gbm_capture() {
  runtime::PythonFrames python;
  t_python = runtime::capture_python_stack(sink_of_probe(), nullptr, python);
  const std::uint32_t node = native::capture_native_stack(sink_of_probe(), thread_stack(), &python);
  const native::ThreadStack& stack = thread_stack();
  t_truth = stack.first > 0 ? glibc_here(stack.count() - stack.first) : glibc_here();
  return node;
}

// Of the thread's last gbm_capture(): the Python stack alone, and glibc's return addresses.
EXPORT std::uint32_t gbm_python() { return t_python; }
EXPORT int gbm_truth(std::uint64_t* out, int max) {
  const int n = std::min(max, static_cast<int>(t_truth.size()));
  std::copy_n(t_truth.begin(), n, out);
  return n;
}

EXPORT std::uint64_t gbm_unplaced() { return native::unplaced_stacks(); }
EXPORT void gbm_forget_unplaced() { native::forget_unplaced_stacks(); }

// `depth` frames of C++, then `then`.
EXPORT [[gnu::noinline]] int gbm_deep(int depth, int (*then)()) {
  const int result = depth > 1 ? gbm_deep(depth - 1, then) : then();
  asm volatile("" ::: "memory");
  return result;
}
