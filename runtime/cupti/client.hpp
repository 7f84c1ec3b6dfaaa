// SPDX-License-Identifier: Apache-2.0
//
// The recorder as a client of CUPTI's activity API, while it records; see docs/cupti.md.
//
// CUPTI has one pair of buffer callbacks and one set of enabled kinds for the whole process, and
// the program's own profiler comes first: before a call of the program's to CUPTI is passed on (the
// app_... functions), ours is switched off and its records are taken out; once the program has
// disabled all of its kinds and taken its records, ours may begin again. We never subscribe but for
// an instant, to see whether somebody outside our sight has CUPTI: activities need no subscription,
// and who finds it taken (PyTorch) gives up for good.
//
// Locking: the client's lock is held over our own calls to CUPTI, never over the program's. Buffer
// callbacks take no lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/cupti/abi.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime::cupti {

extern constinit std::atomic<bool> g_on;
inline bool is_on() noexcept { return g_on.load(std::memory_order_relaxed); }

// The first CUDA call of the process is over: CUPTI may be touched from now on, and is loaded if
// the process has none.
void process_is_ready() noexcept;

// Recording begins, pauses, ends for good. Under the recorder's lock.
void start() noexcept;
void stop() noexcept;
void finish() noexcept;
// The program had CUPTI; it may be free again. Cheap.
bool may_start() noexcept;

// Round the real call, on its thread. What CUPTI sees in between bears `correlation`. `outermost`:
// no hook is active further out on this thread, so that whatever was left pushed is of a call that
// was left by longjmp or an exception.
void push(ThreadState& thread, std::uint32_t correlation, bool outermost) noexcept;
void pop(ThreadState& thread, std::uint32_t correlation) noexcept;
// A call that asked for device work returned: its activity is to come.
void expect_activity() noexcept;

// Reads what CUPTI has given back; `flush`: asks for what is over first. Never waits for the
// device. True: nothing is out.
bool harvest(bool flush) noexcept;
// Now and then, from calls: a full buffer, or half a second since the last flush, so that a killed
// process has lost little.
void harvest_if_due(std::uint64_t now_ns) noexcept;
// May be asked again whether CUPTI is free, some time after the last answer?
bool retry_is_due(std::uint64_t now_ns) noexcept;
// What is still out is not waited for any longer.
void give_up_pending() noexcept;

// The program was given a function of another libcupti than the one that is hooked: ours ends.
void another_library(const void* function) noexcept;

void forget_after_fork() noexcept;

// ---- the program's own calls; `real` is CUPTI's function. Not noexcept: the
// program's thread may be cancelled in there.
Result app_registers(Result (*real)(BufferRequest, BufferComplete), BufferRequest request,
                     BufferComplete complete, const void* caller);
Result app_enables(Result (*real)(std::uint32_t), std::uint32_t kind, const void* caller);
Result app_enables_for(Result (*real)(CUcontext, std::uint32_t), CUcontext context,
                       std::uint32_t kind, const void* caller);
Result app_enables_function(Result (*real)(std::uint32_t, std::uint8_t), bool runtime,
                            std::uint32_t id, std::uint8_t enable, const void* caller);
Result app_disables(Result (*real)(std::uint32_t), std::uint32_t kind, const void* caller);
Result app_disables_for(Result (*real)(CUcontext, std::uint32_t), CUcontext context,
                        std::uint32_t kind, const void* caller);
Result app_flushes(Result (*real)(std::uint32_t), std::uint32_t flag, const void* caller);
Result app_sets_clock(Result (*real)(Timestamp), Timestamp clock, const void* caller);
Result app_subscribes(Result (*real)(Subscriber*, Callback, void*), Subscriber* subscriber,
                      Callback callback, void* user, const void* caller);
Result app_subscribes_named(Result (*real)(Subscriber*, Callback, void*, SubscriberParams*),
                            Subscriber* subscriber, Callback callback, void* user,
                            SubscriberParams* params, const void* caller);
Result app_unsubscribes(Result (*real)(Subscriber), Subscriber subscriber, const void* caller);
Result app_finalizes(Result (*real)(), const void* caller);
// The activities of a subscriber of the program's: its own where it allows others, else as below.
Result app_uses_its_own(Result (*real)(void*, void*, void*, void*), void* subscriber, void* b,
                        void* c, void* d, const char* name, const void* caller);
// A part of CUPTI that cannot be used beside activities, or whose use we cannot follow to its end.
Result app_uses_for_good(Result (*real)(void*, void*, void*, void*), void* a, void* b, void* c,
                         void* d, const char* name, const void* caller);

}  // namespace gpubusy::runtime::cupti
