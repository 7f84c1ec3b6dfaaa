// SPDX-License-Identifier: Apache-2.0
//
// The exported functions, one per row and variant. Each is a check and the real call; all else is
// in intercept(), out of line. Nothing is noexcept round the real call: an exception or a
// cancellation of the program passes through (preload/unwind.hpp).
#include <cuda.h>
#include <cudaProfiler.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "preload/api.hpp"
#include "preload/payloads.hpp"
#include "preload/unwind.hpp"
#include "runtime/call.hpp"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpubusy::preload {
namespace {

struct NoStream {};
inline constexpr NoStream no_stream{};
struct OnDefault {};
inline constexpr OnDefault on_default{};

template <class Stream>
struct OnStream {
  Stream stream;
};
template <class Stream>
OnStream<Stream> on(Stream stream) noexcept {
  return {stream};
}

runtime::StreamArgument argument(NoStream, bool) noexcept { return {}; }
runtime::StreamArgument argument(OnDefault, bool per_thread) noexcept {
  return {nullptr, true, per_thread};
}
template <class Stream>
runtime::StreamArgument argument(OnStream<Stream> s, bool per_thread) noexcept {
  return {reinterpret_cast<void*>(s.stream), true, per_thread};
}

// CUDA's own answer where a function is missing; the program sees what a missing driver would give.
template <class Result>
Result missing() noexcept {
  if constexpr (std::is_same_v<Result, CUresult>) {
    return CUDA_ERROR_NOT_FOUND;
  } else {
    return cudaErrorSharedObjectSymbolNotFound;
  }
}

template <recording::Category kCategory, class Call, class Payload>
[[gnu::noinline]] auto intercept(const runtime::CallSite& site, Call&& call, Payload&& payload) {
  GPUBUSY_RESET_ON_UNWIND();
  runtime::CallScope scope(site);
  scope.start();
  const std::uintptr_t busy = runtime::enter_real_call();
  const auto result = call();
  runtime::leave_real_call(busy);
  runtime::KeepErrno keep;
  const int code = static_cast<int>(result);
  scope.stop(code);
  if (scope.records() || runtime::is_always_seen(kCategory)) {
    const auto p = payload(code);
    if (!scope.records()) {
    } else if constexpr (std::is_same_v<std::decay_t<decltype(p)>, NoPayload>) {
      scope.write();
    } else {
      scope.write(p);
    }
  }
  scope.done();
  return result;
}

// What tells this call from others of its function: of graph launches, the executable graph.
template <recording::Category kCategory, class First, class... Rest>
const void* key_of(const First& first, const Rest&...) noexcept {
  if constexpr (kCategory == recording::Category::kGraphLaunch) return first;
  return nullptr;
}
template <recording::Category>
const void* key_of() noexcept {
  return nullptr;
}

}  // namespace
}  // namespace gpubusy::preload

using namespace gpubusy::preload;  // the rows' vocabulary
namespace recording = gpubusy::recording;
namespace runtime = gpubusy::runtime;

#define GPUBUSY_EXPORT extern "C" [[gnu::visibility("default")]]

// The formatter takes `params` for the start of an expression.
// clang-format off
#define GPUBUSY_DEFINE(symbol, per_thread, category, params, args, key, stream_expr, payload_expr) \
  GPUBUSY_EXPORT RESULT symbol params                                                              \
  GPUBUSY_BODY(symbol, per_thread, category, params, args, key, stream_expr, payload_expr)
// Under a C++ name of its own: the headers declare the function with other parameters, or not.
#define GPUBUSY_DEFINE_UNDECLARED(symbol, per_thread, category, params, args, key, stream_expr,    \
                                  payload_expr)                                                    \
  GPUBUSY_EXPORT RESULT hook_of_##symbol params asm(#symbol);                                      \
  RESULT hook_of_##symbol params                                                                   \
  GPUBUSY_BODY(symbol, per_thread, category, params, args, key, stream_expr, payload_expr)

#define GPUBUSY_BODY(symbol, per_thread, category, params, args, key, stream_expr, payload_expr)   \
  {                                                                                                \
    constexpr auto kId = ApiId::symbol;                                                            \
    auto* real_function = real<RESULT params>(kId);                                                \
    if (real_function == nullptr) [[unlikely]] return missing<RESULT>();                           \
    const void* call_key = key;                                                                \
    if (runtime::passes_through<recording::Category::k##category>(                                 \
            static_cast<std::uint32_t>(kId), call_key)) [[likely]] {                           \
      return real_function args;                                                                   \
    }                                                                                              \
    const runtime::CallSite site{                                                                  \
        static_cast<std::uint32_t>(kId), recording::Category::k##category,                         \
        LAYER, std::uint16_t{per_thread ? recording::kCallPerThreadStream : 0},                    \
        call_key, argument(stream_expr, per_thread)};                                          \
    return intercept<recording::Category::k##category>(                                            \
        site, [&] { return real_function args; },                                                  \
        [&]([[maybe_unused]] int result) { return payload_expr; });                                \
  }
