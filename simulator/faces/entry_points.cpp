// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: how everything but a program linked to libcuda reaches the driver.
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "simulator/faces/device_properties.hpp"
#include "simulator/faces/driver_export.hpp"

using namespace gpubusy::sim;

namespace {

struct EntryPoint {
  int version;
  bool per_thread;
  void* function;
};
using Table = std::unordered_map<std::string_view, std::vector<EntryPoint>>;

}  // namespace

// By symbol: declared here under names that cannot meet the headers' declarations or macros. The
// library is linked with -Bsymbolic, so these are its own functions, whatever is preloaded.
#define ENTRY_POINT(name, version, per_thread, symbol) \
  extern "C" void gpubusy_sim_api_##symbol() asm(#symbol);
#include "entry_points.inc"
#undef ENTRY_POINT

namespace {

const Table& table() {
  static const Table* made = [] {
    auto* t = new Table;
#define ENTRY_POINT(name, version, per_thread, symbol) \
  (*t)[name].push_back(                                \
      {version, per_thread != 0, reinterpret_cast<void*>(&gpubusy_sim_api_##symbol)});
#include "entry_points.inc"
#undef ENTRY_POINT
    return t;
  }();
  return *made;
}

int find(const char* symbol, void** function, int version, cuuint64_t flags,
         CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  const auto found = table().find(symbol);
  if (found == table().end()) {
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  // The newest that the caller knows; of that, the variant for its default stream if there is one.
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const EntryPoint* best = nullptr;
  for (const EntryPoint& candidate : found->second) {
    if (candidate.version > version || (candidate.per_thread && !per_thread)) continue;
    if (best == nullptr || candidate.version > best->version ||
        (candidate.version == best->version && candidate.per_thread) ||
        (candidate.per_thread && !best->per_thread && best->version <= 7000)) {
      best = &candidate;
    }
  }
  if (best == nullptr) {
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
  }
  if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  *function = best->function;
  return CUDA_SUCCESS;
}

}  // namespace

SIM_DRIVER(cuGetProcAddress_v2,
           (const char* symbol, void** function, int version, cuuint64_t flags,
            CUdriverProcAddressQueryResult* status),
           (symbol, function, version, flags, status)) {
  return find(symbol, function, version, flags, status);
}

SIM_DRIVER_ENTRY(cuGetProcAddress_v2_ptsz, cuGetProcAddress_v2_body,
                 (const char* symbol, void** function, int version, cuuint64_t flags,
                  CUdriverProcAddressQueryResult* status),
                 (symbol, function, version, flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                  status),
                 true)

SIM_DRIVER(cuGetProcAddress, (const char* symbol, void** function, int version, cuuint64_t flags),
           (symbol, function, version, flags)) {
  return find(symbol, function, version, flags, nullptr);
}

// The tables behind this are not documented, so they cannot be simulated: what asks for them (the
// real libraries) must take this answer.
SIM_DRIVER(cuGetExportTable, (const void** export_table, const CUuuid* id), (export_table, id)) {
  if (export_table != nullptr) *export_table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
