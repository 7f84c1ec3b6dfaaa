// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/client.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/clock.hpp"
#include "runtime/cupti/buffers.hpp"
#include "runtime/cupti/clock.hpp"
#include "runtime/cupti/library.hpp"
#include "runtime/cupti/records.hpp"
#include "runtime/driver.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime::cupti {

constinit std::atomic<bool> g_on{false};

namespace {

// Synchronisation is not among them: the hooks see each, with its stack.
constexpr std::uint32_t kKinds[] = {kConcurrentKernel, kMemcpy, kMemset, kExternalCorrelation,
                                    kRuntime,          kDriver, kOverhead};
constexpr bool is_needed(std::uint32_t kind) noexcept { return kind != kOverhead; }
constexpr std::uint64_t kFlushEveryNs = 500'000'000;

// What the program does with CUPTI, as far as its calls can be seen. All under g_lock.
struct App {
  std::uint64_t kinds = 0;  // enabled by it; a bit each
  std::uint64_t contexts = 0;  // … for one context, by kind
  int subscribers = 0;
  int calls = 0;              // its threads inside CUPTI
  bool flushed = true;        // its records were taken since its last kind went
  bool changed_clock = false;
};

enum class State : std::uint8_t {
  kWaiting,   // for the first CUDA call
  kReady,     // off; may start
  kYielded,   // the program has CUPTI
  kRefused,   // CUPTI refused; tried again when recording begins the next time
  kNever,     // there is none, or it is not wanted
};

constinit pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
constinit App g_app{};
constinit std::atomic<State> g_state{State::kWaiting};
constinit bool g_said_who = false;  // that the program has CUPTI; under g_lock
constinit std::atomic<bool> g_harvesting{false};
// Clocks of this epoch and of the one before, whose buffers may still be out.
constinit Clock g_clocks[2]{};
constinit std::atomic<std::uint32_t> g_epoch{0};
constinit Translator g_translator{};
constinit std::atomic<std::uint64_t> g_expected{0};
constinit std::uint64_t g_came_in = 0;
constinit std::atomic<std::uint64_t> g_last_flush_ns{0};
// Whether what CUPTI writes now is for us; also between our windows, for what came late.
constinit std::atomic<bool> g_ours{false};
// The program's callbacks, which ours call on while CUPTI is the program's.
constinit std::atomic<BufferRequest> g_app_request{nullptr};
constinit std::atomic<BufferComplete> g_app_complete{nullptr};

class Lock {
 public:
  Lock() noexcept { pthread_mutex_lock(&g_lock); }
  ~Lock() { pthread_mutex_unlock(&g_lock); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  const NoCancel no_cancel_;
};

class Harvest {
 public:
  explicit Harvest(int attempts) noexcept {
    while (!held_ && attempts-- > 0) {
      held_ = !g_harvesting.exchange(true, std::memory_order_acquire);
      if (!held_ && attempts > 0) usleep(50);
    }
  }
  ~Harvest() {
    if (held_) g_harvesting.store(false, std::memory_order_release);
  }
  Harvest(const Harvest&) = delete;
  Harvest& operator=(const Harvest&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  const NoCancel no_cancel_;
  bool held_ = false;
};
// Holders read some megabytes; but one may have been stopped by a debugger.
constexpr int kPatient = 2000;

bool app_is_active() noexcept {
  return g_app.kinds != 0 || g_app.contexts != 0 || g_app.calls != 0 || !g_app.flushed;
}

// ---- buffer callbacks

void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  if (!g_ours.load(std::memory_order_acquire)) {
    if (const BufferRequest app = g_app_request.load(std::memory_order_acquire)) {
      return app(buffer, size, max_records);
    }
  }
  *max_records = 0;
  *buffer = take_buffer();
  *size = *buffer == nullptr ? 0 : kBufferBytes;
}

void complete_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                     std::size_t size, std::size_t valid) {
  if (is_our_buffer(buffer)) return give_back_full(buffer, valid);
  if (const BufferComplete app = g_app_complete.load(std::memory_order_acquire)) {
    app(context, stream, buffer, size, valid);
  }
}

void no_callback(void*, std::uint32_t, std::uint32_t, const void*) {}

// ---- notices: each change once

void say(const char* text) noexcept { notice(recording::NoticeKind::kDeviceTime, text); }

// What a reader would call the program's profiler.
void name_of_caller(const void* caller, char* out, std::size_t size) noexcept {
  dl_find_object found{};
  const char* path = "";
  // Takes no lock.
  if (_dl_find_object(const_cast<void*>(caller), &found) == 0 && found.dlfo_link_map != nullptr) {
    path = found.dlfo_link_map->l_name;
  }
  const char* slash = strrchr(path, '/');
  const char* name = slash == nullptr ? path : slash + 1;
  if (strncmp(name, "libtorch", 8) == 0) {
    snprintf(out, size, "torch.profiler (%s)", name);
  } else {
    snprintf(out, size, "%s", name[0] == '\0' ? "the program itself" : name);
  }
}

void refuse(const char* what, Result result, const char* holder) noexcept {
  const char* cure = "";
  if (result == kInsufficientPrivileges) {
    cure = "; the driver lets only administrators profile: see NVreg_RestrictProfilingToAdminUsers, "
           "or give the container CAP_SYS_ADMIN";
  } else if (result == kNotInitialized) {
    cure = "; it may be newer than the driver";
  }
  char text[600];
  if (result == kMultipleSubscribers) {
    snprintf(text, sizeof text,
             "another tool holds CUPTI (%s): device times are not taken from CUPTI, so that it keeps "
             "all of its data",
             holder[0] == '\0' ? "it does not tell its name" : holder);
  } else {
    snprintf(text, sizeof text, "CUPTI refused %s: %s (%d)%s", what, result_text(result), result,
             cure);
  }
  if (g_state.exchange(State::kRefused) != State::kRefused) say(text);
}

// ---- on and off, under g_lock

bool read_buffers(int attempts) noexcept;

void take_out(const Library& l, bool forced) noexcept {
  l.flush_all(forced ? kFlushForced : 0);
  read_buffers(kPatient);
}

void switch_off(const Library& l) noexcept {
  g_on.store(false, std::memory_order_seq_cst);
  for (const std::uint32_t kind : kKinds) l.disable(kind);
}

// Is anybody subscribed whose calls we do not see? Activities would work, but not to both.
Result probe(const Library& l, char* holder, std::size_t size) noexcept {
  holder[0] = '\0';
  if (g_app.subscribers != 0) return kSuccess;
  Subscriber subscriber = nullptr;
  Result result;
  if (l.subscribe_named != nullptr) {
    SubscriberParams params{sizeof params, "gpubusy", holder, size};
    result = l.subscribe_named(&subscriber, no_callback, nullptr, &params);
    holder[size - 1] = '\0';
  } else {
    result = l.subscribe(&subscriber, no_callback, nullptr);
  }
  if (result == kSuccess) l.unsubscribe(subscriber);
  return result;
}

bool switch_on(const Library& l) noexcept {
  char holder[kOldNameSize + 1] = "";
  if (const Result result = probe(l, holder, kOldNameSize)) {
    refuse("a subscriber", result, holder);
    return false;
  }
  {
    const Harvest lock(kPatient);
    if (!lock) return false;
    std::uint32_t epoch = g_epoch.load(std::memory_order_relaxed);
    if (g_app.changed_clock || epoch == 0) {
      g_app.changed_clock = false;
      g_epoch.store(++epoch, std::memory_order_release);
      g_clocks[epoch % 2].restart(epoch);
    }
    if (!prepare_buffers(epoch)) return false;
    g_clocks[epoch % 2].sample(l);
  }
  Result result = l.register_callbacks(request_buffer, complete_buffer);
  if (result != kSuccess) {
    refuse("buffers", result, "");
    return false;
  }
  // Before the first kind: the first record asks for a buffer.
  g_ours.store(true, std::memory_order_seq_cst);
  g_on.store(true, std::memory_order_seq_cst);
  for (const std::uint32_t kind : kKinds) {
    result = l.enable(kind);
    if (result == kSuccess || !is_needed(kind)) continue;
    switch_off(l);
    char what[40];
    snprintf(what, sizeof what, "activity kind %u", kind);
    refuse(what, result, "");
    return false;
  }
  g_last_flush_ns.store(now_ns(), std::memory_order_relaxed);
  return true;
}

bool read_buffers(int attempts) noexcept {
  const Library* l = library();
  const Harvest lock(attempts);
  ThreadState* self = thread_state();
  if (l == nullptr || !lock || self == nullptr) return false;
  Clock& clock = g_clocks[g_epoch.load(std::memory_order_relaxed) % 2];
  // Once CUPTI is the program's, its clock may be too.
  const bool ours = g_ours.load(std::memory_order_relaxed);
  if (ours && any_full_buffer()) clock.sample(*l);
  FullBuffer buffer;
  while (next_full_buffer(buffer)) {
    const Clock& its = g_clocks[buffer.epoch % 2];
    if (its.epoch() == buffer.epoch) {
      g_came_in += g_translator.translate(*l, its, buffer, *self);
    }
    release_buffer(buffer);
  }
  std::size_t dropped = 0;
  if (ours && l->take_dropped != nullptr &&
      l->take_dropped(nullptr, 0, &dropped) == kSuccess && dropped != 0) {
    recording::DroppedRecord r{};
    r.header.type = recording::RecordType::kDropped;
    r.header.value = dropped < 0xffffffffu ? static_cast<std::uint32_t>(dropped) : 0xffffffffu;
    r.time_ns = now_ns();
    definitions().define(&r.header, sizeof r, nullptr, 0);
  }
  const bool complete = g_came_in >= g_expected.load(std::memory_order_relaxed);
  if (complete && !is_on()) trim_buffers();
  return complete;
}

// Another tool that the environment has driver and CUPTI load.
const char* injected_tool() noexcept {
  const char* path = getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || path[0] == '\0') return nullptr;
  const char* slash = strrchr(path, '/');
  const char* name = slash == nullptr ? path : slash + 1;
  return strcmp(name, "libgpubusy.so") == 0 ? nullptr : name;
}

