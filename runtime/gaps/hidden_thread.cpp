// SPDX-License-Identifier: Apache-2.0
#include "runtime/gaps/hidden_thread.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "runtime/keep_errno.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime::gaps {
namespace {

// In this order in memory. Thread-local storage of what is loaded at the start lies below the
// thread control block (x86-64).
constexpr std::size_t kPage = 4096;
constexpr std::size_t kStack = 256 * 1024;
constexpr std::size_t kStorage = 64 * 1024;
constexpr std::size_t kControl = 8 * 1024;
constexpr std::size_t kRegion = kPage + kStack + kStorage + kControl;

constinit std::atomic<char*> g_region{nullptr};  // stays mapped: the next one uses it again
constinit std::atomic<int> g_id{0};              // cleared by the kernel when the thread has ended
constinit std::atomic<bool> g_starting{false};
constinit std::atomic<int> g_ready{0};  // a futex
using Body = void (*)();
constinit Body g_body = nullptr;
constinit int g_keep = -1;
constinit std::atomic<int> g_leaves{0};  // a futex

#if defined(__x86_64__)

std::uintptr_t thread_pointer() noexcept {
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
}

// Every thread-local variable that the thread may touch lies in the storage.
bool storage_suffices() noexcept {
  const std::uintptr_t self = thread_pointer();
  const auto fits = [self](const void* variable) {
    const auto at = reinterpret_cast<std::uintptr_t>(variable);
    return at < self && self - at < kStorage - kPage;
  };
  return fits(&t_local) && fits(&errno);
}

// libc keeps a thread's id in its control block, for mutexes that know their owner. 0: not found.
std::size_t find_id_in_control_block() noexcept {
  constexpr std::size_t kFirst = 0x40, kEnd = 0x700;  // the block has 0x900 bytes in all versions
  // Where glibc has had it so far. A small number, as the first process of a container has, stands
  // in other places too; then it is believed to be there.
  constexpr std::size_t kUsual = 0x2d0;
  const auto id = static_cast<std::int32_t>(syscall(SYS_gettid));
  std::size_t found = 0;
  bool several = false, usual = false;
  for (std::size_t at = kFirst; at < kEnd; at += sizeof id) {
    std::int32_t value;
    memcpy(&value, reinterpret_cast<const char*>(thread_pointer()) + at, sizeof value);
    if (value != id) continue;
    several = several || found != 0;
    usual = usual || at == kUsual;
    found = at;
  }
  return !several ? found : usual ? kUsual : 0;
}
constinit std::size_t g_id_offset = 0;

// As libc's own threads have it, as far as anything here looks.
void make_control_block(char* block) noexcept {
  constexpr std::size_t kSelf = 0x10, kManyThreads = 0x18, kStackGuard = 0x28, kPointerGuard = 0x30;
  const char* mine = reinterpret_cast<const char*>(thread_pointer());
  memset(block - kStorage, 0, kStorage + kControl);
  memcpy(block, &block, sizeof block);
  memcpy(block + kSelf, &block, sizeof block);
  memcpy(block + kManyThreads, mine + kManyThreads, sizeof(int));
  memcpy(block + kStackGuard, mine + kStackGuard, sizeof(std::uintptr_t));
  memcpy(block + kPointerGuard, mine + kPointerGuard, sizeof(std::uintptr_t));
}

void set_id_in_control_block() noexcept {
  const auto id = static_cast<std::int32_t>(syscall(SYS_gettid));
  memcpy(reinterpret_cast<char*>(thread_pointer()) + g_id_offset, &id, sizeof id);
}

// ---- descriptors -------------------------------------------------------------------------------

bool close_range_of(unsigned first, unsigned last) noexcept {
#ifdef SYS_close_range
  return first > last || syscall(SYS_close_range, first, last, 0) == 0;
#else
  return false;
#endif
}

// Before Linux 5.9.
bool close_listed(int keep) noexcept {
  const long list =
      syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/fd", O_RDONLY | O_DIRECTORY, 0);
  if (list < 0) return false;
  struct Entry {  // linux_dirent64
    std::uint64_t inode, offset;
    std::uint16_t size;
    std::uint8_t type;
    char name[];
  };
  alignas(8) char buffer[4096];
  for (;;) {
    const long n = syscall(SYS_getdents64, list, buffer, sizeof buffer);
    if (n <= 0) break;
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->size;
      long fd = 0;
      const char* digit = entry->name;
      for (; *digit >= '0' && *digit <= '9'; ++digit) fd = fd * 10 + (*digit - '0');
      if (*digit != '\0' || digit == entry->name || fd == keep || fd == list) continue;
      syscall(SYS_close, fd);
    }
  }
  syscall(SYS_close, list);
  return true;
}

bool close_all_but(int keep) noexcept {
  const auto k = static_cast<unsigned>(keep);
  const bool closed = (keep == 0 || close_range_of(0, k - 1)) && close_range_of(k + 1, ~0u);
  return closed || close_listed(keep);
}

