// SPDX-License-Identifier: Apache-2.0
//
// Native stacks against the truth: the return addresses that the functions on the stack know,
// glibc's backtrace() and, where it is installed, libunwind.
#include <alloca.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <thread>

#include "tests/native/walk.hpp"

namespace gpubusy::test {
namespace {

using native::End;

volatile int g_zero = 0;

// After a call, so that it is not a tail call.
#define KEEP_FRAME() asm volatile("" ::: "memory")

// Are all known return addresses in the walk, in order? `exactly`: nothing else is between them.
[[gnu::noinline]] testing::AssertionResult holds_truth(const Walked& walked, bool exactly) {
  std::size_t at = 1;
  for (std::size_t i = truth.size(); i-- > 0; ++at) {
    if (exactly) {
      if (at >= walked.pcs.size() || walked.pcs[at] != truth[i]) {
        return testing::AssertionFailure() << "frame " << at << " of " << walked.pcs.size()
                                           << " is wrong, end " << int(walked.end);
      }
      continue;
    }
    while (at < walked.pcs.size() && walked.pcs[at] != truth[i]) ++at;
    if (at >= walked.pcs.size()) {
      return testing::AssertionFailure()
             << "known frame " << i << " is missing, end " << int(walked.end);
    }
  }
  return testing::AssertionSuccess();
}

// Compares what all see from here. Frames are those of the caller on.
[[gnu::noinline]] void expect_same_as_others() {
  const Walked ours = walk_here(), plain = walk_here(false);
  EXPECT_TRUE(
      std::equal(ours.pcs.begin() + 1, ours.pcs.end(), plain.pcs.begin() + 1, plain.pcs.end()))
      << "a memo must not change anything";
  EXPECT_EQ(ours.end, End::kOutermost);
  const auto expect = [&](const std::vector<std::uintptr_t>& other, const char* who) {
    EXPECT_TRUE(std::equal(ours.pcs.begin() + 1, ours.pcs.end(), other.begin() + 1, other.end()))
        << who << ": " << other.size() << " frames, ours " << ours.pcs.size();
  };
  expect(glibc_here(), "glibc");
  if (libunwind_backtrace() != nullptr) expect(libunwind_here(), "libunwind");
  EXPECT_TRUE(std::is_sorted(ours.cfas.begin(), ours.cfas.end()));
  KEEP_FRAME();
}

using Callback = std::function<void()>;

[[gnu::noinline]] void recurse(int depth, const Callback& then) {
  GPUBUSY_KNOWN();
  if (depth > 1) {
    recurse(depth - 1, then);
  } else {
    then();
  }
  KEEP_FRAME();
}

class Walks : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    // Rules of the other source are forgotten.
    native::before_unloading();
    native::after_unloading(true);
    use_objects(GetParam());
    truth.clear();
  }
};
INSTANTIATE_TEST_SUITE_P(Objects, Walks, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Found" : "Iterated");
});

TEST_P(Walks, RecursionOfAnyDepth) {
  for (int depth : {5, 6, 17, 64, 199, 200, 5, 120}) {
    [depth]() __attribute__((noinline)) {
      GPUBUSY_KNOWN();
      recurse(depth, [] {
        const Walked w = walk_here();
        EXPECT_EQ(w.end, End::kOutermost);
        EXPECT_TRUE(holds_truth(w, false));
        expect_same_as_others();
      });
      KEEP_FRAME();
    }
    ();
  }
}

[[gnu::noinline]] int recurse_plainly(int depth, bool (*then)()) {
  GPUBUSY_KNOWN();
  const int result = depth > 1 ? recurse_plainly(depth - 1, then) : then();
  KEEP_FRAME();
  return result;
}

TEST_P(Walks, EveryFrameOfARecursionIsExact) {
  for (int depth = 5; depth <= 200; ++depth) {
    EXPECT_TRUE(recurse_plainly(depth, [] {
      GPUBUSY_KNOWN();
      const Walked w = walk_here();
      const bool good = holds_truth(w, true) && w.end == End::kOutermost;
      KEEP_FRAME();
      return good;
    })) << depth;
  }
}

