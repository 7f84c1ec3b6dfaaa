// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/streams.hpp"

#include <cuda.h>

#include <algorithm>

#include "simulator/core/observer.hpp"
#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {
namespace {

// As CUPTI numbers them: 7 is the default stream, what a program creates starts at 13.
constexpr std::uint32_t kFirstCreatedStream = 13;

std::uint32_t g_next_stream = kFirstCreatedStream;
std::vector<Stream*>& free_streams() {
  static auto* streams = new std::vector<Stream*>;
  return *streams;
}
std::vector<Event*>& free_events() {
  static auto* events = new std::vector<Event*>;
  return *events;
}

}  // namespace

bool Stream::is_blocking() const noexcept { return (flags & CU_STREAM_NON_BLOCKING) == 0; }

Stream* new_stream(Device& device, unsigned flags, int priority) {
  Simulation& s = simulation();
  Stream* stream;
  {
    std::lock_guard lock(s.scheduler.mutex);
    if (free_streams().empty()) {
      stream = new Stream;
    } else {
      stream = free_streams().back();
      free_streams().pop_back();
      *stream = Stream{};
    }
    stream->id = g_next_stream++;
    stream->flags = flags;
    stream->priority = priority;
    stream->device = &device;
    device.streams.push_back(stream);
  }
  if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
    observer->on_resource(ResourceEvent::kStreamCreated, t_thread.current, stream);
  }
  if (s.truth.enabled()) {
    s.truth.write(truth::Stream{truth::Kind::kStream, device.index, stream->id, flags, priority, 0,
                                reinterpret_cast<std::uintptr_t>(stream), now_ns()});
  }
  return stream;
}

void delete_stream(Stream* stream) {
  if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
    observer->on_resource(ResourceEvent::kStreamDestroyed, t_thread.current, stream);
  }
  Simulation& s = simulation();
  std::lock_guard lock(s.scheduler.mutex);
  // The legacy stream must still come after this one's work.
  Stream& legacy = *stream->device->legacy;
  if (stream->is_blocking()) legacy.tail.add(stream->tail);
  std::erase(stream->device->streams, stream);
  stream->magic = 0;
  free_streams().push_back(stream);
}

Event* new_event(unsigned flags, int device) {
  std::lock_guard lock(simulation().scheduler.mutex);
  Event* event;
  if (free_events().empty()) {
    event = new Event;
  } else {
    event = free_events().back();
    free_events().pop_back();
    *event = Event{};
  }
  event->flags = flags;
  event->device = device;
  return event;
}

void delete_event(Event* event) {
  std::lock_guard lock(simulation().scheduler.mutex);
  event->magic = 0;
  free_events().push_back(event);
}

Fence stream_fence(const Stream& stream) {
  Fence fence = stream.tail;
  fence.settle();
  if (stream.is_legacy) {
    for (const Stream* other : stream.device->streams) {
      if (other->is_blocking()) fence.add(other->tail);
    }
  } else if (stream.is_blocking()) {
    fence.add(stream.device->legacy->tail);
  }
  return fence;
}

void wait_for_queue(Stream& stream, std::unique_lock<std::mutex>& lock) {
  Simulation& s = simulation();
  const std::uint64_t now = now_ns();
  while (!stream.in_flight.empty() && stream.in_flight.front().settle() &&
         stream.in_flight.front().time_ns <= now) {
    stream.in_flight.pop_front();
  }
  if (stream.in_flight.size() < s.queue_depth) [[likely]]
    return;
  static LoggedName logged;
  while (stream.in_flight.size() >= s.queue_depth) {
    s.scheduler.wait(stream.in_flight.front(), lock);
    // Another thread may have taken it out meanwhile.
    if (stream.in_flight.size() >= s.queue_depth && stream.in_flight.front().settle() &&
        stream.in_flight.front().time_ns <= now_ns()) {
      stream.in_flight.pop_front();
    }
  }
  log_stall(now, now_ns(), logged, "queue full");
}

}  // namespace gpubusy::sim
