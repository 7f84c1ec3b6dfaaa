// SPDX-License-Identifier: Apache-2.0
//
// Steps of known page faults, switches and processor time, which the program counts itself: the
// test compares. A step ends with cudaDeviceSynchronize. Prints a line for each: what getrusage()
// told from one step's end to the next. With `filtered` it asks nothing, and a system call that the
// library would make ends it. host_counters PAGES SLEEPS SPIN_MS [filtered]
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace {

std::atomic<bool> g_stop{false};
void* idle(void*) {
  while (!g_stop.load()) usleep(20'000);
  return nullptr;
}

double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

double ms(const timeval& t) {
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
}

void step(int pages, int sleeps, int spin_ms) {
  const std::size_t size = static_cast<std::size_t>(pages) * 4096;
  if (pages > 0) {
    // Small pages, as transparent huge ones would be one fault for many.
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, size, MADV_NOHUGEPAGE);
    for (std::size_t at = 0; at < size; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
    munmap(memory, size);
  }
  for (int i = 0; i < sleeps; ++i) usleep(100);
  const double until = cpu_ms() + spin_ms;
  while (cpu_ms() < until) {
  }
}

bool filter_system_calls() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrusage, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sysinfo, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int pages = std::atoi(argv[1]), sleeps = std::atoi(argv[2]), spin_ms = std::atoi(argv[3]);
  const bool filtered = argc > 4;
  constexpr int kSteps = 30;
  pthread_t other;
  pthread_create(&other, nullptr, idle, nullptr);
  if (filtered && !filter_system_calls()) return 3;
  int wrong = 0, lowest = 0;
  rusage before{};
  for (int i = 0; i < kSteps; ++i) {
    cudaLaunchKernel(reinterpret_cast<const void*>(&step), 1, 1, nullptr, 0, nullptr);
    step(pages, sleeps, spin_ms);
    errno = 77;
    cudaDeviceSynchronize();
    wrong += errno != 77;
    rusage now{};
    if (!filtered) getrusage(RUSAGE_SELF, &now);
    if (i > 0 && !filtered) {
      std::printf("%d %ld %ld %ld %.3f\n", i, now.ru_minflt - before.ru_minflt,
                  now.ru_majflt - before.ru_majflt, now.ru_nvcsw - before.ru_nvcsw,
                  ms(now.ru_utime) + ms(now.ru_stime) - ms(before.ru_utime) - ms(before.ru_stime));
    }
    before = now;
    const int fd = open("/dev/null", O_RDONLY);
    if (i == 0) lowest = fd;
    wrong += fd != lowest;
    close(fd);
  }
  g_stop = true;
  pthread_join(other, nullptr);
  std::fprintf(stderr, "wrong %d\n", wrong);
  return wrong != 0;
}
