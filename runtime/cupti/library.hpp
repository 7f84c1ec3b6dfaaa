// SPDX-License-Identifier: Apache-2.0
//
// The functions of libcupti: of the one that the process has, else of the one beside its libcudart
// (the wheel, the toolkit), else of the installed one.
#pragma once

#include "runtime/cupti/abi.hpp"

namespace gpubusy::runtime::cupti {

// FUNCTION(member, "exported symbol", signature); those with a subscriber are missing in old
// versions.
#define GPUBUSY_CUPTI_FUNCTIONS(F)                                                                 \
  F(enable, "cuptiActivityEnable", Result(std::uint32_t))                                          \
  F(disable, "cuptiActivityDisable", Result(std::uint32_t))                                        \
  F(register_callbacks, "cuptiActivityRegisterCallbacks", Result(BufferRequest, BufferComplete))   \
  F(flush_all, "cuptiActivityFlushAll", Result(std::uint32_t))                                     \
  F(next_record, "cuptiActivityGetNextRecord", Result(std::uint8_t*, std::size_t, Record**))       \
  F(take_dropped, "cuptiActivityGetNumDroppedRecords",                                             \
    Result(CUcontext, std::uint32_t, std::size_t*))                                                \
  F(push_external, "cuptiActivityPushExternalCorrelationId", Result(std::uint32_t, std::uint64_t)) \
  F(pop_external, "cuptiActivityPopExternalCorrelationId", Result(std::uint32_t, std::uint64_t*))  \
  F(timestamp, "cuptiGetTimestamp", Result(std::uint64_t*))                                        \
  F(callback_name, "cuptiGetCallbackName", Result(std::uint32_t, std::uint32_t, const char**))     \
  F(subscribe, "cuptiSubscribe", Result(Subscriber*, Callback, void*))                             \
  F(unsubscribe, "cuptiUnsubscribe", Result(Subscriber))                                           \
  F(result_string, "cuptiGetResultString", Result(Result, const char**))                           \
  F(get_version, "cuptiGetVersion", Result(std::uint32_t*))                                        \
  F(subscribe_named, "cuptiSubscribe_v2", Result(Subscriber*, Callback, void*, SubscriberParams*)) \
  F(enable_own, "cuptiActivityEnable_v2", Result(Subscriber, std::uint32_t, void*))                \
  F(disable_own, "cuptiActivityDisable_v2", Result(Subscriber, std::uint32_t, void*))              \
  F(register_own, "cuptiActivityRegisterCallbacks_v2",                                             \
    Result(Subscriber, SubscriberBufferRequest, SubscriberBufferComplete))                         \
  F(next_own, "cuptiActivityGetNextRecord_v2",                                                     \
    Result(Subscriber, std::uint8_t*, std::size_t, Record**))                                      \
  F(take_own_dropped, "cuptiActivityGetNumDroppedRecords_v2",                                      \
    Result(Subscriber, CUcontext, std::uint32_t, std::size_t*))                                    \
  F(push_own, "cuptiActivityPushExternalCorrelationId_v2",                                         \
    Result(Subscriber, std::uint32_t, std::uint64_t))                                              \
  F(pop_own, "cuptiActivityPopExternalCorrelationId_v2",                                           \
    Result(Subscriber, std::uint32_t, std::uint64_t*))                                             \
  F(own_timestamp, "cuptiGetTimestamp_v2", Result(Subscriber, std::uint64_t*))

struct Library {
  template <class T>
  using Pointer = T*;
#define GPUBUSY_DECLARE(member, symbol, ...) Pointer<__VA_ARGS__> member;
  GPUBUSY_CUPTI_FUNCTIONS(GPUBUSY_DECLARE)
#undef GPUBUSY_DECLARE
  char path[4096];  // of the library, cut at the end

  // Each subscriber may have kinds, buffers and ids of its own.
  bool has_own() const noexcept {
    return enable_own != nullptr && disable_own != nullptr && register_own != nullptr &&
           next_own != nullptr && push_own != nullptr && pop_own != nullptr &&
           own_timestamp != nullptr && subscribe_named != nullptr;
  }
};

// The activity API for the whole process, or where `subscriber` is given for that one alone.
class Activities {
 public:
  Activities(const Library& library, Subscriber subscriber) noexcept
      : l_(library), subscriber_(subscriber) {}
  bool is_own() const noexcept { return subscriber_ != nullptr; }
  Result enable(std::uint32_t kind) const noexcept {
    return is_own() ? l_.enable_own(subscriber_, kind, nullptr) : l_.enable(kind);
  }
  Result disable(std::uint32_t kind) const noexcept {
    return is_own() ? l_.disable_own(subscriber_, kind, nullptr) : l_.disable(kind);
  }
  Result push(std::uint64_t id) const noexcept {
    return is_own() ? l_.push_own(subscriber_, kOurExternalKind, id)
                    : l_.push_external(kOurExternalKind, id);
  }
  Result pop(std::uint64_t* id) const noexcept {
    return is_own() ? l_.pop_own(subscriber_, kOurExternalKind, id)
                    : l_.pop_external(kOurExternalKind, id);
  }
  Result next(std::uint8_t* buffer, std::size_t valid, Record** record) const noexcept {
    return is_own() ? l_.next_own(subscriber_, buffer, valid, record)
                    : l_.next_record(buffer, valid, record);
  }
  Result timestamp(std::uint64_t* time) const noexcept {
    return is_own() ? l_.own_timestamp(subscriber_, time) : l_.timestamp(time);
  }
  std::size_t take_dropped() const noexcept {
    std::size_t n = 0;
    Result result = kNotInitialized;
    if (is_own() && l_.take_own_dropped != nullptr) {
      result = l_.take_own_dropped(subscriber_, nullptr, 0, &n);
    } else if (!is_own() && l_.take_dropped != nullptr) {
      result = l_.take_dropped(nullptr, 0, &n);
    }
    return result == kSuccess ? n : 0;
  }

 private:
  const Library& l_;
  const Subscriber subscriber_;
};

// nullptr: the process has none. Never loads one; waits for nothing. Safe from any thread.
const Library* library() noexcept;

// Where the process has none, loads one, by `path` if that is not empty. Takes the loader's lock:
// only to be called where the program's own call has just done so (the first CUDA call of a
// process, in which cudart loads libcuda). False: there is none that can be loaded.
bool load_library(const char* path) noexcept;

// The path of the library that functions were taken of; nullptr: none so far.
const char* path_in_use() noexcept;

// The text of a result code; never nullptr.
const char* result_text(Result result) noexcept;

void forget_library_search_after_fork() noexcept;

}  // namespace gpubusy::runtime::cupti
