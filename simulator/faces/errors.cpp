// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/errors.hpp"

namespace gpubusy::sim {
namespace {

struct Error {
  int code;
  const char* text;
};
constexpr Error kDriverNames[] = {
#define DRIVER_ERROR(name, code) {code, name},
#define RUNTIME_ERROR(name, code)
#include "errors.inc"
#undef DRIVER_ERROR
#undef RUNTIME_ERROR
};
constexpr Error kRuntimeNames[] = {
#define DRIVER_ERROR(name, code)
#define RUNTIME_ERROR(name, code) {code, name},
#include "errors.inc"
#undef DRIVER_ERROR
#undef RUNTIME_ERROR
};

// Those that the simulator returns, or that a test may inject.
constexpr Error kTexts[] = {
    {0, "no error"},
    {1, "invalid argument"},
    {2, "out of memory"},
    {3, "initialization error"},
    {4, "driver shutting down"},
    {9, "invalid configuration argument"},
    {13, "invalid device symbol"},
    {35, "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "all CUDA-capable devices are busy or unavailable"},
    {52, "__global__ function call is not configured"},
    {98, "invalid device function"},
    {100, "no CUDA-capable device is detected"},
    {101, "invalid device ordinal"},
    {200, "device kernel image is invalid"},
    {201, "invalid device context"},
    {209, "no kernel image is available for execution on the device"},
    {400, "invalid resource handle"},
    {401, "the operation cannot be performed in the present state"},
    {500, "named symbol not found"},
    {600, "device not ready"},
    {700, "an illegal memory access was encountered"},
    {701, "too many resources requested for launch"},
    {702, "the launch timed out and was terminated"},
    {712, "part or all of the requested memory range is already mapped"},
    {713, "pointer does not correspond to a registered memory region"},
    {719, "unspecified launch failure"},
    {720, "too many blocks in cooperative launch"},
    {801, "operation not supported"},
    {900, "operation not permitted when stream is capturing"},
    {901, "operation failed due to a previous error during capture"},
    {902, "operation would result in a merge of separate capture sequences"},
    {903, "capture was not ended in the same stream as it began"},
    {904, "capturing stream has unjoined work"},
    {905, "dependency created on uncaptured work in another stream"},
    {906, "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "operation not permitted on an event last recorded in a capturing stream"},
    {908, "attempt to terminate a thread-local capture sequence from another thread"},
    {910,
     "the graph update was not performed because it included changes which violated "
     "constraints specific to instantiated graph update"},
    {999, "unknown error"},
};

template <int kCount>
const char* find(const Error (&errors)[kCount], int code) noexcept {
  for (const Error& error : errors) {
    if (error.code == code) return error.text;
  }
  return nullptr;
}

}  // namespace

const char* error_name(int code, bool of_driver) noexcept {
  return of_driver ? find(kDriverNames, code) : find(kRuntimeNames, code);
}

const char* error_text(int code) noexcept {
  const char* text = find(kTexts, code);
  return text != nullptr ? text : "unrecognized error code";
}

}  // namespace gpubusy::sim
