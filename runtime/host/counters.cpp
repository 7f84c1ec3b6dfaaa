// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/counters.hpp"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "host/counters.hpp"
#include "host/processors.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/recorder.hpp"
#include "runtime/sandbox.hpp"

namespace gpubusy::runtime::host_facts {
namespace {

using recording::HostCounter;
using recording::HostSource;
using recording::HostTopic;

constexpr std::uint64_t kEveryNs = 100'000'000;
// Shorter waits for a processor are the price of a busy machine, and are not written.
constexpr std::uint64_t kLeastWaitNs = 100'000;
// A thread that has not launched for so long is not asked.
constexpr std::uint64_t kForgottenNs = 10'000'000'000;

constinit bool g_enabled = false;
constinit std::atomic<bool> g_stopped_asking{false};  // for good, also in forked processes

class Values {
 public:
  // In the order of their bits.
  void add(HostCounter counter, std::uint64_t value) noexcept {
    record_.known |= std::uint64_t{1} << static_cast<unsigned>(counter);
    values_[count_++] = value;
  }
  void add_usage(int who, HostCounter first) noexcept {
    struct rusage use;
    if (syscall(SYS_getrusage, who, &use) != 0) return;
    const auto at = [first](unsigned i) noexcept {
      return static_cast<HostCounter>(static_cast<unsigned>(first) + i);
    };
    add(at(0), ns_of(use.ru_utime));
    add(at(1), ns_of(use.ru_stime));
    add(at(2), static_cast<std::uint64_t>(use.ru_minflt));
    add(at(3), static_cast<std::uint64_t>(use.ru_majflt));
    add(at(4), static_cast<std::uint64_t>(use.ru_nvcsw));
    add(at(5), static_cast<std::uint64_t>(use.ru_nivcsw));
  }
  recording::HostCountersRecord& record() noexcept { return record_; }
  void write(ThreadState& thread) noexcept {
    const std::size_t behind = count_ * sizeof values_[0];
    const std::size_t size = sizeof record_ + behind;
    record_.header.type = recording::RecordType::kHostCounters;
    record_.header.size = static_cast<std::uint16_t>(size);
    char* out = static_cast<char*>(reserve_record(thread, size, record_.time_ns));
    if (out == nullptr) return;
    memcpy(out, &record_, sizeof record_);
    memcpy(out + sizeof record_, values_, behind);
    commit_record(thread, size);
  }

 private:
  static std::uint64_t ns_of(const timeval& t) noexcept {
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(t.tv_usec) * 1000u;
  }