TEST_P(Walks, TooDeepIsSaid) {
  recurse_plainly(native::kMaxFrames + 150, [] {
    for (bool memo : {true, true, false}) {
      const Walked w = walk_here(memo);
      EXPECT_EQ(w.end, End::kTooDeep);
      EXPECT_EQ(w.pcs.size(), std::size_t{native::kMaxFrames});
      EXPECT_EQ(w.pcs[10], truth[truth.size() - 10]);
      EXPECT_EQ(w.pcs.back(), truth[truth.size() - w.pcs.size() + 1]);
    }
    return true;
  });
  // What was cut is seen again when it fits.
  recurse_plainly(200, [] {
    const Walked w = walk_here();
    EXPECT_EQ(w.end, End::kOutermost);
    EXPECT_TRUE(holds_truth(w, false));
    return true;
  });
}

// A random walk up and down: the memo sees every kind of change.
[[gnu::noinline]] int wander(std::mt19937& random, int depth, int& budget) {
  GPUBUSY_KNOWN();
  int sum = 0;
  while (budget > 0 && random() % 8 != 0) {
    if (random() % 2 == 0) {
      --budget;
      const Walked w = walk_here();
      EXPECT_TRUE(holds_truth(w, false));
      EXPECT_EQ(w.pcs, [&] {
        auto plain = walk_here(false).pcs;
        plain[0] = w.pcs[0];
        return plain;
      }());
    }
    if (depth < 60) {
      if (random() % 3 == 0) {
        volatile char* room = static_cast<char*>(alloca(16 + random() % 600));
        room[0] = 1;
        sum += wander(random, depth + 1, budget) + room[0];
      } else {
        sum += wander(random, depth + 1, budget);
      }
    }
  }
  KEEP_FRAME();
  return sum;
}

TEST_P(Walks, MemoFollowsARandomWalk) {
  std::mt19937 random(7);
  int budget = 5000;
  while (budget > 0) wander(random, 0, budget);
}

int compare_ints(const void* a, const void* b) {
  GPUBUSY_KNOWN();
  const Walked w = walk_here();
  EXPECT_TRUE(holds_truth(w, false));
  KEEP_FRAME();
  return *static_cast<const int*>(a) - *static_cast<const int*>(b);
}

TEST_P(Walks, ThroughLibrariesOfOthers) {
  recurse(10, [] {
    int numbers[] = {5, 3, 9, 1};
    qsort(numbers, 4, sizeof numbers[0], compare_ints);
    static int sorted = 0;
    bsearch(numbers, numbers, 4, sizeof numbers[0], [](const void*, const void*) {
      expect_same_as_others();
      return sorted++;
    });
    // libstdc++ from the shared library: its call_once and its regex are templates, ios callbacks
    // are not.
    std::string text = std::regex_replace("abc", std::regex("b"), "x");
    EXPECT_EQ(text, "axc");
    std::thread([] { expect_same_as_others(); }).join();
  });
}

struct Base {
  virtual ~Base() = default;
  virtual int call(int depth) = 0;
};
struct Derived final : Base {
  explicit Derived(Base* next) : next_(next) {}
  [[gnu::noinline]] int call(int depth) override {
    GPUBUSY_KNOWN();
    const auto lambda = [&]() __attribute__((noinline)) {
      GPUBUSY_KNOWN();
      int result = 0;
      if (depth > 0) {
        result = next_->call(depth - 1);
      } else {
        EXPECT_TRUE(holds_truth(walk_here(), true));
        expect_same_as_others();
      }
      KEEP_FRAME();
      return result;
    };
    const int result = lambda();
    KEEP_FRAME();
    return result;
  }
  Base* next_;
};

TEST_P(Walks, VirtualCallsAndLambdas) {
  Derived b(nullptr);
  b.next_ = &b;
  b.call(20);
}

[[gnu::noinline]] int variable_frame(int depth) {
  GPUBUSY_KNOWN();
  auto* room = static_cast<volatile char*>(alloca(static_cast<std::size_t>(100 * depth + 1)));
  room[0] = 1;
  alignas(64) volatile char aligned[64] = {};
  int result = 0;
  if (depth > 0) {
    result = variable_frame(depth - 1);
  } else {
    EXPECT_TRUE(holds_truth(walk_here(), true));
    expect_same_as_others();
  }
  KEEP_FRAME();
  return result + room[0] + aligned[3];
}

TEST_P(Walks, AllocaAndAlignedFrames) { variable_frame(30); }

