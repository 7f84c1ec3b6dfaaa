// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_activity.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "simulator/core/api_call.hpp"
#include "simulator/core/clock.hpp"
#include "simulator/faces/cupti_observer.hpp"

namespace gpubusy::sim::cupti {
namespace {

constexpr std::uint32_t kStillEnabled = ~std::uint32_t{0};

bool ends_later(const Unfinished& a, const Unfinished& b) { return end_of(a) > end_of(b); }

// A deep stack of ids would be unusual; the memory stays with the thread.
struct ExternalIds {
  std::vector<std::uint64_t> by_kind[CUPTI_EXTERNAL_CORRELATION_KIND_SIZE];
};
struct ExternalIdsHolder {
  ExternalIds* ids = nullptr;
  ~ExternalIdsHolder() {
    delete ids;
    ids = nullptr;
  }
};
thread_local ExternalIdsHolder t_external;

bool is_external_kind(CUpti_ExternalCorrelationKind kind) {
  return kind > CUPTI_EXTERNAL_CORRELATION_KIND_INVALID &&
         kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE;
}

}  // namespace

struct Activity::RecordTimes final : Times {
  RecordTimes(const RecordClock& record_clock, const DeviceClockError& error)
      : clock(record_clock), clock_error(error) {}
  std::uint64_t host(std::uint64_t ns) const override { return clock.convert(ns); }
  std::uint64_t device(std::uint64_t ns) const override {
    return ns == 0 ? 0 : clock.convert(clock_error.apply(ns));
  }
  const RecordClock& clock;
  const DeviceClockError& clock_error;
};

// ---- kinds

CUptiResult Activity::enable(CUpti_ActivityKind kind) {
  if (kind <= CUPTI_ACTIVITY_KIND_INVALID || kind >= CUPTI_ACTIVITY_KIND_COUNT) {
    return CUPTI_ERROR_INVALID_KIND;
  }
  if (record_size(kind) == 0) {
    log_unimplemented("cupti", "an activity kind");
    return CUPTI_ERROR_NOT_COMPATIBLE;
  }
  const RecordClock::Moment moment = clock_.read();
  {
    std::lock_guard lock(lock_);
    clock_error_.start(moment.simulated_ns);
    clock_.add(moment);
    if (!enabled_[kind].exchange(true)) {
      enabled_count_.fetch_add(1);
      intervals_[kind].push_back({simulation().next_correlation.load(), kStillEnabled});
    }
  }
  if (kind == CUPTI_ACTIVITY_KIND_RUNTIME || kind == CUPTI_ACTIVITY_KIND_DRIVER) {
    for (auto& api : api_enabled_[kind == CUPTI_ACTIVITY_KIND_RUNTIME ? 1 : 0]) api.store(true);
  }
  update_observer();
  return CUPTI_SUCCESS;
}

CUptiResult Activity::disable(CUpti_ActivityKind kind) {
  if (kind <= CUPTI_ACTIVITY_KIND_INVALID || kind >= CUPTI_ACTIVITY_KIND_COUNT) {
    return CUPTI_ERROR_INVALID_KIND;
  }
  if (kind == CUPTI_ACTIVITY_KIND_RUNTIME || kind == CUPTI_ACTIVITY_KIND_DRIVER) {
    for (auto& api : api_enabled_[kind == CUPTI_ACTIVITY_KIND_RUNTIME ? 1 : 0]) api.store(false);
  }
  {
    std::lock_guard lock(lock_);
    if (enabled_[kind].exchange(false)) {
      enabled_count_.fetch_sub(1);
      intervals_[kind].back().to = simulation().next_correlation.load();
    }
  }
  update_observer();
  return CUPTI_SUCCESS;
}

void Activity::enable_api(bool runtime, std::uint32_t callback_id, bool enabled) {
  api_enabled_[runtime ? 1 : 0][callback_id].store(enabled);
  update_observer();
}

bool Activity::any_api_enabled() const noexcept {
  return std::any_of(&api_enabled_[0][0], &api_enabled_[0][0] + 2 * (kMaxCallbackId + 1),
                     [](const std::atomic<bool>& api) { return api.load(); });
}

bool Activity::is_enabled(CUpti_ActivityKind kind) const noexcept {
  return enabled_[kind].load(std::memory_order_relaxed);
}

bool Activity::was_enabled(CUpti_ActivityKind kind, std::uint32_t correlation) const noexcept {
  const auto& intervals = intervals_[kind];
  return correlation != 0 &&
         std::any_of(intervals.rbegin(), intervals.rend(), [&](const Enabled& interval) {
           return correlation >= interval.from && correlation < interval.to;
         });
}

bool Activity::was_enabled(const Operation& operation) const noexcept {
  const CUpti_ActivityKind kind = kind_of(operation);
  if (kind == CUPTI_ACTIVITY_KIND_INVALID) return false;
  if (was_enabled(kind, operation.correlation)) return true;
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return was_enabled(CUPTI_ACTIVITY_KIND_KERNEL, operation.correlation);
    // Peer copies come with the other copies: PyTorch enables nothing else for them.
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return was_enabled(CUPTI_ACTIVITY_KIND_MEMCPY, operation.correlation);
    default:
      return false;
  }
}

