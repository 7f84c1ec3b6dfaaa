// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_activity.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "simulator/core/api_call.hpp"
#include "simulator/core/clock.hpp"
#include "simulator/faces/cupti_observer.hpp"

namespace gpubusy::sim::cupti {
namespace {

constexpr std::uint32_t kStillEnabled = ~std::uint32_t{0};

bool ends_later(const Unfinished& a, const Unfinished& b) { return end_of(a) > end_of(b); }

// A deep stack of ids would be unusual; the memory stays with the thread.
struct ExternalIds {
  const Activity* owner;
  std::vector<std::uint64_t> by_kind[CUPTI_EXTERNAL_CORRELATION_KIND_SIZE];

  bool empty() const {
    return std::all_of(std::begin(by_kind), std::end(by_kind),
                       [](const auto& ids) { return ids.empty(); });
  }
};
// Has no destructor: calls are recorded after those of the thread have run.
constinit thread_local std::vector<ExternalIds>* t_external = nullptr;
struct ExternalIdsEnd {
  bool used = false;
  ~ExternalIdsEnd() {
    delete t_external;
    t_external = nullptr;
  }
};
thread_local ExternalIdsEnd t_external_end;

ExternalIds* external_ids_of(const Activity* owner) {
  if (t_external == nullptr) return nullptr;
  for (ExternalIds& ids : *t_external) {
    if (ids.owner == owner) return &ids;
  }
  return nullptr;
}

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
  in_use_.store(true);
  const RecordClock::Moment moment = clock_.read();
  {
    std::lock_guard lock(lock_);
    common_.clock_error.start(moment.simulated_ns);
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
  if (enabled) in_use_.store(true);
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
    default: return false;
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

void Activity::put_external_correlations(std::uint32_t correlation) {
  const ExternalIds* const stacks = external_ids_of(this);
  if (stacks == nullptr) return;
  for (int kind = 1; kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE; ++kind) {
    const auto& ids = stacks->by_kind[kind];
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
    if (clock_.client_clock() != nullptr && start_timestamp != 0) {
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

void Activity::on_operation(const Operation& operation, const Common::WorkNotes& notes) {
  std::lock_guard lock(lock_);
  if (!was_enabled(operation)) return;
  DeviceWork work;
  work.operation = operation;
  work.number = notes.number;
  work.name = notes.name;
  if (notes.launch.correlation != 0) {
    work.is_async = notes.launch.is_async;
    if (latency_timestamps_.load(std::memory_order_relaxed)) {
      work.queued_ns = notes.launch.start_ns;
      work.submitted_ns = std::min(now_ns(), operation.start_ns);
    }
  }
  add(work);
}

void Activity::on_event_recorded(const Event& event, const Stream& stream,
                                 std::uint32_t correlation, const Common::EventIds& ids) {
  std::lock_guard lock(lock_);
  // They come with synchronisation too: PyTorch enables nothing else for them.
  if (!was_enabled(CUPTI_ACTIVITY_KIND_CUDA_EVENT, correlation) &&
      !was_enabled(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, correlation)) {
    return;
  }
  const auto device = static_cast<std::uint32_t>(event.device);
  add(EventRecord{correlation, context_id(event.device), stream.id, device, ids.id, ids.sync_id,
                  now_ns()});
}

void Activity::on_synchronised(const SyncEvent& sync, const Common::EventIds& ids) {
  std::lock_guard lock(lock_);
  if (!was_enabled(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, sync.correlation)) return;
  Synchronisation s{};
  s.kind = sync.kind;
  s.correlation = sync.correlation;
  s.context = context_id(sync.device);
  s.stream = sync.stream != nullptr ? sync.stream->id : CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  s.event = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  if (sync.event != nullptr) {
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
  const RecordTimes times(clock_, common_.clock_error);
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
  buffers.write([this](std::uint64_t start_ns, std::uint64_t end_ns) {
    add_overhead(CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST, start_ns, end_ns);
  });
}

void Activity::flush(bool forced) {
  const std::uint64_t start = now_ns();
  collect(forced && simulation().parameters.cupti_unfinished != 0);
  buffers.flush();
  add_overhead(CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH, start, now_ns());
}

void Activity::reset() {
  for (int kind = 1; kind < CUPTI_ACTIVITY_KIND_COUNT; ++kind) {
    disable(static_cast<CUpti_ActivityKind>(kind));
  }
  for (auto& apis : api_enabled_) {
    for (auto& api : apis) api.store(false);
  }
  latency_timestamps_.store(false);
  system_thread_ids_.store(false);
  clock_.set_client_clock(nullptr);
  {
    std::lock_guard lock(lock_);
    unfinished_.clear();
    clock_.forget();
  }
  buffers.reset();
  in_use_.store(false);
  update_observer();
}

// ---- ids of something outside CUDA

CUptiResult Activity::push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
  if (!is_external_kind(kind)) return CUPTI_ERROR_INVALID_PARAMETER;
  if (t_external == nullptr) {
    t_external = new std::vector<ExternalIds>;
    t_external_end.used = true;
  }
  ExternalIds* ids = external_ids_of(this);
  if (ids == nullptr) {
    // Clients come and go.
    std::erase_if(*t_external, [](const ExternalIds& other) { return other.empty(); });
    ids = &t_external->emplace_back();
    ids->owner = this;
  }
  ids->by_kind[kind].push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult Activity::pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id) {
  if (!is_external_kind(kind)) return CUPTI_ERROR_INVALID_PARAMETER;
  ExternalIds* const stacks = external_ids_of(this);
  if (stacks == nullptr || stacks->by_kind[kind].empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  auto& ids = stacks->by_kind[kind];
  if (id != nullptr) *id = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}

}  // namespace gpubusy::sim::cupti
