// SPDX-License-Identifier: Apache-2.0
#include "runtime/recorder.hpp"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "config/schedule.hpp"
#include "recording/check_in.hpp"
#include "runtime/clock.hpp"
#include "runtime/cupti/client.hpp"
#include "runtime/detached_export.hpp"
#include "runtime/device_timer.hpp"
#include "runtime/driver.hpp"
#include "runtime/gaps/sampler.hpp"
#include "runtime/host/counters.hpp"
#include "runtime/host/offer.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/kernels.hpp"
#include "runtime/native/capture.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/patience.hpp"
#include "runtime/python_presence.hpp"
#include "runtime/ranges.hpp"
#include "runtime/sandbox.hpp"
#include "runtime/stack_table.hpp"
#include "runtime/step_tracker.hpp"
#include "runtime/streams.hpp"

extern char** environ;

namespace gpubusy::runtime {

constinit std::atomic<Mode> g_mode{Mode::kOff};
constinit std::atomic<bool> g_has_driver_work{false};
constinit std::atomic<std::uint32_t> g_step_api{kNoApi};
constinit std::atomic<bool> g_hook_was_called{false};
constinit std::atomic<const unsigned char*> g_parents_page{nullptr};

namespace {

constexpr const char* kVersion = GPUBUSY_VERSION;

enum class WindowState : std::uint8_t { kNone, kPrelude, kScheduled, kWholeRun, kCaptured };

// All of this is changed only under g_mutex, or before a second thread can know of it.
struct State {
  config::Config config;
  config::Schedule schedule;
  recording::RecordingFile file;
  std::uint64_t step = 0;  // number of the step that is running
  std::uint64_t step_began_ns = 0;
  WindowState window = WindowState::kNone;
  std::uint32_t window_index = 0;
  std::uint32_t window_first_step = 0;
  std::uint64_t window_first_call = 0;  // calls_so_far() when the window began
  bool has_prelude = false;             // window 0, and no step so far
  bool has_config = false;
  bool armed = false;
  bool finished = false;
  pid_t start_pid = 0;            // a forked child has another
  Teller teller = Teller::kCall;  // of what is being told now
  bool profiler_started = false;  // cudaProfilerStart, and no Stop since
  bool captured_once = false;
  bool foreign_nvtx = false;             // another tool has the program's NVTX calls
  bool under_launcher = false;           // it makes the traces itself, at the end
  std::uint64_t run = 0;                 // of the launcher; 0: none
  std::uint32_t exported_windows = 0;    // traces have been started for the windows before this one
  std::uint32_t exportable_windows = 0;  // behind the last one that holds any call
  std::uint64_t window_ended_ns = 0;     // of the first window that waits for its trace
  char start_directory[PATH_MAX] = "";   // a relative output is meant from there
  dev_t stderr_device = 0;               // what file descriptor 2 was at the start
  ino_t stderr_inode = 0;
};

constinit State g_state{};
constinit pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<std::uint32_t> g_correlation{0};
constinit std::atomic<std::uint32_t> g_generation{0};
constinit std::atomic<bool> g_device_times{false};
constinit std::atomic<std::uint64_t> g_recorded_until{0};
constinit std::atomic<std::uint64_t> g_prelude_end_blocks{~std::uint64_t{0}};
// How long the last device times of a window are waited for (by looking now and then) before its
// trace is made without them.
constexpr std::uint64_t kDrainLimitNs = 2'000'000'000;
constinit std::atomic<bool> g_draining{false};
constinit const ApiInfo* g_apis = nullptr;
constinit std::size_t g_api_count = 0;

class Lock {
 public:
  Lock() noexcept { pthread_mutex_lock(&g_mutex); }
  ~Lock() { pthread_mutex_unlock(&g_mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  const NoCancel no_cancel_;
};

// exit() may be called from a signal handler that interrupted the holder of the lock: never waits
// for it for ever.
class PatientLock {
 public:
  PatientLock() noexcept
      : held_(patiently(1000, [] { return pthread_mutex_trylock(&g_mutex) == 0; })) {}
  ~PatientLock() {
    if (held_) pthread_mutex_unlock(&g_mutex);
  }
  PatientLock(const PatientLock&) = delete;
  PatientLock& operator=(const PatientLock&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  const NoCancel no_cancel_;
  const bool held_;
};

// The program may have closed it and opened something of its own there.
bool is_still_stderr() noexcept {
  struct stat now {};
  return fstat(STDERR_FILENO, &now) == 0 && now.st_dev == g_state.stderr_device &&
         now.st_ino == g_state.stderr_inode;
}

void say(const char* text) noexcept {
  // One write, so that lines of several processes do not mix. No stdio: the program owns its state.
  char line[1400];
  const int n = snprintf(line, sizeof line, "gpubusy: %s\n", text);
  if (n <= 0 || !is_still_stderr()) return;
  const std::size_t size =
      static_cast<std::size_t>(n) < sizeof line ? static_cast<std::size_t>(n) : sizeof line - 1;
  // A full pipe that nobody reads would block us, one without a reader would raise SIGPIPE.
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  sigpending(&pending);
  const ssize_t written = write(STDERR_FILENO, line, size);
  if (written < 0 && errno == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec at_once{};
    sigtimedwait(&pipe, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Children inherit a bad setting; one line for the whole tree of processes is enough. Only in the
// constructor: later other threads may be reading the environment.
constexpr const char* kSaid = "GPUBUSY_INTERNAL_SAID";

void say_once_per_tree(const char* text) noexcept {
  if (getenv(kSaid) != nullptr) return;
  say(text);
  setenv(kSaid, "1", 1);
}

int make_directories(char* path) noexcept {
  for (char* p = path + 1; *p != '\0'; ++p) {
    if (*p != '/') continue;
    *p = '\0';
    const int result = mkdir(path, 0777);
    const int error = errno;
    *p = '/';
    if (result != 0 && error != EEXIST) return error;
  }
  if (mkdir(path, 0777) != 0 && errno != EEXIST) return errno;
  return 0;
}

class FileDefinitions final : public DefinitionSink {
 public:
  bool define(recording::RecordHeader* record, std::size_t fixed_size, const Part* parts,
              std::size_t part_count) noexcept override {
    std::size_t size = fixed_size;
    for (std::size_t i = 0; i < part_count; ++i) size += parts[i].size;
    const std::size_t padded = (size + 7) & ~std::size_t{7};
    const NoCancel no_cancel;
    ThreadState* thread = thread_state();
    if (thread == nullptr || padded > recording::kMaxRecordSize) {
      g_state.file.count_lost(1);
      return false;
    }
    char* out = static_cast<char*>(reserve_record(*thread, padded, now_ns()));
    if (out == nullptr) return false;
    record->size = static_cast<std::uint16_t>(padded);
    memcpy(out, record, fixed_size);
    std::size_t at = fixed_size;
    for (std::size_t i = 0; i < part_count; ++i) {
      if (parts[i].size != 0) memcpy(out + at, parts[i].data, parts[i].size);
      at += parts[i].size;
    }
    memset(out + at, 0, padded - at);
    commit_record(*thread, padded);
    return true;
  }
};
constinit FileDefinitions g_definitions;

void define_apis() noexcept {
  for (std::size_t i = 0; i < g_api_count; ++i) {
    if (g_apis[i].layer == recording::Layer::kLibrary) continue;
    recording::ApiRecord r{};
    r.header.type = recording::RecordType::kFunction;
    r.header.value = static_cast<std::uint32_t>(i);
    r.category = g_apis[i].category;
    r.layer = g_apis[i].layer;
    const std::size_t length = strlen(g_apis[i].name);
    r.name_bytes = static_cast<std::uint16_t>(length);
    const Part part{g_apis[i].name, length};
    g_definitions.define(&r.header, sizeof r, &part, 1);
  }
}

void define_settings() noexcept {
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    if (strncmp(*e, "GPUBUSY_", 8) != 0 || strncmp(*e, "GPUBUSY_INTERNAL_", 17) == 0) continue;
    recording::SettingRecord r{};
    r.header.type = recording::RecordType::kSetting;
    const std::size_t length = strnlen(*e, 4096);
    r.text_bytes = static_cast<std::uint32_t>(length);
    const Part part{*e, length};
    g_definitions.define(&r.header, sizeof r, &part, 1);
  }
}

void write_window(recording::WindowEvent event, std::uint64_t time_ns,
                  std::uint32_t steps) noexcept {
  recording::WindowRecord r{};
  r.header.type = recording::RecordType::kWindow;
  r.header.value = g_state.window_index;
  r.time_ns = time_ns;
  r.first_step = g_state.window_first_step;
  r.steps = steps;
  r.kind = g_state.window == WindowState::kScheduled  ? recording::WindowKind::kScheduled
           : g_state.window == WindowState::kPrelude  ? recording::WindowKind::kPrelude
           : g_state.window == WindowState::kCaptured ? recording::WindowKind::kCaptured
                                                      : recording::WindowKind::kWholeRun;
  r.event = event;
  g_definitions.define(&r.header, sizeof r, nullptr, 0);
}

void write_recording_edge(bool begins) noexcept {
  recording::RecordingRecord r{};
  r.header.type = recording::RecordType::kRecording;
  r.header.value = begins ? 1 : 0;
  r.time_ns = now_ns();
  g_definitions.define(&r.header, sizeof r, nullptr, 0);
}

// Rises with each recorded call.
std::uint64_t calls_so_far() noexcept {
  std::uint64_t sum = 0;
  for (ThreadState* t = all_thread_states(); t != nullptr; t = t->next) {
    sum += std::atomic_ref<std::uint32_t>(t->next_correlation).load(std::memory_order_relaxed);
  }
  return sum;
}

void write_coverage() noexcept {
  write_loaded_modules(g_definitions, now_ns());
  write_reach(g_definitions, now_ns());
}

void open_window(WindowState kind, std::uint64_t time_ns) noexcept {
  g_state.window = kind;
  g_state.window_first_step = static_cast<std::uint32_t>(g_state.step);
  g_state.window_first_call = calls_so_far();
  write_window(
      recording::WindowEvent::kBegin, time_ns,
      kind == WindowState::kScheduled ? static_cast<std::uint32_t>(g_state.schedule.active) : 0);
}

void close_window(recording::WindowEvent event, std::uint64_t time_ns) noexcept {
  if (g_state.window == WindowState::kNone) return;
  write_coverage();
  write_open_ranges(time_ns);
  write_window(event, time_ns,
               static_cast<std::uint32_t>(g_state.step) - g_state.window_first_step);
  g_state.window = WindowState::kNone;
  ++g_state.window_index;
  // The process may end just behind the step that opened the window.
  if (calls_so_far() != g_state.window_first_call)
    g_state.exportable_windows = g_state.window_index;
  if (!g_draining.exchange(true, std::memory_order_relaxed)) g_state.window_ended_ns = time_ns;
}

// Starts the traces of the windows that have ended. Under g_mutex.
void export_windows() noexcept {
  g_draining.store(false, std::memory_order_relaxed);
  const std::uint32_t first = g_state.exported_windows;
  const std::uint32_t end = g_state.exportable_windows;
  if (first >= end || g_state.under_launcher || g_state.config.export_traces == 0) return;
  g_state.exported_windows = end;
  static constinit char library[PATH_MAX];  // more than a small stack has
  const bool known = loader().own_path != nullptr && loader().own_path(library, sizeof library);
  const ExportStart result =
      start_export(known ? library : "", g_state.file.path(), first, end - 1);
  if (result == ExportStart::kStarted) return;
  char text[300];
  snprintf(text, sizeof text, "no trace was written by the process itself: %s; use gpubusy export",
           why_not_started(result));
  notice(recording::NoticeKind::kInfo, text);
}

// Takes in the device times that were still out when a window ended, then starts its trace. One
// exporter runs at a time: windows that end meanwhile go into the next. Under g_mutex.
void drain() noexcept {
  if (!g_draining.load(std::memory_order_relaxed)) return;
  // Both: each has work of its own out.
  const bool events_are_in = harvest_device_times();
  const bool activities_are_in = cupti::harvest(true);
  if (!(events_are_in && activities_are_in)) {
    if (now_ns() - g_state.window_ended_ns < kDrainLimitNs) return;
    cupti::give_up_pending();  // lest the next window waits for it as well
  }
  if (!export_is_running()) export_windows();
}

// CUPTI follows the mode. Under g_mutex.
void settle_cupti(bool recording_now, bool begins) noexcept {
  if (!recording_now) {
    cupti::stop();
  } else if ((begins || cupti::may_start()) && g_state.file.is_writable()) {
    cupti::start();
  }
}

void set_recording(bool recording_now) noexcept {
  const bool recording_before = mode() == Mode::kRecording;
  if (recording_now && !recording_before) recalibrate_device_clock();
  if (g_state.teller == Teller::kCall) {
    settle_cupti(recording_now, !recording_before);
  } else if (recording_now != recording_before || cupti::may_start()) {
    g_has_driver_work.store(true, std::memory_order_relaxed);
  }
  if (recording_now != recording_before) write_recording_edge(recording_now);
  if (recording_before && !recording_now) g_recorded_until.store(now_ns());
  g_mode.store(recording_now ? Mode::kRecording : Mode::kTracking, std::memory_order_release);
  if (recording_now && !recording_before) gaps::recording_begins();
  if (!recording_now && recording_before) gaps::recording_ended();
}

bool captures() noexcept { return g_state.config.capture_kind != config::CaptureKind::kNone; }

// Opens or closes the window as the program's marks say. Under g_mutex.
void follow_capture(std::uint64_t time_ns) noexcept {
  const bool wanted = g_state.config.capture_kind == config::CaptureKind::kNvtx
                          ? capture_range_is_open()
                          : g_state.profiler_started;
  if (wanted && g_state.window == WindowState::kNone) {
    g_state.captured_once = true;
    open_window(WindowState::kCaptured, time_ns);
  } else if (!wanted && g_state.window == WindowState::kCaptured) {
    close_window(recording::WindowEvent::kEnd, time_ns);
  }
  set_recording(g_state.window != WindowState::kNone);
}

// Mode for the step that begins now; opens its window. Under g_mutex.
void enter_step(std::uint64_t time_ns) noexcept {
  if (captures()) return follow_capture(time_ns);
  const config::Action action = config::action_at(g_state.schedule, g_state.step);
  const bool record = config::records(action);
  const bool warm = action == config::Action::kWarmup;
  if (record && g_state.window == WindowState::kNone) {
    open_window(WindowState::kScheduled, time_ns);
  }
  // In the warm-up everything is recorded too: its device work may run into the window, and the
  // first touch of buffers and events should not fall into it. Analysis leaves it out.
  set_recording(record || warm || g_state.window != WindowState::kNone);
}

void at_exit() { finish_process(); }

void before_fork() {
  gaps::before_fork();
  // Only the table that the child keeps must be whole; everything else is made anew there.
  prepare_kernels_for_fork();
}
void after_fork_in_parent() { release_kernels_after_fork(false); }
void after_fork_in_child() {
  release_kernels_after_fork(true);
  g_parents_page.store(nullptr, std::memory_order_relaxed);
  g_mutex = PTHREAD_MUTEX_INITIALIZER;
  g_state.file.forget_after_fork();
  g_state.step = 0;
  g_state.step_began_ns = 0;
  g_state.window = WindowState::kNone;
  g_state.window_index = 0;
  g_state.exported_windows = 0;
  g_state.exportable_windows = 0;
  g_state.has_prelude = false;
  g_state.profiler_started = false;
  g_state.captured_once = false;
  g_recorded_until.store(0);
  g_has_driver_work.store(false);
  g_state.teller = Teller::kCall;
  g_draining.store(false);
  g_state.armed = false;
  g_state.finished = false;
  g_correlation.store(0);
  g_generation.fetch_add(1);
  g_prelude_end_blocks.store(~std::uint64_t{0});
  forget_loaded_modules();
  forget_threads_after_fork();
  forget_ranges_after_fork();
  forget_streams_after_fork();
  forget_timers_after_fork();
  cupti::forget_after_fork();
  gaps::forget_after_fork();
  forget_steps_after_fork();
  forget_python_after_fork();
  forget_driver_search_after_fork();
  native::rules_after_fork();
  reset_stack_table_after_fork();
  native::forget_unplaced_stacks();
  if (!g_state.has_config) return;
  const bool chosen = g_state.config.process_kind != config::ProcessKind::kCommand;
  g_mode.store(chosen ? Mode::kIdle : Mode::kOff, std::memory_order_release);
}

bool is_set(const char* name) noexcept {
  const char* value = getenv(name);
  return value != nullptr && value[0] != '\0';
}

const char* file_name_of(const char* path) noexcept {
  const char* slash = strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// GPUBUSY_PROCESSES: is this process to be recorded?
bool is_chosen(const config::Config& c) noexcept {
  switch (c.process_kind) {
    case config::ProcessKind::kAll: return true;
    case config::ProcessKind::kCommand: {
      // The command is the launcher's child in all of its images.
      const char* launcher = getenv(recording::kLauncherVariable);
      if (launcher != nullptr) {
        return strtoull(launcher, nullptr, 10) == static_cast<unsigned long long>(getppid());
      }
      say_once_per_tree(
          "GPUBUSY_PROCESSES='command' needs the gpubusy launcher, which knows its command (use "
          "name:GLOB); nothing is recorded");
      return false;
    }
    case config::ProcessKind::kName: {
      // As it was called, or as it is: `python` is a link to python3.11.
      if (config::glob_match(c.process_pattern, program_invocation_short_name)) return true;
      char path[PATH_MAX];
      const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
      if (n <= 0) return false;
      path[n] = '\0';
      return config::glob_match(c.process_pattern, file_name_of(path));
    }
  }
  return true;
}

// A function whose calls can end steps; kNoApi: there is none of that name.
std::uint32_t step_api_by_name(const char* name) noexcept {
  for (std::size_t i = 0; i < g_api_count; ++i) {
    if (g_apis[i].category != recording::Category::kContext &&
        g_apis[i].layer != recording::Layer::kLibrary && strcmp(g_apis[i].name, name) == 0) {
      return static_cast<std::uint32_t>(i);
    }
  }
  return kNoApi;
}

constexpr const char* kNvtxInjection = "NVTX_INJECTION64_PATH";

bool is_same_file(const char* a, const char* b) noexcept {
  struct stat first {
  }, second{};
  return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

const char* base_name(const char* path) noexcept {
  const char* slash = strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// NVTX loads one tool, from the path in this variable. A preloaded one it does not find: its hook
// for that (InitializeInjectionNvtx2_fnptr) is local to each library that uses NVTX (so in
// libtorch_python). Only in the constructor: later other threads may be reading the environment.
void offer_for_nvtx(const char* library) noexcept {
  const char* tool = getenv(kNvtxInjection);
  if (tool == nullptr || tool[0] == '\0') {
    if (library[0] == '/') setenv(kNvtxInjection, library, 1);
  } else {
    // By its name alone it may be found in LD_LIBRARY_PATH.
    g_state.foreign_nvtx =
        !is_same_file(tool, library) && strcmp(base_name(tool), base_name(library)) != 0;
  }
}

void set_up_native_stacks() noexcept {
  const LibraryFinder* libraries = library_finder();
  native::ObjectSource source{};
  if (libraries != nullptr) {
    source.walk = libraries->walk;
    source.find_object = reinterpret_cast<decltype(source.find_object)>(
        find_loaded_library("_dl_find_object").find("_dl_find_object"));
  }
  native::set_object_source(source);
  // The first range is this library.
  native::set_up_walker(g_cuda_code[0].begin.load(std::memory_order_relaxed),
                        g_cuda_code[0].end.load(std::memory_order_relaxed));
}

void watch_for_unnoticed_children() noexcept {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  *static_cast<unsigned char*>(page) = 1;
  if (madvise(page, 4096, MADV_WIPEONFORK) != 0) {
    munmap(page, 4096);
    return;
  }
  g_parents_page.store(static_cast<unsigned char*>(page), std::memory_order_relaxed);
}

}  // namespace

const config::Config& configuration() noexcept { return g_state.config; }
const ApiInfo& api_info(std::uint32_t api) noexcept { return g_apis[api]; }
std::uint32_t api_count() noexcept { return static_cast<std::uint32_t>(g_api_count); }
recording::RecordingFile& recording_file() noexcept { return g_state.file; }
std::uint32_t next_correlation(ThreadState& thread) noexcept {
  // Taken in strides: one shared counter would be a contended cache line of all launching threads.
  constexpr std::uint32_t kStride = 256;
  std::uint32_t next = thread.next_correlation;
  if (next == thread.end_correlation) [[unlikely]] {
    next = g_correlation.fetch_add(kStride, std::memory_order_relaxed) + 1;
    thread.end_correlation = next + kStride;
  }
  // calls_so_far() reads it.
  std::atomic_ref<std::uint32_t>(thread.next_correlation)
      .store(next + 1, std::memory_order_relaxed);
  return next;
}
bool wants_device_times() noexcept {
  return g_device_times.load(std::memory_order_relaxed) && mode() == Mode::kRecording;
}
std::uint64_t recorded_until() noexcept { return g_recorded_until.load(std::memory_order_relaxed); }
DefinitionSink& definitions() noexcept { return g_definitions; }
std::uint32_t file_generation() noexcept { return g_generation.load(std::memory_order_relaxed); }

void* reserve_record(ThreadState& thread, std::size_t size, std::uint64_t now) noexcept {
  if (!g_state.file.is_open()) return nullptr;
  void* p = thread.writer.reserve(g_state.file, size, thread.thread_id, now);
  if (p == nullptr) [[unlikely]] {
    ++thread.lost;
  } else if (thread.lost != 0) [[unlikely]] {
    // When it went on; how many were lost in all is counted in the file's header.
    p = thread.writer.reserve(g_state.file, size + sizeof(recording::LostRecord), thread.thread_id,
                              now);
    if (p == nullptr) return nullptr;
    recording::LostRecord r{};
    r.header = {recording::RecordType::kLost, sizeof r, static_cast<std::uint32_t>(thread.lost)};
    r.time_ns = now;
    memcpy(p, &r, sizeof r);
    thread.writer.commit(sizeof r);
    thread.lost = 0;
    p = static_cast<char*>(p) + sizeof r;
  }
  return p;
}

void notice(recording::NoticeKind kind, const char* text) noexcept {
  recording::NoticeRecord r{};
  r.header.type = recording::RecordType::kNotice;
  r.header.value = static_cast<std::uint32_t>(kind);
  r.time_ns = now_ns();
  const std::size_t length = strnlen(text, 4000);
  r.text_bytes = static_cast<std::uint32_t>(length);
  const Part part{text, length};
  g_definitions.define(&r.header, sizeof r, &part, 1);
}

void start_up(const StartUp& start) noexcept {
  KeepErrno keep;
  g_apis = start.apis;
  g_api_count = start.api_count;
  set_symbol_finder(start.find_symbol);
  set_library_finder(start.libraries);
  set_loader(start.loader);
  set_reach_table(start.reach, start.api_count);
  g_state.start_pid = getpid();
  struct stat out {};
  if (fstat(STDERR_FILENO, &out) == 0) {
    g_state.stderr_device = out.st_dev;
    g_state.stderr_inode = out.st_ino;
  }
  const char* check_in_file = getenv("GPUBUSY_INTERNAL_CHECKIN");
  if (check_in_file != nullptr) recording::check_in(check_in_file, kVersion);
  g_state.under_launcher = check_in_file != nullptr;
  const char* run = getenv(recording::kRunVariable);
  if (run != nullptr) g_state.run = strtoull(run, nullptr, 16);
  // Unset: the library does nothing at all. Any other GPUBUSY_ variable without an output
  // directory is still read, so that a typing error does not go unnoticed.
  config::Problem problem{};
  config::set_defaults(g_state.config);
  if (!config::load(g_state.config, environ, problem)) {
    char text[1200];
    snprintf(text, sizeof text, "%s; nothing is recorded", problem.text);
    say_once_per_tree(text);
    return;
  }
  if (!is_set("GPUBUSY_OUTPUT")) return;
  const config::Config& c = g_state.config;
  if (!is_chosen(c)) return;
  g_state.schedule = {c.skip_first, c.skip_first_wait, c.wait, c.warmup, c.active, c.repeat};
  if (c.step_kind == config::StepKind::kCall) {
    const std::uint32_t api = step_api_by_name(c.step_pattern);
    if (api == kNoApi) {
      char text[1200];
      snprintf(
          text, sizeof text,
          "GPUBUSY_STEP=%.300s: '%.300s' is not a function whose calls are recorded (allowed: a "
          "name of the hook table, e.g. call:cudaGraphLaunch); nothing is recorded",
          c.step, c.step_pattern);
      say_once_per_tree(text);
      return;
    }
    g_step_api.store(api);
  }
  if (getcwd(g_state.start_directory, sizeof g_state.start_directory) == nullptr) {
    g_state.start_directory[0] = '\0';
  }
  sandbox::remember_start(c.host_counters != 0 || c.gap_sampling != 0);
  host_facts::set_up(c.host_counters != 0);
  gaps::set_up(c.gap_sampling != 0, c.gap_threshold * 1000);
  if (c.native_stacks != 0 || c.gap_sampling != 0) set_up_native_stacks();
  g_state.has_config = true;
  offer_for_nvtx(start.library);
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  g_mode.store(Mode::kIdle, std::memory_order_release);
}

namespace {

// Creates the file. False: that was not possible, which is said unless `silent`.
bool open_recording(bool silent) noexcept {
  // What the environment says of rank and names is read now, as CUDA reads its own variables: a
  // launcher inside the program may have set it since the start.
  // More than a small stack has; under g_mutex.
  static constinit config::Problem problem{};
  static constinit char output[config::kTextMax];
  static constinit char directory[config::kTextMax + PATH_MAX + 1];
  static constinit char text[1200];
  if (!config::expand_output(g_state.config.output, output, sizeof output, problem)) {
    snprintf(text, sizeof text, "%s; nothing is recorded", problem.text);
    if (!silent) say(text);
    return false;
  }
  // The program may have changed its directory, and the exporter starts in a later one.
  const bool relative = output[0] != '/' && g_state.start_directory[0] != '\0';
  snprintf(directory, sizeof directory, "%s%s%s", relative ? g_state.start_directory : "",
           relative ? "/" : "", output);
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  const config::Ranks ranks = config::ranks_from_environment();
  int error = make_directories(directory);
  if (error == 0) {
    error = g_state.file.create({directory, host, kVersion, now_ns(), unix_ns(),
                                 g_state.config.max_size, ranks.rank, ranks.world_size,
                                 ranks.local_rank, g_state.run});
  }
  if (error != 0) {
    char buffer[128];
    snprintf(text, sizeof text,
             "GPUBUSY_OUTPUT: cannot write a recording in '%.900s': %s; nothing is recorded",
             directory, strerror_r(error, buffer, sizeof buffer));
    if (!silent) say(text);
    return false;
  }
  return true;
}

// The process ends, has loaded the driver, and no call came by: that must not look like a run
// without CUDA. Not in a forked child, which has the driver from its parent.
void record_silence() noexcept {
  if (mode() != Mode::kIdle || g_hook_was_called.load(std::memory_order_relaxed) ||
      g_state.start_pid != getpid() || loader().has_driver == nullptr || !loader().has_driver()) {
    return;
  }
  const OwnWork own;
  KeepErrno keep;
  const PatientLock lock;
  if (!lock || g_state.armed) return;
  g_state.armed = true;
  g_state.finished = true;
  g_mode.store(Mode::kOff, std::memory_order_release);
  if (!open_recording(true)) return;
  define_settings();
  write_coverage();
  g_state.file.finish(recording::FileState::kFinished, now_ns());
}

}  // namespace

bool arm() noexcept {
  KeepErrno keep;
  Lock lock;
  if (g_state.armed) return mode() == Mode::kTracking || mode() == Mode::kRecording;
  if (mode() != Mode::kIdle) return false;
  g_state.armed = true;
  if (!open_recording(false)) {
    g_mode.store(Mode::kOff, std::memory_order_release);
    return false;
  }
  install_thread_exit();
  watch_for_unnoticed_children();
  // Events only where they may take CUPTI's place.
  const auto times = g_state.config.device_time_kind;
  g_device_times.store(times == config::DeviceTimeKind::kAuto ||
                       times == config::DeviceTimeKind::kEvents);
  define_apis();
  define_settings();
  host_facts::write_offer(g_definitions, now_ns());
  if (!native::kSupported && g_state.config.native_stacks != 0 && is_set("GPUBUSY_NATIVE_STACKS")) {
    notice(recording::NoticeKind::kInfo,
           "Native stacks are off: gpubusy cannot read them on this architecture.");
  }
  write_coverage();
  set_up_steps();

  if (g_state.foreign_nvtx) {
    const char* tool = getenv(kNvtxInjection);
    char text[1200];
    snprintf(text, sizeof text,
             "NVTX ranges are not recorded: NVTX_INJECTION64_PATH names another tool (%.900s)",
             tool == nullptr ? "since changed" : tool);
    notice(recording::NoticeKind::kHooks, text);
  }
  const std::uint64_t start = g_state.file.header()->start_ns;
  const config::Action first = config::action_at(g_state.schedule, 0);
  if (captures()) {
    // What the program does not mark is not wanted, not even a prelude.
  } else if (g_state.config.step_kind == config::StepKind::kNone) {
    open_window(WindowState::kWholeRun, start);
  } else if (!config::records(first)) {
    // Whether the step source works is not known before its first step: what comes before is kept
    // up to a budget, so that a run without steps still has a verdict.
    if (g_state.config.prelude_size > 0) {
      open_window(WindowState::kPrelude, start);
      g_state.has_prelude = true;
      g_prelude_end_blocks.store((g_state.config.prelude_size + recording::kBlockSize - 1) /
                                 recording::kBlockSize);
    }
  }
  enter_step(start);
  return true;
}

void retry_cupti() noexcept {
  if (pthread_mutex_trylock(&g_mutex) != 0) return;
  if (!g_state.finished && mode() == Mode::kRecording) cupti::start();
  pthread_mutex_unlock(&g_mutex);
}

void recording_stopped() noexcept {
  const Lock lock;
  cupti::stop();
  g_device_times.store(false);
}

namespace {

// Under g_mutex.
void end_step(std::uint64_t time_ns, recording::StepSource source) noexcept {
  // Of threads that end steps at once, the one with the earlier time may come last: no step, and no
  // window, ends before it has begun.
  if (time_ns < g_state.step_began_ns) time_ns = g_state.step_began_ns;
  g_state.step_began_ns = time_ns;
  recording::StepEdgeRecord r{};
  r.header.type = recording::RecordType::kStepEdge;
  r.header.value = static_cast<std::uint32_t>(g_state.step);
  r.time_ns = time_ns;
  const ThreadState* thread = thread_state();
  r.thread_id = thread == nullptr ? 0 : thread->thread_id;
  r.source = source;
  g_definitions.define(&r.header, sizeof r, nullptr, 0);

  // Before our own work for a window that ends, and behind that for one that begins.
  const auto step = static_cast<std::uint32_t>(g_state.step);
  const bool was_recording = mode() == Mode::kRecording;
  if (was_recording) host_facts::count_at_edge(step, now_ns());

  const config::Action ended = config::action_at(g_state.schedule, g_state.step);
  ++g_state.step;
  g_state.file.header()->steps_seen.store(g_state.step, std::memory_order_relaxed);
  if (g_state.window == WindowState::kPrelude ||
      (g_state.window == WindowState::kScheduled && ended == config::Action::kRecordAndSave)) {
    close_window(recording::WindowEvent::kEnd, time_ns);
  }
  if (g_state.has_prelude) {
    g_state.has_prelude = false;
    g_prelude_end_blocks.store(~std::uint64_t{0});
    g_state.exported_windows = 1;  // steps work: their windows are the traces
  }
  enter_step(time_ns);
  if (!was_recording && mode() == Mode::kRecording) host_facts::count_at_edge(step, now_ns());
}

void drain_or_leave(Teller teller) noexcept {
  if (teller == Teller::kCall) {
    drain();
  } else if (g_draining.load(std::memory_order_relaxed)) {
    g_has_driver_work.store(true, std::memory_order_relaxed);
  }
}

bool is_recording_over() noexcept {
  return !g_state.armed || g_state.finished || !g_state.file.is_open();
}

}  // namespace

void do_driver_work() noexcept {
  const Lock lock;
  if (!g_has_driver_work.exchange(false) || is_recording_over()) return;
  settle_cupti(mode() == Mode::kRecording, true);
  drain();
}

void step_edge(std::uint64_t time_ns, recording::StepSource source, Teller teller) noexcept {
  const Lock lock;
  if (is_recording_over()) return;
  g_state.teller = teller;
  end_step(time_ns, source);
  g_state.teller = Teller::kCall;
  drain_or_leave(teller);
}

void capture_by_profiler(bool starts) noexcept {
  if (g_state.config.capture_kind != config::CaptureKind::kProfilerApi) return;
  const Lock lock;
  if (is_recording_over()) return;
  g_state.profiler_started = starts;
  follow_capture(now_ns());
  drain();
}

void capture_range_changed(std::uint64_t time_ns) noexcept {
  const Lock lock;
  if (is_recording_over()) return;
  g_state.teller = Teller::kElsewhere;
  follow_capture(time_ns);
  g_state.teller = Teller::kCall;
  drain_or_leave(Teller::kElsewhere);
}

void end_prelude_for_size() noexcept {
  const Lock lock;
  if (is_recording_over() || g_state.window != WindowState::kPrelude) return;
  g_prelude_end_blocks.store(~std::uint64_t{0});
  notice(recording::NoticeKind::kBudget,
         "no step was seen before GPUBUSY_PRELUDE_SIZE was reached: nothing more is recorded until "
         "the first step");
  close_window(recording::WindowEvent::kCut, now_ns());
  g_draining.store(false, std::memory_order_relaxed);  // its trace is only made if no step follows
  enter_step(now_ns());
}

bool prelude_is_full() noexcept {
  return g_state.file.is_open() && g_state.file.header()->blocks.load(std::memory_order_relaxed) >
                                       g_prelude_end_blocks.load(std::memory_order_relaxed);
}

void first_call_is_over() noexcept {
  static constinit std::atomic<bool> has_handler{false};
  if (!has_handler.exchange(true)) atexit(at_exit);
  cupti::process_is_ready();
  const Lock lock;
  if (!g_state.finished && mode() == Mode::kRecording) cupti::start();
}

void finish_process() noexcept {
  if (is_unnoticed_child()) return;
  if (!g_state.armed) return record_silence();
  if (!g_state.file.is_open()) return;
  // exit() was called from inside a hook, by a signal handler or a callback: the driver may hold a
  // lock of its own and is left alone.
  const bool may_ask_driver = t_local.busy == 0;
  const OwnWork own;
  KeepErrno keep;
  const PatientLock lock;
  if (!lock || g_state.finished) return;
  if (may_ask_driver) {
    std::uint64_t ended_ns[2];
    while (const int count = finish_steps(ended_ns)) {
      for (int i = 0; i < count; ++i) end_step(ended_ns[i], recording::StepSource::kOptimizer);
    }
    // What the device has finished by now is taken in; nothing is waited for.
    harvest_device_times();
    cupti::finish();
  }
  g_state.finished = true;
  if (captures() && !g_state.captured_once) {
    char text[1200];
    snprintf(text, sizeof text,
             "GPUBUSY_CAPTURE_RANGE=%.900s: the program never reached it; nothing was recorded",
             g_state.config.capture_range);
    notice(recording::NoticeKind::kConfiguration, text);
  }
  notice_range_limits();
  if (const std::uint64_t count = native::unplaced_stacks()) {
    char text[160];
    snprintf(
        text, sizeof text,
        "%llu stacks are native alone: it was not clear where among native frames Python's are",
        static_cast<unsigned long long>(count));
    notice(recording::NoticeKind::kPython, text);
  }
  close_window(recording::WindowEvent::kCut, now_ns());
  write_coverage();
  if (mode() == Mode::kRecording) gaps::recording_ended();
  g_mode.store(Mode::kOff, std::memory_order_release);
  g_state.file.finish(recording::FileState::kFinished, now_ns());
  export_windows();
}

void became_child() noexcept {
  const std::uintptr_t busy = t_local.busy;  // of the hook that asks
  after_fork_in_child();
  t_local.busy = busy;
}

}  // namespace gpubusy::runtime
