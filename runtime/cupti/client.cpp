// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/client.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/clock.hpp"
#include "runtime/cupti/buffers.hpp"
#include "runtime/cupti/clock.hpp"
#include "runtime/cupti/library.hpp"
#include "runtime/cupti/records.hpp"
#include "runtime/driver.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/patience.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime::cupti {

constinit std::atomic<bool> g_on{false};

namespace {

// Synchronisation is not among them: the hooks see each, with its stack.
constexpr std::uint32_t kKinds[] = {kConcurrentKernel, kMemcpy, kMemset,  kExternalCorrelation,
                                    kRuntime,          kDriver, kOverhead};
constexpr bool is_needed(std::uint32_t kind) noexcept { return kind != kOverhead; }
constexpr std::uint64_t kFlushEveryNs = 100'000'000;
constexpr std::uint64_t kRetryEveryNs = 1'000'000'000;
constexpr std::uint32_t kFunctionIds = 2048;
// A call that is not over by then was left by an exception or a cancellation.
constexpr std::uint64_t kCallLimitNs = 10'000'000'000;
// A program may profile each step of a week.
constexpr int kMaxNotices = 40;

// What the program does with CUPTI, as far as its calls can be seen. All under g_lock.
struct App {
  std::uint64_t kinds = 0;                             // enabled by it; a bit each
  std::uint64_t contexts = 0;                          // … for one context, by kind
  std::uint64_t functions[2][kFunctionIds / 64] = {};  // enabled one by one, of driver and runtime
  int subscribers = 0;
  int multiple = 0;             // … of these, that allow others beside them
  Subscriber allowing[8] = {};  // … which these are
  int calls = 0;                // its threads inside CUPTI
  std::uint64_t last_call_ns = 0;
  bool flushed = true;        // by force, since its last kind went: all of its records are out
  bool process_wide = false;  // it used activities, or a subscriber, that allow no others
  bool for_good = false;      // it uses a part of CUPTI whose end is not seen
  bool changed_clock = false;
};

enum class State : std::uint8_t {
  kWaiting,  // for the first CUDA call
  kReady,    // off; may start
  kYielded,  // the program has CUPTI
  kRefused,  // CUPTI refused; tried again when recording begins the next time
  kNever,    // there is none, or it is not wanted
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
constinit std::atomic<std::uint64_t> g_came_in{0};
constinit std::atomic<std::uint64_t> g_last_flush_ns{0};
constinit std::atomic<std::uint64_t> g_last_retry_ns{0};
// Rises before the program's cuptiFinalize: ids that were pushed before are gone.
constinit std::atomic<std::uint32_t> g_generation{1};
constinit std::atomic<int> g_notices{0};
// Ours, one of perhaps several, while recording is on; none where CUPTI knows one client only.
constinit std::atomic<Subscriber> g_subscriber{nullptr};
// Threads that push or pop just now, by a subscriber or an attachment that must not end meanwhile.
constinit std::atomic<int> g_users{0};

class Use {
 public:
  Use() noexcept { g_users.fetch_add(1, std::memory_order_seq_cst); }
  ~Use() { g_users.fetch_sub(1, std::memory_order_release); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
};

// Those that began before the generation rose. False: one does not end (stopped by a debugger).
bool wait_for_users() noexcept {
  return patiently(200, [] { return g_users.load(std::memory_order_seq_cst) == 0; });
}

constinit std::atomic<Subscriber> g_left_behind{nullptr};
constinit bool g_never_own = false, g_was_own = false;  // under g_lock

Activities activities(const Library& l) noexcept {
  return {l, g_subscriber.load(std::memory_order_acquire)};
}
// Whether what CUPTI writes now is for us; also between our windows, for what came late.
constinit std::atomic<bool> g_ours{false};
// The program's callbacks, which ours call on while CUPTI is the program's.
constinit std::atomic<BufferRequest> g_app_request{nullptr};
constinit std::atomic<BufferComplete> g_app_complete{nullptr};
// Calls up to this one of CUPTI's count were made before the program took CUPTI; 0: none were.
constinit std::atomic<std::uint32_t> g_last_of_ours{0};
constinit std::atomic<std::uint64_t> g_left_running{0};  // their work that ended in its session
constinit std::atomic<int> g_app_buffers{0};             // of the program's, in CUPTI's hands

// Nobody holds it long, but a holder may have been stopped by a debugger, or have left by
// siglongjmp.
class Lock {
 public:
  Lock() noexcept : held_(patiently(20'000, [] { return pthread_mutex_trylock(&g_lock) == 0; })) {}
  ~Lock() {
    if (held_) pthread_mutex_unlock(&g_lock);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  const NoCancel no_cancel_;
  const bool held_;
};

class Harvest {
 public:
  explicit Harvest(int attempts) noexcept
      : held_(patiently(attempts,
                        [] { return !g_harvesting.exchange(true, std::memory_order_acquire); })) {}
  ~Harvest() {
    if (held_) g_harvesting.store(false, std::memory_order_release);
  }
  Harvest(const Harvest&) = delete;
  Harvest& operator=(const Harvest&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  const NoCancel no_cancel_;
  const bool held_;
};
// Holders read some megabytes; but one may have been stopped by a debugger.
constexpr int kPatient = 400;

bool enables_anything(const App& app) noexcept {
  if (app.kinds != 0 || app.contexts != 0) return true;
  for (const auto& domain : app.functions) {
    for (const std::uint64_t word : domain) {
      if (word != 0) return true;
    }
  }
  return false;
}

bool app_is_active() noexcept {
  const bool in_call = g_app.calls != 0 && now_ns() - g_app.last_call_ns < kCallLimitNs;
  return enables_anything(g_app) || in_call || !g_app.flushed || g_app.for_good ||
         g_app_buffers.load(std::memory_order_acquire) > 0;
}

// ---- buffer callbacks

void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  const bool ours = g_ours.load(std::memory_order_acquire);
  if (!ours) {
    if (const BufferRequest app = g_app_request.load(std::memory_order_acquire)) {
      app(buffer, size, max_records);
      if (*buffer != nullptr) g_app_buffers.fetch_add(1, std::memory_order_acq_rel);
      return;
    }
  }
  // A program that has kinds but no callbacks so far gets nothing, as without us.
  *max_records = 0;
  *buffer = ours ? take_buffer() : nullptr;
  *size = *buffer == nullptr ? 0 : kBufferBytes;
}

// Work that was asked for before the program took CUPTI is not of its session, though it may end in
// it: its records are taken out of the program's buffer. Gives the bytes that are left.
std::size_t without_our_work(const Library& l, std::uint8_t* buffer, std::size_t valid) noexcept {
  const std::uint32_t last = g_last_of_ours.load(std::memory_order_acquire);
  if (last == 0) return valid;
  const auto is_ours = [last](const Record& r) {
    switch (r.kind) {
      case kConcurrentKernel:
      case Kind::kKernel: return reinterpret_cast<const KernelRecord&>(r).correlation <= last;
      case kMemcpy: return reinterpret_cast<const MemcpyRecord&>(r).correlation <= last;
      case kMemcpyPeer: return reinterpret_cast<const MemcpyPeerRecord&>(r).correlation <= last;
      case kMemset: return reinterpret_cast<const MemsetRecord&>(r).correlation <= last;
      default: return false;
    }
  };
  // First, whether the whole can be read: else nothing is touched.
  Record* record = nullptr;
  std::size_t found = 0;
  Result result;
  while ((result = l.next_record(buffer, valid, &record)) == kSuccess) found += is_ours(*record);
  if (found == 0 || result != kNoMoreRecords) return valid;
  std::size_t kept = 0, taken = 0;
  record = nullptr;
  bool any = l.next_record(buffer, valid, &record) == kSuccess;
  while (any) {
    auto* from = reinterpret_cast<std::uint8_t*>(record);
    const bool ours = is_ours(*record);
    any = l.next_record(buffer, valid, &record) == kSuccess;  // before this one may be moved over
    const auto* to = any ? reinterpret_cast<std::uint8_t*>(record) : buffer + valid;
    const auto bytes = static_cast<std::size_t>(to - from);
    if (ours) {
      ++taken;
      continue;
    }
    if (buffer + kept != from) memmove(buffer + kept, from, bytes);
    kept += bytes;
  }
  g_left_running.fetch_add(taken, std::memory_order_relaxed);
  return kept;
}

void complete_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                     std::size_t size, std::size_t valid) {
  if (is_our_buffer(buffer)) return give_back_full(buffer, valid);
  if (const BufferComplete app = g_app_complete.load(std::memory_order_acquire)) {
    g_app_buffers.fetch_sub(1, std::memory_order_acq_rel);
    const Library* l = library();
    if (l != nullptr && valid != 0) valid = without_our_work(*l, buffer, valid);
    app(context, stream, buffer, size, valid);
  }
}

void request_own_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records, void*) {
  *max_records = 0;
  *buffer = take_buffer();
  *size = *buffer == nullptr ? 0 : kBufferBytes;
}

void complete_own_buffer(std::uint8_t* buffer, std::size_t, std::size_t valid, void*) {
  if (is_our_buffer(buffer)) give_back_full(buffer, valid);
}

void no_callback(void*, std::uint32_t, std::uint32_t, const void*) {}

// ---- notices: each change once

void say(const char* text) noexcept {
  const int count = g_notices.fetch_add(1, std::memory_order_relaxed);
  if (count < kMaxNotices) notice(recording::NoticeKind::kDeviceTime, text);
  if (count == kMaxNotices) {
    notice(recording::NoticeKind::kDeviceTime, "further changes of who has CUPTI are not listed");
  }
}

const char* file_name(const char* path) noexcept {
  const char* slash = strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// What a reader would call the program's profiler.
void name_of_caller(const void* caller, char* out, std::size_t size) noexcept {
  dl_find_object found{};
  const char* path = "";
  // Takes no lock.
  if (_dl_find_object(const_cast<void*>(caller), &found) == 0 && found.dlfo_link_map != nullptr) {
    path = found.dlfo_link_map->l_name;
  }
  const char* name = file_name(path);
  if (strncmp(name, "libtorch", 8) == 0) {
    snprintf(out, size, "torch.profiler (%s)", name);
  } else {
    snprintf(out, size, "%s", name[0] == '\0' ? "the program itself" : name);
  }
}

void refuse(const char* what, Result result, const char* holder) noexcept {
  const char* cure = "";
  if (result == kInsufficientPrivileges) {
    cure =
        "; the driver lets only administrators profile: see NVreg_RestrictProfilingToAdminUsers, "
        "or give the container CAP_SYS_ADMIN";
  } else if (result == kNotInitialized) {
    cure = "; it may be newer than the driver";
  }
  char text[600];
  if (result == kMultipleSubscribers) {
    snprintf(
        text, sizeof text,
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
  const Activities cupti = activities(l);
  for (const std::uint32_t kind : kKinds) cupti.disable(kind);
}

bool unsubscribe(const Library& l, Subscriber subscriber) noexcept;

// What was pushed by it went with it.
void end_own_subscription(const Library& l) noexcept {
  const Subscriber ours = g_subscriber.exchange(nullptr);
  if (ours == nullptr) return;
  g_generation.fetch_add(1, std::memory_order_seq_cst);
  if (!unsubscribe(l, ours)) g_left_behind.store(ours, std::memory_order_release);
}

// Only when no thread can be inside CUPTI with it.
bool unsubscribe(const Library& l, Subscriber subscriber) noexcept {
  g_reader_gives_way.store(true, std::memory_order_seq_cst);
  const Harvest lock(kPatient);
  g_reader_gives_way.store(false, std::memory_order_seq_cst);
  if (!lock || !wait_for_users()) return false;
  l.unsubscribe(subscriber);
  return true;
}

// One that a stopped thread may have been using; while it is there, nobody gets CUPTI alone.
void end_left_behind() noexcept {
  const Library* l = library();
  const Subscriber left = l == nullptr ? nullptr : g_left_behind.exchange(nullptr);
  if (left != nullptr && !unsubscribe(*l, left)) {
    g_left_behind.store(left, std::memory_order_release);
  }
}

Result begin_own_subscription(const Library& l, char* holder, std::size_t size) noexcept {
  SubscriberParams params{sizeof params, "gpubusy", holder, size, 1, {}};
  Subscriber subscriber = nullptr;
  const Result result = l.subscribe_named(&subscriber, no_callback, nullptr, &params);
  holder[size - 1] = '\0';
  if (result != kSuccess) return result;
  g_subscriber.store(subscriber, std::memory_order_release);
  g_generation.fetch_add(1, std::memory_order_acq_rel);
  return kSuccess;
}

// Is anybody subscribed whose calls we do not see? Activities would work, but not to both.
Result probe(const Library& l, char* holder, std::size_t size) noexcept {
  holder[0] = '\0';
  if (g_app.subscribers != 0) return kSuccess;
  Subscriber subscriber = nullptr;
  Result result;
  if (l.subscribe_named != nullptr) {
    SubscriberParams params{kOldParamsSize, "gpubusy", holder, size, 0, {}};
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
  // As one of several subscribers where that can be; it does not go together with activities of the
  // whole process, once the program has used those.
  bool own = l.has_own() && !g_app.process_wide && !g_never_own;
  Result begun = kSuccess;
  if (own && g_subscriber.load(std::memory_order_relaxed) == nullptr) {
    begun = begin_own_subscription(l, holder, kOldNameSize);
    if (begun != kSuccess && begun != kMultipleSubscribers) {
      g_never_own = true;  // the driver is older than CUPTI
      own = false;
    }
  }
  if (!own) {
    end_own_subscription(l);
    begun = probe(l, holder, kOldNameSize);
  }
  if (begun != kSuccess) {
    refuse("a subscriber", begun, holder);
    return false;
  }
  const Activities cupti = activities(l);
  bool no_memory = false;
  {
    const Harvest lock(kPatient);
    if (!lock) {
      say("CUPTI could not be switched on: a thread that reads its records does not end");
      end_own_subscription(l);
      return false;
    }
    std::uint32_t epoch = g_epoch.load(std::memory_order_relaxed);
    if (g_app.changed_clock || epoch == 0 || own != g_was_own) {
      g_was_own = own;
      g_app.changed_clock = false;
      g_epoch.store(++epoch, std::memory_order_release);
      g_clocks[epoch % 2].restart(epoch);
    }
    if (!prepare_buffers(epoch)) {
      say("CUPTI could not be switched on: there is no memory for its buffers");
      no_memory = true;
    } else {
      g_clocks[epoch % 2].sample(cupti);
    }
  }
  if (no_memory) {
    end_own_subscription(l);
    return false;
  }
  Result result = own ? l.register_own(g_subscriber.load(), request_own_buffer, complete_own_buffer)
                      : l.register_callbacks(request_buffer, complete_buffer);
  if (result != kSuccess) {
    refuse("buffers", result, "");
    end_own_subscription(l);
    return false;
  }
  g_expected.store(0, std::memory_order_relaxed);
  g_came_in.store(0, std::memory_order_relaxed);
  // Before the first kind: the first record asks for a buffer.
  g_ours.store(true, std::memory_order_seq_cst);
  g_on.store(true, std::memory_order_seq_cst);
  for (const std::uint32_t kind : kKinds) {
    result = cupti.enable(kind);
    if (result == kSuccess || !is_needed(kind)) continue;
    switch_off(l);
    g_ours.store(false, std::memory_order_seq_cst);
    char what[40];
    snprintf(what, sizeof what, "activity kind %u", kind);
    refuse(what, result, "");
    end_own_subscription(l);
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
  const Activities cupti = activities(*l);
  constexpr std::uint64_t kFreshNs = 1'000'000;
  FullBuffer buffer;
  while (next_full_buffer(buffer)) {
    if (ours && now_ns() - clock.newest_ns() > kFreshNs) clock.sample(cupti);
    const Clock& its = g_clocks[buffer.epoch % 2];
    if (its.epoch() == buffer.epoch) {
      g_came_in.fetch_add(g_translator.translate(*l, cupti, its, buffer, *self),
                          std::memory_order_relaxed);
      if (g_reader_gives_way.load(std::memory_order_relaxed)) {
        release_buffer(buffer);  // what is left of it is lost, and counts as not timed
        break;
      }
    } else {
      say("activities of CUPTI's came too late to be converted: their calls have no device times");
    }
    release_buffer(buffer);
  }
  const std::size_t dropped = (ours ? cupti.take_dropped() : 0) + g_left_running.exchange(0);
  if (dropped != 0) {
    recording::DroppedRecord r{};
    r.header.type = recording::RecordType::kDropped;
    r.header.value = dropped < 0xffffffffu ? static_cast<std::uint32_t>(dropped) : 0xffffffffu;
    r.time_ns = now_ns();
    definitions().define(&r.header, sizeof r, nullptr, 0);
  }
  const bool complete =
      g_came_in.load(std::memory_order_relaxed) >= g_expected.load(std::memory_order_relaxed);
  if (complete && !is_on()) trim_buffers();
  return complete;
}

// Another tool that the environment has driver and CUPTI load.
const char* injected_tool() noexcept {
  const char* path = getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || path[0] == '\0') return nullptr;
  const char* name = file_name(path);
  return strcmp(name, "libgpubusy.so") == 0 ? nullptr : name;
}

// Before a call of the program's that would take CUPTI, or change it, under our records.
void yield_to(const void* caller, const char* call) noexcept {
  const Library* l = library();
  if (l == nullptr) return;
  if (!g_ours.load(std::memory_order_relaxed)) {
    end_own_subscription(*l);
    return;
  }
  const bool was_on = is_on();
  if (was_on) switch_off(*l);
  // A flush is everybody's: by force it would spoil the records of other subscribers.
  take_out(*l, g_subscriber.load(std::memory_order_relaxed) == nullptr);
  end_own_subscription(*l);
  g_last_of_ours.store(g_translator.newest_call(), std::memory_order_release);
  g_ours.store(false, std::memory_order_seq_cst);
  give_up_pending();  // nothing more will come
  g_state.store(State::kYielded);
  if (!was_on) return;
  g_said_who = true;
  char name[200], text[400];
  name_of_caller(caller, name, sizeof name);
  snprintf(
      text, sizeof text,
      "%s began to use CUPTI (%s): it keeps all of its data, and from here on device times are "
      "not taken from CUPTI until it has ended",
      name, call);
  say(text);
}

enum class Takes : std::uint8_t { kNo, kYes, kIfWeSubscribe, kUnlessWeSubscribe };

// One of the program's calls into CUPTI, seen by a hook.
class AppCall {
 public:
  AppCall(const void* caller, const char* call, Takes takes) noexcept
      : watched_(mode() != Mode::kOff && g_state.load(std::memory_order_relaxed) != State::kNever &&
                 !is_nested(caller)) {
    if (!watched_) return;
    const KeepErrno keep;
    const OwnWork own;
    const Lock lock;
    if (!lock) {
      // Not in good order, but the program's call must not wait.
      if (takes != Takes::kNo) {
        g_on.store(false);
        g_ours.store(false);
      }
      return;
    }
    end_left_behind();
    const bool have_own = g_subscriber.load(std::memory_order_acquire) != nullptr;
    if (takes == Takes::kYes || (takes == Takes::kIfWeSubscribe && have_own) ||
        (takes == Takes::kUnlessWeSubscribe && !have_own)) {
      yield_to(caller, call);
    }
    ++g_app.calls;
    g_app.last_call_ns = now_ns();
    counted_ = true;
  }
  template <class Change>
  void end(Change&& change) noexcept {
    if (!watched_) return;
    const KeepErrno keep;
    const OwnWork own;
    const Lock lock;
    if (!lock) return;
    if (counted_ && g_app.calls > 0) --g_app.calls;
    change(g_app);
  }
  bool is_watched() const noexcept { return watched_; }

 private:
  const bool watched_;
  bool counted_ = false;
};

void pop_until(const Library& l, ThreadState& thread, std::uint32_t correlation) noexcept;

std::uint64_t bit_of(std::uint32_t kind) noexcept {
  return kind < 64 ? std::uint64_t{1} << kind : std::uint64_t{1} << 63;
}

void note_disabled(App& app) noexcept {
  if (!enables_anything(app)) app.flushed = false;
}

// A kind forgets what was switched one by one.
void forget_functions(App& app, std::uint32_t kind) noexcept {
  if (kind == kDriver) memset(app.functions[0], 0, sizeof app.functions[0]);
  if (kind == kRuntime) memset(app.functions[1], 0, sizeof app.functions[1]);
}

}  // namespace

void process_is_ready() noexcept {
  State waiting = State::kWaiting;
  if (g_state.load(std::memory_order_relaxed) != waiting || driver() == nullptr ||
      !g_state.compare_exchange_strong(waiting, State::kNever)) {
    return;
  }
  const auto kind = configuration().device_time_kind;
  if (kind == config::DeviceTimeKind::kOff || kind == config::DeviceTimeKind::kEvents) return;
  if (const char* tool = injected_tool()) {
    char text[400];
    snprintf(
        text, sizeof text,
        "the process runs under another tool (CUDA_INJECTION64_PATH: %.200s): device times are "
        "not taken from CUPTI, so that it keeps all of its data",
        tool);
    say(text);
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
  if (!lock || is_on()) return;
  if (app_is_active()) {
    g_state.store(State::kYielded);
    if (!g_said_who) {
      g_said_who = true;
      say("the program uses CUPTI itself: device times are not taken from CUPTI until it has "
          "ended");
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
  if (!lock) {
    g_on.store(false);
    return;
  }
  if (!is_on()) return;
  switch_off(*l);
  take_out(*l, false);
}

void finish() noexcept {
  stop();
  harvest(true);
  // Later calls of the program's are not watched any more: CUPTI is its.
  const Lock lock;
  g_ours.store(false, std::memory_order_seq_cst);
  g_state.store(State::kNever);
  if (const Library* l = library()) end_own_subscription(*l);
}

void push(ThreadState& thread, std::uint32_t correlation, bool outermost) noexcept {
  const Library& l = *library();
  const Use use;
  if (!is_on()) return;
  const std::uint32_t generation = g_generation.load(std::memory_order_seq_cst);
  if (thread.external_generation != generation) {
    thread.external_generation = generation;
    thread.external_ids = 0;
  }
  if (outermost && thread.external_ids > 0) pop_until(l, thread, 0);
  if (activities(l).push(our_external_id(correlation)) == kSuccess) ++thread.external_ids;
}

void pop(ThreadState& thread, std::uint32_t correlation) noexcept {
  const Use use;
  if (thread.external_generation != g_generation.load(std::memory_order_seq_cst)) {
    thread.external_ids = 0;
    return;
  }
  pop_until(*library(), thread, correlation);
}

namespace {

void pop_until(const Library& l, ThreadState& thread, std::uint32_t correlation) noexcept {
  while (thread.external_ids > 0) {
    --thread.external_ids;
    std::uint64_t id = 0;
    const Activities cupti = activities(l);
    if (cupti.pop(&id) != kSuccess) return;
    if (!is_our_external_id(id)) {
      cupti.push(id);  // somebody else's
      return;
    }
    // One above it is of a call that was left by longjmp.
    if (id == our_external_id(correlation)) return;
  }
}

}  // namespace

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
  const bool complete = read_buffers(1);
  if (complete && !is_on() && g_subscriber.load(std::memory_order_relaxed) != nullptr &&
      pthread_mutex_trylock(&g_lock) == 0) {
    // A subscription is not kept between windows.
    if (!is_on()) end_own_subscription(*l);
    pthread_mutex_unlock(&g_lock);
  }
  return complete;
}

void harvest_if_due(std::uint64_t time_ns) noexcept {
  const bool due = time_ns - g_last_flush_ns.load(std::memory_order_relaxed) > kFlushEveryNs;
  if (due || any_full_buffer()) harvest(due);
}

bool retry_is_due(std::uint64_t time_ns) noexcept {
  if (time_ns - g_last_retry_ns.load(std::memory_order_relaxed) < kRetryEveryNs) return false;
  g_last_retry_ns.store(time_ns, std::memory_order_relaxed);
  return true;
}

void give_up_pending() noexcept {
  g_came_in.store(g_expected.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void another_library(const void* function) noexcept {
  if (mode() == Mode::kOff || g_state.load(std::memory_order_relaxed) == State::kNever) return;
  const KeepErrno keep;
  const OwnWork own;
  const Lock lock;
  if (!lock) return;
  const bool was_on = is_on();
  yield_to(function, "a second libcupti");
  if (!was_on) {
    char name[200], text[400];
    name_of_caller(function, name, sizeof name);
    snprintf(text, sizeof text,
             "the program uses a second libcupti (%s): device times are not taken from CUPTI",
             name);
    say(text);
  }
  g_state.store(State::kNever);
}

void forget_after_fork() noexcept {
  g_lock = PTHREAD_MUTEX_INITIALIZER;
  g_harvesting.store(false);
  g_on.store(false);
  g_ours.store(false);
  g_app = App{};
  g_subscriber.store(nullptr);
  g_app_request.store(nullptr);
  g_app_complete.store(nullptr);
  g_app_buffers.store(0);
  g_last_of_ours.store(0);
  g_left_running.store(0);
  g_expected.store(0);
  g_came_in.store(0);
  g_epoch.store(0);
  g_notices.store(0);
  g_said_who = false;
  // CUDA does not work in a child of a process that used it, nor is its CUPTI touched there. Its
  // buffers stay mapped: CUPTI knows nothing of forks and may still write there.
  if (g_state.load() != State::kWaiting) g_state.store(State::kNever);
  forget_library_search_after_fork();
}

// ---- the program's own calls

Result app_registers(Result (*real)(BufferRequest, BufferComplete), BufferRequest request,
                     BufferComplete complete, const void* caller) {
  AppCall call(caller, "cuptiActivityRegisterCallbacks", Takes::kYes);
  if (!call.is_watched() || request == nullptr || complete == nullptr) {
    const Result result = real(request, complete);
    call.end([](App&) {});
    return result;
  }
  // CUPTI gets our pair, which calls the program's: so it is known how many of the program's
  // buffers are out, and a buffer of ours that CUPTI still has comes back to us, and not to the
  // program, to whom it would be a stranger.
  const BufferRequest request_before = g_app_request.exchange(request);
  const BufferComplete complete_before = g_app_complete.exchange(complete);
  const Result result = real(request_buffer, complete_buffer);
  if (result != kSuccess) {
    g_app_request.store(request_before);
    g_app_complete.store(complete_before);
  }
  call.end([&](App& app) {
    if (result == kSuccess) app.process_wide = true;
  });
  return result;
}

Result app_enables(Result (*real)(std::uint32_t), std::uint32_t kind, const void* caller) {
  AppCall call(caller, "cuptiActivityEnable", Takes::kYes);
  const Result result = real(kind);
  call.end([&](App& app) {
    if (result != kSuccess) return;
    app.process_wide = true;
    app.kinds |= bit_of(kind);
    forget_functions(app, kind);
  });
  return result;
}

Result app_enables_for(Result (*real)(CUcontext, std::uint32_t), CUcontext context,
                       std::uint32_t kind, const void* caller) {
  AppCall call(caller, "cuptiActivityEnableContext", Takes::kYes);
  const Result result = real(context, kind);
  call.end([&](App& app) {
    if (result != kSuccess) return;
    app.process_wide = true;
    app.contexts |= bit_of(kind);
  });
  return result;
}

Result app_enables_function(Result (*real)(std::uint32_t, std::uint8_t), bool runtime,
                            std::uint32_t id, std::uint8_t enable, const void* caller) {
  AppCall call(caller, runtime ? "cuptiActivityEnableRuntimeApi" : "cuptiActivityEnableDriverApi",
               Takes::kYes);
  const Result result = real(id, enable);
  call.end([&](App& app) {
    if (result != kSuccess || id >= kFunctionIds) return;
    app.process_wide = true;
    std::uint64_t& word = app.functions[runtime][id / 64];
    const std::uint64_t bit = std::uint64_t{1} << id % 64;
    const bool kind_is_on = (app.kinds & bit_of(runtime ? kRuntime : kDriver)) != 0;
    if (enable != 0 && !kind_is_on) {
      word |= bit;
    } else if ((word & bit) != 0) {
      word &= ~bit;
      note_disabled(app);
    }
  });
  return result;
}

Result app_disables(Result (*real)(std::uint32_t), std::uint32_t kind, const void* caller) {
  AppCall call(caller, "", Takes::kNo);
  const Result result = real(kind);
  call.end([&](App& app) {
    const bool had = (app.kinds & bit_of(kind)) != 0;
    app.kinds &= ~bit_of(kind);
    forget_functions(app, kind);
    if (had) note_disabled(app);
    // What it had not enabled was ours.
    const Library* l = library();
    if (!is_on() || l == nullptr) return;
    if (activities(*l).is_own()) return;
    for (const std::uint32_t k : kKinds) {
      if (k == kind) l->enable(kind);
    }
  });
  return result;
}

Result app_disables_for(Result (*real)(CUcontext, std::uint32_t), CUcontext context,
                        std::uint32_t kind, const void* caller) {
  AppCall call(caller, "", Takes::kNo);
  const Result result = real(context, kind);
  call.end([&](App& app) {
    const bool had = (app.contexts & bit_of(kind)) != 0;
    app.contexts &= ~bit_of(kind);
    if (had) note_disabled(app);
  });
  return result;
}

Result app_flushes(Result (*real)(std::uint32_t), std::uint32_t flag, const void* caller) {
  AppCall call(caller, "", Takes::kNo);
  const Result result = real(flag);
  call.end([&](App& app) {
    // Without force, what still runs stays in CUPTI.
    if (result == kSuccess && (flag & kFlushForced) != 0 && !enables_anything(app)) {
      app.flushed = true;
    }
  });
  return result;
}

Result app_sets_clock(Result (*real)(Timestamp), Timestamp clock, const void* caller) {
  AppCall call(caller, "cuptiActivityRegisterTimestampCallback", Takes::kYes);
  const Result result = real(clock);
  call.end([&](App& app) {
    app.changed_clock = true;
    if (result == kSuccess) app.process_wide = true;
  });
  return result;
}

Result app_subscribes(Result (*real)(Subscriber*, Callback, void*), Subscriber* subscriber,
                      Callback callback, void* user, const void* caller) {
  // One that wants CUPTI alone would be refused while we have a subscriber.
  AppCall call(caller, "cuptiSubscribe", Takes::kIfWeSubscribe);
  const Result result = real(subscriber, callback, user);
  call.end([&](App& app) {
    if (result != kSuccess) return;
    ++app.subscribers;
    app.process_wide = true;
  });
  return result;
}

Result app_subscribes_named(Result (*real)(Subscriber*, Callback, void*, SubscriberParams*),
                            Subscriber* subscriber, Callback callback, void* user,
                            SubscriberParams* params, const void* caller) {
  const bool multiple =
      params != nullptr && params->size > kOldParamsSize && params->allow_multiple != 0;
  // Activities of the whole process and of single subscribers do not go together.
  AppCall call(caller, "cuptiSubscribe_v2",
               multiple ? Takes::kUnlessWeSubscribe : Takes::kIfWeSubscribe);
  const Result result = real(subscriber, callback, user, params);
  call.end([&](App& app) {
    if (result != kSuccess) return;
    ++app.subscribers;
    app.process_wide = !multiple;
    if (!multiple) return;
    ++app.multiple;
    for (Subscriber& one : app.allowing) {
      if (one != nullptr) continue;
      one = *subscriber;
      return;
    }
  });
  return result;
}

Result app_unsubscribes(Result (*real)(Subscriber), Subscriber subscriber, const void* caller) {
  AppCall call(caller, "", Takes::kNo);
  const Result result = real(subscriber);
  call.end([&](App& app) {
    if (result != kSuccess) return;
    if (app.subscribers > 0) --app.subscribers;
    for (Subscriber& one : app.allowing) {
      if (one == nullptr || one != subscriber) continue;
      one = nullptr;
      --app.multiple;
    }
  });
  return result;
}

Result app_finalizes(Result (*real)(), const void* caller) {
  AppCall call(caller, "cuptiFinalize", Takes::kYes);
  if (!call.is_watched()) return real();
  // Any call to CUPTI from here on would attach it again; ours are kept out.
  g_generation.fetch_add(1, std::memory_order_acq_rel);
  Result result;
  {
    const Harvest lock(kPatient);
    wait_for_users();
    result = real();
    reclaim_buffers();
  }
  call.end([](App& app) {
    const int calls = app.calls;
    app = App{};
    app.calls = calls;
    app.changed_clock = true;  // the program's is forgotten, and ids begin anew
    g_last_of_ours.store(0);
    g_app_request.store(nullptr, std::memory_order_release);
    g_app_complete.store(nullptr, std::memory_order_release);
    g_app_buffers.store(0, std::memory_order_release);
  });
  return result;
}

Result app_uses_its_own(Result (*real)(void*, void*, void*, void*), void* subscriber, void* b,
                        void* c, void* d, const char* name, const void* caller) {
  // Beside a subscriber that allows others there is nothing to give way to.
  if (g_subscriber.load(std::memory_order_acquire) != nullptr || g_app.multiple > 0) {
    return real(subscriber, b, c, d);
  }
  return app_uses_for_good(real, subscriber, b, c, d, name, caller);
}

Result app_uses_for_good(Result (*real)(void*, void*, void*, void*), void* a, void* b, void* c,
                         void* d, const char* name, const void* caller) {
  AppCall call(caller, name, Takes::kYes);
  const Result result = real(a, b, c, d);
  call.end([](App& app) { app.for_good = true; });
  return result;
}

}  // namespace gpubusy::runtime::cupti
