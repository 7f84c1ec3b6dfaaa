// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_timer.hpp"

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "runtime/clock.hpp"
#include "runtime/driver.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/patience.hpp"
#include "runtime/recorder.hpp"
#include "runtime/streams.hpp"

namespace gpubusy::runtime {

namespace {

constexpr std::uint32_t kSlots = 4096;  // the hardware queue holds about 1,024 launches
constexpr std::uint32_t kHarvestEvery = 64;
constexpr std::size_t kMaxContexts = 16;
constexpr int kCalibrationRounds = 8;
// Event times are floats of milliseconds: one unit in the last place is 61 ns at 1 s.
constexpr std::uint64_t kAnchorLifeNs = 500'000'000;
constexpr std::uint64_t kCalibrationLimitNs = 20'000'000;  // a busy device: give up, say so

struct Slot {
  std::uint32_t owner;  // serial of the anchor in whose context the events were made, 0: none
  CUevent begin, end;
  std::uint64_t host_record_ns;  // just before the start event was recorded
  std::uint64_t call_start_ns, call_end_ns;
  std::uint32_t correlation, stream;
  std::int16_t device;
  bool blocking;
};

// Relation of one context's event clock to CLOCK_MONOTONIC: `event` happened at `host_ns`. Changed
// only under the harvest lock, made and forgotten under both locks. A context's address may be used
// again, a serial never is: events are known by the serial of the anchor that they were made under.
struct Anchor {
  std::atomic<CUcontext> context{nullptr};
  std::atomic<std::uint32_t> serial{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> stale{false};  // wants a new calibration
  unsigned long long context_id = 0;
  CUdevice device = -1;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUevent next = nullptr;
  bool next_pending = false;
  std::uint64_t host_ns = 0;
  std::uint64_t made_ns = 0;
  std::uint32_t uncertainty_ns = 0;
  std::int64_t submit_latency_ns = 0;  // smallest (event time - host time before recording it)

  void forget() noexcept {
    context.store(nullptr, std::memory_order_relaxed);
    serial.store(0, std::memory_order_relaxed);
    failed.store(false, std::memory_order_relaxed);
    stale.store(false, std::memory_order_relaxed);
    stream = nullptr;
    event = next = nullptr;
  }
};

constinit Anchor g_anchors[kMaxContexts];
constinit std::atomic<std::uint32_t> g_serial{0};
constinit std::atomic<bool> g_anchor_lock{false};
constinit std::atomic<bool> g_harvest_lock{false};

class TryLock {
 public:
  explicit TryLock(std::atomic<bool>& flag) noexcept
      : flag_(flag), held_(!flag.exchange(true, std::memory_order_acquire)) {}
  ~TryLock() {
    if (held_) flag_.store(false, std::memory_order_release);
  }
  TryLock(const TryLock&) = delete;
  TryLock& operator=(const TryLock&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  std::atomic<bool>& flag_;
  const bool held_;
};

// Takes both locks. Waits, but not for ever: the holder may have been stopped by a debugger.
class ContextLock {
 public:
  ContextLock() noexcept : anchors_(take(g_anchor_lock)), harvest_(take(g_harvest_lock)) {}
  ~ContextLock() {
    if (harvest_) g_harvest_lock.store(false, std::memory_order_release);
    if (anchors_) g_anchor_lock.store(false, std::memory_order_release);
  }
  ContextLock(const ContextLock&) = delete;
  ContextLock& operator=(const ContextLock&) = delete;

 private:
  static bool take(std::atomic<bool>& flag) noexcept {
    return patiently(1000, [&] { return !flag.exchange(true, std::memory_order_acquire); });
  }
  const bool anchors_, harvest_;
};

// While another thread captures in global mode, queries and the making of streams and events would
// break its capture; not so from a thread in relaxed mode. Nobody looks whether a capture is active
// and then queries: it may begin in between.
class RelaxedCaptures {
 public:
  explicit RelaxedCaptures(const Driver& d) noexcept : exchange_(d.exchange_capture_mode) {
    if (exchange_ != nullptr && exchange_(&mode_) != CUDA_SUCCESS) exchange_ = nullptr;
  }
  ~RelaxedCaptures() {
    if (exchange_ != nullptr) exchange_(&mode_);
  }
  RelaxedCaptures(const RelaxedCaptures&) = delete;
  RelaxedCaptures& operator=(const RelaxedCaptures&) = delete;

