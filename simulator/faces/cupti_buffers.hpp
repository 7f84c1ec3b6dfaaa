// SPDX-License-Identifier: Apache-2.0
//
// The client's buffers: asked for when there is a record to write, given back when full or flushed.
// The client is called with no lock held, in the thread whose record needs a buffer or fills it.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "simulator/faces/cupti_v2.hpp"

namespace gpubusy::sim::cupti {

// A record as the client gets it.
struct Record {
  static constexpr std::size_t kMaxSize = 256;
  alignas(8) unsigned char bytes[kMaxSize];
  std::size_t size = 0;

  template <class T>
  static Record of(const T& value) noexcept {
    static_assert(sizeof(T) <= kMaxSize);
    Record record;
    __builtin_memcpy(record.bytes, &value, sizeof value);
    record.size = sizeof value;
    return record;
  }
};

class Buffers {
 public:
  void set_callbacks(CUpti_BuffersCallbackRequestFunc request,
                     CUpti_BuffersCallbackCompleteFunc complete) noexcept;
  void set_callbacks(v2::BufferRequest request, v2::BufferComplete complete) noexcept;
  bool has_callbacks() const noexcept {
    return request_.load() != nullptr || request_v2_.load() != nullptr;
  }

  void put(const Record& record);
  // Moves what was put into buffers. Times at which the client was asked for one are given to
  // `on_request`.
  using OnRequest = const std::function<void(std::uint64_t start_ns, std::uint64_t end_ns)>&;
  void write(OnRequest on_request);
  // Gives the buffer back that is not full.
  void flush();
  std::size_t take_dropped() noexcept { return dropped_.exchange(0); }
  // Buffers and records are forgotten; the callbacks as well.
  void reset();

 private:
  struct Buffer {
    std::uint8_t* data = nullptr;
    std::size_t size = 0, used = 0;
    std::size_t max_records = 0, records = 0;  // max 0: no limit
  };
  enum class Step { kDone, kNeedsBuffer, kFull };
  Step fill(Buffer& full);
  bool request(OnRequest on_request);
  void complete(const Buffer& buffer);

  std::mutex lock_;
  std::deque<Record> waiting_;
  Buffer current_;
  std::vector<Buffer> spare_;
  std::atomic<std::size_t> dropped_{0};
  std::atomic<CUpti_BuffersCallbackRequestFunc> request_{nullptr};
  std::atomic<CUpti_BuffersCallbackCompleteFunc> complete_{nullptr};
  std::atomic<v2::BufferRequest> request_v2_{nullptr};
  std::atomic<v2::BufferComplete> complete_v2_{nullptr};
};

}  // namespace gpubusy::sim::cupti
