// SPDX-License-Identifier: Apache-2.0
//
// How CUPTI's exported functions are defined: with what the parameters `fail` and `stall` say about
// them, and the thread's last error.
//
//   SIM_CUPTI(cuptiFinalize, (), ()) { ... return CUPTI_SUCCESS; }
#pragma once

#include <cupti.h>

#include "simulator/faces/cupti_observer.hpp"
#include "simulator/faces/export.hpp"

namespace gpubusy::sim::cupti {

inline constinit thread_local CUptiResult t_last_error = CUPTI_SUCCESS;

inline CUptiResult ended(CUptiResult result) noexcept {
  if (result != CUPTI_SUCCESS) t_last_error = result;
  return result;
}

// The result that a call is made to have, CUPTI_SUCCESS: none.
inline CUptiResult refusal(ApiSite& site) noexcept {
  simulation();
  if ((g_flags.load(std::memory_order_relaxed) & kFaults) == 0) return CUPTI_SUCCESS;
  return static_cast<CUptiResult>(meet_faults(site));
}

}  // namespace gpubusy::sim::cupti

#define SIM_CUPTI(symbol, params, args)                                                      \
  static CUptiResult symbol##_body params;                                                   \
  SIM_EXPORT CUptiResult symbol params {                                                     \
    static constinit ::gpubusy::sim::ApiSite site{::gpubusy::sim::Layer::kLibrary, #symbol}; \
    if (const CUptiResult refused = ::gpubusy::sim::cupti::refusal(site)) [[unlikely]]       \
      return ::gpubusy::sim::cupti::ended(refused);                                          \
    return ::gpubusy::sim::cupti::ended(symbol##_body args);                                 \
  }                                                                                          \
  static CUptiResult symbol##_body params
