// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "simulator/faces/export.hpp"

// cuda.h renames functions to their newest version; the faces define each version by its symbol.
#undef cuGetProcAddress
#undef cuMemcpyBatchAsync
#undef cuStreamGetCaptureInfo
#undef cuEventElapsedTime
#undef cuDeviceGetUuid
#undef cuCtxSynchronize

namespace gpubusy::sim::driver {
inline CUresult same(int result) noexcept { return static_cast<CUresult>(result); }
}  // namespace gpubusy::sim::driver

#define SIM_DRIVER_ENTRY(symbol, body, params, args, per_thread)                         \
  SIM_ENTRY(kDriver, CUresult, ::gpubusy::sim::driver::same, symbol, body, params, args, \
            per_thread, false)

// The symbol alone; with its _ptsz variant (it names a stream); with its _ptds variant (it uses the
// default stream).
#define SIM_DRIVER(symbol, params, args)                       \
  SIM_BODY(int, symbol, params);                               \
  SIM_DRIVER_ENTRY(symbol, symbol##_body, params, args, false) \
  SIM_BODY(int, symbol, params)
#define SIM_DRIVER_PTSZ(symbol, params, args)                        \
  SIM_BODY(int, symbol, params);                                     \
  SIM_DRIVER_ENTRY(symbol, symbol##_body, params, args, false)       \
  SIM_DRIVER_ENTRY(symbol##_ptsz, symbol##_body, params, args, true) \
  SIM_BODY(int, symbol, params)
#define SIM_DRIVER_PTDS(symbol, params, args)                        \
  SIM_BODY(int, symbol, params);                                     \
  SIM_DRIVER_ENTRY(symbol, symbol##_body, params, args, false)       \
  SIM_DRIVER_ENTRY(symbol##_ptds, symbol##_body, params, args, true) \
  SIM_BODY(int, symbol, params)
