// SPDX-License-Identifier: Apache-2.0
#include "runtime/gaps/workers.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "runtime/gaps/hidden_thread.hpp"
#include "runtime/python/layout.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime::gaps {
namespace {

// Of the time in gaps, so much is spent on looks at processes.
constexpr std::uint64_t kBudgetDivisor = 150;
// Measured on a loaded virtual machine: 1.4 ms for the first look at a process, whose codes are all
// new, 0.13 ms for the next ones, 0.01 ms where it has not moved. So a few are looked at at once.
constexpr std::int64_t kFirstBudgetNs = 5'000'000, kMostBudgetNs = 5'000'000;
// A look may cost more than there is; that is paid back, up to this.
constexpr std::int64_t kMostDebtNs = 20'000'000;
// /proc is searched for processes that were not forked: each entry costs 10 us. The time between
// two searches is so many times what the one before took, within these bounds.
constexpr std::uint64_t kSearchPauseFactor = 1000;
constexpr std::uint64_t kShortestPauseNs = 300'000'000, kLongestPauseNs = 5'000'000'000;
constexpr std::uint64_t kFirstSearchNs = 100'000'000;
constexpr int kMostLater = 1024, kMostEarlier = 128;
constexpr std::uint64_t kTickMs = 10;  // of times in stat, on x86-64

// ---- forks -------------------------------------------------------------------------------------

constexpr std::uint32_t kBirths = 512;  // the last so many are found
struct Births {
  std::atomic<std::uint32_t> count;
  std::atomic<std::uint32_t> ids[kBirths];
};
constinit std::atomic<Births*> g_births{nullptr};
constinit std::atomic<std::uint32_t> g_births_owner{0};  // process id

// What a process leaves in its own memory as it is forked, for the one that looks at it: there it
// has the same address. It is there as long as the process runs no other program.
struct ForkNote {
  std::uint32_t id;  // of this process; 0: it was not forked
  std::uint32_t reserved;
  std::uint64_t ident;         // pthread_self()
  std::uint64_t python_state;  // of the thread that lives on; 0: Python was not known yet
};
constinit ForkNote g_note{};

// The PyThreadState of the thread with that ident, where it has made a call that was recorded.
const char* python_state_of(std::uint64_t ident) noexcept {
  for (const ThreadState* t = all_thread_states(); t != nullptr; t = t->next) {
    if (t->ended.load(std::memory_order_relaxed)) continue;
    const std::uintptr_t state = t->gap.python_state.load(std::memory_order_relaxed);
    if (state != 0 && t->gap.ident.load(std::memory_order_relaxed) == ident) {
      return reinterpret_cast<const char*>(state);
    }
  }
  return nullptr;
}

std::int64_t processor_time_ns() noexcept {
  timespec t{};
  syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

bool is_alive(const TaskState& task) noexcept {
  return task.state != 0 && task.state != 'Z' && task.state != 'X';
}

void count_up(std::uint16_t& count) noexcept {
  if (count != 0xffff) ++count;
}

bool contains(const char* text, std::size_t size, const char* word) noexcept {
  return memmem(text, size, word, strlen(word)) != nullptr;
}

constexpr std::uint8_t kForkServer = recording::kWorkerSpawned | recording::kWorkerService;

// How multiprocessing starts interpreters of its own.
std::uint8_t kind_of_command(const char* text, std::size_t size) noexcept {
  if (contains(text, size, "multiprocessing.resource_tracker")) return recording::kWorkerService;
  if (contains(text, size, "multiprocessing.forkserver")) return kForkServer;
  return contains(text, size, "multiprocessing.spawn") ? recording::kWorkerSpawned : 0;
}

}  // namespace

void expect_forks() noexcept {
  const auto self = static_cast<std::uint32_t>(getpid());
  if (g_births_owner.load(std::memory_order_relaxed) == self) return;
  void* page =
      mmap(nullptr, sizeof(Births), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  g_births.store(static_cast<Births*>(page), std::memory_order_release);
  g_births_owner.store(self, std::memory_order_relaxed);
}

void announce_fork() noexcept {
  const auto self = static_cast<std::uint32_t>(getpid());
  g_note = {self, 0, static_cast<std::uint64_t>(pthread_self()), 0};
  if (const python::Interpreter* python = python::ready_interpreter()) {
    g_note.python_state = reinterpret_cast<std::uintptr_t>(python::current_thread_state(*python));
  }
  if (Births* births = g_births.load(std::memory_order_relaxed)) {
    const std::uint32_t at = births->count.fetch_add(1, std::memory_order_relaxed);
    births->ids[at % kBirths].store(self, std::memory_order_release);
  }
}

// ---- which processes ---------------------------------------------------------------------------

void Workers::begin() noexcept {
  budget_ns_ = kFirstBudgetNs;
  paid_until_ns_ = 0;
  next_ = 0;
  later_ = earlier_ = {};
  births_ = 0;
  for (Process& p : processes_) p = Process{};
}

void Workers::end() noexcept {
  for (Process& p : processes_) drop(p);
}

void Workers::drop(Process& process) noexcept {
  if (process.id == 0) return;
  process.files.close();
  process = Process{};
}

bool Workers::knows(std::uint32_t id) const noexcept {
  for (const Process& p : processes_) {
    if (p.id == id) return true;
  }
  return false;
}

Workers::Process* Workers::free_place() noexcept {
  for (Process& p : processes_) {
    if (p.id == 0) return &p;
  }
  // Nobody may have looked since those of the epoch before have ended. Once: there may be hundreds
  // for which there is no room.
  if (swept_) return nullptr;
  swept_ = true;
  Process* found = nullptr;
  for (Process& p : processes_) {
    p.files.read(TaskFiles::kState, again_, sizeof again_);
    if (is_alive(parse_task_state(again_))) continue;
    drop(p);
    found = &p;
  }
  return found;
}

bool Workers::add(std::uint32_t id, bool born) noexcept {
  if (id == 0 || knows(id)) return true;
  // Before the files are opened: they stay those of one process, whoever has its id later.
  const TaskState task = state_of_process(id);
  if (!is_alive(task)) return true;
  const auto self = static_cast<std::uint32_t>(getpid());
  if (task.parent == 0 || (task.parent != self && !knows(task.parent))) return true;
  Process* const p = free_place();
  if (p == nullptr) return false;
  p->id = id;
  p->parent = task.parent;
  p->start_ticks = task.start_ticks;
  p->files.open_process(id);
  name_kind(*p, born);
  return true;
}

void Workers::name_kind(Process& process, bool born) noexcept {
  const auto self = static_cast<std::uint32_t>(getpid());
  const std::size_t size = command_line_of(process.id, text_, sizeof text_);
  // A forked process has the command line of this one, which may itself have been made so.
  process.inherited = born && command_line_of(self, again_, sizeof again_) == size &&
                      memcmp(text_, again_, size) == 0;
  process.kind = process.inherited ? 0 : kind_of_command(text_, size);
  // What the fork server forks is a worker, though it has the server's command line.
  if (process.kind == kForkServer && process.parent != self) {
    process.kind = recording::kWorkerSpawned;
  }
}

void Workers::find_forked() noexcept {
  const Births* births = g_births.load(std::memory_order_acquire);
  if (births == nullptr) return;
  const std::uint32_t count = births->count.load(std::memory_order_acquire);
  if (count - births_ > kBirths) births_ = count - kBirths;
  for (; births_ != count && !hidden_thread_shall_end(); ++births_) {
    if (!add(births->ids[births_ % kBirths].load(std::memory_order_acquire), true)) {
      count_up(later_.left_out);
    }
  }
}

void Workers::search(long list, std::uint32_t first, std::uint32_t last, Part& part,
                     int most) noexcept {
  struct Entry {  // linux_dirent64
    std::uint64_t inode, offset;
    std::uint16_t size;
    std::uint8_t type;
    char name[];
  };
  alignas(8) char buffer[4096];
  if (part.behind == 0) part = {first, 0};
  syscall(SYS_lseek, list, 0l, SEEK_SET);
  for (;;) {
    const long n = syscall(SYS_getdents64, list, buffer, sizeof buffer);
    if (n <= 0) break;
    for (long at = 0; at < n;) {
      if (hidden_thread_shall_end()) return;
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->size;
      const std::uint32_t id = process_id_of(entry->name);
      if (id == 0 || id <= part.behind || id > last || knows(id)) continue;
      if (--most < 0) return;
      part.behind = id;  // /proc has them in order
      if (!add(id, false)) count_up(part.left_out);
    }
  }
  part.behind = 0;
}

void Workers::find_others(std::uint64_t now) noexcept {
  const long list = syscall(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (list < 0) return;
  // A machine may have thousands, and most of them are older than what this one has made: ids begin
  // anew after millions only.
  const auto self = static_cast<std::uint32_t>(getpid());
  search(list, self, ~std::uint32_t{0}, later_, kMostLater);
  if (now >= next_earlier_ns_) {
    next_earlier_ns_ = now + kLongestPauseNs;
    search(list, 0, self - 1, earlier_, kMostEarlier);
  }
  syscall(SYS_close, list);
}

// ---- one look ----------------------------------------------------------------------------------

void Workers::read_stack(const Tools& tools, Process& process) noexcept {
  process.python_stack = 0;
  process.flags &= static_cast<std::uint8_t>(~recording::kGapTorn);
  process.kind &= static_cast<std::uint8_t>(~recording::kWorkerForked);
  const python::Interpreter* python = python::ready_interpreter();
  if (python == nullptr || tools.codes == nullptr || configuration().python_stacks == 0) return;
  // A refusal may be a line in the system's log: there shall be one.
  if ((process.kind & recording::kWorkerForbidden) != 0) return;
  python::RemoteMemory& memory = tools.memory;
  memory.look_into(process.id);
  const auto note = memory.load<ForkNote>(&g_note, 0);
  if (memory.is_forbidden()) process.kind |= recording::kWorkerForbidden;
  if (!memory.failed() && note.id == process.id) {
    process.kind |= recording::kWorkerForked;
    const char* state = note.python_state != 0 ? reinterpret_cast<const char*>(note.python_state)
                                               : python_state_of(note.ident);
    if (state != nullptr) {
      const std::uint64_t who = process.start_ticks << 32 ^ process.id;
      const python::RemoteThread thread{python, state, note.ident, who};
      python::RemoteStack stack =
          python::walk_remote(memory, thread, tools.frames, tools.second, tools.max_frames);
      process.python_stack = tools.codes->intern(definitions(), memory, thread, stack, tools.frames,
                                                 tools.second, tools.max_frames);
      if (stack.torn) process.flags |= recording::kGapTorn;
    }
  }
}

// False: it is not there any more.
bool Workers::look_at(const Tools& tools, Process& p, std::uint64_t now) noexcept {
  ProcessorUse use;
  if (p.files.read(TaskFiles::kProcessor, text_, sizeof text_) != 0)
    use = parse_processor_use(text_);
  if (p.files.read(TaskFiles::kState, text_, sizeof text_) == 0) return false;
  const TaskState task = parse_task_state(text_);
  if (!is_alive(task)) return false;
  const bool first = p.looked_ns == 0;
  const ProcessorUse use_before = p.use;
  const TaskState task_before = p.task;
  const bool unmoved = !first && use.known() && use == p.use && task.state != 'R' &&
                       task.state == p.task.state && p.call.state != SystemCall::State::kRuns;
  if (unmoved) {
    p.flags |= recording::kGapUnmoved;
  } else {
    p.flags = 0;
    p.call = {};
    if (p.files.read(TaskFiles::kSystemCall, text_, sizeof text_) != 0) {
      p.call = parse_system_call(text_);
    }
    read_stack(tools, p);
    // Python before 3.10 forks also where it then runs a new interpreter.
    if (p.inherited && (p.kind & recording::kWorkerForked) == 0) {
      const std::uint8_t known = p.kind;
      name_kind(p, true);
      p.kind |= known;
    }
    const bool blocked =
        p.call.state == SystemCall::State::kInside || p.call.state == SystemCall::State::kOutside;
    if (blocked && p.files.read(TaskFiles::kProcessor, again_, sizeof again_) != 0 &&
        parse_processor_use(again_) != use) {
      p.call = {SystemCall::State::kRuns};  // it ran between: what it was blocked in is over
    }
    p.file = recording::GapFile::kNone;
    if (p.call.state == SystemCall::State::kInside) {
      p.flags |= recording::kGapInSystemCall;
      if (takes_descriptor(p.call.number)) {
        p.file = kind_of_process_descriptor(p.id, p.call.argument);
      }
      const python::Interpreter* python = python::ready_interpreter();
      if ((p.kind & recording::kWorkerForked) != 0 && p.call.number == SYS_futex &&
          python != nullptr && python::lies_in_runtime(*python, p.call.argument)) {
        p.flags |= recording::kGapInterpreter;
      }
    } else if (p.call.state == SystemCall::State::kOutside) {
      p.flags |= recording::kGapOutside;
    }
  }
  p.use = use;
  p.task = task;
  if (p.call.state == SystemCall::State::kRuns) p.task.state = 'R';

  recording::WorkerLookRecord r{};
  r.header = {recording::RecordType::kWorkerLook, sizeof r, p.id};
  r.time_ns = now;
  r.since_ns = p.looked_ns;
  r.argument = p.call.argument;
  if (!first) {
    r.run_ns = use.run_ns - use_before.run_ns;
    r.wait_ns = use.wait_ns - use_before.wait_ns;
    r.process_run_ms =
        static_cast<std::uint32_t>((task.run_ticks - task_before.run_ticks) * kTickMs);
    r.storage_wait_ms =
        static_cast<std::uint32_t>((task.storage_ticks - task_before.storage_ticks) * kTickMs);
    r.major_faults = static_cast<std::uint32_t>(task.major_faults - task_before.major_faults);
  }
  r.parent_pid = p.parent;
  r.python_stack = p.python_stack;
  r.system_call = p.call.number;
  r.state = static_cast<std::uint8_t>(p.task.state);
  r.flags = p.flags;
  r.file = p.file;
  r.worker_flags = p.kind;
  const unsigned left_out = unsigned{later_.left_out} + earlier_.left_out;
  r.left_out = static_cast<std::uint16_t>(left_out < 0xffff ? left_out : 0xffff);
  memcpy(r.name, task.name, sizeof r.name);
  p.looked_ns = now;
  if (void* out = reserve_record(tools.self, sizeof r, now)) {
    memcpy(out, &r, sizeof r);
    commit_record(tools.self, sizeof r);
  }
  return true;
}

void Workers::look(const Tools& tools, std::uint64_t now, std::uint64_t silent_since) noexcept {
  const std::uint64_t from = silent_since > paid_until_ns_ ? silent_since : paid_until_ns_;
  if (now > from) budget_ns_ += static_cast<std::int64_t>((now - from) / kBudgetDivisor);
  paid_until_ns_ = now;
  if (budget_ns_ > kMostBudgetNs) budget_ns_ = kMostBudgetNs;
  if (budget_ns_ <= 0) return;
  std::int64_t spent_from = processor_time_ns();
  const auto pay = [&] {
    const std::int64_t at = processor_time_ns();
    budget_ns_ -= at - spent_from;
    if (budget_ns_ < -kMostDebtNs) budget_ns_ = -kMostDebtNs;
    spent_from = at;
  };
  swept_ = false;
  find_forked();
  pay();
  // Not at once: whoever forks may wait for the end of this thread.
  if (next_search_ns_ == 0) next_search_ns_ = now + kFirstSearchNs;
  if (now >= next_search_ns_) {
    const std::int64_t from = processor_time_ns();
    find_others(now);
    const auto pause = static_cast<std::uint64_t>(processor_time_ns() - from) * kSearchPauseFactor;
    next_search_ns_ = now + (pause < kShortestPauseNs  ? kShortestPauseNs
                             : pause > kLongestPauseNs ? kLongestPauseNs
                                                       : pause);
    pay();
  }
  for (int i = 0; i < kMaxProcesses && budget_ns_ > 0 && !hidden_thread_shall_end(); ++i) {
    Process& p = processes_[next_];
    next_ = (next_ + 1) % kMaxProcesses;
    if (p.id == 0 || (p.kind & recording::kWorkerService) != 0) continue;
    if (!look_at(tools, p, now)) drop(p);
    pay();
  }
}

}  // namespace gpubusy::runtime::gaps
