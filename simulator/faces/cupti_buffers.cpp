// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_buffers.hpp"

#include <pthread.h>

#include <cstring>

#include "simulator/core/clock.hpp"
#include "simulator/faces/cupti_client.hpp"

namespace gpubusy::sim::cupti {

void Buffers::set_callbacks(CUpti_BuffersCallbackRequestFunc request,
                            CUpti_BuffersCallbackCompleteFunc complete) noexcept {
  request_.store(request);
  complete_.store(complete);
}

void Buffers::set_callbacks(v2::BufferRequest request, v2::BufferComplete complete) noexcept {
  request_v2_.store(request);
  complete_v2_.store(complete);
}

void Buffers::put(const Record& record) {
  std::lock_guard lock(lock_);
  waiting_.push_back(record);
}

Buffers::Step Buffers::fill(Buffer& full) {
  std::lock_guard lock(lock_);
  while (!waiting_.empty()) {
    if (current_.data == nullptr) {
      if (spare_.empty()) return Step::kNeedsBuffer;
      current_ = spare_.back();
      spare_.pop_back();
    }
    const Record& record = waiting_.front();
    const bool is_full = current_.used + record.size > current_.size ||
                         (current_.max_records != 0 && current_.records == current_.max_records);
    if (!is_full) {
      std::memcpy(current_.data + current_.used, record.bytes, record.size);
      current_.used += record.size;
      ++current_.records;
      waiting_.pop_front();
    } else if (current_.used == 0) {
      // Smaller than a single record: it will never fit.
      dropped_.fetch_add(1);
      waiting_.pop_front();
    } else {
      full = current_;
      current_ = {};
      return Step::kFull;
    }
  }
  return Step::kDone;
}

bool Buffers::request(OnRequest on_request) {
  const auto ask = request_.load();
  const auto ask_v2 = request_v2_.load();
  Buffer buffer;
  if (ask != nullptr || ask_v2 != nullptr) {
    const InClient in_client;
    const std::uint64_t start = now_ns();
    if (ask_v2 != nullptr) {
      v2::BufferRequestInfo info{sizeof info};
      ask_v2(&buffer.data, &buffer.size, &buffer.max_records, &info);
    } else {
      ask(&buffer.data, &buffer.size, &buffer.max_records);
    }
    on_request(start, now_ns());
  }
  std::lock_guard lock(lock_);
  if (buffer.data != nullptr && buffer.size != 0) {
    spare_.push_back(buffer);
    return true;
  }
  dropped_.fetch_add(waiting_.size());
  waiting_.clear();
  return false;
}

void Buffers::complete(const Buffer& buffer) {
  const InClient in_client;
  if (const auto give = complete_v2_.load()) {
    v2::BufferCompleteInfo info{sizeof info, pthread_self(), nullptr, 0};
    give(buffer.data, buffer.size, buffer.used, &info);
  } else if (const auto give_v1 = complete_.load()) {
    give_v1(nullptr, 0, buffer.data, buffer.size, buffer.used);
  }
}

void Buffers::write(OnRequest on_request) {
  for (;;) {
    Buffer full;
    switch (fill(full)) {
      case Step::kDone: return;
      case Step::kFull: complete(full); break;
      case Step::kNeedsBuffer:
        if (!request(on_request)) return;
    }
  }
}

void Buffers::flush() {
  Buffer buffer;
  {
    std::lock_guard lock(lock_);
    if (current_.data == nullptr || current_.used == 0) return;
    buffer = current_;
    current_ = {};
  }
  complete(buffer);
}

void Buffers::reset() {
  std::lock_guard lock(lock_);
  waiting_.clear();
  current_ = {};
  spare_.clear();
  dropped_.store(0);
  request_.store(nullptr);
  complete_.store(nullptr);
  request_v2_.store(nullptr);
  complete_v2_.store(nullptr);
}

}  // namespace gpubusy::sim::cupti
