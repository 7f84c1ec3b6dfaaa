// SPDX-License-Identifier: Apache-2.0
//
// In the place of runtime/gaps/hidden_thread.cpp for helper_races.cpp: the same, but a thread of
// libc's. ThreadSanitizer must see it being made, which it does not with a bare clone().
#include <pthread.h>
#include <time.h>

#include <atomic>

#include "runtime/gaps/hidden_thread.hpp"

namespace gpubusy::runtime::gaps {
namespace {

std::atomic<bool> g_runs{false}, g_starting{false}, g_leaves{false};
void (*g_body)() = nullptr;

void sleep_ns(long ns) {
  const timespec t{0, ns};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
}

void* run(void*) {
  g_body();
  g_runs.store(false, std::memory_order_release);  // the kernel's part in the real one
  return nullptr;
}

}  // namespace

Started start_hidden_thread(void (*body)(), int keep) noexcept {
  if (g_starting.exchange(true, std::memory_order_acquire)) return Started::kStillRuns;
  Started result = Started::kStillRuns;
  if (keep < 0) {
    result = Started::kRefused;
  } else if (!g_runs.load(std::memory_order_acquire)) {
    g_body = body;
    g_leaves.store(false);
    g_runs.store(true);
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const bool made = pthread_create(&thread, &detached, run, nullptr) == 0;
    pthread_attr_destroy(&detached);
    if (!made) g_runs.store(false);
    result = made ? Started::kYes : Started::kRefused;
  }
  g_starting.store(false, std::memory_order_release);
  return result;
}

bool hidden_thread_runs() noexcept { return g_runs.load(std::memory_order_relaxed); }
bool hidden_thread_shall_end() noexcept { return g_leaves.load(std::memory_order_relaxed); }

bool sleep_in_hidden_thread(std::uint64_t until_ns) noexcept {
  while (!hidden_thread_shall_end()) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const std::uint64_t at = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                             static_cast<std::uint64_t>(now.tv_nsec);
    if (at >= until_ns) return true;
    sleep_ns(until_ns - at < 200'000 ? static_cast<long>(until_ns - at) : 200'000);
  }
  return false;
}

void end_hidden_thread() noexcept {
  if (!g_runs.load(std::memory_order_acquire)) return;
  g_leaves.store(true);
  for (int i = 0; i < 20 && g_runs.load(std::memory_order_acquire); ++i) sleep_ns(100'000);
}

void hidden_thread_after_fork() noexcept {
  g_runs.store(false);
  g_starting.store(false);
}

}  // namespace gpubusy::runtime::gaps