// Before a call of the program's that would take CUPTI, or change it, under our records.
void yield_to(const void* caller, const char* call) noexcept {
  const Library* l = library();
  if (!g_ours.load(std::memory_order_relaxed) || l == nullptr) return;
  const bool was_on = is_on();
  if (was_on) switch_off(*l);
  take_out(*l, true);
  g_ours.store(false, std::memory_order_seq_cst);
  g_came_in = g_expected.load(std::memory_order_relaxed);  // nothing more will come
  g_state.store(State::kYielded);
  if (!was_on) return;
  g_said_who = true;
  char name[200], text[400];
  name_of_caller(caller, name, sizeof name);
  snprintf(text, sizeof text,
           "%s began to use CUPTI (%s): it keeps all of its data, and from here on device times are "
           "not taken from CUPTI until it has ended",
           name, call);
  say(text);
}

// One of the program's calls into CUPTI, seen by a hook.
class AppCall {
 public:
  // Only looks on.
  AppCall() noexcept : watched_(mode() != Mode::kOff && !is_nested()) {
    if (!watched_) return;
    const KeepErrno keep;
    const Lock lock;
    ++g_app.calls;
  }
  // Takes CUPTI.
  AppCall(const void* caller, const char* call) noexcept
      : watched_(mode() != Mode::kOff && !is_nested()) {
    if (!watched_) return;
    const KeepErrno keep;
    const OwnWork own;
    const Lock lock;
    yield_to(caller, call);
    ++g_app.calls;
  }
  bool is_watched() const noexcept { return watched_; }
  template <class Change>
  void end(Change&& change) noexcept {
    if (!watched_) return;
    const KeepErrno keep;
    const Lock lock;
    --g_app.calls;
    change(g_app);
  }