 private:
  decltype(Driver::exchange_capture_mode) exchange_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

Anchor* anchor_of(CUcontext context) noexcept {
  for (Anchor& a : g_anchors) {
    if (a.context.load(std::memory_order_acquire) == context) return &a;
  }
  return nullptr;
}

Anchor* anchor_by_serial(std::uint32_t serial) noexcept {
  if (serial == 0) return nullptr;
  for (Anchor& a : g_anchors) {
    if (a.serial.load(std::memory_order_acquire) == serial) return &a;
  }
  return nullptr;
}

unsigned long long id_of(const Driver& d, CUcontext context) noexcept {
  unsigned long long id = 0;
  if (d.ctx_get_id != nullptr) d.ctx_get_id(context, &id);
  return id;
}

void destroy_events(const Driver& d, const Slot& s) noexcept {
  // Those of a context that is gone went with it.
  if (s.begin == nullptr || d.event_destroy == nullptr || anchor_by_serial(s.owner) == nullptr)
    return;
  d.event_destroy(s.begin);
  d.event_destroy(s.end);
}

bool usable(const Driver& d) noexcept {
  return d.ctx_get_current != nullptr && d.event_create != nullptr && d.event_record != nullptr &&
         d.event_query != nullptr && d.event_elapsed != nullptr && d.stream_create != nullptr;
}

// Brackets an event between two readings of the host clock, in a stream of our own that has nothing
// to wait for; the narrowest of some rounds counts.
bool calibrate(const Driver& d, Anchor& a) noexcept {
  if (a.stream == nullptr && d.stream_create(&a.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    return false;
  }
  if (a.event == nullptr && d.event_create(&a.event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
    return false;
  if (a.next == nullptr && d.event_create(&a.next, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return false;
  const std::uint64_t began = now_ns();
  std::uint64_t best = ~std::uint64_t{0};
  for (int round = 0; round < kCalibrationRounds; ++round) {
    const std::uint64_t before = now_ns();
    if (d.event_record(a.next, a.stream) != CUDA_SUCCESS) return false;
    CUresult result;
    std::uint64_t after;
    do {
      result = d.event_query(a.next);
      after = now_ns();
    } while (result == CUDA_ERROR_NOT_READY && after - began < kCalibrationLimitNs);
    if (result != CUDA_SUCCESS) break;
    if (after - before < best) {
      best = after - before;
      a.host_ns = before + best / 2;
      a.uncertainty_ns = static_cast<std::uint32_t>(best / 2);
      a.submit_latency_ns = static_cast<std::int64_t>(best / 2);
      CUevent swap = a.event;
      a.event = a.next;
      a.next = swap;
    }
  }
  a.made_ns = now_ns();
  a.next_pending = false;
  return best != ~std::uint64_t{0};
}

// Moves the anchor forward along the device's own clock, without the host's jitter.
void roll_anchor(const Driver& d, Anchor& a) noexcept {
  if (a.next_pending) {
    float ms = 0;
    if (d.event_query(a.next) != CUDA_SUCCESS) return;
    if (d.event_elapsed(&ms, a.event, a.next) == CUDA_SUCCESS && ms >= 0) {
      a.host_ns += static_cast<std::uint64_t>(static_cast<double>(ms) * 1e6 + 0.5);
      CUevent swap = a.event;
      a.event = a.next;
      a.next = swap;
    }
    a.next_pending = false;
    return;
  }
  const std::uint64_t now = now_ns();
  if (now - a.made_ns < kAnchorLifeNs) return;
  if (d.event_record(a.next, a.stream) == CUDA_SUCCESS) {
    a.next_pending = true;
    a.made_ns = now;
  }
}

// The anchor for the calling thread's context, calibrated; nullptr: not possible or busy elsewhere.
Anchor* ready_anchor(const Driver& d, CUcontext context) noexcept {
  Anchor* a = anchor_of(context);
  const unsigned long long id = id_of(d, context);
  const bool same = a != nullptr && a->context_id == id;
  if (same && !a->stale.load(std::memory_order_relaxed)) [[likely]] {
    return a->failed.load(std::memory_order_relaxed) ? nullptr : a;
  }
  TryLock lock(g_anchor_lock);
  if (!lock) return nullptr;
  // The harvest reads the anchor: keep it out meanwhile.
  TryLock harvest(g_harvest_lock);
  if (!harvest) return same && !a->failed.load(std::memory_order_relaxed) ? a : nullptr;
  const RelaxedCaptures relaxed(d);
  if (a != nullptr && a->context_id != id) a->forget();  // another context at the same address
  a = anchor_of(context);
  if (a != nullptr) {
    if (a->failed.load(std::memory_order_relaxed)) return nullptr;
    if (a->stale.exchange(false, std::memory_order_relaxed)) calibrate(d, *a);
    return a;
  }
  a = anchor_of(nullptr);
  if (a == nullptr) return nullptr;
  if (!calibrate(d, *a)) {
    a->forget();
    notice(recording::NoticeKind::kDeviceTime,
           "device times by CUDA events: the device's clock could not be read; calls of this "
           "context have no device times");
    a->failed.store(true, std::memory_order_relaxed);
  }
  a->stale.store(false, std::memory_order_relaxed);
  a->context_id = id;
  a->device = -1;
  if (d.ctx_get_device != nullptr) d.ctx_get_device(&a->device);
  a->serial.store(g_serial.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
  a->context.store(context, std::memory_order_release);
  return a->failed.load(std::memory_order_relaxed) ? nullptr : a;
}

std::uint64_t event_time(const Driver& d, const Anchor& a, CUevent event, bool& ok) noexcept {
  float ms = 0;
  // Elapsed time may be negative: work that began before the anchor.
  if (d.event_elapsed(&ms, a.event, event) != CUDA_SUCCESS) {
    ok = false;
    return 0;
  }
  return a.host_ns +
         static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
}

}  // namespace

struct TimerRing {
  std::atomic<std::uint32_t> head{0};  // next slot to fill; the owner's
  std::atomic<std::uint32_t> tail{0};  // next slot to take in; the harvester's
  Slot slots[kSlots];
};

namespace {

// The owner makes it, the harvest takes it away from a thread that has ended.
std::atomic_ref<TimerRing*> ring_of(ThreadState& thread) noexcept {
  return std::atomic_ref<TimerRing*>(thread.timers);
}

TimerRing* make_ring() noexcept {
  void* p = mmap(nullptr, sizeof(TimerRing), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : new (p) TimerRing;
}

void write_time(ThreadState& thread, const Slot& s, std::uint64_t start, std::uint64_t end,
                const Anchor& a) noexcept {
  auto* r = static_cast<recording::DeviceTimeRecord*>(
      reserve_record(thread, sizeof(recording::DeviceTimeRecord), now_ns()));
  if (r == nullptr) return;
  *r = {};
  r->header = {recording::RecordType::kDeviceTime, sizeof *r, s.correlation};
  r->start_ns = start;
  r->end_ns = end;
  r->uncertainty_ns = a.uncertainty_ns;
  r->stream = s.stream;
  r->device = s.device;
  r->source = recording::TimeSource::kEvents;
  commit_record(thread, sizeof *r);
}

// False: the device has not finished it yet.
bool take_in(const Driver& d, ThreadState& writer, Slot& s) noexcept {
  Anchor* a = anchor_by_serial(s.owner);
  if (a == nullptr) return true;  // its context is gone
  const CUresult state = d.event_query(s.end);
  if (state == CUDA_ERROR_NOT_READY) return false;
  bool ok = state == CUDA_SUCCESS;
  std::uint64_t start = ok ? event_time(d, *a, s.begin, ok) : 0;
  std::uint64_t end = ok ? event_time(d, *a, s.end, ok) : 0;
  if (!ok) return true;  // its call has kCallTimed but no time: analysis counts that
  const auto latency = static_cast<std::int64_t>(start - s.host_record_ns);
  if (latency > 0 && latency < a->submit_latency_ns) a->submit_latency_ns = latency;
  const std::uint64_t earliest = s.call_start_ns + static_cast<std::uint64_t>(a->submit_latency_ns);
  if (s.blocking && end > s.call_end_ns) end = s.call_end_ns;
  if (start < earliest) start = earliest;
  if (start > end) start = end;
  write_time(writer, s, start, end, *a);
  return true;
}

}  // namespace

TimerTicket begin_timing(ThreadState& thread, const StreamArgument& stream) noexcept {
  TimerTicket ticket;
  const Driver* d = driver();
  if (d == nullptr || !usable(*d)) return ticket;
  if (any_capture()) {
    ticket.state = Timing::kCapture;
    return ticket;
  }
  const NoCancel no_cancel;
  // The first call of a process makes the context: nothing to record an event in yet.
  ticket.state = Timing::kFailed;
  CUcontext context = nullptr;
  if (d->ctx_get_current(&context) != CUDA_SUCCESS || context == nullptr) return ticket;
  const Anchor* anchor = ready_anchor(*d, context);
  if (anchor == nullptr) return ticket;
  TimerRing* ring = thread.timers;
  if (ring == nullptr) {
    ring = make_ring();
    ring_of(thread).store(ring, std::memory_order_release);
  }
  if (ring == nullptr) {
    ticket.state = Timing::kLimit;
    return ticket;
  }
  const std::uint32_t head = ring->head.load(std::memory_order_relaxed);
  if (head - ring->tail.load(std::memory_order_acquire) >= kSlots) {
    harvest_device_times();
    if (head - ring->tail.load(std::memory_order_acquire) >= kSlots) {
      ticket.state = Timing::kLimit;
      return ticket;
    }
  }
  Slot& s = ring->slots[head % kSlots];
  const std::uint32_t owner = anchor->serial.load(std::memory_order_acquire);
  if (s.owner != owner) {
    const RelaxedCaptures relaxed(*d);
    destroy_events(*d, s);
    s = Slot{};
    if (d->event_create(&s.begin, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return ticket;
    if (d->event_create(&s.end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
      if (d->event_destroy != nullptr) d->event_destroy(s.begin);
      s = Slot{};
      return ticket;
    }
    s.owner = owner;
  }
  auto* record = stream.per_thread ? d->event_record_ptsz : d->event_record;
  s.host_record_ns = now_ns();
  if (record == nullptr || record(s.begin, static_cast<CUstream>(stream.handle)) != CUDA_SUCCESS) {
    return ticket;
  }
  ticket.state = Timing::kTimed;
  ticket.slot = head;
  return ticket;
}

Timing end_event(ThreadState& thread, TimerTicket ticket, const StreamArgument& stream,
                 bool failed) noexcept {
  if (failed) return Timing::kOff;
  // The call itself, or another thread, may have begun a capture meanwhile: no event then.
  if (any_capture()) return Timing::kCapture;
  const NoCancel no_cancel;
  const Driver* d = driver();
  auto* record = stream.per_thread ? d->event_record_ptsz : d->event_record;
  const Slot& s = thread.timers->slots[ticket.slot % kSlots];
  if (record(s.end, static_cast<CUstream>(stream.handle)) != CUDA_SUCCESS) return Timing::kFailed;
  return Timing::kTimed;
}

void commit_timing(ThreadState& thread, TimerTicket ticket, const TimedCall& call) noexcept {
  TimerRing* ring = thread.timers;
  Slot& s = ring->slots[ticket.slot % kSlots];
  s.call_start_ns = call.start_ns;
  s.call_end_ns = call.end_ns;
  s.correlation = call.correlation;
  s.stream = call.stream;
  s.device = call.device;
  s.blocking = call.blocking;
  ring->head.store(ticket.slot + 1, std::memory_order_release);
  if (ticket.slot % kHarvestEvery == kHarvestEvery - 1) harvest_device_times();
}

bool harvest_device_times() noexcept {
  const Driver* d = driver();
  if (d == nullptr || !usable(*d)) return true;  // nothing was ever timed
  if (any_capture()) return false;
  const NoCancel no_cancel;
  TryLock lock(g_harvest_lock);
  if (!lock) return false;
  ThreadState* self = thread_state();
  if (self == nullptr) return false;
  const RelaxedCaptures relaxed(*d);
  bool empty = true;
  for (ThreadState* t = all_thread_states(); t != nullptr; t = t->next) {
    const bool ended = t->ended.load(std::memory_order_acquire);
    TimerRing* ring = ring_of(*t).load(std::memory_order_acquire);
    if (ring == nullptr) continue;
    std::uint32_t tail = ring->tail.load(std::memory_order_relaxed);
    const std::uint32_t head = ring->head.load(std::memory_order_acquire);
    while (tail != head && !any_capture() && take_in(*d, *self, ring->slots[tail % kSlots])) {
      ring->tail.store(++tail, std::memory_order_release);
    }
    if (tail != head) {
      empty = false;
    } else if (ended) {
      for (const Slot& s : ring->slots) destroy_events(*d, s);
      ring_of(*t).store(nullptr,
                        std::memory_order_release);  // the state may now serve another thread
      munmap(ring, sizeof(TimerRing));
    }
  }
  for (Anchor& a : g_anchors) {
    if (any_capture()) break;
    if (a.context.load(std::memory_order_relaxed) != nullptr && !a.failed) roll_anchor(*d, a);
  }
  return empty;
}

void forget_context(CUcontext context, int device) noexcept {
  const NoCancel no_cancel;
  harvest_device_times();
  const ContextLock lock;
  const bool any = context == nullptr && device < 0;
  for (Anchor& a : g_anchors) {
    const CUcontext its = a.context.load(std::memory_order_relaxed);
    if (its == nullptr) continue;
    if (any || its == context || (device >= 0 && (a.device == device || a.device < 0))) a.forget();
  }
}

void recalibrate_device_clock() noexcept {
  for (Anchor& a : g_anchors) a.stale.store(true, std::memory_order_relaxed);
}

void forget_timers_after_fork() noexcept {
  for (Anchor& a : g_anchors) a.forget();
  g_anchor_lock.store(false);
  g_harvest_lock.store(false);
}

}  // namespace gpubusy::runtime
