// SPDX-License-Identifier: Apache-2.0
//
// From "this thread is (not) inside an optimizer's step" to the ends of training steps. Pure: no
// clock, no Python, no locks (the caller serialises).
//
// What ends a step. The last launch that a thread made inside one call of an optimizer's step();
// known at that thread's first later CUDA call outside of it, or inside another one. Other threads
// do not end it: with a closure (LBFGS, Lightning) the backward pass runs on autograd's thread
// while step() waits.
//
// Several optimizers. Steps are the most calls that any optimizer had, never the sum. One optimizer
// leads: its calls are the edges.
//   * The first optimizer called leads at once: for a GAN whose iteration is D, G the edge of the
//     first iteration is D's, half an iteration early.
//   * An optimizer first seen after the leader that is called exactly once in the leader's first
//     round, or in three rounds running, takes over (the last such one in the round): from the
//     second iteration on the edge is G's. No edge is lost or doubled in the change.
//   * An optimizer called twice without the leader in between (the leader's step was skipped, or it
//     is done training) gives the edge in its stead, one call late but with the right time; the
//     third time running it becomes the leader.
//   * D five times per G: D leads, five edges.
//   * Optimizers of other threads (a model each) do the same only after a growing number of calls
//     without the leader; where it comes back after all, the count stays the leader's.
//
// Not seen: a step() that launches nothing, and two calls of one optimizer's step() from the same
// stack frame with no CUDA call of the thread in between (these count as one).
#pragma once

#include <cstdint>
#include <new>

namespace gpubusy::runtime {

struct StepEdges {
  int count = 0;
  std::uint64_t time_ns[2] = {};  // never falls, also over all edges
};

class StepDetector {
 public:
  static constexpr int kMaxOptimizers = 512;
  static constexpr int kMaxThreads = 32;  // inside a step at the same time

  // Before a call of `thread`. `call` is null outside of optimizer steps, else any identity of the
  // step() call (python::OptimizerCall::frame).
  StepEdges before(std::uint32_t thread, const void* optimizer, const void* call) noexcept {
    Open* open = find(thread);
    if (open != nullptr) {
      if (open->optimizer == optimizer && open->call == call) return {};
      const StepEdges edges = close(*open);
      if (call != nullptr) {
        *open = {thread, true, optimizer, call, 0};
      }
      return edges;
    }
    if (call == nullptr) return {};
    for (Open& slot : open_) {
      if (slot.used) continue;
      slot = {thread, true, optimizer, call, 0};
      break;
    }
    return {};
  }

  // A launch inside a step, as told to before(), has returned.
  void after_launch(std::uint32_t thread, std::uint64_t end_ns) noexcept {
    if (Open* open = find(thread)) open->last_end_ns = end_ns;
  }

  // The thread ends: an open step of it has ended.
  StepEdges thread_ended(std::uint32_t thread) noexcept { return before(thread, nullptr, nullptr); }

  // Both, for a launch.
  StepEdges see(std::uint32_t thread, const void* optimizer, const void* call,
                std::uint64_t end_ns) noexcept {
    const StepEdges edges = before(thread, optimizer, call);
    if (call != nullptr) after_launch(thread, end_ns);
    return edges;
  }

  bool inside(std::uint32_t thread) const noexcept {
    for (const Open& open : open_) {
      if (open.used && open.thread == thread) return true;
    }
    return false;
  }

  // Nothing follows: ends the open steps of all threads. Call until it returns no edge.
  StepEdges finish() noexcept {
    for (;;) {
      Open* first = nullptr;
      for (Open& open : open_) {
        if (open.used && (first == nullptr || open.last_end_ns < first->last_end_ns)) first = &open;
      }
      if (first == nullptr) break;
      const StepEdges edges = close(*first);
      if (edges.count != 0) return edges;
    }
    // The leader did not come any more in an iteration that others had begun.
    const Optimizer* waiting = nullptr;
    for (int i = 0; i < used_; ++i) {
      const Optimizer& o = optimizers_[i];
      if (leader_ >= 0 && i < leader_ && o.round == round_ && o.calls == 1 &&
          (waiting == nullptr || o.last_end_ns > waiting->last_end_ns)) {
        waiting = &o;
      }
    }
    StepEdges edges;
    if (waiting != nullptr) add_edge(edges, waiting->last_end_ns);
    return edges;
  }

  std::uint64_t steps() const noexcept { return steps_; }
  // In its place: a copy would be more than a small stack has, and every fork does this.
  void reset() noexcept { new (this) StepDetector{}; }

 private:
  static constexpr std::uint32_t kRounds = 3;    // before a follower takes over
  static constexpr std::uint32_t kPatience = 2;  // rounds that the leader may be missing
  static constexpr std::uint32_t kMostForeignPatience = 32;
  static constexpr std::uint64_t kStaleRounds = 64;

  struct Open {
    std::uint32_t thread;
    bool used;
    const void* optimizer;
    const void* call;
    std::uint64_t last_end_ns;  // 0: no launch so far
  };