 private:
  const bool watched_;
};

std::uint64_t bit_of(std::uint32_t kind) noexcept {
  return kind < 64 ? std::uint64_t{1} << kind : std::uint64_t{1} << 63;
}

void note_disabled(App& app) noexcept {
  if (app.kinds == 0 && app.contexts == 0) app.flushed = false;
}

}  // namespace

void process_is_ready() noexcept {
  if (g_state.load(std::memory_order_relaxed) != State::kWaiting) return;
  const auto kind = configuration().device_time_kind;
  if (kind == config::DeviceTimeKind::kOff || kind == config::DeviceTimeKind::kEvents) {
    g_state.store(State::kNever);
    return;
  }
  if (driver() == nullptr) return;
  if (const char* tool = injected_tool()) {
    char text[400];
    snprintf(text, sizeof text,
             "the process runs under another tool (CUDA_INJECTION64_PATH: %.200s): device times are "
             "not taken from CUPTI, so that it keeps all of its data",
             tool);
    say(text);
    g_state.store(State::kNever);
    return;
  }
  if (library() == nullptr && !load_library(configuration().cupti)) {
    const char* path = configuration().cupti;
    char text[4400];
    snprintf(text, sizeof text, "%s%s: device times are not taken from CUPTI",
             path[0] == '\0' ? "no libcupti was found (in the process, beside its libcudart, in "
                               "CUDA_HOME, LD_LIBRARY_PATH, /usr/local/cuda)"
                             : "GPUBUSY_CUPTI could not be loaded: ",
             path);
    say(text);
    g_state.store(State::kNever);
    return;
  }
  g_state.store(State::kReady);
}

