// SPDX-License-Identifier: Apache-2.0
//
// The functions of libcupti: of the one that the process has, else of the one beside its libcudart
// (the wheel, the toolkit), else of the installed one.
#pragma once

#include "runtime/cupti/abi.hpp"

namespace gpubusy::runtime::cupti {

// FUNCTION(member, "exported symbol", signature); the last two are missing in old versions.
#define GPUBUSY_CUPTI_FUNCTIONS(F)                                                              \
  F(enable, "cuptiActivityEnable", Result(std::uint32_t))                                       \
  F(disable, "cuptiActivityDisable", Result(std::uint32_t))                                     \
  F(register_callbacks, "cuptiActivityRegisterCallbacks", Result(BufferRequest, BufferComplete)) \
  F(flush_all, "cuptiActivityFlushAll", Result(std::uint32_t))                                  \
  F(next_record, "cuptiActivityGetNextRecord", Result(std::uint8_t*, std::size_t, Record**))    \
  F(take_dropped, "cuptiActivityGetNumDroppedRecords",                                          \
    Result(CUcontext, std::uint32_t, std::size_t*))                                             \
  F(push_external, "cuptiActivityPushExternalCorrelationId",                                    \
    Result(std::uint32_t, std::uint64_t))                                                       \
  F(pop_external, "cuptiActivityPopExternalCorrelationId",                                      \
    Result(std::uint32_t, std::uint64_t*))                                                      \
  F(timestamp, "cuptiGetTimestamp", Result(std::uint64_t*))                                     \
  F(callback_name, "cuptiGetCallbackName", Result(std::uint32_t, std::uint32_t, const char**))  \
  F(subscribe, "cuptiSubscribe", Result(Subscriber*, Callback, void*))                          \
  F(unsubscribe, "cuptiUnsubscribe", Result(Subscriber))                                        \
  F(result_string, "cuptiGetResultString", Result(Result, const char**))                        \
  F(get_version, "cuptiGetVersion", Result(std::uint32_t*))                                     \
  F(subscribe_named, "cuptiSubscribe_v2",                                                       \
    Result(Subscriber*, Callback, void*, SubscriberParams*))

struct Library {
  template <class T>
  using Pointer = T*;
#define GPUBUSY_DECLARE(member, symbol, ...) Pointer<__VA_ARGS__> member;
  GPUBUSY_CUPTI_FUNCTIONS(GPUBUSY_DECLARE)
#undef GPUBUSY_DECLARE
  char path[4096];  // of the library, cut at the end
};

// nullptr: the process has none. Never loads one; waits for nothing. Safe from any thread.
const Library* library() noexcept;

// Where the process has none, loads one, by `path` if that is not empty. Takes the loader's lock: only
// to be called where the program's own call has just done so (the first CUDA call of a process, in
// which cudart loads libcuda). False: there is none that can be loaded.
bool load_library(const char* path) noexcept;

// The path of the library that functions were taken of; nullptr: none so far.
const char* path_in_use() noexcept;

// The text of a result code; never nullptr.
const char* result_text(Result result) noexcept;

void forget_library_search_after_fork() noexcept;

}  // namespace gpubusy::runtime::cupti
