// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_observer.hpp"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <new>
#include <string_view>
#include <thread>

#include "simulator/core/api_call.hpp"
#include "simulator/faces/cupti_client.hpp"

namespace gpubusy::sim::cupti {
namespace {

// A runtime call and the driver call in it; one to spare.
constexpr int kMaxNestedCalls = 3;

// A client that has a clock of its own, and what that said when the call started.
struct Started {
  const Activity* activity;
  std::uint64_t timestamp;
};
struct OpenCall {
  const ApiSite* site;
  std::uint32_t correlation;
  Started started[1 + kMaxSubscribers];
  std::uint64_t correlation_data[kMaxSubscribers];
};
struct OpenCalls {
  int depth;
  OpenCall calls[kMaxNestedCalls];
};
constinit thread_local OpenCalls t_open{};

// 0: CUPTI does not know the function.
std::uint32_t callback_id_of(const CallEvent& call) {
  std::int32_t id = call.site->callback_id.load(std::memory_order_relaxed);
  if (id < 0) {
    const bool runtime = call.site->layer == Layer::kRuntime;
    std::string_view name = call.site->name;
    if (simulation().parameters.cupti_old_launches != 0 && name.starts_with("__cuda")) {
      name.remove_prefix(2);
    }
    id = static_cast<std::int32_t>(callback_id(runtime, name));
    call.site->callback_id.store(id, std::memory_order_relaxed);
  }
  return static_cast<std::uint32_t>(id);
}

class CuptiObserver final : public Observer {
 public:
  Common common;
  Activity activity{common};
  Subscribers subscribers;
  std::mutex update_lock;
  std::atomic<std::uint32_t> flush_period_ms{0};
  std::atomic<bool> flush_thread_started{false};

  // `f(activity, index)`, with an index that no other client has meanwhile.
  template <class F>
  void for_each_activity(F&& f) {
    f(activity, 0);
    subscribers.for_each_activity(f);
  }

  void on_call_start(const CallEvent& call) override {
    if (t_in_client != 0) return;
    // What was open when the observer was last taken away never ended here.
    if (!call.nested) t_open.depth = 0;
    if (t_open.depth == kMaxNestedCalls) return;
    OpenCall& open = t_open.calls[t_open.depth++];
    open = {call.site, call.correlation, {}, {}};
    common.note_call(call);
    for_each_activity([&](Activity& a, int index) {
      if (a.has_client_clock()) open.started[index] = {&a, a.timestamp()};
    });
    if (const std::uint32_t id = callback_id_of(call)) {
      subscribers.on_call(call, id, false, open.correlation_data);
    }
  }

  void on_call_end(const CallEvent& call) override {
    if (t_in_client != 0 || t_open.depth == 0) return;
    OpenCall& open = t_open.calls[t_open.depth - 1];
    // Begun before anything was enabled.
    if (open.site != call.site || open.correlation != call.correlation) return;
    --t_open.depth;
    const std::uint32_t id = callback_id_of(call);
    for_each_activity([&](Activity& a, int index) {
      const Started& started = open.started[index];
      a.on_call_end(call, id, started.activity == &a ? started.timestamp : 0);
    });
    if (id != 0) subscribers.on_call(call, id, true, open.correlation_data);
  }

  void on_synchronised(const SyncEvent& sync) override {
    if (t_in_client != 0) return;
    Common::EventIds ids{};
    if (sync.event != nullptr) ids = common.ids_of(*sync.event);
    for_each_activity([&](Activity& a, int) { a.on_synchronised(sync, ids); });
    subscribers.on_synchronised(sync);
  }

  void on_resource(ResourceEvent what, Context* context, Stream* stream) override {
    if (t_in_client == 0) subscribers.on_resource(what, context, stream);
  }

  void on_stall(const char* reason, std::uint64_t start_ns, std::uint64_t end_ns) override {
    if (t_in_client != 0) return;
    for_each_activity([&](Activity& a, int) { a.on_stall(reason, start_ns, end_ns); });
  }

  void on_operation(const Operation& operation) override {
    const Common::WorkNotes notes = common.note_work(operation);
    for_each_activity([&](Activity& a, int) { a.on_operation(operation, notes); });
  }

  void on_event_recorded(const Event& event, const Stream& stream,
                         std::uint32_t correlation) override {
    const Common::EventIds ids = common.note_recorded(event);
    for_each_activity(
        [&](Activity& a, int) { a.on_event_recorded(event, stream, correlation, ids); });
  }
};

alignas(CuptiObserver) unsigned char g_storage[sizeof(CuptiObserver)];

// A thread that does not exist in the child may have held a lock. Like CUDA itself, a tool has to
// start again there.
void after_fork_in_child() {
  g_observer.store(nullptr);
  g_work_observer.store(nullptr);
  t_open = {};
  t_in_client = 0;
  new (g_storage) CuptiObserver;
}

CuptiObserver& observer() noexcept {
  static CuptiObserver* const made = [] {
    auto* o = new (g_storage) CuptiObserver;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    return o;
  }();
  return *made;
}

}  // namespace

Common& common() noexcept { return observer().common; }
Activity& activity() noexcept { return observer().activity; }
Subscribers& subscribers() noexcept { return observer().subscribers; }

void update_observer() noexcept {
  CuptiObserver& o = observer();
  // Whoever comes last sees what all others did.
  std::lock_guard lock(o.update_lock);
  const bool wanted = o.activity.any_enabled() || o.subscribers.any_enabled();
  Simulation& s = simulation();
  if (wanted) g_work_observer.store(&o, std::memory_order_release);
  g_observer.store(wanted ? &o : nullptr, std::memory_order_release);
  if (wanted) {
    g_flags.fetch_or(kTracing);
  } else if (!s.truth.enabled()) {
    g_flags.fetch_and(~kTracing);
  }
}

bool has_v2() noexcept { return simulation().parameters.cupti_api >= 13.3; }

void flush_all(bool forced) {
  observer().for_each_activity([&](Activity& a, int) {
    if (a.buffers.has_callbacks()) a.flush(forced);
  });
}

void set_flush_period(std::uint32_t ms) {
  CuptiObserver& o = observer();
  o.flush_period_ms.store(ms);
  if (ms == 0 || o.flush_thread_started.exchange(true)) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([&o] {
    constexpr std::uint32_t kIdleMs = 100;
    for (;;) {
      const std::uint32_t period = o.flush_period_ms.load();
      std::this_thread::sleep_for(std::chrono::milliseconds(period != 0 ? period : kIdleMs));
      // Only full buffers are given back.
      if (period != 0) o.for_each_activity([](Activity& a, int) { a.collect(); });
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace gpubusy::sim::cupti