bool may_start() noexcept {
  return !is_on() && g_state.load(std::memory_order_relaxed) == State::kYielded;
}

void start() noexcept {
  const State state = g_state.load(std::memory_order_relaxed);
  if (state == State::kWaiting || state == State::kNever || is_on()) return;
  const Library* l = library();
  if (l == nullptr) return;
  const KeepErrno keep;
  const Lock lock;
  if (app_is_active()) {
    g_state.store(State::kYielded);
    if (!g_said_who) {
      g_said_who = true;
      say("the program uses CUPTI itself: device times are not taken from CUPTI until it has ended");
    }
    return;
  }
  if (!switch_on(*l)) return;
  g_state.store(State::kReady);
  if (g_said_who) say("CUPTI is free again: device times are taken from it again from here on");
  g_said_who = false;
}

void stop() noexcept {
  const Library* l = library();
  if (!is_on() || l == nullptr) return;
  const KeepErrno keep;
  const Lock lock;
  if (!is_on()) return;
  switch_off(*l);
  take_out(*l, false);
}

void push(ThreadState& thread, std::uint32_t correlation, bool outermost) noexcept {
  const Library& l = *library();
  if (outermost) {
    for (; thread.external_ids > 0; --thread.external_ids) {
      std::uint64_t id;
      l.pop_external(kOurExternalKind, &id);
    }
  }
  if (l.push_external(kOurExternalKind, correlation) == kSuccess) ++thread.external_ids;
}

void pop(ThreadState& thread, std::uint32_t correlation) noexcept {
  const Library& l = *library();
  while (thread.external_ids > 0) {
    --thread.external_ids;
    std::uint64_t id = 0;
    // One above it is of a call that was left by longjmp.
    if (l.pop_external(kOurExternalKind, &id) != kSuccess || id == correlation) return;
  }
}

void expect_activity() noexcept { g_expected.fetch_add(1, std::memory_order_relaxed); }

bool harvest(bool flush) noexcept {
  const Library* l = library();
  if (l == nullptr || g_epoch.load(std::memory_order_acquire) == 0) return true;
  const NoCancel no_cancel;
  if (flush) {
    // The program's own records are its to flush.
    if (pthread_mutex_trylock(&g_lock) != 0) return false;
    if (g_ours.load(std::memory_order_relaxed)) {
      l->flush_all(0);
      g_last_flush_ns.store(now_ns(), std::memory_order_relaxed);
    }
    pthread_mutex_unlock(&g_lock);
  }
  return read_buffers(1);
}

void harvest_if_due(std::uint64_t time_ns) noexcept {
  const bool due = time_ns - g_last_flush_ns.load(std::memory_order_relaxed) > kFlushEveryNs;
  if (due || any_full_buffer()) harvest(due);
}

void forget_after_fork() noexcept {
  g_lock = PTHREAD_MUTEX_INITIALIZER;
  g_harvesting.store(false);
  g_on.store(false);
  g_app = App{};
  g_app_request.store(nullptr);
  g_app_complete.store(nullptr);
  g_expected.store(0);
  g_came_in = 0;
  g_epoch.store(0);
  // CUDA does not work in a child of a process that used it: nor is its CUPTI touched there.
  if (g_state.load() != State::kWaiting) g_state.store(State::kNever);
  forget_buffers_after_fork();
  forget_library_search_after_fork();
}

// ---- the program's own calls

