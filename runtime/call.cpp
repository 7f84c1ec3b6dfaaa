// SPDX-License-Identifier: Apache-2.0
#include "runtime/call.hpp"

#include <sys/mman.h>

#include "runtime/cupti/buffers.hpp"
#include "runtime/cupti/client.hpp"
#include "runtime/native/capture.hpp"
#include "runtime/python_presence.hpp"
#include "runtime/stack_table.hpp"

namespace gpubusy::runtime {
namespace {

constexpr std::uint32_t kHarvestEvery = 64;

// What a whole stack needs, if it is wanted and to be had.
bool has_stack_memory(ThreadState& thread) noexcept {
  if (thread.native_stack != nullptr) [[likely]]
    return true;
  KeepErrno keep;
  if (thread.python_frames == nullptr) {
    void* p = mmap(nullptr, sizeof(PythonFrames), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    thread.python_frames = static_cast<PythonFrames*>(p);
  }
  thread.native_stack = native::ThreadStack::map();
  return thread.native_stack != nullptr;
}

}  // namespace

void CallScope::enter() noexcept {
  KeepErrno keep;
  flags_ = site_.flags;
  if (is_unnoticed_child()) [[unlikely]]
    became_child();
  if (mode() == Mode::kIdle) {
    g_hook_was_called.store(true, std::memory_order_relaxed);
    if (!arms(site_.category) || !arm()) return;
    armed_ = true;
  }
  if (mode() == Mode::kOff) return;
  if (has_driver_work()) [[unlikely]]
    do_driver_work();
  if (!is_recorded(site_.category)) return;
  watches_steps_ = true;
  generation_ = file_generation();
  PythonFrames* python = nullptr;
  const auto prepare_stack = [&python]() noexcept {
    if (python != nullptr || mode() != Mode::kRecording || configuration().native_stacks == 0)
      return;
    ThreadState* const thread = thread_state();
    if (thread == nullptr || !has_stack_memory(*thread)) return;
    python = thread->python_frames;
    python->count = 0;
  };
  const auto capture_python = [&](python::OptimizerCall* optimizer) noexcept {
    prepare_stack();
    return python != nullptr ? capture_python_stack(definitions(), optimizer, *python)
                             : capture_python_stack(definitions(), optimizer);
  };
  const bool wants_stack = configuration().python_stacks != 0;
  if (wants_stack && mode() == Mode::kRecording && python_may_be_here()) {
    // The walk for the stack also tells whether this is an optimizer's step.
    python::OptimizerCall optimizer;
    python_stack_ = capture_python(&optimizer);
    steps_before_call(site_.function(), optimizer);
  } else {
    steps_before_call(site_.function(), look_for_optimizer(site_.function()));
    if (wants_stack && mode() == Mode::kRecording && python_may_be_here()) {
      python_stack_ = capture_python(nullptr);
    }
  }
  const bool works = is_device_work(site_.category);
  if (works && any_capture() && is_capturing(site_.stream)) flags_ |= recording::kCallCaptured;
  if (mode() != Mode::kRecording) return;
  thread_ = thread_state();
  if (thread_ == nullptr) {
    recording_file().count_lost(1);
    return;
  }
  if (works && !thread_->gap.launches.load(std::memory_order_relaxed)) [[unlikely]] {
    thread_->gap.launches.store(true, std::memory_order_relaxed);
  }
  prepare_stack();
  if (python != nullptr) {
    native_stack_ = native::capture_native_stack(definitions(), *thread_->native_stack, python);
  }
  if (!works || (flags_ & recording::kCallCaptured) != 0) return;
  if (cupti::is_on()) {
    correlation_ = next_correlation(*thread_);
    cupti::push(*thread_, correlation_, outermost_);
    in_cupti_ = true;
  } else if (wants_device_times()) {
    ticket_ = begin_timing(*thread_, site_.stream);
  }
}

void CallScope::stop(int result) noexcept {
  if (!wants_end()) return;
  if (generation_ != file_generation()) [[unlikely]] {
    // This is a child that was forked inside the call: what the scope holds is the parent's.
    thread_ = nullptr;
    watches_steps_ = false;
    return;
  }
  end_ns_ = now_ns();
  result_ = result;
  if (records()) thread_->gap.end_call(end_ns_);
  if (in_cupti_) cupti::pop(*thread_, correlation_);
  if (!records() || ticket_.state != Timing::kTimed) return;
  // At once, so that the end event stands as close behind the work as it can.
  ticket_.state = end_event(*thread_, ticket_, site_.stream, result != 0);
}

void CallScope::describe(bool blocking, bool asks_for_nothing) noexcept {
  if (!in_cupti_) correlation_ = next_correlation(*thread_);
  device_ = current_device();
  stream_id_ = stream_id(site_.stream, device_);
  if (!is_device_work(site_.category) || (flags_ & recording::kCallCaptured) != 0) return;
  if (in_cupti_) {
    if (result_ != 0 || asks_for_nothing) return;
    flags_ |= recording::kCallTimed;
    cupti::expect_activity();
    return;
  }
  switch (ticket_.state) {
    case Timing::kTimed:
      flags_ |= recording::kCallTimed;
      commit_timing(*thread_, ticket_,
                    {correlation_, stream_id_, device_, blocking, start_ns_, end_ns_});
      break;
    case Timing::kCapture: flags_ |= recording::kCallUntimedCapture; break;
    case Timing::kLimit: flags_ |= recording::kCallUntimedLimit; break;
    case Timing::kFailed: flags_ |= recording::kCallUntimedFailed; break;
    case Timing::kOff: break;
  }
}

void CallScope::fill(void* out, std::size_t size) noexcept {
  auto* r = static_cast<recording::CallRecord*>(out);
  r->header = {recording::RecordType::kCall, static_cast<std::uint16_t>(size), correlation_};
  r->start_ns = start_ns_;
  const std::uint64_t duration = end_ns_ - start_ns_;
  if (duration > 0xffffffffu) [[unlikely]] {
    r->duration = static_cast<std::uint32_t>(duration / recording::kLongDurationUnit);
    flags_ |= recording::kCallLong;
  } else {
    r->duration = static_cast<std::uint32_t>(duration);
  }
  r->api = static_cast<std::uint16_t>(site_.api);
  r->flags = flags_;
  r->python_stack = python_stack_;
  r->native_stack = native_stack_;
  r->stream = stream_id_;
  r->result = static_cast<std::int16_t>(result_);
  r->device = device_;
}

void CallScope::write() noexcept {
  constexpr std::size_t kSize = sizeof(recording::CallRecord);
  describe(false, false);
  if (void* out = reserve_record(*thread_, kSize, end_ns_)) {
    fill(out, kSize);
    commit_record(*thread_, kSize);
  }
}

void CallScope::done() noexcept {
  if (!watches_steps_) return;
  if (armed_) [[unlikely]]
    first_call_is_over();
  const bool took_effect = result_ == 0 && (flags_ & recording::kCallCaptured) == 0;
  if (took_effect) steps_after_call(site_.api, site_.function(), site_.layer, end_ns_);
  if ((flags_ & recording::kCallCaptured) != 0) steps_saw_captured_call();
  if (took_effect && site_.category == recording::Category::kGraphLaunch) {
    steps_after_graph(site_.key, end_ns_);
  }
  if (cupti::is_on()) {
    const bool some = records() && correlation_ % kHarvestEvery == 0;
    if (some || cupti::any_full_buffer()) cupti::harvest_if_due(end_ns_);
    if (some && !recording_file().is_writable()) [[unlikely]]
      recording_stopped();
  } else if (cupti::may_start() && records() && cupti::retry_is_due(end_ns_)) [[unlikely]] {
    retry_cupti();
  }
  if (prelude_is_full()) [[unlikely]]
    end_prelude_for_size();
  if (gaps::is_wanted() && records() && is_device_work(site_.category)) [[unlikely]] {
    gaps::start(end_ns_);
  }
}

}  // namespace gpubusy::runtime
