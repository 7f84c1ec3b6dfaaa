// SPDX-License-Identifier: Apache-2.0
#include "runtime/gaps/gil_holder.hpp"

#include <atomic>

#include "runtime/python/gil.hpp"
#include "runtime/python/remote.hpp"
#include "runtime/recorder.hpp"
#include "runtime/stack_table.hpp"

namespace gpubusy::runtime::gaps {
namespace {

// Static memory of the interpreter, so that any thread may read it.
constinit std::atomic<std::uintptr_t> g_gil{0};
constinit std::atomic<bool> g_refuted{false};

}  // namespace

void check_gil_of_caller(const python::Interpreter& python) noexcept {
  const std::uintptr_t gil = g_gil.load(std::memory_order_relaxed);
  if (gil == 0 || g_refuted.load(std::memory_order_relaxed)) return;
  if (python::is_refuted_by_caller(python, gil)) g_refuted.store(true, std::memory_order_relaxed);
}

void GilHolder::begin() noexcept { searches_ = 0; }

bool GilHolder::find(const Tools& tools, const python::Interpreter& python, std::uint32_t thread_id,
                     std::uint64_t ident, std::uintptr_t state, std::uint64_t lock) noexcept {
  if (number_at_ < 0) number_at_ = python::find_thread_number(tools.memory, ident, thread_id);
  if (gil_ == 0 && searches_ < kMostSearches) {
    ++searches_;
    // A thread without a state of its own, as autograd's, waits for the main interpreter's.
    std::uintptr_t interpreter = 0;
    if (python.main_interpreter != nullptr) {
      interpreter = reinterpret_cast<std::uintptr_t>(python.main_interpreter());
    } else if (state != 0) {
      tools.memory.forget();
      interpreter = tools.memory.load<std::uintptr_t>(reinterpret_cast<const void*>(state),
                                                      python::kThreadInterpreter);
      if (tools.memory.failed()) interpreter = 0;
    }
    if (interpreter != 0) gil_ = python::find_gil(tools.memory, lock, interpreter);
    if (gil_ != 0) g_gil.store(gil_, std::memory_order_relaxed);
  }
  return number_at_ >= 0 && gil_ != 0 && python::is_lock_of(gil_, lock) &&
         !g_refuted.load(std::memory_order_relaxed);
}

GilHolder::Seen GilHolder::look(const Tools& tools, const python::Interpreter& python,
                                std::uint32_t thread_id, std::uint64_t ident, std::uintptr_t state,
                                std::uint64_t lock) noexcept {
  Seen seen;
  python::RemoteMemory& memory = tools.memory;
  if (python.thread_ident == 0) return seen;
  memory.look_into(0);
  if (!find(tools, python, thread_id, ident, state, lock)) return seen;
  memory.forget();
  const std::uintptr_t holder = python::holder_of(memory, gil_);
  // One that waits does not hold it.
  if (holder == 0 || holder == state) return seen;
  const auto* holder_state = reinterpret_cast<const char*>(holder);
  const auto holder_ident = memory.load<std::uint64_t>(holder_state, python.thread_ident);
  const auto number =
      memory.load<std::uint32_t>(reinterpret_cast<const void*>(holder_ident), number_at_);
  if (memory.failed() || holder_ident == ident || number == thread_id ||
      !name_of_thread(number, seen.name)) {
    return seen;
  }
  if (tools.codes != nullptr && configuration().python_stacks != 0) {
    const python::RemoteThread who{&python, holder_state, holder_ident};
    python::RemoteStack stack =
        python::walk_remote(memory, who, tools.frames, tools.second, tools.max_frames);
    seen.python_stack = tools.codes->intern(definitions(), memory, who, stack, tools.frames,
                                            tools.second, tools.max_frames);
    seen.torn = stack.torn;
  }
  // It may have been handed on, and its last holder have ended.
  memory.forget();
  if (python::holder_of(memory, gil_) != holder) return {};
  seen.thread_id = number;
  return seen;
}

}  // namespace gpubusy::runtime::gaps