Result app_registers(Result (*real)(BufferRequest, BufferComplete), BufferRequest request,
                     BufferComplete complete, const void* caller) {
  AppCall call(caller, "cuptiActivityRegisterCallbacks");
  Result result;
  if (call.is_watched() && request != nullptr && complete != nullptr) {
    g_app_complete.store(complete, std::memory_order_release);
    g_app_request.store(request, std::memory_order_release);
  }
  if (call.is_watched() && request != nullptr && complete != nullptr &&
      g_epoch.load(std::memory_order_acquire) != 0) {
    // CUPTI keeps our pair, which calls the program's: a buffer of ours that CUPTI still has then
    // comes back to us, and not to the program, to whom it would be a stranger.
    result = real(request_buffer, complete_buffer);
  } else {
    result = real(request, complete);
  }
  call.end([](App&) {});
  return result;
}

Result app_enables(Result (*real)(std::uint32_t), std::uint32_t kind, const void* caller) {
  AppCall call(caller, "cuptiActivityEnable");
  const Result result = real(kind);
  call.end([&](App& app) {
    if (result == kSuccess) app.kinds |= bit_of(kind);
  });
  return result;
}

Result app_enables_for(Result (*real)(CUcontext, std::uint32_t), CUcontext context,
                       std::uint32_t kind, const void* caller) {
  AppCall call(caller, "cuptiActivityEnableContext");
  const Result result = real(context, kind);
  call.end([&](App& app) {
    if (result == kSuccess) app.contexts |= bit_of(kind);
  });
  return result;
}

Result app_disables(Result (*real)(std::uint32_t), std::uint32_t kind) {
  AppCall call;
  const Result result = real(kind);
  call.end([&](App& app) {
    const bool had = (app.kinds & bit_of(kind)) != 0;
    app.kinds &= ~bit_of(kind);
    if (had) note_disabled(app);
    // What it had not enabled was ours.
    const Library* l = library();
    if (!is_on() || l == nullptr) return;
    const OwnWork own;
    for (const std::uint32_t k : kKinds) {
      if (k == kind) l->enable(kind);
    }
  });
  return result;
}

Result app_disables_for(Result (*real)(CUcontext, std::uint32_t), CUcontext context,
                        std::uint32_t kind) {
  AppCall call;
  const Result result = real(context, kind);
  call.end([&](App& app) {
    const bool had = (app.contexts & bit_of(kind)) != 0;
    app.contexts &= ~bit_of(kind);
    if (had) note_disabled(app);
  });
  return result;
}

Result app_flushes(Result (*real)(std::uint32_t), std::uint32_t flag) {
  AppCall call;
  const Result result = real(flag);
  call.end([](App& app) {
    if (app.kinds == 0 && app.contexts == 0) app.flushed = true;
  });
  return result;
}

Result app_sets_clock(Result (*real)(Timestamp), Timestamp clock, const void* caller) {
  AppCall call(caller, "cuptiActivityRegisterTimestampCallback");
  const Result result = real(clock);
  call.end([](App& app) { app.changed_clock = true; });
  return result;
}

Result app_subscribes(Result (*real)(Subscriber*, Callback, void*), Subscriber* subscriber,
                      Callback callback, void* user) {
  AppCall call;
  const Result result = real(subscriber, callback, user);
  call.end([&](App& app) { app.subscribers += result == kSuccess; });
  return result;
}

Result app_subscribes_named(Result (*real)(Subscriber*, Callback, void*, SubscriberParams*),
                            Subscriber* subscriber, Callback callback, void* user,
                            SubscriberParams* params) {
  AppCall call;
  const Result result = real(subscriber, callback, user, params);
  call.end([&](App& app) { app.subscribers += result == kSuccess; });
  return result;
}

Result app_unsubscribes(Result (*real)(Subscriber), Subscriber subscriber) {
  AppCall call;
  const Result result = real(subscriber);
  call.end([&](App& app) { app.subscribers -= result == kSuccess && app.subscribers > 0; });
  return result;
}

Result app_finalizes(Result (*real)(), const void* caller) {
  AppCall call(caller, "cuptiFinalize");
  const Result result = real();
  call.end([](App& app) {
    const int calls = app.calls;
    app = App{};
    app.calls = calls;
    app.changed_clock = true;  // the program's is forgotten
    g_app_request.store(nullptr, std::memory_order_release);
    g_app_complete.store(nullptr, std::memory_order_release);
  });
  return result;
}

}  // namespace gpubusy::runtime::cupti