  // In the order of their first calls.
  struct Optimizer {
    const void* id;
    std::uint64_t round;   // of the last call
    std::uint32_t calls;   // in that round
    std::uint32_t streak;  // rounds running with exactly one call
    std::uint32_t thread;  // that called it last
    std::uint64_t last_end_ns;
  };

  Open* find(std::uint32_t thread) noexcept {
    for (Open& open : open_) {
      if (open.used && open.thread == thread) return &open;
    }
    return nullptr;
  }

  StepEdges close(Open& open) noexcept {
    open.used = false;
    if (open.last_end_ns == 0) return {};
    return step_call_ended(open.thread, open.optimizer, open.last_end_ns);
  }

  int index_of(const void* id) noexcept {
    // Optimizers are called in the same order again and again.
    for (int n = 0, i = last_ + 1; n < used_; ++n, ++i) {
      if (i >= used_) i = 0;
      if (optimizers_[i].id == id) return last_ = i;
    }
    int i = used_;
    if (i == kMaxOptimizers) {
      for (i = 0; i < used_; ++i) {
        if (i != leader_ && optimizers_[i].round + kStaleRounds < round_) break;
      }
      if (i == used_) return -1;
    } else {
      ++used_;
    }
    optimizers_[i] = {id, 0, 0, 0, 0, 0};
    return last_ = i;
  }

  void add_edge(StepEdges& edges, std::uint64_t time_ns) noexcept {
    // Threads' step() calls are known to have ended in another order than they ended in.
    if (time_ns > last_edge_ns_) last_edge_ns_ = time_ns;
    edges.time_ns[edges.count++] = last_edge_ns_;
    ++steps_;
    ++round_;
  }

  void lead(int index) noexcept {
    leader_ = index;
    leader_rounds_ = 0;
    missed_ = 0;
    borrowed_ = 0;
    for (int i = 0; i < used_; ++i) optimizers_[i].streak = 0;
  }

  // Who takes over at this call of the leader, or -1. Ends the round's bookkeeping.
  int successor() noexcept {
    ++leader_rounds_;
    const std::uint32_t needed = leader_rounds_ < kRounds ? leader_rounds_ : kRounds;
    int found = -1;
    for (int i = 0; i < used_; ++i) {
      Optimizer& o = optimizers_[i];
      if (i == leader_) continue;
      o.streak = o.round == round_ && o.calls == 1 ? o.streak + 1 : 0;
      if (i > leader_ && o.streak >= needed && o.thread == optimizers_[leader_].thread &&
          (found < 0 || o.last_end_ns > optimizers_[found].last_end_ns)) {
        found = i;
      }
    }
    return found;
  }

  StepEdges step_call_ended(std::uint32_t thread, const void* id, std::uint64_t time_ns) noexcept {
    StepEdges edges;
    const int index = index_of(id);
    if (index < 0) return edges;
    Optimizer& o = optimizers_[index];
    const std::uint64_t previous_end_ns = o.last_end_ns;
    o.thread = thread;
    const std::uint32_t earlier_calls = o.round == round_ ? o.calls : 0;
    if (leader_ < 0) lead(index);
    if (index == leader_ && steps_ > 0) {
      missed_ = 0;
      if (borrowed_ > 0) {  // its edges were given already, in the belief that it was gone
        --borrowed_;
        if (foreign_patience_ < kMostForeignPatience) foreign_patience_ *= 2;
        ++round_;
        o.last_end_ns = time_ns;
        return edges;
      }
      if (const int next = successor(); next >= 0) {
        lead(next);
        ++round_;  // this call opens the iteration that the new leader ends
        note(o, time_ns);
        return edges;
      }
    }
    if (index == leader_) {
      add_edge(edges, time_ns);
      o.last_end_ns = time_ns;
      return edges;
    }
    const bool foreign = optimizers_[leader_].thread != thread;
    if (earlier_calls >= (foreign ? foreign_patience_ : 1)) {
      ++missed_;
      if (foreign) ++borrowed_;
      add_edge(edges, previous_end_ns);
      if (missed_ > kPatience) {
        lead(index);
        add_edge(edges, time_ns);
        o.last_end_ns = time_ns;
        return edges;
      }
    }
    note(o, time_ns);
    return edges;
  }

  void note(Optimizer& o, std::uint64_t time_ns) noexcept {
    o.calls = o.round == round_ ? o.calls + 1 : 1;
    o.round = round_;
    o.last_end_ns = time_ns;
  }

  std::uint64_t steps_ = 0;
  std::uint64_t round_ = 1;  // rises with each edge
  std::uint64_t last_edge_ns_ = 0;
  int used_ = 0, last_ = -1;
  int leader_ = -1;
  std::uint32_t leader_rounds_ = 0, missed_ = 0;
  std::uint32_t foreign_patience_ = 1, borrowed_ = 0;
  Open open_[kMaxThreads] = {};
  Optimizer optimizers_[kMaxOptimizers] = {};
};

}  // namespace gpubusy::runtime