void Activity::set_client_clock(ClientClock clock) {
  clock_.set_client_clock(clock);
  const RecordClock::Moment moment = clock_.read();
  std::lock_guard lock(lock_);
  clock_.add(moment);
}

// ---- calls

std::uint32_t Activity::thread_number() const noexcept {
  return system_thread_ids_.load(std::memory_order_relaxed)
             ? thread_id()
             : static_cast<std::uint32_t>(pthread_self());
}

bool Activity::records_call(const CallEvent& call, std::uint32_t callback_id) const noexcept {
  const bool runtime = call.layer == Layer::kRuntime;
  if (!api_enabled_[runtime ? 1 : 0][callback_id].load(std::memory_order_relaxed)) return false;
  // Traces of real systems with both kinds enabled have no record of what the runtime calls.
  return !call.nested || !is_enabled(CUPTI_ACTIVITY_KIND_RUNTIME) ||
         simulation().parameters.cupti_nested_driver != 0;
}

void Activity::on_call_start(const CallEvent& call) {
  if (call.nested) return;
  const std::string_view name = call.site->name;
  const Launch launch{call.correlation, name.find("Async") != name.npos, call.start_ns};
  std::lock_guard lock(lock_);
  launches_[call.correlation % launches_.size()] = launch;
}

void Activity::put_external_correlations(std::uint32_t correlation) {
  if (t_external.ids == nullptr) return;
  for (int kind = 1; kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE; ++kind) {
    const auto& ids = t_external.ids->by_kind[kind];
    if (ids.empty()) continue;
    CUpti_ActivityExternalCorrelation r{};
    r.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    r.externalKind = static_cast<CUpti_ExternalCorrelationKind>(kind);
    r.externalId = ids.back();
    r.correlationId = correlation;
    buffers.put(Record::of(r));
  }
}

