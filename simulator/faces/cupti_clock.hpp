// SPDX-License-Identifier: Apache-2.0
//
// From simulated time to the times in activity records. By default these are CLOCK_REALTIME, as
// CUPTI's are. A client may have registered a clock of its own, whose unit may be anything
// (PyTorch's is the processor's time stamp counter): then times are interpolated between moments at
// which both clocks were read.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace gpubusy::sim::cupti {

using ClientClock = std::uint64_t (*)();

class RecordClock {
 public:
  struct Moment {
    std::uint64_t simulated_ns = 0;
    std::uint64_t recorded = 0;
  };

  // Thread-safe.
  void set_client_clock(ClientClock clock) noexcept { client_clock_.store(clock); }
  ClientClock client_clock() const noexcept { return client_clock_.load(); }
  std::uint64_t now() const noexcept;
  // Reads both clocks. Calls the client, so no lock may be held.
  Moment read() const noexcept;

  // The rest: with a lock held.
  // To be called with a moment at or after every time that convert() gets.
  void add(Moment moment);
  void forget() noexcept;
  // One moment tells nothing of the clock's rate: another one is needed, this long after.
  std::uint64_t earliest_next_ns() const noexcept;
  std::uint64_t convert(std::uint64_t simulated_ns) const noexcept;

 private:
  std::atomic<ClientClock> client_clock_{nullptr};
  ClientClock of_moments_ = nullptr;
  std::vector<Moment> moments_;  // of a client's clock; of CLOCK_REALTIME only one
};

// How wrong the device's clock is, by the parameters cupti_clock_*.
// Thread-safe.
class DeviceClockError {
 public:
  void start(std::uint64_t now_ns) noexcept;  // the first call counts
  std::uint64_t apply(std::uint64_t time_ns) const noexcept;

 private:
  std::atomic<std::uint64_t> start_ns_{0};
};

}  // namespace gpubusy::sim::cupti
