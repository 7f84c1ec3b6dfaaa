// SPDX-License-Identifier: Apache-2.0
#include "analysis/causes.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "analysis/gaps.hpp"
#include "analysis/host_counters.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::GapSample;

struct FrameRule {
  std::string_view file;      // part of the path
  std::string_view function;  // its last part; empty: any
  Cause cause;
};
// Libraries whose frames tell what the program does. The first row that fits any frame of a stack
// counts: a tensor that is formatted while a checkpoint is saved belongs to the checkpoint.
constexpr FrameRule kFrameRules[] = {
    {"/torch/serialization.py", "", Cause::kCheckpoint},
    {"/torch/distributed/checkpoint/", "", Cause::kCheckpoint},
    {"/safetensors/", "", Cause::kCheckpoint},
    {"/logging/__init__.py", "", Cause::kLogging},
    {"/torch/_tensor_str.py", "", Cause::kLogging},
    {"/torch/utils/tensorboard/", "", Cause::kLogging},
    {"/tensorboardX/", "", Cause::kLogging},
    {"/wandb/", "", Cause::kLogging},
    {"/mlflow/", "", Cause::kLogging},
    // … here come the program's own functions that evaluate (kEvaluationIndex)
    {"/torch/distributed/distributed_c10d.py", "", Cause::kCollective},
    {"/multiprocessing/process.py", "start", Cause::kWorkerStart},
    {"/torch/utils/data/_utils/fetch.py", "", Cause::kLoading},
    {"/torch/utils/data/dataloader.py", "", Cause::kLoaderQueue},
};
constexpr std::size_t kEvaluationIndex = 9;
static_assert(kFrameRules[kEvaluationIndex].cause == Cause::kCollective);

// Ranges of PyTorch's own, which its profiler's traces and emit_nvtx() have: how they begin.
struct RangeRule {
  std::string_view name;
  Cause cause;
};
constexpr RangeRule kRangeRules[] = {
    {"enumerate(DataLoader)#_SingleProcess", Cause::kLoading},
    {"enumerate(DataLoader)#_MultiProcessing", Cause::kLoaderQueue},
};

std::string_view last_name(std::string_view function) {
  const std::size_t dot = function.rfind('.');
  return dot == std::string_view::npos ? function : function.substr(dot + 1);
}

// The program's own functions are known by name alone: "evaluate", "Trainer._validate_epoch".
bool is_evaluation(std::string_view function) {
  std::string_view name = last_name(function);
  while (name.starts_with('_')) name.remove_prefix(1);
  for (const std::string_view word : {"evaluat", "validat", "eval_", "val_"}) {
    if (name.starts_with(word)) return true;
  }
  return name == "eval" || name == "val";
}

const recording::CopyPayload* copy_by(const Call& call) {
  return call.category == Category::kCopy && !has_failed(call) ? &call.copy : nullptr;
}

// What calls from within tell as well as samples do: these go on until they return.
bool told_by_calls(Cause cause) {
  return cause == Cause::kCheckpoint || cause == Cause::kLogging || cause == Cause::kEvaluation;
}

// What outweighs that the host had waited before: the time would have been lost without the wait
// too.
bool outweighs_wait(Cause cause) { return told_by_calls(cause) || cause == Cause::kCollective; }

}  // namespace

const char* cause_id(Cause cause) {
  static constexpr std::array<const char*, kCauses> kIds = {
      "none",         "checkpoint",         "logging",
      "evaluation",   "collective",         "workers",
      "loading",      "loader_queue",       "interpreter",
      "no_processor", "garbage_collection", "series",
      "small_copies", "cpu_part",           "cpu_quota",
      "page_fault"};
  return kIds[static_cast<std::size_t>(cause)];
}

FrameMatch match_frame(const SourceLine& frame) {
  for (std::size_t i = 0; i < std::size(kFrameRules); ++i) {
    const FrameRule& rule = kFrameRules[i];
    if (frame.file.find(rule.file) == std::string::npos) continue;
    if (!rule.function.empty() && last_name(frame.function) != rule.function) continue;
    return {rule.cause, 2 * i};
  }
  if (frame.user && is_evaluation(frame.function)) {
    return {Cause::kEvaluation, 2 * kEvaluationIndex - 1};
  }
  return {};
}

