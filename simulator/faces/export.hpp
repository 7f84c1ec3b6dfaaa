// SPDX-License-Identifier: Apache-2.0
//
// How the faces define their exported functions: the symbol, its variants for the per-thread
// default stream, and round each the log and the injected faults. The body that follows the macro
// is one static function for all variants; it sees `per_thread`.
//
//   SIM_DRIVER(cuMemFree_v2, (CUdeviceptr pointer), (pointer)) { ... return CUDA_SUCCESS; }
#pragma once

#include "simulator/core/api_call.hpp"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

#define SIM_UNPACK(...) __VA_ARGS__
#define SIM_AFTER_COMMA(...) __VA_OPT__(, ) __VA_ARGS__

#define SIM_ENTRY(layer, Result, to_result, symbol, body, params, args, per_thread, survives) \
  SIM_EXPORT Result symbol params {                                                           \
    static constinit ::gpubusy::sim::ApiSite site{::gpubusy::sim::Layer::layer, #symbol,      \
                                                  survives};                                  \
    ::gpubusy::sim::ApiScope scope(site);                                                     \
    if (scope.refused()) [[unlikely]]                                                         \
      return to_result(static_cast<Result>(scope.result()));                                  \
    return scope.finish(to_result(body(per_thread SIM_AFTER_COMMA args)));                    \
  }

#define SIM_BODY(Result, symbol, params) \
  static Result symbol##_body([[maybe_unused]] bool per_thread SIM_AFTER_COMMA params)
