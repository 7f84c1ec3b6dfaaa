// SPDX-License-Identifier: Apache-2.0
//
// When operations run. There is no thread for a device or a stream: an operation's start and end
// are computed when it is submitted, start = max(submission + latency, what it depends on, its
// engine), and whoever waits sleeps until then.
//
// Two kinds of work take as long as they really take: a copy that this host cannot make as fast as
// the model says, and a host function. Such an operation is Pending until it is done, and so is all
// that depends on it; then the rest is computed. So every logged interval is what events recorded
// around the operation measure.
//
// One lock guards the scheduler, streams, events and graphs. Memory has its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/core/clock.hpp"
#include "simulator/core/operation.hpp"
#include "simulator/core/timeline.hpp"

namespace gpubusy::sim {

struct Pending;
using PendingPtr = std::shared_ptr<Pending>;

// A moment on a device's clock, of which a part may not be known yet.
struct Fence {
  std::uint64_t time_ns = 0;
  std::vector<PendingPtr> pending;

  void add(const Fence& other);
  void at_least(std::uint64_t t) noexcept { time_ns = t > time_ns ? t : time_ns; }
  // Takes in what has become known. True: all is.
  bool settle();
};

struct Pending {
  enum class State : std::uint8_t { kWaiting, kExecuting, kDone };
  Operation operation;
  std::uint64_t ready_ns = 0;
  int unresolved = 0;
  State state = State::kWaiting;
  bool by_caller = false;
  std::vector<PendingPtr> dependents;
};

enum class Executor : std::uint8_t {
  kAnyone,  // the effect is carried out at submission if it is small, else by the copy thread
  kCaller,  // the calling thread does it, by run_by_caller()
};

class Scheduler {
 public:
  std::mutex mutex;

  // All below: with the mutex held.

  // When the operation will be done; its own times are filled in, as far as they are known.
  // `latency_ns`: until the device can start it.
  Fence submit(Operation& operation, const Fence& after, std::uint64_t earliest_ns,
               Executor executor = Executor::kAnyone, PendingPtr* executing = nullptr);

  // For kCaller: waits until the operation may start, carries it out, and until it has ended.
  void run_by_caller(const PendingPtr& pending, std::unique_lock<std::mutex>& lock);

  // Returns with the mutex released and taken again if it had to wait.
  void wait(Fence fence, std::unique_lock<std::mutex>& lock, Waiting how = Waiting::kSpin);

  Timeline& timeline(int device, Engine engine);

 private:
  friend class Workers;
  void activate(const PendingPtr& pending);
  void place(Operation& operation, std::uint64_t ready_ns);
  void finish(PendingPtr pending, std::uint64_t real_end_ns);

  std::condition_variable changed_;
  int waiters_ = 0;
  Timeline timelines_[16][kEngines];

  // The threads that carry out effects; started when first needed, detached, never stopped.
  void copy_thread();
  void callback_thread();
  void wake_copy_thread();
  void wake_callback_thread();
  bool copy_thread_started_ = false, callback_thread_started_ = false;
  std::condition_variable copies_changed_, callbacks_changed_;
  std::deque<PendingPtr> copies_;
  std::vector<PendingPtr> callbacks_;
};

// Logs the operation and tells the observer.
void report_operation(const Operation& operation) noexcept;

}  // namespace gpubusy::sim
