// SPDX-License-Identifier: Apache-2.0
//
// What a further face (CUPTI) can learn: every outermost API call and every device operation.
#pragma once

#include <atomic>
#include <cstdint>

#include "simulator/core/operation.hpp"

namespace gpubusy::sim {

enum class Layer : std::uint8_t {
  kRuntime,
  kDriver,
  kLibrary,  // a driver call from inside a simulated cuBLAS or cuDNN
};

struct CallEvent {
  Layer layer;
  const char* name;
  std::uint32_t thread;
  std::uint32_t correlation;
  std::uint64_t start_ns, end_ns;  // end: 0 at the start
  int result;
};

class Observer {
 public:
  virtual void on_call_start(const CallEvent&) = 0;
  virtual void on_call_end(const CallEvent&) = 0;
  // Under the scheduler's lock, when the operation's times are known: mostly before they come.
  virtual void on_operation(const Operation&) = 0;

 protected:
  ~Observer() = default;
};

inline std::atomic<Observer*> g_observer{nullptr};

}  // namespace gpubusy::sim
