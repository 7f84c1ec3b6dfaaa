// SPDX-License-Identifier: Apache-2.0
//
// The names of what a host may be busy with while its device idles; causes.hpp finds them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::analysis {

enum class Cause : std::uint8_t {
  kNone,         // nothing but the idle class is known
  kCheckpoint,   // the program saves its state
  kLogging,      // it logs, prints or formats tensors
  kEvaluation,   // it evaluates the model
  kCollective,   // it waits for other ranks in a collective
  kWorkerStart,  // it starts processes
  kLoading,      // it loads samples itself
  kLoaderQueue,  // it waits for what loader workers prepare
  kInterpreter,  // it waits for the interpreter's lock (the GIL)
  kLock,         // it waits for a lock that another thread holds
  kNoProcessor,  // it was ready to run and had no processor
  kCollection,   // it collects garbage
  kSeries,       // between two of many launches from one line
  kSmallCopies,  // between two small copies to the device
  kCpuPart,      // results were copied down, and what follows is copied up again
  kQuota,        // the quota of processor time was used up
  kPageFault,    // it waited for memory to be brought in from a disk
};
inline constexpr std::size_t kCauses = 17;
const char* cause_id(Cause cause);

}  // namespace gpubusy::analysis
