// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/scheduler.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <thread>

namespace gpubusy::sim {
namespace {

// Handing a copy to the copy thread costs about 5 us, as much as copying this does.
constexpr std::size_t kInlineBytes = 16 * 1024;

bool runs_inline(const Operation& operation) {
  return operation.effect.type == Effect::Type::kNone ||
         (operation.effect.type != Effect::Type::kCall && operation.effect.bytes() <= kInlineBytes);
}

// Signals are for the program's own threads.
template <class Body>
void start_thread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(body).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void Fence::add(const Fence& other) {
  at_least(other.time_ns);
  for (const PendingPtr& p : other.pending) {
    if (p->state == Pending::State::kDone) {
      at_least(p->operation.end_ns);
    } else if (std::find(pending.begin(), pending.end(), p) == pending.end()) {
      pending.push_back(p);
    }
  }
}

bool Fence::settle() {
  if (pending.empty()) [[likely]]
    return true;
  std::erase_if(pending, [this](const PendingPtr& p) {
    if (p->state != Pending::State::kDone) return false;
    at_least(p->operation.end_ns);
    return true;
  });
  return pending.empty();
}

Timeline& Scheduler::timeline(int device, Engine engine) {
  return timelines_[device][static_cast<int>(engine)];
}

void Scheduler::place(Operation& operation, std::uint64_t ready_ns) {
  operation.start_ns =
      operation.engine == Engine::kNone
          ? ready_ns
          : timeline(operation.device, operation.engine)
                .reserve(ready_ns, operation.duration_ns, operation.share, now_ns());
  operation.end_ns = operation.start_ns + operation.duration_ns;
}

Fence Scheduler::submit(Operation& operation, const Fence& after, std::uint64_t earliest_ns,
                        Executor executor, PendingPtr* executing) {
  std::uint64_t ready = std::max(earliest_ns, after.time_ns);
  int unresolved = 0;
  for (const PendingPtr& p : after.pending) {
    if (p->state == Pending::State::kDone) {
      ready = std::max(ready, p->operation.end_ns);
    } else {
      ++unresolved;
    }
  }
  if (unresolved == 0 && executor == Executor::kAnyone && runs_inline(operation)) [[likely]] {
    place(operation, ready);
    operation.effect.run();
    report_operation(operation);
    return {operation.end_ns, {}};
  }
  auto pending = std::make_shared<Pending>();
  pending->operation = operation;
  pending->ready_ns = ready;
  pending->by_caller = executor == Executor::kCaller;
  if (executing != nullptr) *executing = pending;
  if (unresolved == 0) {
    activate(pending);
  } else {
    pending->unresolved = unresolved;
    for (const PendingPtr& p : after.pending) {
      if (p->state != Pending::State::kDone) p->dependents.push_back(pending);
    }
  }
  Fence done;
  if (pending->state == Pending::State::kDone) {
    done.time_ns = pending->operation.end_ns;
  } else {
    done.pending.push_back(std::move(pending));
  }
  return done;
}

void Scheduler::activate(const PendingPtr& pending) {
  Operation& operation = pending->operation;
  pending->state = Pending::State::kExecuting;
  place(operation, pending->ready_ns);
  if (pending->by_caller) {
    if (waiters_ > 0) changed_.notify_all();
  } else if (operation.effect.type == Effect::Type::kCall) {
    callbacks_.push_back(pending);
    wake_callback_thread();
  } else if (runs_inline(operation)) {
    operation.effect.run();
    finish(pending, 0);
  } else {
    copies_.push_back(pending);
    wake_copy_thread();
  }
}

void Scheduler::finish(PendingPtr first, std::uint64_t real_end_ns) {
  Operation& operation = first->operation;
  if (real_end_ns > operation.end_ns) {
    if (operation.engine != Engine::kNone) {
      timeline(operation.device, operation.engine).extend(operation.end_ns, real_end_ns);
    }
    operation.end_ns = real_end_ns;
  }
  // A list, not recursion: a thousand kernels may wait behind one copy.
  std::vector<PendingPtr> done{std::move(first)};
  while (!done.empty()) {
    const PendingPtr p = std::move(done.back());
    done.pop_back();
    p->state = Pending::State::kDone;
    report_operation(p->operation);
    // In order of submission, so that engines are given out in that order.
    std::vector<PendingPtr> now_done;
    for (PendingPtr& dependent : p->dependents) {
      dependent->ready_ns = std::max(dependent->ready_ns, p->operation.end_ns);
      if (--dependent->unresolved > 0) continue;
      if (!dependent->by_caller && runs_inline(dependent->operation)) {
        place(dependent->operation, dependent->ready_ns);
        dependent->operation.effect.run();
        now_done.push_back(std::move(dependent));
      } else {
        activate(dependent);
      }
    }
    p->dependents.clear();
    done.insert(done.end(), now_done.rbegin(), now_done.rend());
  }
  if (waiters_ > 0) changed_.notify_all();
}

void Scheduler::wait(Fence fence, std::unique_lock<std::mutex>& lock, Waiting how) {
  while (!fence.settle()) {
    ++waiters_;
    changed_.wait(lock);
    --waiters_;
  }
  if (fence.time_ns <= now_ns()) return;
  lock.unlock();
  wait_until(fence.time_ns, how);
  lock.lock();
}

void Scheduler::run_by_caller(const PendingPtr& pending, std::unique_lock<std::mutex>& lock) {
  while (pending->state == Pending::State::kWaiting) {
    ++waiters_;
    changed_.wait(lock);
    --waiters_;
  }
  const std::uint64_t start = pending->operation.start_ns;
  lock.unlock();
  wait_until(start);
  pending->operation.effect.run();
  const std::uint64_t end = now_ns();
  lock.lock();
  finish(pending, end);
  lock.unlock();
  wait_until(pending->operation.end_ns);
  lock.lock();
}

void Scheduler::wake_copy_thread() {
  if (!copy_thread_started_) {
    copy_thread_started_ = true;
    start_thread([this] { copy_thread(); });
  }
  copies_changed_.notify_one();
}

void Scheduler::copy_thread() {
  // A thread of this policy does not push its waker off the core: on a machine with few cores an
  // asynchronous copy would else return after the copy.
  const sched_param no_priority{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &no_priority);
  std::unique_lock lock(mutex);
  for (;;) {
    copies_changed_.wait(lock, [this] { return !copies_.empty(); });
    const PendingPtr pending = std::move(copies_.front());
    copies_.pop_front();
    // What the copy depends on is done, so its data may move before its modelled start.
    lock.unlock();
    pending->operation.effect.run();
    const std::uint64_t end = now_ns();
    lock.lock();
    finish(pending, end);
  }
}

void Scheduler::wake_callback_thread() {
  if (!callback_thread_started_) {
    callback_thread_started_ = true;
    start_thread([this] { callback_thread(); });
  }
  callbacks_changed_.notify_one();
}

void Scheduler::callback_thread() {
  std::unique_lock lock(mutex);
  for (;;) {
    callbacks_changed_.wait(lock, [this] { return !callbacks_.empty(); });
    const auto first = std::min_element(callbacks_.begin(), callbacks_.end(),
                                        [](const PendingPtr& a, const PendingPtr& b) {
                                          return a->operation.start_ns < b->operation.start_ns;
                                        });
    const std::uint64_t start = (*first)->operation.start_ns;
    const std::uint64_t now = now_ns();
    if (start > now) {
      // Another one with an earlier start may come.
      callbacks_changed_.wait_for(lock, std::chrono::nanoseconds(start - now));
      continue;
    }
    const PendingPtr pending = *first;
    callbacks_.erase(first);
    lock.unlock();
    const std::uint64_t real_start = now_ns();
    pending->operation.effect.run();
    const std::uint64_t end = now_ns();
    lock.lock();
    pending->operation.start_ns = std::max(pending->operation.start_ns, real_start);
    finish(pending, end);
  }
}

}  // namespace gpubusy::sim
