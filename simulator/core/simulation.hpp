// SPDX-License-Identifier: Apache-2.0
//
// The one simulated machine of this process, made when first used and never destroyed: its threads
// are detached, and programs call CUDA from destructors that run at exit.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "simulator/core/graphs.hpp"
#include "simulator/core/kernels.hpp"
#include "simulator/core/memory.hpp"
#include "simulator/core/parameters.hpp"
#include "simulator/core/scheduler.hpp"
#include "simulator/core/streams.hpp"
#include "simulator/core/truth_log.hpp"

namespace gpubusy::sim {

inline constexpr int kMaxDevices = 16;
inline constexpr double kSharedPerSm = 233472;

struct Context {
  static constexpr std::uint32_t kMagic = 0x63747800u;
  std::uint32_t magic = kMagic;
  Device* device = nullptr;
  std::uint64_t id = 0;
  unsigned flags = 0;
  bool is_primary = false;
};

struct Device {
  int index = 0;     // among those that the program sees
  int physical = 0;  // among all: CUDA_VISIBLE_DEVICES chooses
  Stream* legacy = nullptr;
  std::vector<Stream*> streams;  // without the legacy one; the scheduler's mutex guards it
  Context primary;
  std::atomic<int> primary_references{0};
  std::atomic<bool> has_context{false};  // made once; the time that takes has been spent
  void* default_pool = nullptr;
};

// Of each thread. Trivial, so that it needs no destructor and no guard.
struct ThreadState {
  Context* current = nullptr;
  Context* stack[16] = {};
  int stack_depth = 0;
  int runtime_device = 0;  // chosen by cudaSetDevice
  int last_error = 0;      // of the runtime
  int capture_mode = 0;    // CUstreamCaptureMode
  int depth = 0;           // of nested API calls
  int library_depth = 0;   // inside a simulated cuBLAS or cuDNN
  std::uint32_t correlation = 0;
  std::uint32_t id = 0;  // as gettid() says; 0: not asked yet
  Stream* per_thread_streams[kMaxDevices] = {};
};
// By which a device is known to the system, as NVML writes it.
void physical_uuid(int physical, char* bytes16) noexcept;
std::string physical_uuid_text(int physical);

extern constinit thread_local ThreadState t_thread;
std::uint32_t thread_id() noexcept;

struct Simulation {
  Parameters parameters;
  TruthLog truth;
  Memory memory;
  Scheduler scheduler;
  Captures captures;
  Kernels kernels;
  std::vector<Device*> devices;
  std::atomic<bool> initialised{false};  // cuInit
  std::atomic<std::uint64_t> launches{0};
  std::atomic<std::uint32_t> next_correlation{1};

  std::uint64_t latency_ns = 0, graph_latency_ns = 0, call_ns = 0;
  std::size_t memory_bytes = 0, queue_depth = 0;
  bool logs = false;
};
Simulation& simulation() noexcept;

// Bits of g_flags, looked at once in each API call.
enum : std::uint32_t {
  kReady = 1,     // simulation() exists
  kTracing = 2,   // a truth log or an observer
  kFaults = 4,    // `fail` or `stall` is set
  kPoisoned = 8,  // forked after the parent used a device: CUDA does not work here
};
extern constinit std::atomic<std::uint32_t> g_flags;

// The calling thread loses this time, as it would in the driver. Logged as a stall.
void spend(std::uint64_t duration_ns, LoggedName& logged, const char* reason) noexcept;
void log_stall(std::uint64_t start_ns, std::uint64_t end_ns, LoggedName& logged,
               const char* reason) noexcept;

// The stream that a handle means; nullptr: it is none. nullptr handle: the default stream.
Stream* resolve_stream(void* handle, bool per_thread) noexcept;
Event* resolve_event(void* handle) noexcept;

// Makes the device's primary context exist.
void ensure_primary_context(Device& device) noexcept;

}  // namespace gpubusy::sim