void Activity::on_call_end(const CallEvent& call, std::uint32_t callback_id,
                           std::uint64_t start_timestamp) {
  if (callback_id != 0 && records_call(call, callback_id)) {
    CUpti_ActivityAPI r{};
    const bool runtime = call.layer == Layer::kRuntime;
    r.kind = runtime ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER;
    r.cbid = callback_id;
    if (clock_.client_clock() != nullptr) {
      r.start = start_timestamp;
      r.end = timestamp();
    } else {
      std::lock_guard lock(lock_);
      r.start = clock_.convert(call.start_ns);
      r.end = clock_.convert(call.end_ns);
    }
    r.processId = static_cast<std::uint32_t>(getpid());
    r.threadId = thread_number();
    r.correlationId = call.correlation;
    r.returnValue = static_cast<std::uint32_t>(call.result);
    if (!call.nested && is_enabled(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
      put_external_correlations(call.correlation);
    }
    buffers.put(Record::of(r));
  }
  if (!call.nested) collect();
}

// ---- what ends later

void Activity::add(const Unfinished& item) {
  unfinished_.push_back(item);
  std::push_heap(unfinished_.begin(), unfinished_.end(), ends_later);
}

const char* Activity::lasting_name(const Kernel& kernel) {
  const char*& name = names_[&kernel];
  // The library that brought the kernel may be unloaded; names that a client has got stay.
  if (name == nullptr) name = lasting_names_.insert(kernel.name).first->c_str();
  return name;
}

void Activity::on_operation(const Operation& operation) {
  std::lock_guard lock(lock_);
  if (!was_enabled(operation)) return;
  DeviceWork work;
  work.operation = operation;
  work.number = next_number_++;
  if (operation.kernel != nullptr) work.name = lasting_name(*operation.kernel);
  const Launch& launch = launches_[operation.correlation % launches_.size()];
  if (launch.correlation == operation.correlation) {
    work.is_async = launch.is_async;
    if (latency_timestamps_.load(std::memory_order_relaxed)) {
      work.queued_ns = launch.start_ns;
      work.submitted_ns = std::min(now_ns(), operation.start_ns);
    }
  }
  add(work);
}

Activity::EventIds& Activity::ids_of(const Event& event) {
  return events_.try_emplace(&event, EventIds{static_cast<std::uint32_t>(events_.size() + 1), 0})
      .first->second;
}

void Activity::on_event_recorded(const Event& event, const Stream& stream,
                                 std::uint32_t correlation) {
  std::lock_guard lock(lock_);
  EventIds& ids = ids_of(event);
  ids.sync_id = next_sync_id_++;
  // They come with synchronisation too: PyTorch enables nothing else for them.
  if (!was_enabled(CUPTI_ACTIVITY_KIND_CUDA_EVENT, correlation) &&
      !was_enabled(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, correlation)) {
    return;
  }
  const auto device = static_cast<std::uint32_t>(event.device);
  add(EventRecord{correlation, context_id(event.device), stream.id, device, ids.id, ids.sync_id,
                  now_ns()});
}

void Activity::on_synchronised(const SyncEvent& sync) {
  std::lock_guard lock(lock_);
  if (!was_enabled(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, sync.correlation)) return;
  Synchronisation s{};
  s.kind = sync.kind;
  s.correlation = sync.correlation;
  s.context = context_id(sync.device);
  s.stream = sync.stream != nullptr ? sync.stream->id : CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  s.event = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  if (sync.event != nullptr) {
    const EventIds& ids = ids_of(*sync.event);
    s.event = ids.id;
    s.event_sync = ids.sync_id;
  }
  s.start_ns = sync.start_ns;
  s.end_ns = sync.end_ns;
  add(s);
}

void Activity::on_stall(const char* reason, std::uint64_t start_ns, std::uint64_t end_ns) {
  const std::string_view text = reason;
  if (text == "queue full") {
    add_overhead(CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL, start_ns, end_ns);
  } else if (text == "module load") {
    add_overhead(CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING, start_ns, end_ns);
  }
}

void Activity::add_overhead(CUpti_ActivityOverheadKind kind, std::uint64_t start_ns,
                            std::uint64_t end_ns) {
  if (!is_enabled(CUPTI_ACTIVITY_KIND_OVERHEAD)) return;
  std::lock_guard lock(lock_);
  add(Overhead{kind, thread_number(), t_thread.correlation, start_ns, end_ns});
}

// ---- to the client

bool Activity::has_finished(bool also_unfinished, std::uint64_t& earliest_ns) const {
  std::lock_guard lock(lock_);
  earliest_ns = clock_.earliest_next_ns();
  return !unfinished_.empty() && (also_unfinished || end_of(unfinished_.front()) <= now_ns());
}

void Activity::finish(bool also_unfinished, const RecordClock::Moment& moment) {
  std::lock_guard lock(lock_);
  clock_.add(moment);
  const RecordTimes times(clock_, clock_error_);
  const bool concurrent =
      !is_enabled(CUPTI_ACTIVITY_KIND_KERNEL) || is_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  while (!unfinished_.empty() &&
         (also_unfinished || end_of(unfinished_.front()) <= moment.simulated_ns)) {
    std::pop_heap(unfinished_.begin(), unfinished_.end(), ends_later);
    Unfinished item = unfinished_.back();
    unfinished_.pop_back();
    auto* work = std::get_if<DeviceWork>(&item);
    if (work != nullptr && end_of(item) > moment.simulated_ns) {
      // As CUPTI does: the record is there, its times are not.
      work->operation.start_ns = work->operation.end_ns = 0;
    }
    buffers.put(make_record(item, times, concurrent));
  }
}

void Activity::collect(bool also_unfinished) {
  std::uint64_t earliest_ns;
  if (has_finished(also_unfinished, earliest_ns)) {
    wait_until(earliest_ns);
    finish(also_unfinished, clock_.read());
  }
  buffers.write([](std::uint64_t start_ns, std::uint64_t end_ns) {
    activity().add_overhead(CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST, start_ns, end_ns);
  });
}

void Activity::flush(bool forced) {
  const std::uint64_t start = now_ns();
  collect(forced && simulation().parameters.cupti_unfinished != 0);
  buffers.flush();
  add_overhead(CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH, start, now_ns());
}

void Activity::set_flush_period(std::uint32_t ms) {
  flush_period_ms_.store(ms);
  if (ms == 0 || flush_thread_started_.exchange(true)) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] {
    constexpr std::uint32_t kIdleMs = 100;
    for (;;) {
      const std::uint32_t period = flush_period_ms_.load();
      std::this_thread::sleep_for(std::chrono::milliseconds(period != 0 ? period : kIdleMs));
      // Only full buffers are given back.
      if (period != 0) collect();
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Activity::reset() {
  for (int kind = 1; kind < CUPTI_ACTIVITY_KIND_COUNT; ++kind) {
    disable(static_cast<CUpti_ActivityKind>(kind));
  }
  for (auto& apis : api_enabled_) {
    for (auto& api : apis) api.store(false);
  }
  flush_period_ms_.store(0);
  latency_timestamps_.store(false);
  system_thread_ids_.store(false);
  clock_.set_client_clock(nullptr);
  {
    std::lock_guard lock(lock_);
    unfinished_.clear();
    clock_.forget();
  }
  buffers.reset();
  update_observer();
}

// ---- ids of something outside CUDA

CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
  if (!is_external_kind(kind)) return CUPTI_ERROR_INVALID_PARAMETER;
  if (t_external.ids == nullptr) t_external.ids = new ExternalIds;
  t_external.ids->by_kind[kind].push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id) {
  if (!is_external_kind(kind)) return CUPTI_ERROR_INVALID_PARAMETER;
  if (t_external.ids == nullptr || t_external.ids->by_kind[kind].empty()) {
    return CUPTI_ERROR_QUEUE_EMPTY;
  }
  auto& ids = t_external.ids->by_kind[kind];
  if (id != nullptr) *id = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}

}  // namespace gpubusy::sim::cupti