[[gnu::noinline]] int tail_target(int x) {
  const Walked w = walk_here();
  EXPECT_TRUE(holds_truth(w, false));
  expect_same_as_others();
  KEEP_FRAME();
  return x;
}
[[gnu::noinline]] int tail_call(int x) { return tail_target(x + 1); }
[[gnu::noinline]] int caller_of_tail_call(int x) {
  GPUBUSY_KNOWN();
  const int result = tail_call(x) + 1;
  KEEP_FRAME();
  return result;
}
TEST_P(Walks, TailCalls) { EXPECT_EQ(caller_of_tail_call(g_zero), 2); }

// ---- exceptions --------------------------------------------------------------------------------

struct LooksWhenDestroyed {
  ~LooksWhenDestroyed() {
    EXPECT_GT(std::uncaught_exceptions(), 0);
    expect_same_as_others();
    ++looks;
  }
  static inline int looks = 0;
};
[[gnu::noinline]] void throw_from(int depth) {
  LooksWhenDestroyed look;
  if (depth == 0) throw 1;
  throw_from(depth - 1);
  KEEP_FRAME();
}

TEST_P(Walks, ExceptionInFlight) {
  LooksWhenDestroyed::looks = 0;
  try {
    throw_from(12);
  } catch (int) {
    expect_same_as_others();
  }
  EXPECT_EQ(LooksWhenDestroyed::looks, 13);
}

// ---- signals -----------------------------------------------------------------------------------

struct InHandler {
  Walked walked;
  std::vector<std::uintptr_t> glibc;
};
InHandler* g_seen = nullptr;

void look_in_handler(int) {
  native::ThreadStack& stack = thread_stack(true);
  const End end = stack.walk(native::current_registers());
  g_seen->walked = result_of(stack, end);
  g_seen->glibc = glibc_here();
  KEEP_FRAME();
}

class Handler {
 public:
  Handler(int number, void (*handler)(int), int flags) : number_(number) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, &before_);
  }
  ~Handler() { sigaction(number_, &before_, nullptr); }

 private:
  int number_;
  struct sigaction before_ {};
};

TEST_P(Walks, SignalHandler) {
  const Handler handler(SIGUSR1, look_in_handler, 0);
  InHandler seen;
  g_seen = &seen;
  recurse(20, [&] {
    for (int i = 0; i < 3; ++i) {
      raise(SIGUSR1);
      EXPECT_EQ(seen.walked.end, End::kOutermost);
      EXPECT_TRUE(holds_truth(seen.walked, false));
      // Their first frame is the handler's own return address, as ours: the restorer.
      EXPECT_TRUE(std::equal(seen.walked.pcs.begin(), seen.walked.pcs.end(), seen.glibc.begin() + 1,
                             seen.glibc.end()));
    }
  });
}

TEST_P(Walks, AlternateSignalStack) {
  std::vector<char> room(65536);
  stack_t alternate{}, before{};
  alternate.ss_sp = room.data();
  alternate.ss_size = room.size();
  sigaltstack(&alternate, &before);
  {
    const Handler handler(SIGUSR1, look_in_handler, SA_ONSTACK);
    InHandler seen;
    g_seen = &seen;
    recurse(20, [&] {
      for (int i = 0; i < 3; ++i) {
        raise(SIGUSR1);
        EXPECT_EQ(seen.walked.end, End::kOutermost);
        EXPECT_TRUE(holds_truth(seen.walked, false));
        expect_same_as_others();
      }
    });
  }
  sigaltstack(&before, nullptr);
}

// At any instruction: prologues, PLT entries, library code, the vDSO.
std::atomic<int> g_samples{0}, g_complete{0}, g_different{0}, g_cut{0};
std::uintptr_t g_example[4];
bool g_with_glibc = true;
void sample(int) {
  const int error = errno;
  void* theirs[512];
  native::ThreadStack& stack = thread_stack(true);
  const End end = stack.walk(native::current_registers());
  const int n = g_with_glibc ? backtrace(theirs, 512) : 0;
  const int count = stack.count();
  // theirs[0] is here, theirs[1] the restorer, as ours [0].
  int same = 0;
  while (same < count && same + 1 < n &&
         reinterpret_cast<std::uintptr_t>(theirs[same + 1]) ==
             stack.frames()[count - 1 - same].pc) {
    ++same;
  }
  ++g_samples;
  if (end == End::kOutermost) {
    ++g_complete;
    if (g_with_glibc && (same != count || n != count + 1)) {
      ++g_different;
      g_example[0] = static_cast<std::uintptr_t>(same);
      g_example[1] = static_cast<std::uintptr_t>(count);
      g_example[2] = static_cast<std::uintptr_t>(n);
      g_example[3] = same < count ? stack.frames()[count - 1 - same].pc : 0;
    }
  } else {
    ++g_cut;
    if (g_with_glibc && same != count) ++g_different;
    g_example[3] = stack.frames()[0].pc;
  }
  errno = error;
}

