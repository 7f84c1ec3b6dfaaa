// SPDX-License-Identifier: Apache-2.0
//
// What surrounds every API function: the log's record of outermost calls, injected failures and
// stalls, and the answer in a forked child.
#pragma once

#include "simulator/core/observer.hpp"
#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {

// One for each API function, static and constant-initialised.
struct ApiSite {
  constexpr ApiSite(Layer site_layer, const char* site_name, bool works_after_fork = false)
      : layer(site_layer), name(site_name), survives_fork(works_after_fork) {}

  Layer layer;
  const char* name;
  bool survives_fork;
  std::atomic<std::int8_t> has_faults{-1};  // -1: not looked up yet
  LoggedName logged;
  std::atomic<std::int32_t> callback_id{-1};  // CUPTI's number of the function; -1: as above
};

// What the parameters `fail` and `stall` say about this call: spends the time, returns the code to
// fail with, 0: none.
int meet_faults(ApiSite& site) noexcept;

class ApiScope {
 public:
  explicit ApiScope(ApiSite& site) noexcept : site_(site) {
    const std::uint32_t flags = g_flags.load(std::memory_order_relaxed);
    const bool outermost = t_thread.depth++ == 0;
    if (flags != kReady) [[unlikely]]
      begin(outermost);
  }
  ~ApiScope() {
    --t_thread.depth;
    if (start_ns_ != 0) [[unlikely]]
      log();
  }
  ApiScope(const ApiScope&) = delete;
  ApiScope& operator=(const ApiScope&) = delete;

  // The call is not carried out; result() is its answer.
  bool refused() const noexcept { return refused_; }
  int result() const noexcept { return result_; }
  template <class Result>
  Result finish(Result result) noexcept {
    result_ = static_cast<int>(result);
    return result;
  }

 private:
  void begin(bool outermost) noexcept;
  void log() noexcept;
  void log_outermost(std::uint64_t end_ns) noexcept;
  CallEvent event(bool nested, std::uint64_t end_ns) const noexcept;

  ApiSite& site_;
  std::uint64_t start_ns_ = 0;
  int result_ = 0;
  bool refused_ = false;
};

// Inside a simulated library: its driver calls are the library's, not the program's.
class LibraryScope {
 public:
  LibraryScope() noexcept { ++t_thread.library_depth; }
  ~LibraryScope() { --t_thread.library_depth; }
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;
};

void log_unimplemented(const char* library, const char* name) noexcept;

}  // namespace gpubusy::sim
