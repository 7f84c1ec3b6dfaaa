// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/work.hpp"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <mutex>

#include "simulator/core/observer.hpp"

namespace gpubusy::sim {
namespace {

using Lock = std::unique_lock<std::mutex>;

// Pageable copies up to this size are staged in the driver's own memory, so the call need not wait.
constexpr std::size_t kStagedBytes = 64 * 1024;
// Only what is copied at submission needs no staging; as in scheduler.cpp.
constexpr std::size_t kImmediateBytes = 16 * 1024;

std::uint64_t transfer_ns(double bytes, double gbps) {
  const Parameters& p = simulation().parameters;
  return static_cast<std::uint64_t>(p.copy_setup_us * 1000 + bytes / gbps);
}

bool is_on_device(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged;
}

void spend_call_time() {
  const std::uint64_t ns = simulation().call_ns;
  if (ns != 0) [[unlikely]]
    wait_until(now_ns() + ns);
}

// Common to all work: capture, the bounded queue, what comes before.
// The lock is held from then on.
struct Submission {
  Lock lock;
  int result = CUDA_SUCCESS;
  bool captured = false;
};

void prepare(Submission& submission, Stream& stream, Operation& operation) {
  Simulation& s = simulation();
  operation.device = static_cast<std::int16_t>(stream.device->index);
  operation.stream_id = stream.id;
  operation.correlation = t_thread.correlation;
  submission.lock = Lock(s.scheduler.mutex);
  if (!s.captures.any()) [[likely]]
    return;
  if (stream.is_legacy) {
    submission.result = s.captures.check_legacy(stream);
  } else if (stream.capture != nullptr) {
    submission.result = s.captures.add(stream, operation);
    submission.captured = true;
  }
}

int enqueue(Stream& stream, Operation& operation) {
  Simulation& s = simulation();
  Submission submission;
  prepare(submission, stream, operation);
  if (submission.captured || submission.result != CUDA_SUCCESS) return submission.result;
  wait_for_queue(stream, submission.lock);
  const Fence after = stream_fence(stream);
  stream.tail = s.scheduler.submit(operation, after, now_ns() + s.latency_ns);
  stream.in_flight.push_back(stream.tail);
  return CUDA_SUCCESS;
}

std::size_t extent(const Effect& e, std::size_t pitch, std::size_t slice) {
  if (e.bytes() == 0) return 0;
  return (e.depth - 1) * slice + (e.height - 1) * pitch + e.width;
}

bool fits(const Allocation& allocation, const void* pointer, std::size_t bytes) {
  if (allocation.size == 0) return true;  // pageable: cannot be checked
  return reinterpret_cast<std::uintptr_t>(pointer) + bytes <= allocation.base + allocation.size;
}

// What kind of copy it is, by where the memory lies.
void classify(Operation& operation, const Allocation& from, const Allocation& to) {
  const Parameters& p = simulation().parameters;
  const double bytes = static_cast<double>(operation.bytes);
  const bool from_device = is_on_device(from.kind), to_device = is_on_device(to.kind);
  operation.source_memory = from.kind;
  operation.destination_memory = to.kind;
  operation.source_device = from_device ? from.device : std::int16_t{-1};
  operation.destination_device = to_device ? to.device : std::int16_t{-1};
  const auto rate = [&](MemoryKind host, double pinned) {
    return host == MemoryKind::kPageable ? std::min(pinned, p.pageable_gbps) : pinned;
  };
  if (from_device && to_device) {
    operation.engine = Engine::kDeviceToDevice;
    operation.duration_ns = from.device == to.device ? transfer_ns(2 * bytes, p.memory_gbps)
                                                     : transfer_ns(bytes, p.peer_gbps);
  } else if (to_device) {
    operation.engine = Engine::kHostToDevice;
    operation.duration_ns = transfer_ns(bytes, rate(from.kind, p.h2d_gbps));
  } else if (from_device) {
    operation.engine = Engine::kDeviceToHost;
    operation.duration_ns = transfer_ns(bytes, rate(to.kind, p.d2h_gbps));
  } else {
    operation.engine = Engine::kNone;  // the host copies; it takes what it takes
  }
}

// As for work in a stream that the caller waits for: the stream's earlier work comes first.
int copy_by_caller(Stream& stream, Submission& submission, Operation& operation) {
  Simulation& s = simulation();
  const Fence after = stream_fence(stream);
  PendingPtr pending;
  stream.tail =
      s.scheduler.submit(operation, after, now_ns() + s.latency_ns, Executor::kCaller, &pending);
  s.scheduler.run_by_caller(pending, submission.lock);
  return CUDA_SUCCESS;
}

// Tells the observer of a wait, or of an order to the device to wait.
class SyncReport {
 public:
  SyncReport(SyncEvent::Kind kind, int device, const Stream* stream, const Event* event) noexcept
      : observer_(g_observer.load(std::memory_order_acquire)) {
    if (observer_ == nullptr) [[likely]]
      return;
    event_ = {kind, stream, event, device, t_thread.correlation, now_ns(), 0};
  }
  ~SyncReport() {
    if (observer_ == nullptr) [[likely]]
      return;
    event_.end_ns = now_ns();
    observer_->on_synchronised(event_);
  }
  SyncReport(const SyncReport&) = delete;
  SyncReport& operator=(const SyncReport&) = delete;