// Leaves the program's table of descriptors, which was shared, and takes one of them along. So
// nothing that the program closes meanwhile stays open. False: not possible here (before Linux 5.9,
// a sandbox, a main thread that has ended); the thread has no descriptors then, or still shares
// them.
bool leave_but(int keep) noexcept {
#if defined(SYS_close_range) && defined(SYS_pidfd_open) && defined(SYS_pidfd_getfd)
  constexpr unsigned kUnshare = 1u << 1;
  if (syscall(SYS_close_range, 0u, ~0u, kUnshare) != 0) return false;
  const long process = syscall(SYS_pidfd_open, getpid(), 0);
  const long taken = process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, keep, 0);
  if (taken < 0) return false;
  // Under its own number, which the writer knows.
  if (taken != keep && syscall(SYS_dup3, taken, keep, O_CLOEXEC) < 0) return false;
  return close_all_but(keep);
#else
  (void)keep;
  return false;
#endif
}

// ---- the thread --------------------------------------------------------------------------------

enum Ready : int { kNotYet = 0, kAlone = 1, kCannotLeave = 2 };
// The thread is made with a copy of the table, and closes it: between the two it may hold what the
// program closes.
constinit std::atomic<bool> g_copies{false};

int run(void* copies) {
  set_id_in_control_block();
  const bool alone = copies != nullptr ? close_all_but(g_keep) : leave_but(g_keep);
  g_ready.store(alone ? kAlone : kCannotLeave, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<int*>(&g_ready), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, nullptr,
          nullptr, 0);
  syscall(SYS_chdir, "/");  // its own, so that it keeps no file system from being unmounted
  prctl(PR_SET_NAME, "gpubusy-gaps");
  // A program's real-time threads must not have one more of their kind.
  const sched_param none{};
  syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
  if (alone) g_body();
  return 0;
}

char* region() noexcept {
  char* known = g_region.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* p = mmap(nullptr, kRegion, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  mprotect(p, kPage, PROT_NONE);
  g_region.store(static_cast<char*>(p), std::memory_order_release);
  return static_cast<char*>(p);
}

Started start(void (*body)(), int keep) noexcept {
  if (g_id.load(std::memory_order_acquire) != 0) return Started::kStillRuns;
  if (g_id_offset == 0) g_id_offset = find_id_in_control_block();
  if (!storage_suffices() || g_id_offset == 0) return Started::kUnsupported;
  char* memory = region();
  if (memory == nullptr) return Started::kNoMemory;
  char* const stack_top = memory + kPage + kStack;
  char* const control = stack_top + kStorage;
  make_control_block(control);
  g_body = body;
  g_keep = keep;
  g_ready.store(kNotYet, std::memory_order_relaxed);
  g_leaves.store(0, std::memory_order_relaxed);

  // libc's own wrapper leaves two of its signals out.
  unsigned long all = ~0ul, before = 0;
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before, sizeof all);
  const bool copies = g_copies.load(std::memory_order_relaxed);
  constexpr int kFlags = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |
                         CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  int* const id = reinterpret_cast<int*>(&g_id);
  const int made = clone(run, stack_top, kFlags | (copies ? 0 : CLONE_FILES),
                         copies ? memory : nullptr, id, control, id);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
  if (made < 0) {
    g_id.store(0, std::memory_order_relaxed);
    return Started::kRefused;
  }
  const timespec patience{0, 1'000'000};
  syscall(SYS_futex, reinterpret_cast<int*>(&g_ready), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0,
          &patience, nullptr, 0);
  if (!copies && g_ready.load(std::memory_order_acquire) == kCannotLeave) {
    g_copies.store(true, std::memory_order_relaxed);
    return Started::kStillRuns;  // the next one
  }
  return Started::kYes;
}

#else

Started start(void (*)(), int) noexcept { return Started::kUnsupported; }

#endif

}  // namespace

Started start_hidden_thread(void (*body)(), int keep) noexcept {
  const KeepErrno keep_errno;
  if (g_starting.exchange(true, std::memory_order_acquire)) return Started::kStillRuns;
  const Started result = keep < 0 ? Started::kRefused : start(body, keep);
  g_starting.store(false, std::memory_order_release);
  return result;
}

bool hidden_thread_runs() noexcept { return g_id.load(std::memory_order_relaxed) != 0; }

bool sleep_in_hidden_thread(std::uint64_t until_ns) noexcept {
  timespec t;
  t.tv_sec = static_cast<time_t>(until_ns / 1'000'000'000);
  t.tv_nsec = static_cast<long>(until_ns % 1'000'000'000);
  syscall(SYS_futex, reinterpret_cast<int*>(&g_leaves), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0,
          &t, nullptr, FUTEX_BITSET_MATCH_ANY);
  return g_leaves.load(std::memory_order_relaxed) == 0;
}

bool hidden_thread_shall_end() noexcept { return g_leaves.load(std::memory_order_relaxed) != 0; }

void end_hidden_thread() noexcept {
  const KeepErrno keep_errno;
  const int id = g_id.load(std::memory_order_acquire);
  if (id == 0) return;
  g_leaves.store(1, std::memory_order_relaxed);
  syscall(SYS_futex, reinterpret_cast<int*>(&g_leaves), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, nullptr,
          nullptr, 0);
  // The kernel wakes without the private flag.
  const timespec patience{0, 2'000'000};
  syscall(SYS_futex, reinterpret_cast<int*>(&g_id), FUTEX_WAIT, id, &patience, nullptr, 0);
}

void hidden_thread_after_fork() noexcept {
  g_id.store(0, std::memory_order_relaxed);
  g_starting.store(false, std::memory_order_relaxed);
}

}  // namespace gpubusy::runtime::gaps
