// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: how statically linked cudart reaches everything, itself included. The real
// function answers first; where its answer is a function of the hook table, the hook is given
// instead. Errors, unknown names and outputs stay exactly the driver's.
#include <cuda.h>
#include <string.h>

#include "preload/api.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/recorder.hpp"

#undef cuGetProcAddress

namespace gpubusy::preload {
namespace {

using First = CUresult(const char*, void**, int, cuuint64_t);
using Second = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

// Is `exported` the function asked for as `base`: the same name but for _vN, _ptsz and _ptds?
bool has_base(const char* exported, const char* base) noexcept {
  const std::size_t n = strlen(base);
  if (strncmp(exported, base, n) != 0) return false;
  const char* rest = exported + n;
  if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9') {
    rest += 3;
    while (*rest >= '0' && *rest <= '9') ++rest;
  }
  return rest[0] == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

bool is_per_thread(const char* exported) noexcept {
  const std::size_t n = strlen(exported);
  return n > 5 &&
         (strcmp(exported + n - 5, "_ptsz") == 0 || strcmp(exported + n - 5, "_ptds") == 0);
}

// The versions for which a base name means this function: [since, until).
struct Versions {
  int since, until;
};
Versions versions(const char* exported) noexcept {
  constexpr int kAny = 0x7fffffff;
  struct Row {
    const char* name;
    Versions versions;
  };
  static constexpr Row kRows[] = {
#define VERSIONS(name, since, until) {#name, {since, until}},
#include "preload/hooks/versions.def"
#undef VERSIONS
  };
  std::size_t length = strlen(exported);
  if (is_per_thread(exported)) length -= 5;
  for (const Row& row : kRows) {
    if (strncmp(row.name, exported, length) == 0 && row.name[length] == '\0') return row.versions;
  }
  return {strstr(exported, "_v2") != nullptr ? 3020 : 0, kAny};
}

// Where the driver hands out another entry point than the one it exports.
bool fits_request(ApiId id, int version, bool per_thread) noexcept {
  const char* name = kApis[static_cast<std::size_t>(id)].name;
  const Versions v = versions(name);
  return version >= v.since && version < v.until && is_per_thread(name) == per_thread;
}

void* handed(ApiId id, void* answer) noexcept {
  if (answer == kHooks[static_cast<std::size_t>(id)]) note_reach(id, recording::kReachProcAddress);
  return answer;
}

void* substitute(const char* symbol, void* real, int version, cuuint64_t flags) noexcept {
  runtime::KeepErrno keep;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  ApiId fitting = ApiId::kCount, without_variant = ApiId::kCount;
  bool has_variant = false;
  // With CUDA 12 the plain name went over to another function.
  if (version >= 12000 && strcmp(symbol, "cuGraphInstantiate") == 0) {
    symbol = "cuGraphInstantiateWithFlags";
  }
  for (std::size_t i = static_cast<std::size_t>(ApiId::kRuntimeCount);
       i < static_cast<std::size_t>(ApiId::kCudaCount); ++i) {
    if (!has_base(kApis[i].name, symbol)) continue;
    const auto id = static_cast<ApiId>(i);
    if (g_real[i].load(std::memory_order_acquire) == real ||
        find_in_driver(kApis[i].name) == real) {
      return handed(id, hook_for(id, real));
    }
    if (fitting == ApiId::kCount && fits_request(id, version, per_thread)) fitting = id;
    if (without_variant == ApiId::kCount && fits_request(id, version, false)) without_variant = id;
    has_variant = has_variant || is_per_thread(kApis[i].name);
  }
  // Functions without a stream have no variant for the per-thread default stream.
  if (fitting == ApiId::kCount && !has_variant) fitting = without_variant;
  return fitting == ApiId::kCount ? real : handed(fitting, hook_for_same(fitting, real));
}

template <class Call>
CUresult answer(const char* symbol, void** function, int version, cuuint64_t flags, Call&& call) {
  const CUresult result = call();
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr &&
      runtime::mode() != runtime::Mode::kOff) {
    *function = substitute(symbol, *function, version, flags);
  }
  return result;
}

}  // namespace
}  // namespace gpubusy::preload

using namespace gpubusy::preload;

extern "C" [[gnu::visibility("default")]] CUresult cuGetProcAddress(const char* symbol,
                                                                    void** function, int version,
                                                                    cuuint64_t flags) {
  auto* real_function = real<First>(ApiId::cuGetProcAddress);
  if (real_function == nullptr) return CUDA_ERROR_NOT_FOUND;
  return answer(symbol, function, version, flags,
                [&] { return real_function(symbol, function, version, flags); });
}

extern "C" [[gnu::visibility("default")]] CUresult cuGetProcAddress_v2(
    const char* symbol, void** function, int version, cuuint64_t flags,
    CUdriverProcAddressQueryResult* status) {
  auto* real_function = real<Second>(ApiId::cuGetProcAddress_v2);
  if (real_function == nullptr) return CUDA_ERROR_NOT_FOUND;
  return answer(symbol, function, version, flags,
                [&] { return real_function(symbol, function, version, flags, status); });
}
