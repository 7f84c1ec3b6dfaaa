// SPDX-License-Identifier: Apache-2.0
#include "runtime/gaps/sampler.hpp"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "runtime/clock.hpp"
#include "runtime/gaps/evidence.hpp"
#include "runtime/gaps/gil_holder.hpp"
#include "runtime/gaps/hidden_thread.hpp"
#include "runtime/gaps/workers.hpp"
#include "runtime/host/counters.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/native/rules.hpp"
#include "runtime/native/walker.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/patience.hpp"
#include "runtime/python/collector.hpp"
#include "runtime/python/layout.hpp"
#include "runtime/python/remote.hpp"
#include "runtime/recorder.hpp"
#include "runtime/sandbox.hpp"
#include "runtime/stack_table.hpp"

namespace gpubusy::runtime::gaps {

constinit std::atomic<bool> g_wanted{false};

namespace {

// A gap is looked at every kFirstPeriod at first, then in proportion to its length. What matters is
// the wake-up, some 20 us on a virtual machine.
constexpr std::uint64_t kFirstPeriodNs = 1'000'000, kLongestPeriodNs = 10'000'000;
constexpr std::uint64_t kPeriodsOfGap = 4;
// While there are calls: a shorter gap than this is met by chance only, as often as it is long.
constexpr std::uint64_t kListenEveryNs = 4'000'000;
constexpr std::uint64_t kCountThreadsEveryNs = 20'000'000;
constexpr std::uint64_t kCheckUserEveryNs = 100'000'000;
// Threads that have long stopped launching are not looked at.
constexpr std::uint64_t kForgottenNs = 10'000'000'000;
constexpr int kMaxThreads = 4;
constexpr int kMaxPython = 256;
// For where the interpreter notes its collections: 2 ms each.
constexpr int kMostSearches = 3;
// How often a start is tried while it cannot be (one thread only, signals blocked).
constexpr std::uint64_t kRetryNs = 50'000'000;

enum class Why : std::uint8_t { kNotTried, kAlone, kSignals, kSandbox, kFailed, kRuns };

constinit bool g_enabled = false;
constinit std::uint64_t g_threshold_ns = 0;
constinit std::atomic<std::uint64_t> g_next_try_ns{0};
constinit std::atomic<Why> g_why{Why::kNotTried};
constinit std::atomic<bool> g_blind{false};       // /proc does not tell what a thread does
constinit std::atomic<bool> g_unreadable{false};  // process_vm_readv is forbidden
constinit std::atomic<bool> g_other_ids{false};   // /proc is that of another PID name space
constinit std::atomic<std::uint32_t> g_said{0};   // bits of Why, and kSaid…

constexpr std::uint32_t kSaidBlind = 1u << 31, kSaidUnreadable = 1u << 30, kSaidOtherIds = 1u << 29;

void say_once(std::uint32_t bit, const char* text) noexcept {
  if ((g_said.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return;
  notice(recording::NoticeKind::kInfo, text);
}

// ---- one thread that is looked at --------------------------------------------------------------

struct Watched {
  static constexpr std::uint64_t kNotTold = ~std::uint64_t{0};
  std::uint32_t thread_id = 0;
  std::uint64_t quiet_since = 0;  // of this gap
  ProcessorUse use;
  std::uint64_t faults = kNotTold;
  std::uint32_t python_stack = 0, native_stack = 0;
  SystemCall call;
  char state = 0;
  std::uint8_t flags = 0;
  recording::GapFile file = recording::GapFile::kNone;
  bool seen = false;  // in this gap
  TaskFiles files;
};

class Sampler {
 public:
  static Sampler* make() noexcept {
    void* p = mmap(nullptr, sizeof(Sampler), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    auto* sampler = new (p) Sampler;
    sampler->codes_ = RemoteCodes::map();
    sampler->native_ = native::ThreadStack::map();
    return sampler;
  }

  void run() noexcept;

 private:
  struct Silence {
    bool silent = false;
    std::uint64_t since = 0;
  };
  Silence listen(std::uint64_t now) const noexcept;
  bool goes_on() const noexcept {
    return mode() == Mode::kRecording && recording_file().is_writable() && sandbox::is_none_new();
  }
  void look_at_all(const Silence& silence, std::uint64_t now) noexcept;
  void look(ThreadState& thread, Watched& watched, std::uint64_t time,
            std::uint64_t since) noexcept;
  void read_stacks(ThreadState& thread, Watched& watched) noexcept;
  bool is_collecting(const python::Interpreter& python, const char* state) noexcept;
  Watched& watched_of(std::uint32_t thread_id) noexcept;
  bool is_as_before(const Watched& w, const ProcessorUse& use) noexcept;
  GilHolder::Seen look_at_holder(const ThreadState& thread, const Watched& w) noexcept;
  void write(const Watched& w, std::uint64_t time, std::uint64_t since,
             const recording::GapSampleRecord& changes) noexcept;
  void write(const GilHolder::Seen& holder, const Watched& waiter, std::uint64_t time) noexcept;

  ThreadState self_;
  RemoteCodes* codes_ = nullptr;
  native::ThreadStack* native_ = nullptr;
  std::uint64_t gap_since_ = 0;  // of the gap in hand
  std::uint64_t last_look_ns_ = 0;
  Watched watched_[kMaxThreads];
  host_facts::Watch host_;
  char text_[1024], again_[1024];
  python::RemoteMemory memory_, worker_memory_;
  python::RemoteFrame frames_[kMaxPython], second_[kMaxPython];
  Workers workers_;
  GilHolder gil_holder_;
  python::CollectorPlaces collector_;
  int collector_searches_ = 0;  // without success
};

constinit std::atomic<Sampler*> g_sampler{nullptr};  // made once, used by one thread at a time

Sampler::Silence Sampler::listen(std::uint64_t now) const noexcept {
  Silence s;
  for (const ThreadState* t = all_thread_states(); t != nullptr; t = t->next) {
    if (!t->gap.launches.load(std::memory_order_relaxed) ||
        t->ended.load(std::memory_order_relaxed)) {
      continue;
    }
    const std::uint64_t quiet = t->gap.quiet_since.load(std::memory_order_relaxed);
    if (quiet == Slot::kInCall) return {};
    if (quiet > s.since) s.since = quiet;
  }
  s.silent = s.since != 0 && now >= s.since + g_threshold_ns;
  return s;
}

Watched& Sampler::watched_of(std::uint32_t thread_id) noexcept {
  Watched* oldest = &watched_[0];
  for (Watched& w : watched_) {
    if (w.thread_id == thread_id) return w;
    if (w.quiet_since < oldest->quiet_since) oldest = &w;
  }
  oldest->files.close();
  *oldest = Watched{};
  oldest->thread_id = thread_id;
  oldest->files.open(thread_id);
  return *oldest;
}

void Sampler::look_at_all(const Silence& silence, std::uint64_t now) noexcept {
  if (silence.since != gap_since_) {
    gap_since_ = silence.since;
    last_look_ns_ = silence.since;
    for (Watched& w : watched_) w.seen = false;
  }
  const std::uint64_t since = last_look_ns_;
  last_look_ns_ = now;
  // The one that was active last comes first: it most likely ends the gap.
  std::uint64_t below = ~std::uint64_t{0};
  for (int i = 0; i < kMaxThreads; ++i) {
    ThreadState* next = nullptr;
    std::uint64_t latest = 0;
    for (ThreadState* t = all_thread_states(); t != nullptr; t = t->next) {
      if (!t->gap.launches.load(std::memory_order_relaxed) ||
          t->ended.load(std::memory_order_relaxed)) {
        continue;
      }
      const std::uint64_t quiet = t->gap.quiet_since.load(std::memory_order_relaxed);
      if (quiet >= below || quiet <= latest) continue;
      latest = quiet;
      next = t;
    }
    if (next == nullptr || latest + kForgottenNs < now) return;
    below = latest;
    const auto id = std::atomic_ref<std::uint32_t>(next->thread_id).load(std::memory_order_relaxed);
    Watched& w = watched_of(id);
    w.quiet_since = latest;
    look(*next, w, now, since);
  }
}

bool Sampler::is_collecting(const python::Interpreter& python, const char* state) noexcept {
  if (!collector_.known()) {
    if (collector_searches_ == kMostSearches) return false;
    ++collector_searches_;
    collector_ = python::find_collector(python, memory_, state);
    if (!collector_.known()) return false;
  }
  memory_.forget();
  return python::is_collecting(collector_, memory_, state);
}

void Sampler::read_stacks(ThreadState& thread, Watched& w) noexcept {
  w.python_stack = w.native_stack = 0;
  w.flags &= static_cast<std::uint8_t>(~(recording::kGapTorn | recording::kGapCollecting));
  const python::Interpreter* python = python::ready_interpreter();
  const std::uintptr_t state = thread.gap.python_state.load(std::memory_order_relaxed);
  if (python != nullptr && state != 0 && codes_ != nullptr && configuration().python_stacks != 0) {
    const python::RemoteThread who{python, reinterpret_cast<const char*>(state),
                                   thread.gap.ident.load(std::memory_order_relaxed)};
    const bool collecting = is_collecting(*python, who.thread_state);
    python::RemoteStack stack = python::walk_remote(memory_, who, frames_, second_, kMaxPython);
    w.python_stack =
        codes_->intern(definitions(), memory_, who, stack, frames_, second_, kMaxPython);
    if (stack.torn) w.flags |= recording::kGapTorn;
    if (memory_.is_forbidden()) g_unreadable.store(true, std::memory_order_relaxed);
    // Before the frames were read and behind: so they are those of the collection.
    if (collecting && is_collecting(*python, who.thread_state)) {
      w.flags |= recording::kGapCollecting;
    }
  }
  if (native_ != nullptr && w.call.sp != 0 && native::finds_objects_without_lock()) {
    const native::End end = native_->walk_other({w.call.pc, w.call.sp, 0});
    std::uint64_t pcs[native::kMaxFrames];
    const int count = native_->count();
    for (int i = 0; i < count; ++i) pcs[i] = native_->frames()[count - 1 - i].pc;
    w.native_stack = intern_native_stack(definitions(), pcs, count, end != native::End::kOutermost);
  }
}

// Whether a blocked thread has not run since then.
bool Sampler::is_as_before(const Watched& w, const ProcessorUse& use) noexcept {
  if (use.known()) {
    return w.files.read(TaskFiles::kProcessor, again_, sizeof again_) != 0 &&
           parse_processor_use(again_) == use;
  }
  w.files.read(TaskFiles::kSystemCall, again_, sizeof again_);
  return parse_system_call(again_) == w.call;
}

GilHolder::Seen Sampler::look_at_holder(const ThreadState& thread, const Watched& w) noexcept {
  const python::Interpreter* python = python::ready_interpreter();
  if (python == nullptr) return {};
  const Tools tools{self_, codes_, memory_, frames_, second_, kMaxPython};
  GilHolder::Seen holder = gil_holder_.look(
      tools, *python, w.thread_id, thread.gap.ident.load(std::memory_order_relaxed),
      thread.gap.python_state.load(std::memory_order_relaxed), w.call.argument);
  // It may have got the GIL meanwhile: then that is another's, or its own.
  if (!is_as_before(w, w.use)) return {};
  return holder;
}

void Sampler::look(ThreadState& thread, Watched& w, std::uint64_t time,
                   std::uint64_t since) noexcept {
  using recording::GapSampleRecord;
  const std::uint32_t id = w.thread_id;
  ProcessorUse use;
  if (w.files.read(TaskFiles::kProcessor, text_, sizeof text_) != 0)
    use = parse_processor_use(text_);
  GapSampleRecord changes{};
  const bool unmoved = w.seen && use.known() && use == w.use && w.state != 'R' && w.state != 0 &&
                       w.call.state != SystemCall::State::kRuns;
  if (unmoved) {
    w.flags |= recording::kGapUnmoved;
  } else {
    const bool first = !w.seen;
    const ProcessorUse use_before = w.use;
    const std::uint64_t faults_before = w.faults;
    w.flags = 0;
    w.files.read(TaskFiles::kSystemCall, text_, sizeof text_);
    w.call = parse_system_call(text_);
    const bool runs = w.call.state == SystemCall::State::kRuns;
    // A thread that has run on without leaving its processor has no more to tell.
    const bool stayed = runs && !first && use.known() && use.turns == use_before.turns;
    w.state = runs ? 'R' : 0;
    if (!stayed && w.files.read(TaskFiles::kState, again_, sizeof again_) != 0) {
      const TaskState task = parse_task_state(again_);
      if (!runs) w.state = task.state;
      w.faults = task.major_faults;
    }
    w.file = recording::GapFile::kNone;
    if (w.call.state == SystemCall::State::kUnknown) {
      g_blind.store(true, std::memory_order_relaxed);
    }
    read_stacks(thread, w);
    // A blocked thread is as it was seen only if it has not run meanwhile.
    const bool blocked =
        w.call.state == SystemCall::State::kInside || w.call.state == SystemCall::State::kOutside;
    if (blocked && !is_as_before(w, use)) {
      // It ran between: what it was blocked in is not what the frames say.
      w.call = {};
      w.native_stack = 0;
      w.state = 'R';
    }
    if (w.call.state == SystemCall::State::kInside) {
      w.flags |= recording::kGapInSystemCall;
      if (takes_descriptor(w.call.number)) w.file = kind_of_descriptor(id, w.call.argument);
      const python::Interpreter* python = python::ready_interpreter();
      if (w.call.number == SYS_futex && python != nullptr &&
          python::lies_in_runtime(*python, w.call.argument)) {
        w.flags |= recording::kGapInterpreter;
      }
    } else if (w.call.state == SystemCall::State::kOutside) {
      w.flags |= recording::kGapOutside;
    }
    w.use = use;
    w.seen = true;
    if (!first) {
      changes.run_ns = use.run_ns - use_before.run_ns;
      changes.wait_ns = use.wait_ns - use_before.wait_ns;
      if (faults_before != Watched::kNotTold) {
        changes.major_faults = static_cast<std::uint32_t>(w.faults - faults_before);
      }
    }
  }
  GilHolder::Seen holder;
  if ((w.flags & recording::kGapInterpreter) != 0) holder = look_at_holder(thread, w);
  // It launches again: then this was no gap.
  if (thread.gap.quiet_since.load(std::memory_order_relaxed) != w.quiet_since) return;
  write(w, time, since, changes);
  if (holder.thread_id != 0) write(holder, w, time);
}

void Sampler::write(const Watched& w, std::uint64_t time, std::uint64_t since,
                    const recording::GapSampleRecord& changes) noexcept {
  recording::GapSampleRecord r = changes;
  r.header = {recording::RecordType::kGapSample, sizeof r, w.thread_id};
  r.time_ns = time;
  r.since_ns = since < time ? since : time;
  r.argument = w.call.argument;
  r.python_stack = w.python_stack;
  r.native_stack = w.native_stack;
  r.system_call = w.call.number;
  r.state = static_cast<std::uint8_t>(w.state);
  r.flags = w.flags;
  r.file = w.file;
  if (void* out = reserve_record(self_, sizeof r, time)) {
    memcpy(out, &r, sizeof r);
    commit_record(self_, sizeof r);
  }
}

void Sampler::write(const GilHolder::Seen& holder, const Watched& waiter,
                    std::uint64_t time) noexcept {
  recording::GilHolderRecord r{};
  r.header = {recording::RecordType::kGilHolder, sizeof r, holder.thread_id};
  r.time_ns = time;
  r.waiter = waiter.thread_id;
  r.python_stack = holder.python_stack;
  r.flags = holder.torn ? recording::kGapTorn : 0;
  memcpy(r.name, holder.name, sizeof r.name);
  if (void* out = reserve_record(self_, sizeof r, time)) {
    memcpy(out, &r, sizeof r);
    commit_record(self_, sizeof r);
  }
}

void Sampler::run() noexcept {
  self_.thread_id = static_cast<std::uint32_t>(syscall(SYS_gettid));
  self_.writer = recording::ThreadWriter{};
  self_.lost = 0;
  t_local.state = &self_;
  native::read_surely();
  gap_since_ = 0;
  for (Watched& w : watched_) w = Watched{};
  host_.open();
  memory_.look_into(0);
  workers_.begin();
  const bool sees_workers = proc_has_own_ids();
  if (!sees_workers) g_other_ids.store(true, std::memory_order_relaxed);
  gil_holder_.begin();
  const Tools tools{self_, codes_, worker_memory_, frames_, second_, kMaxPython};
  std::uint64_t next_count = 0, next_user = 0;
  bool asked_to_end = false;
  while (goes_on()) {
    std::uint64_t now = now_ns();
    host_.count_threads(self_, now);
    if (host_.is_due(now)) host_.count(self_, now);
    if (now >= next_user) {
      // A program that has given up its rights must have no thread that still has them. The next
      // one is made by a thread that is of the new user.
      next_user = now + kCheckUserEveryNs;
      if (!has_user_of(static_cast<std::uint32_t>(getpid()))) break;
      if (sandbox::of_this_thread() == sandbox::Filters::kMore) break;
      if (sandbox::by_status_of(static_cast<std::uint32_t>(getpid())) == sandbox::Filters::kMore) {
        host_facts::stop_asking();
      }
    }
    // The last other thread may be gone: then this one must not be what makes the process one of
    // several threads (Python warns at fork, unshare() fails).
    if (now >= next_count) {
      next_count = now + kCountThreadsEveryNs;
      if (thread_count() <= 2) break;
    }
    const Silence silence = listen(now);
    if (!silence.silent) {
      const std::uint64_t later = g_threshold_ns > kListenEveryNs ? g_threshold_ns : kListenEveryNs;
      asked_to_end = !sleep_in_hidden_thread(now + later);
      if (asked_to_end) break;
      continue;
    }
    look_at_all(silence, now);
    if (sees_workers) workers_.look(tools, now, silence.since);
    const std::uint64_t length = now - silence.since;
    std::uint64_t period = length / kPeriodsOfGap;
    if (period < kFirstPeriodNs) period = kFirstPeriodNs;
    if (period > kLongestPeriodNs) period = kLongestPeriodNs;
    asked_to_end = !sleep_in_hidden_thread(now_ns() + period);
    if (asked_to_end) break;
  }
  for (Watched& w : watched_) w.files.close();
  workers_.end();
  // Under a new filter nothing more is asked of the kernel than must be.
  if (sandbox::is_none_new()) {
    // A fork waits for the end of this thread.
    if (!asked_to_end && mode() != Mode::kOff) {
      const std::uint64_t now = now_ns();
      host_.count_threads(self_, now);
      host_.count(self_, now);
    }
    host_.close();
    self_.writer.close(recording_file());
  }
  t_local.state = nullptr;
}

void body() {
  Sampler* sampler = g_sampler.load(std::memory_order_acquire);
  sampler->run();
  // Ended while a window is open (alone, or the next one has just begun): another may follow.
  if (g_enabled && mode() == Mode::kRecording) g_wanted.store(true, std::memory_order_relaxed);
}

void later(Why why, std::uint64_t now) noexcept {
  Why before = Why::kNotTried;
  // What was looked at for a part of the window is not said to have been missed.
  if (!g_why.compare_exchange_strong(before, why, std::memory_order_relaxed) &&
      before != Why::kRuns) {
    g_why.store(why, std::memory_order_relaxed);
  }
  g_next_try_ns.store(now + kRetryNs, std::memory_order_relaxed);
}

// A launch from a signal handler is no place to start a thread from.
bool any_signal_is_blocked() noexcept {
  unsigned long blocked = 0;
  return syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &blocked, sizeof blocked) != 0 ||
         blocked != 0;
}

}  // namespace

namespace {

// valgrind ends the program at a clone() that is not a thread of libc's.
bool under_valgrind() noexcept {
  const char* preloaded = getenv("LD_PRELOAD");
  return preloaded != nullptr && strstr(preloaded, "/vgpreload_") != nullptr;
}

}  // namespace

void set_up(bool enabled, std::uint64_t threshold_ns) noexcept {
  g_enabled = enabled && !under_valgrind();
  g_threshold_ns = threshold_ns;
  if (g_enabled) expect_forks();
}

void recording_begins() noexcept {
  if (!g_enabled) return;
  expect_forks();  // a forked process that records has children of its own
  g_next_try_ns.store(0, std::memory_order_relaxed);
  g_why.store(Why::kNotTried, std::memory_order_relaxed);
  g_wanted.store(true, std::memory_order_relaxed);
}

void recording_ended() noexcept {
  if (!g_enabled) return;
  g_wanted.store(false, std::memory_order_relaxed);
  const Why why = g_why.load(std::memory_order_relaxed);
  const std::uint32_t bit = 1u << static_cast<unsigned>(why);
  switch (why) {
    case Why::kAlone:
      say_once(bit,
               "What the host does in gaps was not looked at: the process has one thread only, and "
               "gpubusy does not make it one of several.");
      break;
    case Why::kSignals:
      say_once(
          bit,
          "What the host does in gaps was not looked at: the launching threads block signals.");
      break;
    case Why::kSandbox:
      say_once(
          bit,
          "What the host does in gaps was not looked at: the program has put on a seccomp filter, "
          "which may end a process for a system call that it does not know.");
      break;
    case Why::kFailed:
      say_once(bit,
               "What the host does in gaps was not looked at: the helper thread could not be "
               "started.");
      break;
    case Why::kNotTried:
    case Why::kRuns: break;
  }
  if (g_blind.load(std::memory_order_relaxed)) {
    say_once(kSaidBlind,
             "The kernel does not tell in which system call a thread waits (/proc/self/task/*/"
             "syscall): gaps are named by their Python lines alone.");
  }
  if (g_other_ids.load(std::memory_order_relaxed)) {
    say_once(kSaidOtherIds,
             "Worker processes were not looked at: /proc has other process ids than this process "
             "(it is that of another PID namespace).");
  }
  if (g_unreadable.load(std::memory_order_relaxed)) {
    say_once(kSaidUnreadable,
             "The system forbids process_vm_readv (a container's seccomp profile): gaps have no "
             "Python lines. Those of calls are not touched by that.");
  }
}

void start(std::uint64_t now_ns) noexcept {
  if (now_ns < g_next_try_ns.load(std::memory_order_relaxed)) return;
  const KeepErrno keep;
  // One thread tries.
  if (!g_wanted.exchange(false, std::memory_order_acquire)) return;
  const sandbox::Filters filters =
      host_facts::has_stopped_asking() ? sandbox::Filters::kMore : sandbox::of_this_thread();
  if (filters == sandbox::Filters::kMore) {
    later(Why::kSandbox, now_ns);
    return;  // it stays on
  }
  Why why = Why::kFailed;
  const unsigned threads = thread_count();
  if (threads == 0) {
    // Without /proc there is nothing to see.
    g_why.store(Why::kFailed, std::memory_order_relaxed);
    return;
  }
  if (threads == 1) {
    why = Why::kAlone;
  } else if (filters == sandbox::Filters::kUnknown) {
    why = Why::kFailed;  // no descriptor is free to ask with
  } else if (any_signal_is_blocked()) {
    why = Why::kSignals;
  } else {
    Sampler* sampler = g_sampler.load(std::memory_order_acquire);
    if (sampler == nullptr && (sampler = Sampler::make()) != nullptr) {
      g_sampler.store(sampler, std::memory_order_release);
    }
    if (sampler != nullptr) {
      switch (start_hidden_thread(body, recording_file().descriptor())) {
        case Started::kYes: g_why.store(Why::kRuns, std::memory_order_relaxed); return;
        case Started::kStillRuns: why = Why::kNotTried; break;
        case Started::kUnsupported:
        case Started::kNoMemory:
        case Started::kRefused:
          g_why.store(Why::kFailed, std::memory_order_relaxed);
          return;  // not again in this window
      }
    }
  }
  later(why, now_ns);
  if (mode() == Mode::kRecording) g_wanted.store(true, std::memory_order_relaxed);
}

void note_python_state(ThreadState& thread) noexcept {
  const python::Interpreter* python = python::ready_interpreter();
  if (python == nullptr) return;
  const char* state = python::current_thread_state(*python);
  thread.gap.ident.store(static_cast<std::uint64_t>(pthread_self()), std::memory_order_relaxed);
  thread.gap.python_state.store(reinterpret_cast<std::uintptr_t>(state), std::memory_order_relaxed);
  check_gil_of_caller(*python);
}

void before_fork() noexcept {
  if (!hidden_thread_runs() || thread_count() > 2) return;
  const KeepErrno keep;
  const NoCancel no_cancel;
  end_hidden_thread();
  // The kernel counts a thread for some moments more.
  constexpr int kAttempts = 40;
  patiently(kAttempts, [] { return thread_count() <= 1; });
}

void forget_after_fork() noexcept {
  hidden_thread_after_fork();
  if (g_enabled) announce_fork();
  g_wanted.store(false, std::memory_order_relaxed);
  g_why.store(Why::kNotTried, std::memory_order_relaxed);
  g_said.store(0, std::memory_order_relaxed);
  g_blind.store(false, std::memory_order_relaxed);
  g_other_ids.store(false, std::memory_order_relaxed);
  g_unreadable.store(false, std::memory_order_relaxed);
}

}  // namespace gpubusy::runtime::gaps
