// SPDX-License-Identifier: Apache-2.0
#include "runtime/native/capture.hpp"

#include <atomic>

#include "runtime/keep_errno.hpp"

namespace gpubusy::runtime::native {
namespace {

using recording::FrameKind;

constinit std::atomic<std::uint64_t> g_unplaced{0};

// ---- which native frames run Python code -------------------------------------------------------

// Their code: where versions tell no entry the eval function by its symbol, else what was seen to
// hold entries (compilers take functions apart, and 3.14 has many that run frames). It stays
// loaded. A slot without an end is free, or being filled.
struct Span {
  std::atomic<std::uintptr_t> begin{0}, end{0};
};
constexpr unsigned kSpans = 8;
constinit Span g_evals[kSpans] = {};
constinit std::atomic<unsigned> g_evals_used{0};
constinit std::atomic<unsigned> g_evals_asked{0};

std::uintptr_t instruction_of(const Frame& f) noexcept { return f.interrupted ? f.pc : f.pc - 1; }

bool is_eval(std::uintptr_t pc) noexcept {
  for (const Span& span : g_evals) {
    const std::uintptr_t end = span.end.load(std::memory_order_acquire);
    if (end == 0) break;
    if (pc < end && pc >= span.begin.load(std::memory_order_relaxed)) return true;
  }
  return false;
}

[[gnu::noinline, gnu::cold]] void learn_eval(std::uintptr_t pc) noexcept {
  constexpr unsigned kMaxTries = 256;  // another thread may be unloading a library, for one
  if (g_evals_used.load(std::memory_order_relaxed) >= kSpans ||
      g_evals_asked.fetch_add(1, std::memory_order_relaxed) >= kMaxTries) {
    return;
  }
  const CodeSpan code = span_of(pc);
  if (code.end == 0) return;
  const unsigned i = g_evals_used.fetch_add(1, std::memory_order_relaxed);
  if (i >= kSpans) return;
  g_evals[i].begin.store(code.begin, std::memory_order_relaxed);
  g_evals[i].end.store(code.end, std::memory_order_release);
}

// Gives each frame the entry that its version does not tell. False: the counts do not agree.
bool find_entries(PythonFrames& python, const Frame* frames, int count) noexcept {
  if (const std::uintptr_t eval = python::eval_function(); !is_eval(eval)) learn_eval(eval);
  int evals = 0;
  for (int i = count - 1; i >= 0; --i) {
    if (!is_eval(instruction_of(frames[i]))) continue;
    if (evals < python.count) python.frames[evals].entry = frames[i].sp;
    ++evals;
  }
  return evals == python.chain.total;
}

// ---- the order of frames -----------------------------------------------------------------------

struct Plan {
  int unchanged = 0;  // Python frames that are as they were, with their nodes
  int count = 0;      // Python frames in stack.placed
  int first = 0;      // index of the outermost native frame that is kept
  bool good = true;
};

// Writes stack.placed. `known`: so many native frames have nodes; goes down to those that keep
// them. A node stands for all that is further out, Python frames too.
class Placing {
 public:
  Placing(ThreadStack& stack, int& known) noexcept
      : stack_(stack), frames_(stack.frames()), count_(stack.count()), known_(known) {}

  Plan run(PythonFrames& python) noexcept {
    const bool whole = stack_.end() == End::kOutermost;
    Plan plan;
    if (!python::has_entries() && (!whole || !find_entries(python, frames_, count_))) {
      plan.good = false;
      return plan;
    }
    int k = python.count - 1;
    // A chain that was cut may have lost the entry of its last frames.
    while (k >= 0 && python.frames[k].entry == 0) --k;
    const int outermost = k;
    bool is_root = !python.chain.cut;
    int behind = -1;
    for (; k >= 0; --k) {
      const python::Frame& f = python.frames[k];
      const PlacedFrame* old =
          same_ && plan.count < stack_.placed_count && stack_.placed[plan.count].behind < known_
              ? &stack_.placed[plan.count]
              : nullptr;
      if (old != nullptr && old->entry == f.entry && old->location == location_of(f)) {
        behind = old->behind;
        if (k == outermost) plan.first = stack_.first;
        ++plan.count;
        ++plan.unchanged;
        continue;
      }
      if (f.entry != 0) {
        const int found = frame_with(f.entry, behind + 1);
        if (found < 0) {
          // Further out than a cut stack goes, or on another one that this began on?
          if (!whole && behind < 0 && is_elsewhere(f.entry)) {
            while (k > 0 && python.frames[k - 1].entry == 0) --k;
            is_root = false;
            continue;
          }
          plan.good = false;
          return plan;
        }
        behind = found;
        const std::uintptr_t pc = instruction_of(frames_[found]);
        if (!is_eval(pc)) [[unlikely]]
          learn_eval(pc);
        if (is_root && k == outermost) plan.first = first_kept(python.chain.outermost_entry, found);
      }
      change(plan.count, behind);
      stack_.placed[plan.count++] = {location_of(f), f.entry, 0, behind};
    }
    return plan;
  }

