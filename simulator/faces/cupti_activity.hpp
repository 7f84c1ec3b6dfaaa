// SPDX-License-Identifier: Apache-2.0
//
// Which activities are recorded, and the way from an API call or a device operation to a record in
// the client's buffer.
//
// Device work is reported by the core when it is submitted, with times that lie ahead. It waits
// here until it is over, and becomes a record at the end of the next API call, at a flush or when
// the flush thread comes round.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "simulator/faces/cupti_clock.hpp"
#include "simulator/faces/cupti_names.hpp"
#include "simulator/faces/cupti_records.hpp"

namespace gpubusy::sim::cupti {

class Activity {
 public:
  // ---- the client's side
  CUptiResult enable(CUpti_ActivityKind kind);
  CUptiResult disable(CUpti_ActivityKind kind);
  bool any_enabled() const noexcept { return enabled_count_.load() != 0 || any_api_enabled(); }
  void enable_api(bool runtime, std::uint32_t callback_id, bool enabled);
  void set_client_clock(ClientClock clock);
  std::uint64_t timestamp() const noexcept { return clock_.now(); }
  bool has_client_clock() const noexcept { return clock_.client_clock() != nullptr; }
  void flush(bool forced);
  void set_flush_period(std::uint32_t ms);
  void set_system_thread_ids(bool on) noexcept { system_thread_ids_.store(on); }
  bool has_system_thread_ids() const noexcept { return system_thread_ids_.load(); }
  void set_latency_timestamps(bool on) noexcept { latency_timestamps_.store(on); }
  void reset();

  Buffers buffers;

  // ---- the core's side
  void on_call_start(const CallEvent& call);
  void on_call_end(const CallEvent& call, std::uint32_t callback_id, std::uint64_t start_timestamp);
  void on_operation(const Operation& operation);
  void on_synchronised(const SyncEvent& sync);
  void on_event_recorded(const Event& event, const Stream& stream, std::uint32_t correlation);
  void on_stall(const char* reason, std::uint64_t start_ns, std::uint64_t end_ns);
  void add_overhead(CUpti_ActivityOverheadKind kind, std::uint64_t start_ns, std::uint64_t end_ns);

 private:
  static constexpr int kKinds = 64;
  // Correlation ids for which a kind was enabled. Ids only grow, so this tells whether work was
  // launched while the kind was enabled, whenever its times become known.
  struct Enabled {
    std::uint32_t from, to;
  };
  struct Launch {
    std::uint32_t correlation;
    bool is_async;
    std::uint64_t start_ns;
  };
  struct EventIds {
    std::uint32_t id;
    std::uint64_t sync_id;
  };
  struct RecordTimes;

  bool any_api_enabled() const noexcept;

  bool is_enabled(CUpti_ActivityKind kind) const noexcept;
  bool was_enabled(CUpti_ActivityKind kind, std::uint32_t correlation) const noexcept;
  bool was_enabled(const Operation& operation) const noexcept;
  bool records_call(const CallEvent& call, std::uint32_t callback_id) const noexcept;
  void put_external_correlations(std::uint32_t correlation);
  void add(const Unfinished& item);
  const char* lasting_name(const Kernel& kernel);
  EventIds& ids_of(const Event& event);
  // Turns what is over into records, and writes records into buffers.
  void collect(bool also_unfinished = false);
  bool has_finished(bool also_unfinished, std::uint64_t& earliest_ns) const;
  void finish(bool also_unfinished, const RecordClock::Moment& moment);
  std::uint32_t thread_number() const noexcept;

  std::atomic<int> enabled_count_{0};
  std::array<std::atomic<bool>, kKinds> enabled_{};
  std::atomic<bool> api_enabled_[2][kMaxCallbackId + 1] = {};
  std::atomic<bool> system_thread_ids_{false}, latency_timestamps_{false};
  std::atomic<std::uint32_t> flush_period_ms_{0};
  std::atomic<bool> flush_thread_started_{false};

  mutable std::mutex lock_;  // under it, only that of the buffers is taken
  RecordClock clock_;
  DeviceClockError clock_error_;
  std::vector<Enabled> intervals_[kKinds];
  std::vector<Unfinished> unfinished_;  // a heap, what ends first on top
  std::array<Launch, 4096> launches_{};
  std::unordered_map<const Kernel*, const char*> names_;
  std::unordered_set<std::string> lasting_names_;
  std::unordered_map<const Event*, EventIds> events_;
  std::uint64_t next_sync_id_ = 1, next_number_ = 1;
};

// Of the calling thread, by kind.
CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id);
CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id);

}  // namespace gpubusy::sim::cupti
