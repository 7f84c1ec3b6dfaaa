// SPDX-License-Identifier: Apache-2.0
//
// The program's own calls to CUPTI: its profiler is given way (runtime/cupti/client.hpp). Nothing
// else of CUPTI is intercepted.
#include "runtime/cupti/client.hpp"

#include "preload/api.hpp"
#include "runtime/recorder.hpp"

using namespace gpubusy::preload;
namespace cupti = gpubusy::runtime::cupti;

namespace {

constexpr cupti::Result kNotImplemented = 11;  // CUPTI_ERROR_API_NOT_IMPLEMENTED

}  // namespace

// DO: what is returned where something may be recorded; `real` is CUPTI's function.
#define CUPTI_HOOK(symbol, params, args, DO)                                        \
  extern "C" [[gnu::visibility("default")]] cupti::Result symbol params {           \
    auto* real = ::gpubusy::preload::real<cupti::Result params>(ApiId::symbol);     \
    if (real == nullptr) [[unlikely]]                                               \
      return kNotImplemented;                                                       \
    if (gpubusy::runtime::mode() == gpubusy::runtime::Mode::kOff) return real args; \
    [[maybe_unused]] const void* caller = __builtin_return_address(0);              \
    return cupti::DO;                                                               \
  }

CUPTI_HOOK(cuptiSubscribe, (cupti::Subscriber * subscriber, cupti::Callback callback, void* user),
           (subscriber, callback, user), app_subscribes(real, subscriber, callback, user, caller))
CUPTI_HOOK(cuptiSubscribe_v2,
           (cupti::Subscriber * subscriber, cupti::Callback callback, void* user,
            cupti::SubscriberParams* params),
           (subscriber, callback, user, params),
           app_subscribes_named(real, subscriber, callback, user, params, caller))
CUPTI_HOOK(cuptiUnsubscribe, (cupti::Subscriber subscriber), (subscriber),
           app_unsubscribes(real, subscriber, caller))
CUPTI_HOOK(cuptiActivityRegisterCallbacks,
           (cupti::BufferRequest request, cupti::BufferComplete complete), (request, complete),
           app_registers(real, request, complete, caller))
CUPTI_HOOK(cuptiActivityRegisterTimestampCallback, (cupti::Timestamp clock), (clock),
           app_sets_clock(real, clock, caller))
CUPTI_HOOK(cuptiActivityEnable, (std::uint32_t kind), (kind), app_enables(real, kind, caller))
CUPTI_HOOK(cuptiActivityEnableAndDump, (std::uint32_t kind), (kind),
           app_enables(real, kind, caller))
CUPTI_HOOK(cuptiActivityEnableContext, (CUcontext context, std::uint32_t kind), (context, kind),
           app_enables_for(real, context, kind, caller))
CUPTI_HOOK(cuptiActivityDisable, (std::uint32_t kind), (kind), app_disables(real, kind, caller))
CUPTI_HOOK(cuptiActivityDisableContext, (CUcontext context, std::uint32_t kind), (context, kind),
           app_disables_for(real, context, kind, caller))
CUPTI_HOOK(cuptiActivityFlushAll, (std::uint32_t flag), (flag), app_flushes(real, flag, caller))
CUPTI_HOOK(cuptiFinalize, (), (), app_finalizes(real, caller))
CUPTI_HOOK(cuptiActivityEnableRuntimeApi, (std::uint32_t id, std::uint8_t enable), (id, enable),
           app_enables_function(real, true, id, enable, caller))
CUPTI_HOOK(cuptiActivityEnableDriverApi, (std::uint32_t id, std::uint8_t enable), (id, enable),
           app_enables_function(real, false, id, enable, caller))

CUPTI_HOOK(cuptiActivityRegisterCallbacks_v2, (void* a, void* b, void* c, void* d), (a, b, c, d),
           app_uses_its_own(real, a, b, c, d, "cuptiActivityRegisterCallbacks_v2", caller))
CUPTI_HOOK(cuptiActivityEnable_v2, (void* a, void* b, void* c, void* d), (a, b, c, d),
           app_uses_its_own(real, a, b, c, d, "cuptiActivityEnable_v2", caller))

// Their parameters are pointers and integers, four at most.
#define CUPTI_FOR_GOOD(symbol)                                           \
  CUPTI_HOOK(symbol, (void* a, void* b, void* c, void* d), (a, b, c, d), \
             app_uses_for_good(real, a, b, c, d, #symbol, caller))
CUPTI_FOR_GOOD(cuptiProfilerInitialize)
CUPTI_FOR_GOOD(cuptiRangeProfilerEnable)
CUPTI_FOR_GOOD(cuptiPCSamplingEnable)
CUPTI_FOR_GOOD(cuptiPmSamplingEnable)
CUPTI_FOR_GOOD(cuptiSassMetricsEnable)
CUPTI_FOR_GOOD(cuptiEventGroupEnable)
CUPTI_FOR_GOOD(cuptiEventGroupSetEnable)