  // Nothing is placed after all.
  void give_up() noexcept {
    if (stack_.placed_count > 0) forget_from(0);
    stack_.placed_count = 0;
  }

  // What was placed before and is no more.
  void end(int count) noexcept {
    if (same_ && count < stack_.placed_count) change(count, stack_.placed[count].behind);
    stack_.placed_count = count;
  }

 private:
  // The native frame that the address is in, `from` or further in; -1: none.
  int frame_with(std::uintptr_t address, int from) const noexcept {
    if (from > 0 && (from >= count_ || address >= frames_[from - 1].sp)) return -1;
    for (int i = from; i < count_; ++i) {
      if (frames_[i].sp <= address) return i == 0 ? -1 : i;  // where the first ends is not known
    }
    return -1;
  }

  bool is_elsewhere(std::uintptr_t address) const noexcept {
    return count_ == 0 || address >= frames_[0].sp || address < frames_[count_ - 1].sp;
  }

  // Python's frames end with `root`. If the main interpreter runs more of its own further out, then
  // another greenlet does, whose stack may have changed since.
  int first_kept(std::uintptr_t entry, int root) const noexcept {
    int outside = root;
    while (outside > 0 && frames_[outside - 1].sp <= entry) --outside;
    for (int i = 0; i < outside; ++i) {
      if (is_eval(instruction_of(frames_[i]))) {
        return python::is_in_main_interpreter() ? outside : 0;
      }
    }
    return 0;
  }

  // The chain differs from the one before from the placed frame `index` on, which is (or was)
  // behind this native frame.
  void change(int index, int behind) noexcept {
    if (!same_) return;
    same_ = false;
    int keep = behind + 1;
    if (index < stack_.placed_count && stack_.placed[index].behind + 1 < keep) {
      keep = stack_.placed[index].behind + 1;
    }
    if (keep < known_) forget_from(keep);
  }
  void forget_from(int keep) noexcept {
    for (int i = keep; i < known_; ++i) frames_[i].node = 0;
    known_ = keep;
  }

  ThreadStack& stack_;
  Frame* const frames_;
  const int count_;
  int& known_;
  bool same_ = true;
};

}  // namespace

[[gnu::noinline]] std::uint32_t capture_native_stack(DefinitionSink& sink, ThreadStack& stack,
                                                     PythonFrames* python) noexcept {
  KeepErrno keep;
  const std::uint32_t epoch = stack_epoch();
  const End end = stack.walk(current_registers());
  if (end == End::kBusy) return 0;
  Frame* frames = stack.frames();
  const int count = stack.count();
  if (stack.node_epoch != epoch) [[unlikely]] {
    for (int i = 0; i < count; ++i) frames[i].node = 0;
    stack.node_epoch = epoch;
  }
  int known = count;
  while (known > 0 && frames[known - 1].node == 0) --known;

  Plan plan;
  Placing placing(stack, known);
  if (python != nullptr && python->count > 0 && python->epoch == epoch) {
    plan = placing.run(*python);
    if (!plan.good) {
      g_unplaced.fetch_add(1, std::memory_order_relaxed);
      placing.give_up();
      plan = {};
    }
  }
  placing.end(plan.count);
  if (plan.first != stack.first) {
    for (int i = 0; i < known; ++i) frames[i].node = 0;
    known = 0;
    plan.unchanged = 0;
    stack.first = plan.first;
  }

  // Each native frame, then the Python frames that it runs.
  PlacedFrame* placed = stack.placed;
  int next = 0;
  for (next = plan.unchanged; next > 0 && placed[next - 1].behind >= known; --next) {
  }
  std::uint32_t node = 0;
  if (known > 0) node = frames[known - 1].node;
  if (next > 0 && placed[next - 1].behind == known - 1) node = placed[next - 1].node;
  const bool cut = end != End::kOutermost || plan.first > 0;
  const bool python_cut = plan.count > 0 && python->chain.cut;
  int i = known > plan.first ? known - 1 : plan.first - 1;
  for (;;) {
    for (; next < plan.count && placed[next].behind == i; ++next) {
      const std::uint32_t inner = intern_frame(sink, node, FrameKind::kPython,
                                               placed[next].location, python_cut && next == 0);
      if (inner == 0) {
        stack.placed_count = next;
        return node;
      }
      node = placed[next].node = inner;
    }
    if (++i == count) return node;
    const std::uint64_t location = frames[i].pc + (frames[i].interrupted ? 1 : 0);
    const std::uint32_t inner =
        intern_frame(sink, node, FrameKind::kNative, location, cut && i == plan.first);
    if (inner == 0) {
      stack.placed_count = next;
      return node;
    }
    node = frames[i].node = inner;
  }
}

std::uint64_t unplaced_stacks() noexcept { return g_unplaced.load(std::memory_order_relaxed); }
void forget_unplaced_stacks() noexcept { g_unplaced.store(0, std::memory_order_relaxed); }

}  // namespace gpubusy::runtime::native
