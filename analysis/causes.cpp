// SPDX-License-Identifier: Apache-2.0
#include "analysis/causes.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "analysis/gaps.hpp"
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

// Whether the program trains: only beside that is evaluating something to do less often.
bool trains(const recording::Recording& recording) {
  for (const recording::StepEdge& edge : recording.steps) {
    if (edge.source == recording::StepSource::kOptimizer) return true;
  }
  return std::any_of(recording.codes.begin(), recording.codes.end(), [](const auto& entry) {
    const recording::Code& code = entry.second;
    return code.file.find("/torch/") != std::string::npos &&
           (last_name(code.name) == "backward" || code.name == "_engine_run_backward");
  });
}

}  // namespace

const char* cause_id(Cause cause) {
  static constexpr std::array<const char*, kCauses> kIds = {
      "none",    "checkpoint",   "logging",     "evaluation", "collective",   "workers",
      "loading", "loader_queue", "interpreter", "lock",       "no_processor", "garbage_collection",
      "series",  "small_copies", "cpu_part",    "cpu_quota",  "page_fault"};
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
               const std::vector<Step>& steps, const Looks& looks, SourceLines& lines)
    : recording_(recording),
      timeline_(timeline),
      steps_(steps),
      lines_(lines),
      looks_(looks),
      stacks_(recording, lines),
      throttled_(recording) {
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

StackCauses::StackCauses(const recording::Recording& recording, SourceLines& lines)
    : lines_(lines), text_(recording.start_unix_ns), trains_(trains(recording)) {}

Cause StackCauses::of(std::uint32_t python_stack) {
  if (python_stack == 0) return Cause::kNone;
  const auto [it, fresh] = known_.try_emplace(python_stack, Cause::kNone);
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
    if (match.cause == Cause::kEvaluation && !trains_) continue;
    if (best.cause == Cause::kNone || match.index < best.index) best = match;
  }
  return it->second = best.cause;
}

bool StackCauses::takes_lock(std::uint32_t python_stack) {
  const std::vector<SourceLine> frames = lines_.frames(python_stack, 1);
  if (frames.empty() || !frames.front().user) return false;
  const std::string& text = text_.line(frames.front().file, frames.front().line);
  const std::size_t begin = text.find_first_not_of(" \t");
  return text.find(".acquire(") != std::string::npos ||
         (begin != std::string::npos && text.compare(begin, 5, "with ") == 0);
}

Cause Causes::of_call(std::uint32_t call) {
  if (call == kNoCall) return Cause::kNone;
  const Cause cause = stacks_.of(recording_.calls[call].python_stack);
  return told_by_calls(cause) ? cause : Cause::kNone;
}

bool Causes::is_small_copy_up(std::uint32_t op) const {
  const recording::CopyPayload* copy = copy_by(recording_.calls[timeline_.ops[op].call]);
  return copy != nullptr && copy->direction == CopyDirection::kHostToDevice &&
         copy->bytes <= kSmallCopyBytes;
}

// Threads wait for each other in many ways that are no lock (a queue, an event, the threads of a
// product on the CPU): a line of the program's own that takes one tells.
bool Causes::waits_for_lock(const GapSample& look) {
  if (!stacks_.takes_lock(look.python_stack)) return false;
  return kind_of(look, lines_.frames(look.python_stack, kMaxFramesForCause), {}) == GapKind::kLock;
}