[[gnu::noinline]] int busy_work(std::mt19937& random, int depth) {
  if (depth > 0) return busy_work(random, depth - 1) + 1;
  std::vector<int> numbers(50);
  for (int& n : numbers) n = static_cast<int>(random());
  std::sort(numbers.begin(), numbers.end());
  qsort(numbers.data(), numbers.size(), sizeof(int), [](const void* a, const void* b) {
    return *static_cast<const int*>(b) < *static_cast<const int*>(a) ? 1 : -1;
  });
  char text[64];
  snprintf(text, sizeof text, "%d %f", numbers[3], 1.5 * numbers[4]);
  std::map<std::string, int> map;
  for (int n : numbers) map[std::to_string(n)] = n;
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  // libgcc's own backtrace crashes in the last instructions of its throw.
  if (!g_with_glibc) {
    try {
      if (random() % 2 == 0) throw std::string(text);
    } catch (const std::string& s) {
      return static_cast<int>(s.size());
    }
  }
  return static_cast<int>(map.size() + std::strtoul(text, nullptr, 10) % 3);
}

void sample_for_a_while(bool with_glibc) {
  g_with_glibc = with_glibc;
  void* warm[4];
  backtrace(warm, 4);
  thread_stack(true);
  const Handler handler(SIGPROF, sample, SA_RESTART);
  g_samples = g_complete = g_different = g_cut = 0;
  itimerval timer{{0, 250}, {0, 250}};
  std::mt19937 random(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  setitimer(ITIMER_PROF, &timer, nullptr);
  int sum = 0;
  while (std::chrono::steady_clock::now() < end) sum += busy_work(random, 1 + sum % 30);
  timer = {};
  setitimer(ITIMER_PROF, &timer, nullptr);
  printf("%d samples, %d complete, %d cut, %d differ from glibc's\n", g_samples.load(),
         g_complete.load(), g_cut.load(), g_different.load());
  EXPECT_GT(g_samples, 50);
  EXPECT_EQ(g_different, 0) << g_example[0] << " of " << g_example[1] << ", theirs " << g_example[2]
                            << ", pc " << std::hex << g_example[3];
  EXPECT_LE(g_cut * 50, g_samples) << std::hex << g_example[3];
}
TEST_P(Walks, AtAnyInstruction) { sample_for_a_while(true); }
TEST_P(Walks, AtAnyInstructionAlsoOfExceptions) { sample_for_a_while(false); }

// Interrupts each instruction in turn: none is left out.
int g_traps, g_trap_cut, g_trap_different;
void on_trap(int, siginfo_t*, void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  static void* theirs[512];
  native::ThreadStack& stack = thread_stack(true);
  const End end = stack.walk(native::current_registers());
  const int n = backtrace(theirs, 512);
  const int count = stack.count();
  int same = 0;
  while (same < count && same + 1 < n &&
         reinterpret_cast<std::uintptr_t>(theirs[same + 1]) ==
             stack.frames()[count - 1 - same].pc) {
    ++same;
  }
  ++g_traps;
  if (end != End::kOutermost) ++g_trap_cut;
  if (same != count) {
    ++g_trap_different;
    g_example[3] = static_cast<std::uintptr_t>(uc->uc_mcontext.gregs[REG_RIP]);
  }
}

TEST_P(Walks, SingleStepped) {
  void* warm[4];
  backtrace(warm, 4);
  struct sigaction action {
  }, before{};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  thread_stack(true);
  g_traps = g_trap_cut = g_trap_different = 0;
  sigaction(SIGTRAP, &action, &before);
  g_with_glibc = true;
  std::mt19937 random(3);
  char text[64];
  // Not the loader's binding of functions at their first call: it has its frames by rbx.
  snprintf(text, sizeof text, "%d %s", 17, "x");
  volatile int sum = busy_work(random, 3);
  const auto set_trap_flag = [] {
    asm volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
  };
  const auto clear_trap_flag = [] {
    asm volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
  };
  set_trap_flag();
  snprintf(text, sizeof text, "%d %s", 17, "x");
  sum = busy_work(random, 3);
  clear_trap_flag();
  sigaction(SIGTRAP, &before, nullptr);
  printf("%d instructions, %d stacks cut, %d differ from glibc's\n", g_traps, g_trap_cut,
         g_trap_different);
  EXPECT_GT(g_traps, 1000);
  EXPECT_EQ(g_trap_different, 0) << std::hex << g_example[3];
  EXPECT_LE(g_trap_cut * 100, g_traps);
  (void)sum;
}

// ---- odd stacks and odd code -------------------------------------------------------------------

TEST_P(Walks, JitCodeEndsTheWalk) {
  void* page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  // sub $8,%rsp; call *%rdi; add $8,%rsp; ret
  const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x08, 0xc3};
  std::memcpy(page, code, sizeof code);
  recurse(5, [&] {
    reinterpret_cast<void (*)(void (*)())>(page)([] {
      for (int i = 0; i < 3; ++i) {
        const Walked w = walk_here();
        EXPECT_EQ(w.end, End::kNoRule);
        EXPECT_EQ(w.pcs.size(), 2u);
      }
    });
    expect_same_as_others();
  });
  munmap(page, 4096);
}

}  // namespace
// Calls first(); its frame claims that the frame pointer is the caller's, which is a lie.
extern "C" void gpubusy_test_lie(void (*first)(), std::uintptr_t fp);
asm(R"(
  .text
  .globl gpubusy_test_lie
  .type gpubusy_test_lie, @function
gpubusy_test_lie:
  .cfi_startproc
  pushq %rbp
  .cfi_adjust_cfa_offset 8
  movq %rsi, %rbp
  call *%rdi
  popq %rbp
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
  .size gpubusy_test_lie, .-gpubusy_test_lie
)");
namespace {

[[gnu::noinline]] void frame_by_fp(std::uintptr_t fp) {
  auto* room = static_cast<volatile char*>(alloca(static_cast<std::size_t>(g_zero + 100)));
  room[1] = 1;
  gpubusy_test_lie(
      [] {
        for (bool memo : {true, true, false}) {
          const Walked w = walk_here(memo);
          EXPECT_TRUE(w.end == End::kOutOfBounds || w.end == End::kNoRule) << int(w.end);
          EXPECT_GE(w.pcs.size(), 2u);
        }
      },
      fp);
  KEEP_FRAME();
}

TEST_P(Walks, GarbageInTheFramePointer) {
  int here = 0;
  const auto sp = reinterpret_cast<std::uintptr_t>(&here);
  for (std::uintptr_t fp :
       {std::uintptr_t{0}, std::uintptr_t{1}, ~std::uintptr_t{0}, ~std::uintptr_t{7},
        std::uintptr_t{1} << 63, sp - 65536, sp + 1, std::uintptr_t{0x1000}}) {
    frame_by_fp(fp);
  }
}

// A stack full of anything. With guards on both sides, a read outside is a crash.
TEST_P(Walks, RandomStacksEnd) {
  constexpr std::size_t kPage = 4096, kSize = 4 * kPage;
  auto* room = static_cast<char*>(
      mmap(nullptr, kSize + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(room, MAP_FAILED);
  mprotect(room + kPage, kSize, PROT_READ | PROT_WRITE);
  auto* words = reinterpret_cast<std::uintptr_t*>(room + kPage);
  const auto low = reinterpret_cast<std::uintptr_t>(words), high = low + kSize;
  // Addresses of real code, also in the middle of functions.
  const std::uintptr_t code[] = {
      reinterpret_cast<std::uintptr_t>(&qsort), reinterpret_cast<std::uintptr_t>(&snprintf),
      reinterpret_cast<std::uintptr_t>(&expect_same_as_others),
      reinterpret_cast<std::uintptr_t>(&variable_frame),
      reinterpret_cast<std::uintptr_t>(dlsym(RTLD_DEFAULT, "_Unwind_RaiseException"))};
  std::mt19937_64 random(5);
  const auto random_pc = [&] { return code[random() % 5] + random() % 8192; };
  const auto random_word = [&]() -> std::uintptr_t {
    switch (random() % 5) {
      case 0: return random();
      case 1: return low + random() % kSize;
      case 2: return low + random() % kSize / 8 * 8;
      default: return random_pc();
    }
  };
  native::ThreadStack& stack = thread_stack();
  int frames = 0;
  for (int round = 0; round < 3000; ++round) {
    for (std::size_t i = 0; i < kSize / 8; ++i) words[i] = random_word();
    for (int i = 0; i < 20; ++i) {
      if (i % 10 == 0) stack.pretend_bounds_for_test(low, high);
      if (i % 3 == 0) words[random() % (kSize / 8)] = random_word();
      const std::uintptr_t sp = low + random() % (kSize / 8) * 8;
      stack.walk({random_pc(), sp, random_word()});
      frames += stack.count();
    }
  }
  EXPECT_GT(frames, 10000) << "the addresses must lead somewhere";
  stack.forget();
  munmap(room, kSize + 2 * kPage);
}

// ---- fibers ------------------------------------------------------------------------------------

ucontext_t g_main_context, g_fiber_context;
void (*g_fiber_body)();

void run_on_fiber(char* stack, std::size_t size, void (*body)()) {
  g_fiber_body = body;
  getcontext(&g_fiber_context);
  g_fiber_context.uc_stack.ss_sp = stack;
  g_fiber_context.uc_stack.ss_size = size;
  g_fiber_context.uc_link = &g_main_context;
  makecontext(
      &g_fiber_context, [] { g_fiber_body(); }, 0);
  swapcontext(&g_main_context, &g_fiber_context);
}

TEST_P(Walks, Fibers) {
  constexpr std::size_t kSize = 256 << 10;
  auto* mapped = static_cast<char*>(
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::vector<char> on_heap(kSize);
  for (char* stack : {mapped, on_heap.data()}) {
    truth.clear();
    run_on_fiber(stack, kSize, [] {
      recurse_plainly(20, [] {
        for (int i = 0; i < 3; ++i) {
          const Walked w = walk_here();
          EXPECT_TRUE(holds_truth(w, false));
          // makecontext() makes up a return to a function's first instruction: nobody called it.
          EXPECT_EQ(w.end, End::kNoRule);
          EXPECT_LE(w.pcs.size(), 25u) << "the fiber's frames and no others";
        }
        return true;
      });
    });
    // Back on the thread's own stack.
    expect_same_as_others();
  }
  std::thread([&] {
    run_on_fiber(mapped, kSize, [] {
      const Walked w = walk_here();
      EXPECT_EQ(w.end, End::kNoRule);
      EXPECT_LE(w.pcs.size(), 5u);
    });
    expect_same_as_others();
  }).join();
  munmap(mapped, kSize);
}

TEST_P(Walks, FiberThatMayNotBeReadHasOneFrame) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{4, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(77);
    }
    static int result = 1;
    std::vector<char> stack(262144);
    run_on_fiber(stack.data(), stack.size(), [] {
      const Walked w = walk_here();
      result = w.end == End::kForeign && w.pcs.size() == 1 ? 0 : 2;
    });
    _exit(result);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

// ---- threads and processes ---------------------------------------------------------------------

struct Small {
  std::uintptr_t low = 0;
  bool done = false;
};
[[gnu::noinline]] void to_the_end(Small& small, std::uintptr_t left_over) {
  volatile char frame[64];
  frame[0] = 1;
  if (reinterpret_cast<std::uintptr_t>(&frame) - small.low > left_over) {
    to_the_end(small, left_over);
  } else {
    // No vectors: there is little room.
    native::ThreadStack& stack = thread_stack();
    const End end = stack.walk(native::current_registers());
    small.done = stack.count() == native::kMaxFrames || end == End::kOutermost;
  }
  KEEP_FRAME();
}

TEST_P(Walks, SmallStackNearItsGuard) {
  // What the walker needs, with a library's tables read for the first time.
  constexpr std::uintptr_t kLeftOver = 6144;
  constexpr std::size_t kSize = 65536;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kSize);
  for (int i = 0; i < 3; ++i) {
    Small small;
    pthread_t thread;
    ASSERT_EQ(pthread_create(
                  &thread, &attributes,
                  [](void* p) -> void* {
                    auto& s = *static_cast<Small*>(p);
                    thread_stack();
                    pthread_attr_t mine;
                    pthread_getattr_np(pthread_self(), &mine);
                    void* low;
                    std::size_t size;
                    pthread_attr_getstack(&mine, &low, &size);
                    pthread_attr_destroy(&mine);
                    s.low = reinterpret_cast<std::uintptr_t>(low);
                    to_the_end(s, kLeftOver);
                    return nullptr;
                  },
                  &small),
              0);
    pthread_join(thread, nullptr);
    EXPECT_TRUE(small.done);
  }
  pthread_attr_destroy(&attributes);
}

TEST_P(Walks, ThreadsStacksAreTheirOwn) {
  // Not read as foreign ones: neither the first thread's, nor another's, nor in a forked child.
  const auto own = [] {
    char here;
    return thread_stack().is_on_own_stack_for_test(reinterpret_cast<std::uintptr_t>(&here));
  };
  EXPECT_TRUE(own());
  std::thread([&] {
    EXPECT_TRUE(own());
    const pid_t child = fork();
    if (child == 0) {
      thread_stack().forget();
      const Walked w = walk_here();
      _exit(own() && w.end == End::kOutermost ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }).join();
  std::vector<char> heap(100000);
  EXPECT_FALSE(thread_stack().is_on_own_stack_for_test(
      reinterpret_cast<std::uintptr_t>(heap.data()) & ~std::uintptr_t{7}));
}

// ---- unloading ---------------------------------------------------------------------------------

int close_library(void* library) {
  native::before_unloading();
  const int result = dlclose(library);
  native::after_unloading(true);
  return result;
}

struct Visit {
  std::uintptr_t address;
  bool good;
};
bool g_good;
Visit visit(const char* name) {
  const std::string path = std::string(GPUBUSY_TEST_LIBRARIES) + "/" + name;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  auto* call = reinterpret_cast<void (*)(void (*)())>(dlsym(library, "gpubusy_test_call"));
  g_good = false;
  call([] {
    const Walked w = walk_here(), plain = walk_here(false);
    const std::vector<std::uintptr_t> theirs = glibc_here();
    const auto same = [&](const std::vector<std::uintptr_t>& pcs) {
      return std::equal(pcs.begin() + 1, pcs.end(), theirs.begin() + 1, theirs.end());
    };
    g_good = w.end == End::kOutermost && same(w.pcs) && same(plain.pcs);
  });
  const Visit result{reinterpret_cast<std::uintptr_t>(call), g_good};
  close_library(library);
  return result;
}

TEST_P(Walks, LibraryAtTheAddressOfAnotherOne) {
  int at_the_same = 0;
  std::uintptr_t before = 0;
  for (int i = 0; i < 50; ++i) {
    const Visit v = visit(i % 2 == 0 ? "libgpubusy_native_a.so" : "libgpubusy_native_b.so");
    EXPECT_TRUE(v.good) << i;
    if (v.address == before) ++at_the_same;
    before = v.address;
  }
  EXPECT_GT(at_the_same, 10) << "otherwise this tests nothing";
}

std::atomic<int> g_slow{0};

TEST_P(Walks, UnloadingWaitsForAReaderThatComesOut) {
  const auto slowly = [](void*, native::FoundObject*) {
    g_slow = 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    g_slow = 2;
    return -1;
  };
  g_slow = 0;
  native::set_object_source({slowly, nullptr});
  std::thread reader([] {
    native::read_surely();
    native::span_of(reinterpret_cast<std::uintptr_t>(&close_library));
  });
  while (g_slow == 0) std::this_thread::yield();
  native::before_unloading();
  EXPECT_EQ(g_slow, 2);
  native::after_unloading(false);
  reader.join();
  SetUp();
}

TEST_P(Walks, GenerationNumbersComeRound) {
  visit("libgpubusy_native_a.so");
  for (int i = 0; i < 65536; ++i) {
    native::before_unloading();
    native::after_unloading(true);
  }
  EXPECT_TRUE(visit("libgpubusy_native_b.so").good);
  EXPECT_TRUE(visit("libgpubusy_native_a.so").good);
}

TEST_P(Walks, KnownRulesAreNotReadAgain) {
  const auto once = [] { recurse_plainly(10, [] { return !walk_here(false).pcs.empty(); }); };
  std::uint64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    asm volatile("" : "+r"(i));  // one call site for all
    once();
    if (i == 1) before = native::rule_counts().misses;
  }
  EXPECT_EQ(native::rule_counts().misses, before);
}

}  // namespace
}  // namespace gpubusy::test

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  gpubusy::runtime::native::set_up_walker(0, 0);
  return RUN_ALL_TESTS();
}
