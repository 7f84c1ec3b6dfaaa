// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and what orders their work. Handles are pointers to these; they are reused, never
// freed, so that a handle that the program has destroyed is known as such.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "simulator/core/scheduler.hpp"

namespace gpubusy::sim {

struct Capture;
struct GraphNode;
struct Device;

struct Stream {
  static constexpr std::uint32_t kMagic = 0x73747265u;
  std::uint32_t magic = kMagic;
  std::uint32_t id = 0;
  unsigned flags = 0;
  int priority = 0;
  Device* device = nullptr;
  bool is_legacy = false;

  // Guarded by the scheduler's mutex.
  Fence tail;                   // after which the next operation may start
  std::deque<Fence> in_flight;  // for the bounded queue
  Capture* capture = nullptr;
  std::vector<GraphNode*> capture_tail;

  bool is_blocking() const noexcept;  // takes part in the legacy stream's synchronisation
};

struct Event {
  static constexpr std::uint32_t kMagic = 0x6576656eu;
  std::uint32_t magic = kMagic;
  unsigned flags = 0;
  int device = 0;
  bool recorded = false;
  Fence when;
  std::uint64_t capture_id = 0;  // recorded while capturing: not a moment but graph nodes
  std::vector<GraphNode*> capture_nodes;
};

Stream* new_stream(Device& device, unsigned flags, int priority);
void delete_stream(Stream* stream);
Event* new_event(unsigned flags, int device);
void delete_event(Event* event);

// With the scheduler's mutex held: what an operation submitted now to `stream` comes after.
Fence stream_fence(const Stream& stream);
// Waits while the stream's queue is full.
void wait_for_queue(Stream& stream, std::unique_lock<std::mutex>& lock);

}  // namespace gpubusy::sim