// What the host was doing as it was looked at.
Cause Causes::of_look(const IdlePiece& piece, const GapSample& look, const GapSample* own,
                      const ByCalls& by_calls) {
  const bool outside = piece.host == HostState::kOutside;
  const GapSample& acts = acting(look, own);
  const bool waits_for_gil = (acts.flags & recording::kGapInterpreter) != 0;
  Cause cause = waits_for_gil              ? Cause::kInterpreter
                : is_collecting(look, own) ? Cause::kCollection
                                           : stacks_.of(look.python_stack);
  if (cause == Cause::kNone && waits_for_lock(acts)) cause = Cause::kLock;
  if (cause == Cause::kNone && waits_for_memory(acts)) cause = Cause::kPageFault;
  // What the host had waited for is explained by the wait, unless this would have cost the time
  // too.
  if (cause != Cause::kNone && (outside || outweighs_wait(cause))) return cause;
  const bool whole = look.python_stack != 0 && (look.flags & recording::kGapTorn) == 0;
  if (by_calls.cause != Cause::kNone && !(whole && by_calls.over)) return by_calls.cause;
  // A processor is missed in all that one does: what was done without it says more. And at the
  // start of a step it is late input still.
  const bool starved = outside && piece.idle != IdleClass::kStepStart && lacks_processor(acts);
  return starved ? Cause::kNoProcessor : Cause::kNone;
}

std::vector<Causes::Told> Causes::of_looks(const IdlePiece& piece, const Gap& gap,
                                           const ByCalls& by_calls) {
  std::vector<Told> out;
  std::uint64_t seen = 0;
  looks_.telling(
      gap.begin_ns, gap.end_ns, gap.silence_ns, gap.ender,
      [&](const GapSample& look, const GapSample* own, std::uint64_t from, std::uint64_t until) {
        const Cause told = of_look(piece, look, own, by_calls);
        // The first look at a thread that runs tells nothing of the time before it.
        const GapSample& acts = acting(look, own);
        if (told == Cause::kNone && acts.state == 'R' && acts.run_ns + acts.wait_ns == 0) return;
        seen += until - from;
        out.push_back({from, until, told, acts.thread_id, look.python_stack});
      });
  if (out.empty()) return out;
  // What little was not looked at is like what was seen beside it; much is not known by that.
  if (seen * 2 >= gap.end_ns - gap.begin_ns) {
    out.front().begin_ns = gap.begin_ns;
    for (std::size_t i = 0; i + 1 < out.size(); ++i) out[i].end_ns = out[i + 1].begin_ns;
    out.back().end_ns = gap.end_ns;
  }
  return out;
}

std::vector<IdlePiece> Causes::tell(const std::vector<IdlePiece>& pieces,
                                    const std::vector<IdlePiece>& host_pauses) {
  std::vector<IdlePiece> out;
  out.reserve(pieces.size());
  const std::vector<Gap> gaps = gaps_of(recording_, pieces, host_pauses);
  std::size_t next = 0;
  for (std::uint32_t p = 0; p < pieces.size(); ++p) {
    const IdlePiece& piece = pieces[p];
    const bool explained = piece.idle == IdleClass::kUnknown || piece.idle == IdleClass::kQueued;
    const ByCalls by_calls = explained ? ByCalls{} : of_calls(piece);
    const std::uint64_t end = piece.begin_ns + piece.ns;
    std::uint64_t at = piece.begin_ns;
    const std::size_t first = out.size();
    std::uint64_t longest = 0;  // of what looks with a stack tell, of the last part
    const auto add = [&](std::uint64_t until, Cause cause, std::uint32_t stack = 0) {
      if (until <= at) return;
      const std::uint64_t ns = until - at;
      if (out.size() > first && out.back().cause == cause) {
        out.back().ns += ns;
      } else {
        out.push_back(piece);
        out.back().begin_ns = at;
        out.back().ns = ns;
        out.back().cause = cause;
        longest = 0;
      }
      if (stack != 0 && ns > longest) {
        out.back().seen_stack = stack;
        longest = ns;
      }
      at = until;
    };
    // A thread that the quota stops does nothing else, whatever it was about to do.
    const auto tell_until = [&](std::uint64_t until, Cause cause, std::uint32_t thread,
                                std::uint32_t stack = 0) {
      if (!explained && at < until) {
        for (const Interval& rest : uncovered(throttled_.of(thread), at, until)) {
          add(rest.begin, Cause::kQuota);
          add(rest.end, cause, stack);
        }
        add(until, Cause::kQuota);
      }
      add(until, cause, stack);
    };
    const std::uint32_t thread = thread_of(piece);
    for (; next < gaps.size() && gaps[next].piece == p; ++next) {
      // Launching is gathered from several stretches: where it was is not known.
      if (piece.host != HostState::kOutside && piece.idle != IdleClass::kAfterSync) continue;
      for (const Told& told : of_looks(piece, gaps[next], by_calls)) {
        tell_until(told.begin_ns, by_calls.cause, thread);
        tell_until(told.end_ns, told.cause, told.thread, told.stack);
      }
    }
    tell_until(end, by_calls.cause, thread);
  }
  return out;
}