  recording::HostCountersRecord record_{};
  std::size_t count_ = 0;
  std::uint64_t values_[recording::kHostCounters];
};

HostSource why_not(long error) noexcept {
  return error == -EACCES || error == -EPERM ? HostSource::kRefused : HostSource::kNoFile;
}

int open_in(const gpubusy::host::Group& group, const char* file) noexcept {
  if (!group.found()) return -ENOENT;
  gpubusy::host::Path path = group.folder;
  return gpubusy::host::open_text(path.add(file));
}

int open_path(const char* name) noexcept {
  gpubusy::host::Path path;
  return gpubusy::host::open_text(path.add(name));
}

}  // namespace

void set_up(bool enabled) noexcept { g_enabled = enabled; }

void stop_asking() noexcept { g_stopped_asking.store(true, std::memory_order_relaxed); }
bool has_stopped_asking() noexcept { return g_stopped_asking.load(std::memory_order_relaxed); }

void count_at_edge(std::uint32_t step, std::uint64_t now_ns) noexcept {
  if (!g_enabled) return;
  const KeepErrno keep;
  if (has_stopped_asking() || !sandbox::is_none_new()) return;
  ThreadState* thread = thread_state();
  if (thread == nullptr) return;
  Values values;
  values.record().header.value = static_cast<std::uint32_t>(recording::HostMoment::kEdge);
  values.record().time_ns = now_ns;
  values.record().thread_id = thread->thread_id;
  values.record().step = step;
  values.add_usage(RUSAGE_SELF, HostCounter::kUserNs);
  values.add_usage(RUSAGE_THREAD, HostCounter::kThreadUserNs);
  values.write(*thread);
}

void Watch::open() noexcept {
  // What an earlier helper left open (in the parent of a fork, or under a filter) is not ours.
  for (int& file : files_) file = -1;
  for (Thread& t : threads_) t = Thread{};
  throttled_ns_ = 0;
  on_ = g_enabled;
  next_ns_ = 0;
  if (!on_) return;
  files_[kOwnGroups] = open_path("/proc/self/cgroup");
  mark_ = mark_of_groups();
  gpubusy::host::read_groups("", groups_);
  const auto source = [this](HostTopic topic) noexcept -> HostSource& {
    return sources_[static_cast<unsigned>(topic)];
  };
  files_[kQuota] = open_in(groups_.cpu, "/cpu.stat");
  source(HostTopic::kQuota) = files_[kQuota] < 0 ? why_not(files_[kQuota]) : HostSource::kGroup;

  version1_ = groups_.memory.version == 1;
  files_[kMemory] = open_in(groups_.memory, version1_ ? "/memory.failcnt" : "/memory.events");
  source(HostTopic::kMemory) = files_[kMemory] < 0 ? why_not(files_[kMemory]) : HostSource::kGroup;
  if (version1_) files_[kMemoryKills] = open_in(groups_.memory, "/memory.oom_control");

  files_[kCpu] = open_in(groups_.pressure, "/cpu.pressure");
  const bool of_group = files_[kCpu] >= 0;
  if (of_group) {
    files_[kIo] = open_in(groups_.pressure, "/io.pressure");
    files_[kMemoryPressure] = open_in(groups_.pressure, "/memory.pressure");
  } else {
    files_[kCpu] = open_path("/proc/pressure/cpu");
    files_[kIo] = open_path("/proc/pressure/io");
    files_[kMemoryPressure] = open_path("/proc/pressure/memory");
  }
  source(HostTopic::kPressure) = of_group            ? HostSource::kGroup
                                 : files_[kCpu] >= 0 ? HostSource::kMachine
                                                     : why_not(files_[kCpu]);
  const gpubusy::host::Memory memory = gpubusy::host::memory();
  if (memory.known && memory.swap_bytes == 0) {
    source(HostTopic::kSwap) = HostSource::kNotNeeded;
  } else {
    files_[kSwap] = open_path("/proc/vmstat");
    files_[kStatus] = open_path("/proc/self/status");
    source(HostTopic::kSwap) = files_[kSwap] < 0 ? why_not(files_[kSwap]) : HostSource::kMachine;
  }
}

void Watch::close() noexcept {
  for (int& file : files_) {
    if (file >= 0) syscall(SYS_close, file);
    file = -1;
  }
  for (Thread& t : threads_) t.files.close();
  on_ = false;
}

std::uint64_t Watch::mark_of_groups() noexcept {
  if (!read(kOwnGroups)) return 0;
  std::uint64_t mark = 14695981039346656037u;  // FNV-1a
  for (const char* c = text_; *c != '\0'; ++c) {
    mark = (mark ^ static_cast<unsigned char>(*c)) * 1099511628211u;
  }
  return mark;
}

bool Watch::read(File file) noexcept {
  return files_[file] >= 0 && gpubusy::host::read_text(files_[file], text_, sizeof text_) > 0;
}

Watch::Thread& Watch::thread_of(std::uint32_t id) noexcept {
  Thread* oldest = &threads_[0];
  for (Thread& t : threads_) {
    if (t.id == id) return t;
    if (t.asked_ns < oldest->asked_ns) oldest = &t;
  }
  oldest->files.close();
  *oldest = Thread{};
  oldest->id = id;
  oldest->files.open(id);
  return *oldest;
}

void Watch::write_thread(ThreadState& self, const Thread& t, std::uint64_t now_ns,
                         const gpubusy::host::Throttling& group) noexcept {
  Values values;
  values.record().header.value = static_cast<std::uint32_t>(recording::HostMoment::kThread);
  values.record().time_ns = now_ns;
  values.record().thread_id = t.id;
  values.add(HostCounter::kThreadRanNs, t.now.run_ns - t.use.run_ns);
  values.add(HostCounter::kThreadWaitedNs, t.now.wait_ns - t.use.wait_ns);
  values.add(HostCounter::kThreadSinceNs, now_ns - t.asked_ns);
  values.add(HostCounter::kQuotaPeriods, group.periods);
  values.add(HostCounter::kThrottledPeriods, group.throttled_periods);
  values.add(HostCounter::kThrottledNs, group.throttled_ns);
  values.write(self);
}

void Watch::count_threads(ThreadState& self, std::uint64_t now_ns) noexcept {
  if (!on_ || groups_.cpu_quota_us == 0 || files_[kQuota] < 0) return;
  Thread* asked[kMaxThreads];
  int count = 0;
  for (ThreadState* t = all_thread_states(); t != nullptr && count < kMaxThreads; t = t->next) {
    if (!t->gap.launches.load(std::memory_order_relaxed) ||
        t->ended.load(std::memory_order_relaxed)) {
      continue;
    }
    const std::uint64_t quiet = t->gap.quiet_since.load(std::memory_order_relaxed);
    if (quiet != gaps::Slot::kInCall && quiet + kForgottenNs < now_ns) continue;
    Thread& thread =
        thread_of(std::atomic_ref<std::uint32_t>(t->thread_id).load(std::memory_order_relaxed));
    if (thread.files.read(gaps::TaskFiles::kProcessor, text_, sizeof text_) == 0) continue;
    thread.now = gaps::parse_processor_use(text_);
    asked[count++] = &thread;
  }
  // Behind the threads: a wait that a throttling made is counted after that throttling.
  gpubusy::host::Throttling group;
  if (count == 0 || !read(kQuota) || !gpubusy::host::parse_throttling(text_, group)) return;
  const bool rose = group.throttled_ns != throttled_ns_;
  throttled_ns_ = group.throttled_ns;
  for (int i = 0; i < count; ++i) {
    Thread& t = *asked[i];
    const bool waited = t.now.wait_ns - t.use.wait_ns >= kLeastWaitNs;
    if (t.asked_ns != 0 && (rose || waited)) write_thread(self, t, now_ns, group);
    t.use = t.now;
    t.asked_ns = now_ns;
  }
}

void Watch::count(ThreadState& self, std::uint64_t now_ns) noexcept {
  if (!on_) return;
  next_ns_ = now_ns + kEveryNs;
  Values values;
  recording::HostCountersRecord& r = values.record();
  r.header.value = static_cast<std::uint32_t>(recording::HostMoment::kHelper);
  r.time_ns = now_ns;
  r.thread_id = self.thread_id;
  // A text that is not understood once is not understood later.
  const auto strange = [this](HostTopic topic) noexcept {
    sources_[static_cast<unsigned>(topic)] = HostSource::kStrange;
  };
  values.add_usage(RUSAGE_SELF, HostCounter::kUserNs);
  // The process was moved to another group, whose counters go on from elsewhere: a record without
  // them says that these are not to be compared.
  if (const std::uint64_t mark = mark_of_groups(); mark != mark_) {
    close();
    open();
    values.write(self);
    return;
  }
  if (read(kQuota)) {
    gpubusy::host::Throttling t;
    if (gpubusy::host::parse_throttling(text_, t)) {
      values.add(HostCounter::kQuotaPeriods, t.periods);
      values.add(HostCounter::kThrottledPeriods, t.throttled_periods);
      values.add(HostCounter::kThrottledNs, t.throttled_ns);
    } else {
      strange(HostTopic::kQuota);
    }
  }
  if (read(kMemory)) {
    gpubusy::host::MemoryEvents e;
    const char* at = text_;
    if (version1_ && gpubusy::host::take_number(at, e.max)) {
      values.add(HostCounter::kMemoryMax, e.max);
      if (read(kMemoryKills) && gpubusy::host::number_of_line(text_, "oom_kill", e.oom_kills)) {
        values.add(HostCounter::kMemoryOomKills, e.oom_kills);
      }
    } else if (!version1_ && gpubusy::host::parse_memory_events(text_, e)) {
      values.add(HostCounter::kMemoryHigh, e.high);
      values.add(HostCounter::kMemoryMax, e.max);
      values.add(HostCounter::kMemoryOomKills, e.oom_kills);
    } else {
      strange(HostTopic::kMemory);
    }
  }
  const auto pressure = [&](File file, HostCounter some, HostCounter full) noexcept {
    if (!read(file)) return;
    gpubusy::host::Pressure p;
    if (!gpubusy::host::parse_pressure(text_, p)) return strange(HostTopic::kPressure);
    values.add(some, p.some_ns);
    if (p.has_full) values.add(full, p.full_ns);
  };
  pressure(kCpu, HostCounter::kCpuSomeNs, HostCounter::kCpuFullNs);
  pressure(kIo, HostCounter::kIoSomeNs, HostCounter::kIoFullNs);
  pressure(kMemoryPressure, HostCounter::kMemorySomeNs, HostCounter::kMemoryFullNs);
  if (read(kSwap)) {
    gpubusy::host::Swapping s;
    if (gpubusy::host::parse_swapping(text_, s)) {
      values.add(HostCounter::kSwapInPages, s.pages_in);
      values.add(HostCounter::kSwapOutPages, s.pages_out);
    } else {
      strange(HostTopic::kSwap);
    }
  }
  if (std::uint64_t bytes = 0;
      files_[kStatus] >= 0 &&
      gpubusy::host::read_field(files_[kStatus], "VmSwap:", text_, sizeof text_) &&
      gpubusy::host::parse_swapped(text_, bytes)) {
    values.add(HostCounter::kSwappedBytes, bytes);
  }
  memcpy(r.sources, sources_, sizeof r.sources);
  values.write(self);
}

}  // namespace gpubusy::runtime::host_facts