Causes::Causes(const recording::Recording& recording, const Timeline& timeline,
               const std::vector<Step>& steps, SourceLines& lines)
    : recording_(recording),
      timeline_(timeline),
      steps_(steps),
      lines_(lines),
      looks_(recording),
      text_(recording.start_unix_ns),
      throttled_(throttled_stretches(recording)) {
  note_ranges();
  for (std::uint32_t i = 0; i < recording.calls.size(); ++i) {
    const recording::CopyPayload* copy = copy_by(recording.calls[i]);
    if (copy == nullptr || copy->bytes < kCpuPartBytes) continue;
    if (copy->direction == CopyDirection::kHostToDevice ||
        copy->direction == CopyDirection::kDeviceToHost) {
      transfers_.push_back(i);
    }
  }
}

void Causes::note_ranges() {
  for (const RangeRule& rule : kRangeRules) {
    std::vector<Interval> found;
    for (const recording::Range& range : recording_.ranges) {
      const auto text = recording_.range_texts.find(range.text);
      if (text == recording_.range_texts.end() || !text->second.starts_with(rule.name)) continue;
      found.push_back({range.start_ns, range.end_ns});
    }
    std::sort(found.begin(), found.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    std::vector<Interval> when;
    for (const Interval& interval : found) append_union(when, interval);
    if (!when.empty()) ranges_.emplace_back(rule.cause, std::move(when));
  }
}

// … as a range says that covers most of the piece.
Cause Causes::of_ranges(const IdlePiece& piece) const {
  for (const auto& [cause, when] : ranges_) {
    if (covered(when, piece.begin_ns, piece.begin_ns + piece.ns) * 2 > piece.ns) return cause;
  }
  return Cause::kNone;
}

Cause Causes::of_stack(std::uint32_t python_stack) {
  if (python_stack == 0) return Cause::kNone;
  const auto [it, fresh] = by_stack_.try_emplace(python_stack, Cause::kNone);
  if (!fresh) return it->second;
  FrameMatch best;
  const std::vector<SourceLine> frames = lines_.frames(python_stack, kMaxFramesForCause);
  // A function of the interpreter's own has no frame: the caller's line names it.
  if (!frames.empty() && frames.front().user) {
    const std::string& text = text_.line(frames.front().file, frames.front().line);
    if (text.find("gc.collect(") != std::string::npos) return it->second = Cause::kCollection;
  }
  for (const SourceLine& frame : frames) {
    const FrameMatch match = match_frame(frame);
    if (match.cause == Cause::kNone) continue;
    if (best.cause == Cause::kNone || match.index < best.index) best = match;
  }
  return it->second = best.cause;
}

Cause Causes::of_call(std::uint32_t call) {
  if (call == kNoCall) return Cause::kNone;
  const Cause cause = of_stack(recording_.calls[call].python_stack);
  return told_by_calls(cause) ? cause : Cause::kNone;
}

Cause Causes::of_sample(const GapSample& sample) {
  const Cause cause = of_stack(sample.python_stack);
  if (sample.flags & recording::kGapInterpreter) return Cause::kInterpreter;
  if (sample.flags & recording::kGapCollecting) return Cause::kCollection;
  if (cause != Cause::kNone) return cause;
  if (waits_for_memory(sample)) return Cause::kPageFault;
  const bool ready = sample.state == 'R' && sample.wait_ns > sample.run_ns;
  return ready ? Cause::kNoProcessor : Cause::kNone;
}

// What the thread was seen doing for most of the piece. A thread without Python frames, as
// autograd's are, only waits for the one that has some, unless it is held up itself.
Cause Causes::of_samples(const IdlePiece& piece, std::uint32_t thread) {
  const std::uint64_t begin = piece.begin_ns, end = piece.begin_ns + piece.ns;
  const bool outside = piece.host == HostState::kOutside;
  const std::uint32_t before = outside ? piece.before_call : piece.call;
  // Looks of the same silence only: since the last call.
  const std::uint64_t silence = before == kNoCall ? 0 : recording_.calls[before].end_ns;
  std::array<std::uint64_t, kCauses> own = {}, python = {};
  std::uint64_t own_seen = 0, python_seen = 0;
  looks_.standing(begin, end, silence,
                  [&](const GapSample& look, std::uint64_t from, std::uint64_t until) {
                    const Cause told = of_sample(look);
                    const auto cause = static_cast<std::size_t>(told);
                    // The first look at a thread that runs tells nothing of the time before it.
                    const bool uncounted = look.state == 'R' && look.run_ns + look.wait_ns == 0;
                    if (told == Cause::kNone && uncounted) return;
                    const bool held_up = told == Cause::kInterpreter || told == Cause::kNoProcessor;
                    if (look.python_stack == 0 && !(held_up && look.thread_id == thread)) return;
                    python_seen += until - from;
                    python[cause] += until - from;
                    if (look.thread_id != thread) return;
                    own_seen += until - from;
                    own[cause] += until - from;
                  });
  const std::uint64_t seen = own_seen > 0 ? own_seen : python_seen;
  const auto& ns_of = own_seen > 0 ? own : python;
  const auto most = std::max_element(ns_of.begin(), ns_of.end());
  if (seen * 2 < piece.ns || *most * 2 < seen) return Cause::kNone;
  return static_cast<Cause>(most - ns_of.begin());
}

bool Causes::is_small_copy_up(std::uint32_t op) const {
  const recording::CopyPayload* copy = copy_by(recording_.calls[timeline_.ops[op].call]);
  return copy != nullptr && copy->direction == CopyDirection::kHostToDevice &&
         copy->bytes <= kSmallCopyBytes;
}

Cause Causes::of_piece(const IdlePiece& piece) {
  if (piece.idle == IdleClass::kUnknown || piece.idle == IdleClass::kQueued) return Cause::kNone;
  // Nothing else of the process goes on then, whatever it was about to do.
  if (covered(throttled_, piece.begin_ns, piece.begin_ns + piece.ns) * 2 > piece.ns) {
    return Cause::kQuota;
  }
  const bool outside = piece.host == HostState::kOutside;
  const std::uint32_t before = outside ? piece.before_call : piece.call;
  const std::uint32_t asker =
      piece.next_op == kNoCall ? kNoCall : timeline_.ops[piece.next_op].call;
  const std::uint32_t known = asker != kNoCall ? asker : before;
  bool starved = false;
  if (known != kNoCall && (outside || piece.idle == IdleClass::kAfterSync)) {
    const Cause cause = of_samples(piece, recording_.calls[known].thread_id);
    // A processor is missed in all that one does; what was done without it says more.
    if (cause == Cause::kNoProcessor) {
      starved = outside && piece.idle != IdleClass::kStepStart;
    } else if (cause != Cause::kNone && (outside || outweighs_wait(cause))) {
      return cause;
    }
  }
  Cause cause = outside ? of_ranges(piece) : Cause::kNone;
  if (cause == Cause::kNone) cause = of_calls(piece);
  return cause == Cause::kNone && starved ? Cause::kNoProcessor : cause;
}

// … without looks at it: what the calls round the piece tell.
Cause Causes::of_calls(const IdlePiece& piece) {
  const bool outside = piece.host == HostState::kOutside;
  const std::uint32_t before = outside ? piece.before_call : piece.call;
  const std::uint32_t asker =
      piece.next_op == kNoCall ? kNoCall : timeline_.ops[piece.next_op].call;
  // What was begun before the stretch goes on in it; else it is what the next call belongs to.
  Cause cause = of_call(before);
  if (cause == Cause::kNone) cause = of_call(outside ? piece.call : asker);
  if (cause != Cause::kNone || asker == kNoCall) return cause;

  const recording::CopyPayload* up = copy_by(recording_.calls[asker]);
  if (up == nullptr || up->direction != CopyDirection::kHostToDevice) return Cause::kNone;
  if (piece.next_op > 0 && is_small_copy_up(piece.next_op) && is_small_copy_up(piece.next_op - 1) &&
      timeline_.ops[piece.next_op - 1].device == timeline_.ops[piece.next_op].device) {
    return Cause::kSmallCopies;
  }
  const bool mid_step = piece.idle != IdleClass::kStepStart;
  return mid_step && returns_results(asker, steps_[piece.step]) ? Cause::kCpuPart : Cause::kNone;
}

// Whether the transfer before this copy to the device was one of results, in the same step and in
// the same function (autograd's threads have none): what lies between computes on them.
bool Causes::returns_results(std::uint32_t copy_up, const Step& step) {
  const auto up = std::lower_bound(transfers_.begin(), transfers_.end(), copy_up);
  if (up == transfers_.end() || *up != copy_up || up == transfers_.begin()) return false;
  const Call& down = recording_.calls[*std::prev(up)];
  if (down.copy.direction != CopyDirection::kDeviceToHost || down.start_ns < step.begin_ns) {
    return false;
  }
  const SourceLine& from = lines_.of_stack(down.python_stack);
  const SourceLine& to = lines_.of_stack(recording_.calls[copy_up].python_stack);
  return !from.known() || !to.known() || (from.file == to.file && from.function == to.function);
}

}  // namespace gpubusy::analysis
