// SPDX-License-Identifier: Apache-2.0
//
// Which thread holds the GIL while a launching thread waits for it, and the Python line it is at.
// For the hidden thread (hidden_thread.hpp), but for check_gil_of_caller(). errno may change.
#pragma once

#include <cstdint>

#include "runtime/gaps/evidence.hpp"
#include "runtime/gaps/workers.hpp"
#include "runtime/python/layout.hpp"

namespace gpubusy::runtime::gaps {

class GilHolder {
 public:
  struct Seen {
    std::uint32_t thread_id = 0;  // 0: not known
    std::uint32_t python_stack = 0;
    bool torn = false;
    char name[16] = {};  // the kernel's, ends with '\0'
  };

  // A window begins.
  void begin() noexcept;
  // While that thread waits for the GIL at `lock`; `ident` is what pthread_self() gives there.
  Seen look(const Tools& tools, const python::Interpreter& python, std::uint32_t thread_id,
            std::uint64_t ident, std::uintptr_t state, std::uint64_t lock) noexcept;

 private:
  // For as long as it is not found: some hundred reads each.
  static constexpr int kMostSearches = 20;

  bool find(const Tools& tools, const python::Interpreter& python, std::uint32_t thread_id,
            std::uint64_t ident, std::uintptr_t state, std::uint64_t lock) noexcept;

  std::uintptr_t gil_ = 0;
  int number_at_ = -1;  // of a thread's number, behind what pthread_self() gives
  int searches_ = 0;    // without success
};

// The calling thread is in a hook: if it holds the GIL, what was found to say so must.
void check_gil_of_caller(const python::Interpreter& python) noexcept;

}  // namespace gpubusy::runtime::gaps
