// SPDX-License-Identifier: Apache-2.0
//
// Activity records from what the core reports: the layouts of CUPTI's API version 130001.
#pragma once

#include <optional>
#include <variant>

#include "simulator/core/observer.hpp"
#include "simulator/faces/cupti_buffers.hpp"

namespace gpubusy::sim::cupti {

// Whatever has a start and an end in simulated time, which are converted when it is over.
struct DeviceWork {
  Operation operation;
  const char* name = nullptr;                     // valid for ever
  std::uint64_t queued_ns = 0, submitted_ns = 0;  // 0: unknown
  bool is_async = true;
  std::uint64_t number = 0;
};
struct Synchronisation {
  SyncEvent::Kind kind;
  std::uint32_t correlation, context, stream, event, result;
  std::uint64_t event_sync;
  std::uint64_t start_ns, end_ns;
};
struct Overhead {
  CUpti_ActivityOverheadKind kind;
  std::uint32_t thread, correlation;
  std::uint64_t start_ns, end_ns;
};
struct EventRecord {
  std::uint32_t correlation, context, stream, device, event;
  std::uint64_t event_sync;
  std::uint64_t end_ns;
};
using Unfinished = std::variant<DeviceWork, Synchronisation, Overhead, EventRecord>;

std::uint64_t end_of(const Unfinished& item);

// The kind that must be enabled for it.
CUpti_ActivityKind kind_of(const Operation& operation) noexcept;
bool is_peer_copy(const Operation& operation) noexcept;
std::uint32_t context_id(int device) noexcept;

// `to_record`: converts host times; `to_device_record`: the device's, which may be wrong.
struct Times {
  virtual std::uint64_t host(std::uint64_t ns) const = 0;
  virtual std::uint64_t device(std::uint64_t ns) const = 0;

 protected:
  ~Times() = default;
};
Record make_record(const Unfinished& item, const Times& times, bool concurrent_kernels);

// Of a record of that kind; 0: there are no such records.
std::size_t record_size(std::uint32_t kind) noexcept;

// As cuptiActivityGetNextRecord.
CUptiResult next_record(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) noexcept;

}  // namespace gpubusy::sim::cupti