// clang-format on

// The function must be known to CUDA's headers; that its parameters are theirs is checked by the
// definition itself, since two C functions of one name cannot differ.
#define GPUBUSY_CHECK(symbol) using Declared_##symbol [[maybe_unused]] = decltype(&::symbol);

#define GPUBUSY_HOOK_P(symbol, category, params, args, key, stream, payload) \
  GPUBUSY_CHECK(symbol)                                                      \
  GPUBUSY_DEFINE(symbol, false, category, params, args, key, stream, payload)
#define GPUBUSY_HOOK_U(symbol, category, params, args, key, stream, payload) \
  GPUBUSY_DEFINE_UNDECLARED(symbol, false, category, params, args, key, stream, payload)
#define GPUBUSY_HOOK_Z(symbol, category, params, args, key, stream, payload) \
  GPUBUSY_HOOK_P(symbol, category, params, args, key, stream, payload)       \
  GPUBUSY_DEFINE(symbol##_ptsz, true, category, params, args, key, stream, payload)
#define GPUBUSY_HOOK_ZU(symbol, category, params, args, key, stream, payload) \
  GPUBUSY_HOOK_U(symbol, category, params, args, key, stream, payload)        \
  GPUBUSY_DEFINE_UNDECLARED(symbol##_ptsz, true, category, params, args, key, stream, payload)
#define GPUBUSY_HOOK_D(symbol, category, params, args, key, stream, payload) \
  GPUBUSY_HOOK_P(symbol, category, params, args, key, stream, payload)       \
  GPUBUSY_DEFINE(symbol##_ptds, true, category, params, args, key, stream, payload)

#define HOOK(variants, symbol, category, params, args, stream, payload) \
  GPUBUSY_HOOK_##variants(symbol, category, params, args,               \
                          key_of<recording::Category::k##category> args, stream, payload)
#define LAUNCH(variants, symbol, params, args, function, shape, stream)                          \
  GPUBUSY_HOOK_##variants(symbol, Launch, params, args, reinterpret_cast<const void*>(function), \
                          on(stream), launched(function, LAYER, shape))

#define OWN(symbol, category)

#define RESULT cudaError_t
#define LAYER recording::Layer::kRuntime
#include "preload/hooks/cuda_runtime.def"
#undef RESULT
#undef LAYER
#define RESULT CUresult
#define LAYER recording::Layer::kDriver
#include "preload/hooks/cuda_driver.def"
#undef HOOK
#undef LAUNCH
#undef OWN

namespace gpubusy::preload {

// By their exported names: rows may define under another C++ name.
#define EACH(symbol, category) \
  extern "C" [[gnu::visibility("default")]] void exported_##symbol() asm(#symbol);
#define HOOK(variants, symbol, category, ...) GPUBUSY_ROW_##variants(EACH, symbol, category)
#define LAUNCH(variants, symbol, ...) GPUBUSY_ROW_##variants(EACH, symbol, Launch)
#define OWN(symbol, category) EACH(symbol, category)
#define LIBRARY(library, symbol, ...) EACH(symbol, Context)
#include "preload/hooks/cuda_runtime.def"
// In the order of ApiId: clang-format sorts includes that stand together.
#include "preload/hooks/cuda_driver.def"
// In the order of ApiId: clang-format sorts includes that stand together.
#include "preload/hooks/cupti.def"
// Likewise.
#include "preload/hooks/libraries.def"
#undef EACH

void* const kHooks[kApiCount] = {
#define EACH(symbol, category) reinterpret_cast<void*>(&exported_##symbol),
#include "preload/hooks/cuda_runtime.def"
// In the order of ApiId: clang-format sorts includes that stand together.
#include "preload/hooks/cuda_driver.def"
// In the order of ApiId: clang-format sorts includes that stand together.
#include "preload/hooks/cupti.def"
// Likewise.
#include "preload/hooks/libraries.def"
#undef HOOK
#undef LAUNCH
#undef OWN
#undef LIBRARY
#undef EACH
};

}  // namespace gpubusy::preload
