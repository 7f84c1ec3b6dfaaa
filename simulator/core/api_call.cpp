// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/api_call.hpp"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "simulator/core/clock.hpp"

namespace gpubusy::sim {
namespace {

constexpr int kNotInitialised = 3;  // in both CUresult and cudaError_t

struct ActiveFault {
  Fault fault;
  bool stalls;
  std::atomic<unsigned long long> calls{0};
};

// Made once, never changed.
const std::vector<ActiveFault*>& active_faults() {
  static const auto* faults = [] {
    auto* list = new std::vector<ActiveFault*>;
    for (const bool stalls : {false, true}) {
      const Parameters& p = simulation().parameters;
      std::vector<Fault> parsed;
      parse_faults(stalls ? p.stall : p.fail, parsed);
      for (Fault& fault : parsed) {
        auto* active = new ActiveFault;
        active->fault = std::move(fault);
        active->stalls = stalls;
        list->push_back(active);
      }
    }
    return list;
  }();
  return *faults;
}

}  // namespace

int meet_faults(ApiSite& site) noexcept {
  if (site.has_faults.load(std::memory_order_relaxed) == 0) return 0;
  int code = 0;
  bool any = false;
  for (ActiveFault* active : active_faults()) {
    if (active->fault.name != site.name) continue;
    any = true;
    const unsigned long long call = active->calls.fetch_add(1) + 1;
    if (active->stalls) {
      static LoggedName logged;
      if (call % active->fault.count == 0) {
        spend(static_cast<std::uint64_t>(active->fault.value * 1000), logged, "injected");
      }
    } else if (active->fault.once ? call == active->fault.count : call >= active->fault.count) {
      code = static_cast<int>(active->fault.value);
    }
  }
  site.has_faults.store(any ? 1 : 0, std::memory_order_relaxed);
  return code;
}

CallEvent ApiScope::event(bool nested, std::uint64_t end_ns) const noexcept {
  return {t_thread.library_depth > 0 ? Layer::kLibrary : site_.layer,
          &site_,
          nested,
          thread_id(),
          t_thread.correlation,
          start_ns_,
          end_ns,
          result_};
}

void ApiScope::begin(bool outermost) noexcept {
  Simulation& s = simulation();
  const std::uint32_t flags = g_flags.load(std::memory_order_relaxed);
  if ((flags & kTracing) != 0) {
    Observer* const observer = g_observer.load(std::memory_order_acquire);
    if (outermost) {
      t_thread.correlation = s.next_correlation.fetch_add(1, std::memory_order_relaxed);
    }
    if (outermost || observer != nullptr) start_ns_ = now_ns();
    if (observer != nullptr) observer->on_call_start(event(!outermost, 0));
  }
  if ((flags & kPoisoned) != 0 && !site_.survives_fork) {
    refused_ = true;
    result_ = kNotInitialised;
  } else if ((flags & kFaults) != 0) {
    result_ = meet_faults(site_);
    refused_ = result_ != 0;
  }
}

void ApiScope::log() noexcept {
  const std::uint64_t end = now_ns();
  const bool outermost = t_thread.depth == 0;
  if (outermost) log_outermost(end);
  if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
    observer->on_call_end(event(!outermost, end));
  }
  if (outermost) t_thread.correlation = 0;
}

void ApiScope::log_outermost(std::uint64_t end_ns) noexcept {
  Simulation& s = simulation();
  if (!s.truth.enabled()) return;
  const Layer layer = t_thread.library_depth > 0 ? Layer::kLibrary : site_.layer;
  s.truth.write(truth::Call{truth::Kind::kCall, static_cast<std::uint32_t>(layer),
                            s.truth.name_id(site_.logged, site_.name), thread_id(), start_ns_,
                            end_ns, result_, t_thread.correlation});
}

void log_unimplemented(const char* library, const char* name) noexcept {
  const int saved_errno = errno;
  Simulation& s = simulation();
  if (s.logs) {
    dprintf(STDERR_FILENO, "gpubusy-sim: %s (%s) is not simulated\n", name, library);
  }
  if (s.truth.enabled()) {
    LoggedName library_name, function_name;
    s.truth.write(
        truth::Unimplemented{truth::Kind::kUnimplemented, s.truth.name_id(library_name, library),
                             s.truth.name_id(function_name, name), thread_id(), now_ns()});
  }
  errno = saved_errno;
}

}  // namespace gpubusy::sim

extern "C" int gpubusy_sim_unimplemented(const char* library, const char* name, int status,
                                         char* seen) {
  if (__atomic_exchange_n(seen, 1, __ATOMIC_RELAXED) == 0) {
    gpubusy::sim::log_unimplemented(library, name);
  }
  return status;
}
