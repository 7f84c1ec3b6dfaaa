// SPDX-License-Identifier: Apache-2.0
//
// The exported functions of hooks/libraries.def. No call scope is entered: CUDA calls that the
// library makes are the program's work, and are recorded.
#include <cstddef>
#include <cstdint>

#include "preload/api.hpp"
#include "preload/library_types.hpp"
#include "runtime/ranges.hpp"

using namespace gpubusy::preload;
namespace runtime = gpubusy::runtime;

namespace {

struct Bytes {
  bool known;
  std::uint64_t n;
};
inline constexpr Bytes no_bytes{false, 0};

// By ncclDataType_t; of types that came later nothing is known.
Bytes nccl_bytes(std::size_t count, int type) noexcept {
  constexpr std::uint8_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (type < 0 || type >= static_cast<int>(sizeof kSizes)) return no_bytes;
  return {true, count * kSizes[type]};
}

// Where the function is missing, which the program cannot meet but by a weak reference:
// CUDNN_STATUS_NOT_SUPPORTED and ncclSystemError.
constexpr int kMissingCudnn = 3000;
constexpr int kMissingNccl = 2;

}  // namespace

#define LIBRARY(library, symbol, params, args, bytes)                      \
  extern "C" [[gnu::visibility("default")]] int symbol params;             \
  int symbol params {                                                      \
    constexpr auto kId = ApiId::symbol;                                    \
    auto* real_function = real<int params>(kId);                           \
    if (real_function == nullptr) [[unlikely]]                             \
      return kMissing##library;                                            \
    if (runtime::mode() != runtime::Mode::kRecording) [[likely]]           \
      return real_function args;                                           \
    runtime::LibraryCall call(runtime::RangeLibrary::k##library, #symbol); \
    const int result = real_function args;                                 \
    const Bytes payload = bytes;                                           \
    call.end(payload.known, payload.n);                                    \
    return result;                                                         \
  }
#include "preload/hooks/libraries.def"
#undef LIBRARY