 private:
  Observer* observer_;
  SyncEvent event_{};
};

bool waits(const Event& event) { return (event.flags & CU_EVENT_BLOCKING_SYNC) != 0; }

}  // namespace

int describe_kernel(Kernel& kernel, Dim3 grid, Dim3 block, std::uint32_t shared_bytes,
                    void** arguments, Operation& operation) {
  if (grid.count() == 0 || block.count() == 0 || block.count() > 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Kernels::Cost cost =
      simulation().kernels.cost(kernel, grid, block, shared_bytes, arguments);
  operation.kind = OpKind::kKernel;
  operation.engine = Engine::kSm;
  operation.share = cost.share;
  operation.duration_ns = cost.duration_ns;
  operation.kernel = &kernel;
  operation.grid = grid;
  operation.block = block;
  operation.shared_bytes = shared_bytes;
  return CUDA_SUCCESS;
}

int describe_copy(Effect effect, Operation& operation) {
  Memory& memory = simulation().memory;
  const Allocation from = memory.find(effect.source), to = memory.find(effect.destination);
  if (!fits(from, effect.source, extent(effect, effect.source_pitch, effect.source_slice)) ||
      !fits(to, effect.destination,
            extent(effect, effect.destination_pitch, effect.destination_slice))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t bytes = effect.bytes();
  const std::uint64_t launches = simulation().launches.load(std::memory_order_relaxed);
  if (is_on_device(from.kind)) {
    effect.reads_zero = memory.is_stale(effect.source, bytes, launches);
  }
  if (is_on_device(to.kind) && effect.height * effect.depth == 1) {
    memory.wrote(effect.destination, bytes, launches);
  }
  operation.kind = OpKind::kCopy;
  operation.bytes = bytes;
  operation.effect = effect;
  classify(operation, from, to);
  return CUDA_SUCCESS;
}

int describe_fill(Effect effect, Operation& operation) {
  Simulation& s = simulation();
  const Allocation to = s.memory.find(effect.destination);
  if (to.size == 0 || !fits(to, effect.destination,
                            extent(effect, effect.destination_pitch, effect.destination_slice))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  effect.gives_back = to.is_ours && to.kind == MemoryKind::kDevice;
  if (effect.height * effect.depth == 1) {
    s.memory.wrote(effect.destination, effect.bytes(), s.launches.load(std::memory_order_relaxed));
  }
  operation.kind = OpKind::kMemset;
  operation.engine = Engine::kSm;
  operation.bytes = effect.bytes();
  operation.share =
      static_cast<float>(std::clamp(static_cast<double>(operation.bytes) / (1 << 20), 0.01, 1.0));
  operation.duration_ns =
      transfer_ns(static_cast<double>(operation.bytes), s.parameters.memory_gbps);
  operation.destination_memory = to.kind;
  operation.destination_device = is_on_device(to.kind) ? to.device : std::int16_t{-1};
  operation.effect = effect;
  return CUDA_SUCCESS;
}

Operation describe_host_function(void (*function)(void*), void* argument) {
  Operation operation;
  operation.kind = OpKind::kHostFunction;
  operation.effect.type = Effect::Type::kCall;
  operation.effect.function = function;
  operation.effect.argument = argument;
  return operation;
}

int launch_kernel(Kernel& kernel, Dim3 grid, Dim3 block, std::uint32_t shared_bytes, Stream& stream,
                  void** arguments) {
  Simulation& s = simulation();
  Operation operation;
  if (const int result = describe_kernel(kernel, grid, block, shared_bytes, arguments, operation)) {
    return result;
  }
  if (!kernel.loaded.load(std::memory_order_relaxed) && !kernel.loaded.exchange(true)) {
    static LoggedName logged;
    spend(static_cast<std::uint64_t>(s.parameters.module_load_us * 1000), logged, "module load");
  }
  spend_call_time();
  s.launches.fetch_add(1, std::memory_order_relaxed);
  return enqueue(stream, operation);
}

int copy_memory(Stream& stream, Effect effect, bool synchronous) {
  Simulation& s = simulation();
  Operation operation;
  if (const int result = describe_copy(effect, operation)) return result;
  const std::size_t bytes = operation.bytes;
  if (bytes == 0) return CUDA_SUCCESS;
  spend_call_time();
  const Engine engine = operation.engine;
  const bool pageable = operation.source_memory == MemoryKind::kPageable ||
                        operation.destination_memory == MemoryKind::kPageable;

  if (!pageable && !synchronous) return enqueue(stream, operation);
  if (engine == Engine::kDeviceToDevice) return enqueue(stream, operation);

  Submission submission;
  prepare(submission, stream, operation);
  if (submission.captured || submission.result != CUDA_SUCCESS) {
    // A captured copy in a stream that is waited for cannot be waited for.
    return submission.result;
  }
  Fence after = stream_fence(stream);
  const bool immediate = after.settle() && bytes <= kImmediateBytes && engine != Engine::kNone;
  const bool staged = !synchronous && engine == Engine::kHostToDevice && bytes <= kStagedBytes &&
                      effect.height * effect.depth == 1;
  if (!immediate && !staged) return copy_by_caller(stream, submission, operation);
  if (staged && !immediate) {
    auto* copy = static_cast<std::byte*>(malloc(bytes));
    if (copy == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, effect.source, bytes);
    operation.effect.source = copy;
    operation.effect.frees_source = true;
  }
  wait_for_queue(stream, submission.lock);
  after = stream_fence(stream);
  stream.tail = s.scheduler.submit(operation, after, now_ns() + s.latency_ns);
  stream.in_flight.push_back(stream.tail);
  if (!staged) s.scheduler.wait(stream.tail, submission.lock);
  return CUDA_SUCCESS;
}

int fill_memory(Stream& stream, Effect effect, bool synchronous) {
  Simulation& s = simulation();
  Operation operation;
  if (const int result = describe_fill(effect, operation)) return result;
  if (operation.bytes == 0) return CUDA_SUCCESS;
  spend_call_time();
  const bool waits = synchronous && operation.destination_memory == MemoryKind::kPinned;
  const int result = enqueue(stream, operation);
  // Of device memory cudaMemset does not wait; of pinned memory it does.
  if (result != CUDA_SUCCESS || !waits) return result;
  Lock lock(s.scheduler.mutex);
  s.scheduler.wait(stream.tail, lock);
  return CUDA_SUCCESS;
}

int launch_host_function(Stream& stream, void (*function)(void*), void* argument) {
  Operation operation = describe_host_function(function, argument);
  return enqueue(stream, operation);
}

int launch_graph_exec(GraphExec& exec, Stream& stream) {
  Simulation& s = simulation();
  spend_call_time();
  Lock lock(s.scheduler.mutex);
  if (s.captures.any()) {
    if (stream.is_legacy) {
      if (const int result = s.captures.check_legacy(stream)) return result;
    } else if (stream.capture != nullptr) {
      return s.captures.not_while_capturing(*stream.capture);
    }
  }
  wait_for_queue(stream, lock);
  launch_graph(exec, stream, t_thread.correlation);
  return CUDA_SUCCESS;
}

// ---- events

int record_event(Event& event, Stream& stream, unsigned flags) {
  Simulation& s = simulation();
  if (event.device != stream.device->index) return CUDA_ERROR_INVALID_HANDLE;
  Lock lock(s.scheduler.mutex);
  if (s.captures.any()) {
    if (stream.is_legacy) {
      if (const int result = s.captures.check_legacy(stream)) return result;
    } else if (stream.capture != nullptr) {
      if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0) {
        return s.captures.add_event_node(stream, event, true);
      }
      event.recorded = true;
      event.capture_id = stream.capture->id;
      event.capture_nodes = stream.capture_tail;
      return CUDA_SUCCESS;
    }
  }
  event.recorded = true;
  event.capture_id = 0;
  event.when = stream_fence(stream);
  // The device comes to it as late as it would come to a kernel.
  event.when.at_least(now_ns() + s.latency_ns);
  if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
    observer->on_event_recorded(event, stream, t_thread.correlation);
  }
  return CUDA_SUCCESS;
}

int wait_event(Stream& stream, Event& event, unsigned flags) {
  Simulation& s = simulation();
  const SyncReport report(SyncEvent::Kind::kStreamWaitEvent, stream.device->index, &stream, &event);
  Lock lock(s.scheduler.mutex);
  if (!event.recorded) return CUDA_SUCCESS;
  if (event.capture_id != 0) return s.captures.join(stream, event);
  if (stream.capture != nullptr) {
    if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
      return s.captures.add_event_node(stream, event, false);
    }
    stream.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  event.when.settle();
  stream.tail.add(event.when);
  return CUDA_SUCCESS;
}

int query_event(Event& event) {
  Simulation& s = simulation();
  if (const int result = s.captures.check_unsafe()) return result;
  Lock lock(s.scheduler.mutex);
  if (!event.recorded) return CUDA_SUCCESS;
  if (event.capture_id != 0) {
    if (Capture* capture = s.captures.find(event.capture_id)) capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return event.when.settle() && event.when.time_ns <= now_ns() ? CUDA_SUCCESS
                                                               : CUDA_ERROR_NOT_READY;
}

int synchronize_event(Event& event) {
  Simulation& s = simulation();
  const SyncReport report(SyncEvent::Kind::kEvent, event.device, nullptr, &event);
  if (const int result = s.captures.check_unsafe()) return result;
  Lock lock(s.scheduler.mutex);
  if (!event.recorded) return CUDA_SUCCESS;
  if (event.capture_id != 0) {
    if (Capture* capture = s.captures.find(event.capture_id)) capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  s.scheduler.wait(event.when, lock, waits(event) ? Waiting::kYield : Waiting::kSpin);
  return CUDA_SUCCESS;
}

int elapsed_ms(Event& start, Event& end, float* ms) {
  Simulation& s = simulation();
  Lock lock(s.scheduler.mutex);
  for (Event* event : {&start, &end}) {
    if (!event->recorded || event->capture_id != 0 ||
        (event->flags & CU_EVENT_DISABLE_TIMING) != 0) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
  }
  const std::uint64_t now = now_ns();
  for (Event* event : {&start, &end}) {
    if (!event->when.settle() || event->when.time_ns > now) return CUDA_ERROR_NOT_READY;
  }
  *ms = static_cast<float>(
      (static_cast<double>(end.when.time_ns) - static_cast<double>(start.when.time_ns)) / 1e6);
  return CUDA_SUCCESS;
}

// ---- streams

int query_stream(Stream& stream) {
  Simulation& s = simulation();
  if (stream.capture == nullptr) {
    if (const int result = s.captures.check_unsafe()) return result;
  }
  Lock lock(s.scheduler.mutex);
  if (stream.capture != nullptr) return s.captures.not_while_capturing(*stream.capture);
  Fence fence = stream_fence(stream);
  return fence.settle() && fence.time_ns <= now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

int synchronize_stream(Stream& stream) {
  Simulation& s = simulation();
  const SyncReport report(SyncEvent::Kind::kStream, stream.device->index, &stream, nullptr);
  if (stream.capture == nullptr) {
    if (const int result = s.captures.check_unsafe()) return result;
  }
  Lock lock(s.scheduler.mutex);
  if (stream.capture != nullptr) return s.captures.not_while_capturing(*stream.capture);
  s.scheduler.wait(stream_fence(stream), lock);
  return CUDA_SUCCESS;
}

namespace {

int wait_for_device(Device& device) {
  Simulation& s = simulation();
  if (const int result = s.captures.check_unsafe()) return result;
  Lock lock(s.scheduler.mutex);
  Fence all = device.legacy->tail;
  for (const Stream* stream : device.streams) all.add(stream->tail);
  s.scheduler.wait(all, lock);
  return CUDA_SUCCESS;
}

}  // namespace

int synchronize_device(Device& device) {
  const SyncReport report(SyncEvent::Kind::kContext, device.index, nullptr, nullptr);
  return wait_for_device(device);
}

// ---- memory

int allocate_device(void** pointer, std::size_t bytes, MemoryKind kind, Device& device) {
  Simulation& s = simulation();
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int result = s.captures.check_unsafe()) return result;
  static LoggedName logged;
  spend(static_cast<std::uint64_t>(s.parameters.malloc_us * 1000), logged, "device allocation");
  const double limit = s.parameters.fail_alloc_bytes;
  if (limit > 0 && static_cast<double>(bytes) >= limit) return CUDA_ERROR_OUT_OF_MEMORY;
  if (kind == MemoryKind::kDevice && s.memory.used(device.index) + bytes > s.memory_bytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pointer = s.memory.allocate(bytes, kind, device.index, 0, false);
  return *pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int free_device(void* pointer) {
  Simulation& s = simulation();
  if (pointer == nullptr) return CUDA_SUCCESS;
  if (const int result = s.captures.check_unsafe()) return result;
  const Allocation allocation = s.memory.find(pointer);
  if (allocation.base != reinterpret_cast<std::uintptr_t>(pointer) ||
      !is_on_device(allocation.kind)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Nothing may use the memory any more: the real cudaFree waits for the device as well.
  if (const int result = wait_for_device(*s.devices[allocation.device])) return result;
  static LoggedName logged;
  spend(static_cast<std::uint64_t>(s.parameters.free_us * 1000), logged, "device free");
  if (allocation.is_pooled) return s.memory.free_pooled(pointer) ? 0 : CUDA_ERROR_INVALID_VALUE;
  return s.memory.remove(pointer, MemoryKind::kDevice, false).size != 0 ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_VALUE;
}

int allocate_stream_ordered(void** pointer, std::size_t bytes, Stream& stream) {
  Simulation& s = simulation();
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = stream.device->index;
  const double limit = s.parameters.fail_alloc_bytes;
  if ((limit > 0 && static_cast<double>(bytes) >= limit) ||
      s.memory.used(device) + bytes > s.memory_bytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pointer = s.memory.allocate_pooled(bytes, device);
  return *pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int free_stream_ordered(void* pointer, Stream&) {
  if (pointer == nullptr) return CUDA_SUCCESS;
  Simulation& s = simulation();
  if (s.memory.free_pooled(pointer)) return CUDA_SUCCESS;
  return free_device(pointer);
}

namespace {

std::uint64_t pin_ns(std::size_t bytes) {
  const Parameters& p = simulation().parameters;
  return static_cast<std::uint64_t>(
      1000 * (p.pin_us + p.pin_us_per_mib * static_cast<double>(bytes) / (1 << 20)));
}

Device& current_device() { return *t_thread.current->device; }

}  // namespace

int allocate_host(void** pointer, std::size_t bytes, unsigned flags) {
  Simulation& s = simulation();
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int result = s.captures.check_unsafe()) return result;
  static LoggedName logged;
  spend(pin_ns(bytes), logged, "host allocation");
  *pointer = s.memory.allocate(bytes, MemoryKind::kPinned, current_device().index, flags, false);
  return *pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int free_host(void* pointer) {
  Simulation& s = simulation();
  if (pointer == nullptr) return CUDA_SUCCESS;
  if (const int result = s.captures.check_unsafe()) return result;
  for (Device* device : s.devices) {
    if (!device->has_context.load()) continue;
    if (const int result = wait_for_device(*device)) return result;
  }
  static LoggedName logged;
  spend(static_cast<std::uint64_t>(s.parameters.pin_us * 1000), logged, "host free");
  return s.memory.remove(pointer, MemoryKind::kPinned, false).size != 0 ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_VALUE;
}

int register_host(void* pointer, std::size_t bytes, unsigned flags) {
  Simulation& s = simulation();
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int result = s.captures.check_unsafe()) return result;
  static LoggedName logged;
  spend(pin_ns(bytes), logged, "host registration");
  return s.memory.register_host(pointer, bytes, current_device().index, flags)
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

int unregister_host(void* pointer) {
  Simulation& s = simulation();
  if (const int result = s.captures.check_unsafe()) return result;
  for (Device* device : s.devices) {
    if (!device->has_context.load()) continue;
    if (const int result = wait_for_device(*device)) return result;
  }
  static LoggedName logged;
  spend(static_cast<std::uint64_t>(s.parameters.pin_us * 1000), logged, "host unregistration");
  return s.memory.remove(pointer, MemoryKind::kPinned, true).size != 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

}  // namespace gpubusy::sim
