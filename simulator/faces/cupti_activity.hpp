// SPDX-License-Identifier: Apache-2.0
//
// Which activities are recorded for one client, and the way from an API call or a device operation
// to a record in its buffer. The client is the process's only one, or a subscriber of its own.
//
// Device work is reported by the core when it is submitted, with times that lie ahead. It waits
// here until it is over, and becomes a record at the end of the next API call, at a flush or when
// the flush thread comes round.
#pragma once

#include <array>

#include "simulator/faces/cupti_clock.hpp"
#include "simulator/faces/cupti_common.hpp"
#include "simulator/faces/cupti_names.hpp"
#include "simulator/faces/cupti_records.hpp"

namespace gpubusy::sim::cupti {

class Activity {
 public:
  explicit Activity(Common& common) noexcept : common_(common) {}
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // ---- the client's side
  CUptiResult enable(CUpti_ActivityKind kind);
  CUptiResult disable(CUpti_ActivityKind kind);
  bool is_enabled(CUpti_ActivityKind kind) const noexcept;
  bool any_enabled() const noexcept { return enabled_count_.load() != 0 || any_api_enabled(); }
  // Since something was enabled or callbacks were registered, until reset().
  bool is_in_use() const noexcept { return in_use_.load(); }
  void set_in_use() noexcept { in_use_.store(true); }
  void enable_api(bool runtime, std::uint32_t callback_id, bool enabled);
  void set_client_clock(ClientClock clock);
  std::uint64_t timestamp() const noexcept { return clock_.now(); }
  ClientClock client_clock() const noexcept { return clock_.client_clock(); }
  bool has_client_clock() const noexcept { return client_clock() != nullptr; }
  void flush(bool forced);
  // Turns what is over into records, writes records into buffers, and gives full ones back.
  void collect(bool also_unfinished = false);
  void set_system_thread_ids(bool on) noexcept { system_thread_ids_.store(on); }
  bool has_system_thread_ids() const noexcept { return system_thread_ids_.load(); }
  void set_latency_timestamps(bool on) noexcept { latency_timestamps_.store(on); }
  bool has_latency_timestamps() const noexcept { return latency_timestamps_.load(); }
  // Of the calling thread, by kind.
  CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id);
  CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id);
  void reset();

  Buffers buffers;

  // ---- the core's side
  // `start_timestamp`: of the client's clock, 0 if it was not read.
  void on_call_end(const CallEvent& call, std::uint32_t callback_id, std::uint64_t start_timestamp);
  void on_operation(const Operation& operation, const Common::WorkNotes& notes);
  // `ids`: of the event that was waited for, if any.
  void on_synchronised(const SyncEvent& sync, const Common::EventIds& ids);
  void on_event_recorded(const Event& event, const Stream& stream, std::uint32_t correlation,
                         const Common::EventIds& ids);
  void on_stall(const char* reason, std::uint64_t start_ns, std::uint64_t end_ns);
  void add_overhead(CUpti_ActivityOverheadKind kind, std::uint64_t start_ns, std::uint64_t end_ns);

 private:
  static constexpr int kKinds = 64;
  // Correlation ids for which a kind was enabled. Ids only grow, so this tells whether work was
  // launched while the kind was enabled, whenever its times become known.
  struct Enabled {
    std::uint32_t from, to;
  };
  struct RecordTimes;

  bool any_api_enabled() const noexcept;

  bool was_enabled(CUpti_ActivityKind kind, std::uint32_t correlation) const noexcept;
  bool was_enabled(const Operation& operation) const noexcept;
  bool records_call(const CallEvent& call, std::uint32_t callback_id) const noexcept;
  void put_external_correlations(std::uint32_t correlation);
  void add(const Unfinished& item);
  bool has_finished(bool also_unfinished, std::uint64_t& earliest_ns) const;
  void finish(bool also_unfinished, const RecordClock::Moment& moment);
  std::uint32_t thread_number() const noexcept;

  Common& common_;
  std::atomic<bool> in_use_{false};
  std::atomic<int> enabled_count_{0};
  std::array<std::atomic<bool>, kKinds> enabled_{};
  std::atomic<bool> api_enabled_[2][kMaxCallbackId + 1] = {};
  std::atomic<bool> system_thread_ids_{false}, latency_timestamps_{false};

  mutable std::mutex lock_;  // under it, only those of the buffers and of what is common are taken
  RecordClock clock_;
  std::vector<Enabled> intervals_[kKinds];
  std::vector<Unfinished> unfinished_;  // a heap, what ends first on top
};

}  // namespace gpubusy::sim::cupti
