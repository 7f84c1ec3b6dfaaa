// SPDX-License-Identifier: Apache-2.0
//
// Nothing runs here: this file does not compile where what we declare by hand differs from the
// headers of NVTX, cuDNN and NCCL.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "preload/library_types.hpp"
#include "recording/format.hpp"
#include "runtime/nvtx_abi.hpp"

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define HAS_CUDNN 1
#else
#define HAS_CUDNN 0
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#define HAS_NCCL 1
#else
#define HAS_NCCL 0
#endif
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace nvtx = gpubusy::runtime::nvtx;
using gpubusy::recording::RangePayload;

#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(nvtx::kCallbacks, NVTX_ETID_CALLBACKS);
SAME(nvtx::kCore, NVTX_CB_MODULE_CORE);
SAME(nvtx::kCore2, NVTX_CB_MODULE_CORE2);
SAME(nvtx::kMarkEx, NVTX_CBID_CORE_MarkEx);
SAME(nvtx::kRangePushW, NVTX_CBID_CORE_RangePushW);
SAME(nvtx::kRangePop, NVTX_CBID_CORE_RangePop);
SAME(nvtx::kNameOsThreadW, NVTX_CBID_CORE_NameOsThreadW);
SAME(nvtx::kDomainMarkEx, NVTX_CBID_CORE2_DomainMarkEx);
SAME(nvtx::kDomainRangePop, NVTX_CBID_CORE2_DomainRangePop);
SAME(nvtx::kDomainRegisterStringA, NVTX_CBID_CORE2_DomainRegisterStringA);
SAME(nvtx::kDomainDestroy, NVTX_CBID_CORE2_DomainDestroy);
SAME(nvtx::kInitialize, NVTX_CBID_CORE2_Initialize);
SAME(nvtx::kAscii, NVTX_MESSAGE_TYPE_ASCII);
SAME(nvtx::kUnicode, NVTX_MESSAGE_TYPE_UNICODE);
SAME(nvtx::kRegistered, NVTX_MESSAGE_TYPE_REGISTERED);
SAME(nvtx::kArgb, NVTX_COLOR_ARGB);
SAME(RangePayload::kUint64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
SAME(RangePayload::kInt64, NVTX_PAYLOAD_TYPE_INT64);
SAME(RangePayload::kDouble, NVTX_PAYLOAD_TYPE_DOUBLE);
SAME(RangePayload::kUint32, NVTX_PAYLOAD_TYPE_UNSIGNED_INT32);
SAME(RangePayload::kInt32, NVTX_PAYLOAD_TYPE_INT32);
SAME(RangePayload::kFloat, NVTX_PAYLOAD_TYPE_FLOAT);
SAME(sizeof(nvtx::EventAttributes), sizeof(nvtxEventAttributes_t));
SAME(offsetof(nvtx::EventAttributes, category), offsetof(nvtxEventAttributes_t, category));
SAME(offsetof(nvtx::EventAttributes, colour), offsetof(nvtxEventAttributes_t, color));
SAME(offsetof(nvtx::EventAttributes, payload), offsetof(nvtxEventAttributes_t, payload));
SAME(offsetof(nvtx::EventAttributes, message_type), offsetof(nvtxEventAttributes_t, messageType));
SAME(offsetof(nvtx::EventAttributes, message), offsetof(nvtxEventAttributes_t, message));
SAME(sizeof(nvtx::Callbacks), sizeof(NvtxExportTableCallbacks));
#endif

// Passed in the same way: pointers as pointers, enumerations as int, structs of one size as each
// other.
template <class Ours, class Theirs>
constexpr bool kPassedAlike =
    (std::is_pointer_v<Ours> && (std::is_pointer_v<Theirs> || std::is_array_v<Theirs>)) ||
    (std::is_same_v<Ours, int> &&
     ((std::is_enum_v<Theirs> && sizeof(Theirs) == sizeof(int)) || std::is_same_v<Theirs, int>)) ||
    std::is_same_v<Ours, Theirs> ||
    (std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs));

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class... Ours, class Result, class... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct Alike<int(Ours...), Result(Theirs...)>
    : std::bool_constant<std::is_enum_v<Result> && (kPassedAlike<Ours, Theirs> && ...)> {
};

namespace rows {
using gpubusy::preload::NcclUniqueId;

#define CHECK_0(symbol, params)
#define CHECK_1(symbol, params)     \
  using Ours_##symbol = int params; \
  static_assert(Alike<Ours_##symbol, decltype(::symbol)>::value, #symbol);
#if HAS_CUDNN
#define CHECK_Cudnn CHECK_1
#else
#define CHECK_Cudnn CHECK_0
#endif
#if HAS_NCCL
#define CHECK_Nccl CHECK_1
#else
#define CHECK_Nccl CHECK_0
#endif
#define LIBRARY(library, symbol, params, ...) CHECK_##library(symbol, params)
#include "preload/hooks/libraries.def"
#undef LIBRARY

}  // namespace rows
