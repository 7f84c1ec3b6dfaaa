// SPDX-License-Identifier: Apache-2.0
//
// From CUPTI's records to those of the recording.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/cupti/buffers.hpp"
#include "runtime/cupti/clock.hpp"
#include "runtime/cupti/library.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime::cupti {

// The reader shall leave CUPTI as soon as it can.
extern constinit std::atomic<bool> g_reader_gives_way;

// CUPTI writes a call's external id just before the call. One user at a time.
class Translator {
 public:
  // The highest of CUPTI's correlation ids of calls that have returned.
  std::uint32_t newest_call() const noexcept { return newest_call_; }
  // Writes the buffer's records through the thread's writer. Gives the number of calls, of those
  // that were pushed, whose device work came in for the first time.
  std::uint64_t translate(const Library& library, const Activities& cupti, const Clock& clock,
                          const FullBuffer& buffer, ThreadState& writer) noexcept;

 private:
  void record(const Record& record) noexcept;
  void kernel(const KernelRecord& r) noexcept;
  void copy(const MemcpyRecord& r) noexcept;
  void peer_copy(const MemcpyPeerRecord& r) noexcept;
  void memset(const MemsetRecord& r) noexcept;
  void api(const ApiRecord& r) noexcept;
  void overhead(const OverheadRecord& r) noexcept;
  void external(const ExternalCorrelationRecord& r) noexcept;
  void write_correlation(std::uint64_t start_ns, std::uint64_t end_ns) noexcept;
  template <class Header, class Payload>
  void write(const Header& header, const Payload& payload) noexcept;
  template <class Source>
  bool fill(void* activity, const Source& r, std::uint8_t kind) noexcept;

  const Library* library_ = nullptr;
  const Clock* clock_ = nullptr;
  ThreadState* writer_ = nullptr;
  std::uint64_t now_ns_ = 0;
  std::uint64_t came_in_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint32_t newest_call_ = 0;
  void saw(std::uint32_t correlation, std::uint8_t what) noexcept;

  // What was seen of CUPTI's latest correlation ids, by their low bits.
  static constexpr std::uint32_t kSeenSlots = 1u << 16;
  static constexpr std::uint8_t kCall = 1, kWork = 2;
  struct Seen {
    std::uint32_t correlation;
    std::uint8_t what;
  };
  Seen* seen_ = nullptr;
  // The last external id of ours, until its call's record comes.
  std::uint32_t external_call_ = 0, external_activity_ = 0;
};

}  // namespace gpubusy::runtime::cupti
