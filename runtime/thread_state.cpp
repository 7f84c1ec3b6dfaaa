// SPDX-License-Identifier: Apache-2.0
#include "runtime/thread_state.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "runtime/clock.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/native/walker.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/ranges.hpp"
#include "runtime/recorder.hpp"
#include "runtime/step_tracker.hpp"
#include "runtime/streams.hpp"

namespace gpubusy::runtime {

constinit thread_local ThreadLocal t_local __attribute__((tls_model("initial-exec"))) = {};

namespace {

constexpr std::size_t kStateSize = 4096;
static_assert(sizeof(ThreadState) <= kStateSize);

constinit std::atomic<ThreadState*> g_states{nullptr};
pthread_key_t g_exit_key;
constinit std::atomic<bool> g_has_exit_key{false};

void on_thread_exit(void*) {
  const OwnWork own;
  const NoCancel no_cancel;
  range_thread_ended();
  ThreadState* state = t_local.state;
  // Fork gives the child this thread's key value, but the state was forgotten there.
  if (state == nullptr) return;
  forget_thread_name(state->thread_id);
  steps_thread_ended(state->thread_id);
  forget_streams_of_thread(state->thread_id);
  state->writer.close(recording_file());
  if (state->native_stack != nullptr) state->native_stack->forget();
  state->gap.reset();
  t_local.state = nullptr;
  state->ended.store(true, std::memory_order_release);
}

void define_thread(ThreadState& state) noexcept {
  char name_of_system[32] = {};
  const char* name = program_name_of_thread(state.thread_id);
  if (name == nullptr) {
    pthread_getname_np(pthread_self(), name_of_system, sizeof name_of_system);
    name = name_of_system;
  }
  recording::ThreadRecord record{};
  record.header.type = recording::RecordType::kThread;
  record.header.value = state.thread_id;
  record.pthread = static_cast<std::uint64_t>(pthread_self());
  record.first_ns = now_ns();
  record.flags = name == name_of_system ? 0 : 1;
  std::size_t length = 0;
  while (name[length] != '\0') ++length;
  record.name_bytes = static_cast<std::uint32_t>(length);
  const Part part{name, length};
  definitions().define(&record.header, sizeof record, &part, 1);
}

}  // namespace

ThreadState* make_thread_state() noexcept {
  KeepErrno keep;
  const NoCancel no_cancel;
  const auto id = static_cast<std::uint32_t>(syscall(SYS_gettid));
  ThreadState* state = nullptr;
  // A state whose thread has ended and whose device times are in can serve again.
  for (ThreadState* s = g_states.load(std::memory_order_acquire); s != nullptr; s = s->next) {
    bool ended = true;
    const bool in =
        std::atomic_ref<TimerRing*>(s->timers).load(std::memory_order_acquire) == nullptr;
    if (in && s->ended.compare_exchange_strong(ended, false)) {
      // The gap sampler may be reading it.
      std::atomic_ref<std::uint32_t>(s->thread_id).store(id, std::memory_order_relaxed);
      s->writer = recording::ThreadWriter{};
      s->external_ids = 0;
      s->gap.reset();
      state = s;
      break;
    }
  }
  if (state == nullptr) {
    void* p = mmap(nullptr, kStateSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    state = new (p) ThreadState;
    state->thread_id = id;
    ThreadState* head = g_states.load(std::memory_order_relaxed);
    do {
      state->next = head;
    } while (!g_states.compare_exchange_weak(head, state, std::memory_order_release));
  }
  t_local.state = state;
  watch_thread_exit();
  define_thread(*state);
  return state;
}

ThreadState* all_thread_states() noexcept { return g_states.load(std::memory_order_acquire); }

void install_thread_exit() noexcept {
  static constinit std::atomic<bool> tried{false};
  if (tried.exchange(true)) return;
  if (pthread_key_create(&g_exit_key, on_thread_exit) == 0) {
    g_has_exit_key.store(true, std::memory_order_release);
  }
}

void watch_thread_exit() noexcept {
  // Any value but null.
  if (g_has_exit_key.load(std::memory_order_acquire)) pthread_setspecific(g_exit_key, &t_local);
}

void forget_threads_after_fork() noexcept {
  // The parent's pages stay mapped here, unused: unmapping each would cost every forked child.
  g_states.store(nullptr, std::memory_order_relaxed);
  RangeStack* const ranges = t_local.ranges;  // the thread goes on inside its ranges
  t_local = ThreadLocal{};
  t_local.ranges = ranges;
}

}  // namespace gpubusy::runtime
