// SPDX-License-Identifier: Apache-2.0
//
// What a further face (CUPTI) can learn: API calls, device operations, synchronisation, resources.
#pragma once

#include <atomic>
#include <cstdint>

#include "simulator/core/operation.hpp"

namespace gpubusy::sim {

struct ApiSite;
struct Context;
struct Event;
struct Stream;

enum class Layer : std::uint8_t {
  kRuntime,
  kDriver,
  kLibrary,  // a driver call from inside a simulated cuBLAS or cuDNN
};

struct CallEvent {
  Layer layer;
  ApiSite* site;
  bool nested;  // the driver's part of a runtime call
  std::uint32_t thread;
  std::uint32_t correlation;       // of the outermost call
  std::uint64_t start_ns, end_ns;  // end: 0 at the start
  int result;
};

struct SyncEvent {
  enum class Kind : std::uint8_t { kEvent, kStreamWaitEvent, kStream, kContext };
  Kind kind;
  const Stream* stream;  // nullptr: kEvent, kContext
  const Event* event;    // nullptr: kStream, kContext
  int device;
  std::uint32_t correlation;
  std::uint64_t start_ns, end_ns;
};

enum class ResourceEvent : std::uint8_t { kContextCreated, kStreamCreated, kStreamDestroyed };

class Observer {
 public:
  // In the calling thread, with no lock held.
  virtual void on_call_start(const CallEvent&) = 0;
  virtual void on_call_end(const CallEvent&) = 0;
  virtual void on_synchronised(const SyncEvent&) = 0;
  virtual void on_resource(ResourceEvent, Context*, Stream*) = 0;

  // Maybe under the scheduler's lock. A known part of a call's time, `reason` as in the truth log.
  virtual void on_stall(const char* reason, std::uint64_t start_ns, std::uint64_t end_ns) = 0;
  // The operation's times are known: mostly before they come.
  virtual void on_operation(const Operation&) = 0;
  virtual void on_event_recorded(const Event&, const Stream&, std::uint32_t correlation) = 0;

 protected:
  ~Observer() = default;
};

inline std::atomic<Observer*> g_observer{nullptr};
// Told of operations alone, and stays when the other goes: times of work that was asked for while
// somebody watched may come to be known later (a large copy ends when this host has made it).
inline std::atomic<Observer*> g_work_observer{nullptr};

}  // namespace gpubusy::sim
