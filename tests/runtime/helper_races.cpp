// SPDX-License-Identifier: Apache-2.0
//
// The recorder and its helper thread under sanitizers: launching threads with gaps, threads
// that end, a step every few calls (so that windows and with them helpers begin and end all the
// time), forks, and somebody who asks the helper to end. The runtime is compiled anew for it; the
// calls are made as the hooks make them, but for the real call. helper_races [SECONDS]
#include <dirent.h>
#include <link.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "recording/recording.hpp"
#include "runtime/call.hpp"
#include "runtime/gaps/hidden_thread.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {
namespace {

using recording::Category;
using recording::Layer;

enum Api : std::uint32_t { kLaunch, kSynchronize, kApis };
constexpr ApiInfo kTable[kApis] = {{"toyLaunch", Category::kLaunch, Layer::kRuntime},
                                   {"toySynchronize", Category::kSync, Layer::kRuntime}};
constinit std::atomic<std::uint8_t> g_reach[kApis];

// What the preload part tells of the loader; here nothing is loaded.
void* find_symbol(void*, const char*) { return nullptr; }
constexpr LibraryFinder kFinder{[](const char*, const char**) -> const void* { return nullptr; },
                                [](const void*, const char*) -> void* { return nullptr; },
                                [](int (*step)(dl_phdr_info*, std::size_t, void*), void* data) {
                                  dl_iterate_phdr(step, data);
                                }};
constexpr LoaderView kLoader{[]() noexcept -> std::uint64_t { return 1; },
                             [](std::size_t, ModuleBatch& out) noexcept {
                               out.count = 0;
                               return false;
                             },
                             []() noexcept { return true; },
                             [](char*, std::size_t) noexcept { return false; }};

template <Category kCategory, class Payload>
void call(Api api) {
  const void* const function = api == kLaunch ? &kTable : nullptr;
  if (passes_through<kCategory>(api, function)) return;
  CallScope scope({api, kCategory, Layer::kRuntime, 0, function, {nullptr, true, false}});
  scope.start();
  const std::uintptr_t busy = enter_real_call();
  leave_real_call(busy);
  const KeepErrno keep;
  scope.stop(0);
  if (scope.records()) scope.write(Payload{});
  scope.done();
}
void launch() { call<Category::kLaunch, recording::LaunchPayload>(kLaunch); }
void end_step() { call<Category::kSync, recording::SyncPayload>(kSynchronize); }

std::atomic<bool> g_stop{false};
std::atomic<unsigned> g_bad{0};

void pause_us(unsigned us) { usleep(us); }

// Gaps that the helper finds (the threshold is 100 us), and calls in quick order between.
void launcher(unsigned seed) {
  for (unsigned i = 0; !g_stop; ++i) {
    for (unsigned k = 0; k < 20; ++k) launch();
    pause_us(seed = (seed * 1103515245 + 12345) % 4000);
    if (i % 3 == 0) end_step();
  }
}

void ended_threads() {
  while (!g_stop) {
    std::thread one([] {
      launch();
      pause_us(300);
      launch();
    });
    std::thread other(launch);
    one.join();
    other.join();
    pause_us(500);
  }
}

void forks() {
  while (!g_stop) {
    const pid_t child = fork();
    if (child == 0) {
      launch();
      end_step();
      launch();
      pause_us(2000);
      finish_process();
      _exit(7);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 7) {
      std::fprintf(stderr, "a child ended with %#x\n", static_cast<unsigned>(status));
      ++g_bad;
    }
    pause_us(20'000);
  }
}

void asks_for_end() {
  while (!g_stop) {
    gaps::end_hidden_thread();
    pause_us(30'000);
  }
}

// The files are whole, and the helper has written what it saw.
bool check(const std::string& directory) {
  std::size_t files = 0, calls = 0, samples = 0, windows = 0;
  std::set<std::uint32_t> helpers;
  DIR* const list = opendir(directory.c_str());
  while (const dirent* entry = readdir(list)) {
    if (entry->d_name[0] == '.') continue;
    const std::string path = directory + "/" + entry->d_name;
    const auto found = recording::read_file(path);
    if (!found || found->torn_blocks + found->bad_records + found->bad_bytes != 0) {
      std::fprintf(stderr, "%s is not whole: %s, %llu torn, %llu bad, %llu bytes\n", path.c_str(),
                   found ? "" : found.error().message.c_str(),
                   found ? static_cast<unsigned long long>(found->torn_blocks) : 0,
                   found ? static_cast<unsigned long long>(found->bad_records) : 0,
                   found ? static_cast<unsigned long long>(found->bad_bytes) : 0);
      ++g_bad;
      continue;
    }
    ++files;
    calls += found->calls.size();
    samples += found->gap_samples.size();
    windows += found->windows.size();
    for (const recording::HostCounts& c : found->host_counts) {
      if (c.moment == recording::HostMoment::kHelper) helpers.insert(c.thread_id);
    }
    unlink(path.c_str());
  }
  closedir(list);
  rmdir(directory.c_str());
  std::printf("%zu files, %zu calls, %zu windows, %zu helpers, %zu looks\n", files, calls, windows,
              helpers.size(), samples);
  return files > 1 && calls > 100 && windows > 3 && helpers.size() > 1 && samples > 0;
}

int run(int seconds) {
  char directory[] = "/tmp/helper_races.XXXXXX";
  if (mkdtemp(directory) == nullptr) return 2;
  std::vector<std::string> others;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry(*e);
    if (entry.starts_with("GPUBUSY_")) others.push_back(entry.substr(0, entry.find('=')));
  }
  for (const std::string& name : others) unsetenv(name.c_str());
  setenv("GPUBUSY_OUTPUT", directory, 1);
  setenv("GPUBUSY_STEP", "call:toySynchronize", 1);
  setenv("GPUBUSY_WAIT", "1", 1);
  setenv("GPUBUSY_WARMUP", "1", 1);
  setenv("GPUBUSY_ACTIVE", "2", 1);
  setenv("GPUBUSY_REPEAT", "0", 1);
  setenv("GPUBUSY_GAP_THRESHOLD", "100", 1);
  setenv("GPUBUSY_DEVICE_TIME", "off", 1);
  setenv("GPUBUSY_EXPORT", "0", 1);
  start_up({kTable, kApis, find_symbol, &kFinder, g_reach, kLoader, ""});
  // Threads that end steps at once may come in another order than their times.
  launch();
  const std::uint64_t now = now_ns();
  for (std::uint64_t i = 0; i < 12; ++i) {
    launch();
    step_edge(now - i * 1000, recording::StepSource::kCall);
  }
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back(launcher, i);
  threads.emplace_back(ended_threads);
  threads.emplace_back(forks);
  threads.emplace_back(asks_for_end);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  g_stop = true;
  for (std::thread& t : threads) t.join();
  finish_process();
  // The last helper sees that within 10 ms of its own.
  while (gaps::hidden_thread_runs()) pause_us(1000);
  const bool seen = check(directory);
  return seen && g_bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpubusy::runtime

int main(int argc, char** argv) { return gpubusy::runtime::run(argc > 1 ? std::atoi(argv[1]) : 5); }