// … without looks at it: what a range, or the calls round the piece, tell.
Causes::ByCalls Causes::of_calls(const IdlePiece& piece) {
  const bool outside = piece.host == HostState::kOutside;
  const std::uint32_t before = outside ? piece.before_call : piece.call;
  const std::uint32_t asker =
      piece.next_op == kNoCall ? kNoCall : timeline_.ops[piece.next_op].call;
  if (outside) {
    if (const Cause cause = of_ranges(piece); cause != Cause::kNone) return {cause};
  }
  // What was begun before the stretch goes on in it: files are closed and moved behind a library's
  // own frames, too, but a function is left when its frame is not there. Else it is what the next
  // call belongs to.
  if (const Cause begun = of_call(before); begun != Cause::kNone) {
    return {begun, begun == Cause::kEvaluation};
  }
  const Cause next = of_call(outside ? piece.call : asker);
  if (next != Cause::kNone || asker == kNoCall) return {next, true};

  if (is_collective(asker)) return {Cause::kCollective};
  const recording::CopyPayload* up = copy_by(recording_.calls[asker]);
  if (up == nullptr || up->direction != CopyDirection::kHostToDevice) return {};
  if (piece.next_op > 0 && is_small_copy_up(piece.next_op) && is_small_copy_up(piece.next_op - 1) &&
      timeline_.ops[piece.next_op - 1].device == timeline_.ops[piece.next_op].device) {
    return {Cause::kSmallCopies};
  }
  const bool mid_step = piece.idle != IdleClass::kStepStart;
  if (mid_step && returns_results(asker, steps_[piece.step])) return {Cause::kCpuPart};
  return {};
}

// Whose call ends the piece: the one that asks for the next work, else the one it is about.
std::uint32_t Causes::thread_of(const IdlePiece& piece) const {
  const std::uint32_t call =
      piece.next_op == kNoCall ? piece.call : timeline_.ops[piece.next_op].call;
  return call == kNoCall ? 0 : recording_.calls[call].thread_id;
}

// Gloo sends what lies on devices through the host: a thread of its own copies up what has come in.
bool Causes::is_collective(std::uint32_t call) const {
  const auto thread = recording_.threads.find(recording_.calls[call].thread_id);
  return thread != recording_.threads.end() && thread->second.name.starts_with("pt_gloo");
}

// Whether the transfer before this copy to the device was one of results, in the same step and in
// the same function (autograd's threads have none): what lies between computes on them.
bool Causes::returns_results(std::uint32_t copy_up, const Step& step) {
  const auto up = std::lower_bound(transfers_.begin(), transfers_.end(), copy_up);
  if (up == transfers_.end() || *up != copy_up || up == transfers_.begin()) return false;
  const Call& down = recording_.calls[*std::prev(up)];
  if (down.copy.direction != CopyDirection::kDeviceToHost || down.start_ns < step.begin_ns ||
      recording_.calls[copy_up].start_ns >= step.end_ns) {
    return false;
  }
  const SourceLine& from = lines_.of_stack(down.python_stack);
  const SourceLine& to = lines_.of_stack(recording_.calls[copy_up].python_stack);
  return !from.known() || !to.known() || (from.file == to.file && from.function == to.function);
}

}  // namespace gpubusy::analysis
