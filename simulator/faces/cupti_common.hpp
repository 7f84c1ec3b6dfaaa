// SPDX-License-Identifier: Apache-2.0
//
// What records say alike to every client of CUPTI: ids of events, numbers of launches, names, and
// how wrong the device's clock is. Thread-safe.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "simulator/core/observer.hpp"
#include "simulator/faces/cupti_clock.hpp"

namespace gpubusy::sim::cupti {

class Common {
 public:
  struct Launch {
    std::uint32_t correlation;  // 0: unknown
    bool is_async;
    std::uint64_t start_ns;
  };
  struct WorkNotes {
    std::uint64_t number;
    const char* name;  // valid for ever; nullptr: no kernel
    Launch launch;
  };
  struct EventIds {
    std::uint32_t id;
    std::uint64_t sync_id;
  };

  void note_call(const CallEvent& call);
  WorkNotes note_work(const Operation& operation);
  EventIds note_recorded(const Event& event);
  EventIds ids_of(const Event& event);

  DeviceClockError clock_error;

 private:
  EventIds& find(const Event& event);

  std::mutex lock_;  // nothing is taken under it
  std::array<Launch, 4096> launches_{};
  std::unordered_map<const Kernel*, const char*> names_;
  std::unordered_set<std::string> lasting_names_;
  std::unordered_map<const Event*, EventIds> events_;
  std::uint64_t next_sync_id_ = 1, next_number_ = 1;
};

}  // namespace gpubusy::sim::cupti
