// SPDX-License-Identifier: Apache-2.0
#include "analysis/division.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "analysis/gaps.hpp"
#include "analysis/intervals.hpp"
#include "analysis/looks.hpp"
#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::Recording;

struct PartText {
  Part part;
  const char* id;
  const char* title;
  const char* family;
};
constexpr PartText kPartTexts[] = {
    {Part::kCompute, "compute", "compute", "compute"},
    {Part::kCommunication, "communication", "communication", "communication"},
    {Part::kCopyInPageable, "copy_htod_pageable", "copies to the GPU, pageable", "copies"},
    {Part::kCopyInPinned, "copy_htod_pinned", "copies to the GPU, pinned", "copies"},
    {Part::kCopyInOther, "copy_htod_other", "copies to the GPU", "copies"},
    {Part::kCopyOutPageable, "copy_dtoh_pageable", "copies to the host, pageable", "copies"},
    {Part::kCopyOutPinned, "copy_dtoh_pinned", "copies to the host, pinned", "copies"},
    {Part::kCopyOutOther, "copy_dtoh_other", "copies to the host", "copies"},
    {Part::kCopyWithin, "copy_dtod", "copies within the GPU", "copies"},
    {Part::kCopyOther, "copy_other", "other copies", "copies"},
    {Part::kMemset, "memset", "memsets", "copies"},
    {Part::kEarlier, "earlier", "launched before recording", "compute"},
    {Part::kLoaderWorkers, "loader_workers", "input: waits for loader workers", "input"},
    {Part::kWorkerStart, "worker_start", "input: starts processes", "input"},
    {Part::kLoading, "loading", "input: made in the main process", "input"},
    {Part::kStorage, "storage", "input: waits for storage or network", "input"},
    {Part::kInput, "input", "input, not seen how", "input"},
    {Part::kLaunching, "launching", "launching", "launching"},
    {Part::kSmallCopies, "small_copies", "between small copies", "launching"},
    {Part::kSynchronisation, "synchronisation", "after a synchronisation", "waiting"},
    {Part::kPageableCopies, "pageable_copies", "after a pageable copy", "waiting"},
    {Part::kAllocation, "allocation", "in cudaMalloc, cudaFree", "calls"},
    {Part::kPinning, "pinning", "in pinning host memory", "calls"},
    {Part::kCodeLoading, "code_loading", "in loading GPU code", "calls"},
    {Part::kOtherCall, "other_call", "in another CUDA call", "calls"},
    {Part::kInterpreter, "gil", "waits for the GIL", "host"},
    {Part::kCollection, "garbage_collection", "collects garbage", "host"},
    {Part::kNoProcessor, "no_processor", "waits for a processor", "host"},
    {Part::kQuota, "cpu_quota", "stopped: CPU quota used up", "host"},
    {Part::kMemory, "host_memory", "page faults, mapping memory", "host"},
    {Part::kCheckpoint, "checkpoint", "saves a checkpoint", "host"},
    {Part::kLogging, "logging", "logs or prints", "host"},
    {Part::kEvaluation, "evaluation", "evaluates", "host"},
    {Part::kPeers, "peers", "waits for other ranks", "communication"},
    {Part::kCpuPart, "cpu_part", "computes on the CPU", "host"},
    {Part::kHostRuns, "host_runs", "host runs code outside CUDA", "host"},
    {Part::kFiles, "files", "host reads or writes files", "host"},
    {Part::kStreams, "pipes_sockets", "host waits for a pipe or socket", "host"},
    {Part::kLock, "lock", "host waits for a lock", "host"},
    {Part::kChild, "child_process", "host waits for a child process", "host"},
    {Part::kSleep, "sleep", "host sleeps", "host"},
    {Part::kHostAtStart, "host_at_start", "host elsewhere, start of step", "host"},
    {Part::kHostInStep, "host_in_step", "host elsewhere, in mid-step", "host"},
    {Part::kQueued, "queued", "work queued, not begun", "queued"},
    {Part::kUnknown, "unknown", "unknown (work without times)", "unknown"},
};
static_assert(std::size(kPartTexts) == kParts);
static_assert([] {
  for (std::size_t i = 0; i < kParts; ++i) {
    if (kPartTexts[i].part != static_cast<Part>(i)) return false;
  }
  return true;
}());

struct OfCause {
  Cause cause;
  Part part;
};
constexpr OfCause kOfCause[] = {
    {Cause::kCheckpoint, Part::kCheckpoint},
    {Cause::kLogging, Part::kLogging},
    {Cause::kEvaluation, Part::kEvaluation},
    {Cause::kCollective, Part::kPeers},
    {Cause::kWorkerStart, Part::kWorkerStart},
    {Cause::kLoading, Part::kLoading},
    {Cause::kLoaderQueue, Part::kLoaderWorkers},
    {Cause::kInterpreter, Part::kInterpreter},
    {Cause::kNoProcessor, Part::kNoProcessor},
    {Cause::kCollection, Part::kCollection},
    {Cause::kSeries, Part::kLaunching},
    {Cause::kSmallCopies, Part::kSmallCopies},
    {Cause::kCpuPart, Part::kCpuPart},
    {Cause::kLock, Part::kLock},
    {Cause::kQuota, Part::kQuota},
    {Cause::kPageFault, Part::kMemory},
};
static_assert(std::size(kOfCause) == kCauses - 1);  // all but kNone

// What a look tells of a stretch in which the host was outside CUDA: in a loader, before a copy to
// the device, and anywhere else. kUnknown: no more than is known without the look.
struct OfLook {
  GapKind kind;
  Part in_loader, before_copy, elsewhere;
};
constexpr OfLook kOfLook[] = {
    {GapKind::kRuns, Part::kLoading, Part::kLoading, Part::kHostRuns},
    {GapKind::kNoProcessor, Part::kUnknown, Part::kNoProcessor,
     Part::kNoProcessor},  // input is late all the same
    {GapKind::kInterpreter, Part::kInterpreter, Part::kInterpreter, Part::kInterpreter},
    {GapKind::kCollector, Part::kCollection, Part::kCollection, Part::kCollection},
    {GapKind::kWorkers, Part::kLoaderWorkers, Part::kLoaderWorkers, Part::kLoaderWorkers},
    {GapKind::kChild, Part::kLoading, Part::kChild, Part::kChild},
    {GapKind::kAutograd, Part::kLoading, Part::kHostRuns, Part::kHostRuns},
    {GapKind::kLock, Part::kLoading, Part::kLock, Part::kLock},
    {GapKind::kSleep, Part::kLoading, Part::kSleep, Part::kSleep},
    {GapKind::kPageFault, Part::kMemory, Part::kMemory, Part::kMemory},
    {GapKind::kFileRead, Part::kStorage, Part::kStorage, Part::kFiles},
    {GapKind::kFileWrite, Part::kLoading, Part::kFiles, Part::kFiles},
    {GapKind::kFileLookUp, Part::kStorage, Part::kStorage, Part::kFiles},
    {GapKind::kInput, Part::kStorage, Part::kStorage, Part::kStreams},
    {GapKind::kOutput, Part::kLoading, Part::kStreams, Part::kStreams},
    {GapKind::kMemory, Part::kMemory, Part::kMemory, Part::kMemory},
};

// The beginnings of names, without a namespace: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)",
// "nccl:all_reduce" is a range and no kernel.
constexpr std::string_view kCommunicationNames[] = {
    "ncclDevKernel", "ncclKernel",          "rcclKernel",          "nvshmem",
    "multimem_",     "one_shot_all_reduce", "two_shot_all_reduce", "cross_device_reduce",
};

Part part_of_copy(const recording::CopyPayload& copy) {
  const auto by_kind = [](MemoryKind kind, Part pageable) {
    const auto base = static_cast<std::uint8_t>(pageable);
    return static_cast<Part>(base + (kind == MemoryKind::kPageable ? 0
                                     : kind == MemoryKind::kPinned ? 1
                                                                   : 2));
  };
  switch (copy.direction) {
    case CopyDirection::kHostToDevice: return by_kind(copy.source_kind, Part::kCopyInPageable);
    case CopyDirection::kDeviceToHost:
      return by_kind(copy.destination_kind, Part::kCopyOutPageable);
    case CopyDirection::kDeviceToDevice: return Part::kCopyWithin;
    default: return Part::kCopyOther;
  }
}

Part part_of_call(const Call& call) {
  switch (call.category) {
    case Category::kDeviceAlloc:
    case Category::kDeviceFree: return Part::kAllocation;
    case Category::kHostAlloc:
    case Category::kHostFree: return Part::kPinning;
    case Category::kModule: return Part::kCodeLoading;
    default: return Part::kOtherCall;
  }
}

class Divider {
 public:
  Divider(const Recording& recording, const Timeline& timeline, const std::vector<Step>& steps,
          const DeviceSteps& device, const Summary& summary, SourceLines& lines)
      : recording_(recording),
        timeline_(timeline),
        steps_(steps),
        device_(device),
        summary_(summary),
        lines_(lines) {
    out_.steps.resize(steps.size());
  }

  Division run(const std::vector<Gap>& gaps, const Looks& looks,
               const std::vector<std::uint32_t>& row_of_piece) {
    divide_busy();
    divide_idle(gaps, looks, row_of_piece);
    for (const StepDivision& step : out_.steps) {
      for (std::size_t i = 0; i < kParts; ++i) out_.total.ns[i] += step.ns[i];
      for (std::size_t i = 0; i < kBusyParts; ++i) out_.total.hidden[i] += step.hidden[i];
    }
    name_lines();
    out_.median = median_step();
    return std::move(out_);
  }

 private:
  void divide_busy() {
    const auto found = timeline_.devices.find(device_.device);
    if (found == timeline_.devices.end()) return;
    const DeviceLine& line = found->second;
    std::array<std::vector<std::uint32_t>, kBusyParts> ops;
    for (const std::uint32_t op : line.ops) {
      ops[static_cast<std::size_t>(part_of_op(timeline_.ops[op]))].push_back(op);
    }
    std::vector<Interval> before;  // what the parts so far cover
    for (std::size_t p = 0; p < kBusyParts; ++p) {
      std::vector<Interval> own;
      for (const std::uint32_t op : ops[p]) {
        append_union(own, {timeline_.ops[op].start_ns, timeline_.ops[op].end_ns});
      }
      if (static_cast<Part>(p) == Part::kEarlier) own = line.earlier;
      if (own.empty()) continue;
      std::vector<Interval> with = united(before, own);
      for (std::size_t s = 0; s < steps_.size(); ++s) {
        const auto [begin, end] = std::pair(steps_[s].begin_ns, steps_[s].end_ns);
        const std::uint64_t exposed = covered(with, begin, end) - covered(before, begin, end);
        out_.steps[s].ns[p] = exposed;
        out_.steps[s].hidden[p] = covered(own, begin, end) - exposed;
      }
      for (const std::uint32_t op : ops[p]) vote_for_op(p, timeline_.ops[op], before);
      before = std::move(with);
    }
  }

  Part part_of_op(const DeviceOp& op) {
    switch (op.kind) {
      case OpKind::kCopy: return part_of_copy(copy_of(recording_, op));
      case OpKind::kMemset: return Part::kMemset;
      case OpKind::kGraph: return Part::kCompute;
      case OpKind::kKernel: break;
    }
    const std::uint32_t id = kernel_of(recording_, op);
    const auto [known, fresh] = communicates_.try_emplace(id, false);
    if (fresh) {
      const auto kernel = recording_.kernels.find(id);
      known->second =
          kernel != recording_.kernels.end() && is_communication(demangle(kernel->second.name));
    }
    return known->second ? Part::kCommunication : Part::kCompute;
  }

  void vote_for_op(std::size_t part, const DeviceOp& op, const std::vector<Interval>& before) {
    if (step_at(steps_, op.start_ns) == kNoCall) return;
    vote(part, lines_.of_stack(recording_.calls[op.call].python_stack),
         op.end_ns - op.start_ns - covered(before, op.start_ns, op.end_ns));
  }

  void divide_idle(const std::vector<Gap>& gaps, const Looks& looks,
                   const std::vector<std::uint32_t>& row_of_piece) {
    // What looks tell, then the rest of each piece.
    std::vector<std::uint64_t> rest;
    std::vector<Part> base;
    for (std::size_t i = 0; i < device_.pieces.size(); ++i) {
      rest.push_back(device_.pieces[i].ns);
      base.push_back(base_of(device_.pieces[i], summary_.idle[row_of_piece[i]]));
    }
    for (const Gap& gap : gaps) {
      const IdlePiece& piece = device_.pieces[gap.piece];
      if (piece.host != HostState::kOutside) continue;
      looks.telling(gap.begin_ns, gap.end_ns, gap.silence_ns, gap.ender,
                    [&](const recording::GapSample& look, const recording::GapSample* own,
                        std::uint64_t from, std::uint64_t until) {
                      const Part part = by_look(base[gap.piece], look, own);
                      const std::uint64_t ns = std::min(until - from, rest[gap.piece]);
                      rest[gap.piece] -= ns;
                      add(piece.step, part, ns, lines_.of_stack(look.python_stack));
                    });
    }
    for (std::size_t i = 0; i < rest.size(); ++i) {
      const Region& region = summary_.idle[row_of_piece[i]].region;
      add(device_.pieces[i].step, base[i], rest[i],
          region.before.known() ? region.before : region.after);
    }
  }

  // By the class and the cause of a piece, whichever says more.
  Part base_of(const IdlePiece& piece, const IdleRow& row) const {
    for (const OfCause& of : kOfCause) {
      if (of.cause == row.cause) return of.part;
    }
    switch (piece.idle) {
      case IdleClass::kUnknown: return Part::kUnknown;
      case IdleClass::kQueued: return Part::kQueued;
      case IdleClass::kAfterSync:
        return waits_for_large_pageable_copy(piece) ? Part::kPageableCopies
                                                    : Part::kSynchronisation;
      case IdleClass::kLaunch: return Part::kLaunching;
      case IdleClass::kBlockedCall:
        return piece.call == kNoCall ? Part::kOtherCall
                                     : part_of_call(recording_.calls[piece.call]);
      case IdleClass::kStepStart:
      case IdleClass::kHostElsewhere: break;
    }
    const bool start = piece.idle == IdleClass::kStepStart;
    if (start && piece.host == HostState::kLaunching) return Part::kLaunching;
    if (start && piece.host == HostState::kOtherCall && piece.call != kNoCall) {
      return part_of_call(recording_.calls[piece.call]);
    }
    return row.input_copy ? Part::kInput : start ? Part::kHostAtStart : Part::kHostInStep;
  }

  bool waits_for_large_pageable_copy(const IdlePiece& piece) const {
    if (piece.call == kNoCall) return false;
    const Call& call = recording_.calls[piece.call];
    return is_pageable_copy(call) && call.copy.bytes > kSmallCopyBytes;
  }

  Part by_look(Part base, const recording::GapSample& look, const recording::GapSample* own) {
    const bool loader = base == Part::kLoading, copy = base == Part::kInput;
    if (!loader && !copy && base != Part::kHostAtStart && base != Part::kHostInStep) return base;
    const GapKind kind = kind_at(look, own);
    for (const OfLook& of : kOfLook) {
      if (of.kind != kind) continue;
      const Part part = loader ? of.in_loader : copy ? of.before_copy : of.elsewhere;
      return part == Part::kUnknown ? base : part;
    }
    return base;
  }

  GapKind kind_at(const recording::GapSample& look, const recording::GapSample* own) {
    constexpr std::size_t kMaxFrames = 256;
    const auto [it, fresh] = kinds_.try_emplace({&look, own}, GapKind::kOther);
    if (fresh) it->second = kind_of(look, own, lines_.frames(look.python_stack, kMaxFrames), {});
    return it->second;
  }

  void add(std::uint32_t step, Part part, std::uint64_t ns, const SourceLine& line) {
    out_.steps[step].ns[static_cast<std::size_t>(part)] += ns;
    vote(static_cast<std::size_t>(part), line, ns);
  }

  void vote(std::size_t part, const SourceLine& line, std::uint64_t ns) {
    if (!line.known() || ns == 0) return;
    votes_[{part, &line}] += ns;
  }

  // Lines that are equal may have come from several places.
  void name_lines() {
    using Key = std::tuple<std::size_t, std::string, std::string, int>;
    std::map<Key, std::pair<std::uint64_t, const SourceLine*>> sums;
    for (const auto& [key, ns] : votes_) {
      const auto& [part, line] = key;
      auto& sum = sums[{part, line->file, line->function, line->line}];
      sum.first += ns;
      sum.second = line;
    }
    std::array<std::uint64_t, kParts> most = {};
    for (const auto& [key, sum] : sums) {
      const std::size_t part = std::get<0>(key);
      if (sum.first <= most[part]) continue;
      most[part] = sum.first;
      out_.lines[part] = *sum.second;
    }
  }

  std::size_t median_step() const {
    std::vector<std::size_t> order(steps_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (order.empty()) return 0;
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>((order.size() - 1) / 2);
    std::nth_element(order.begin(), middle, order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(steps_[a].wall_ns(), a) < std::pair(steps_[b].wall_ns(), b);
    });
    return *middle;
  }

  const Recording& recording_;
  const Timeline& timeline_;
  const std::vector<Step>& steps_;
  const DeviceSteps& device_;
  const Summary& summary_;
  SourceLines& lines_;
  std::unordered_map<std::uint32_t, bool> communicates_;  // by kernel id
  std::map<std::pair<const recording::GapSample*, const recording::GapSample*>, GapKind> kinds_;
  // By part and line. Lines stay where they are: in SourceLines, and in the summary's rows.
  std::map<std::pair<std::size_t, const SourceLine*>, std::uint64_t> votes_;
  Division out_;
};

}  // namespace

const char* part_id(Part part) { return kPartTexts[static_cast<std::size_t>(part)].id; }
const char* part_title(Part part) { return kPartTexts[static_cast<std::size_t>(part)].title; }

const char* part_family(Part part) { return kPartTexts[static_cast<std::size_t>(part)].family; }

bool is_communication(std::string_view kernel) {
  const std::string_view bare = kernel.substr(0, kernel.find_first_of("(<"));
  for (const std::string_view name : kCommunicationNames) {
    const std::size_t at = bare.find(name);
    if (at == bare.npos) continue;
    // At the begin of the name, or behind "void " or a namespace.
    if (at == 0 || bare[at - 1] == ' ' || bare[at - 1] == ':') return true;
  }
  return false;
}

std::vector<PartRow> rows_to_show(const Division& division) {
  std::uint64_t wall = 0;
  for (const std::uint64_t ns : division.total.ns) wall += ns;
  std::vector<PartRow> rows;
  std::array<std::size_t, 2> small = {};  // idle, busy
  std::array<std::uint64_t, 2> small_ns = {};
  for (std::size_t i = 0; i < kParts; ++i) {
    const auto part = static_cast<Part>(i);
    const std::uint64_t ns = division.total.ns[i];
    if (ns == 0) continue;
    const double share = static_cast<double>(ns) / static_cast<double>(wall);
    if (share < kLeastPartShare && part != Part::kUnknown) {
      ++small[is_busy(part)];
      small_ns[is_busy(part)] += ns;
    } else {
      rows.push_back({part_title(part), is_busy(part), ns, division.lines[i], false});
    }
  }
  const auto order = [](const PartRow& a, const PartRow& b) {
    return std::pair(a.busy, a.ns) > std::pair(b.busy, b.ns);
  };
  std::stable_sort(rows.begin(), rows.end(), order);
  for (const bool busy : {true, false}) {
    if (small[busy] == 0) continue;
    const auto end = std::find_if(rows.begin(), rows.end(),
                                  [&](const PartRow& row) { return busy && !row.busy; });
    rows.insert(end, {"less than 0.1 % each", busy, small_ns[busy], {}, true});
  }
  return rows;
}

std::vector<std::pair<Part, std::uint64_t>> hidden_parts(const Division& division) {
  std::vector<std::pair<Part, std::uint64_t>> out;
  for (std::size_t i = 0; i < kBusyParts; ++i) {
    if (division.total.hidden[i] > 0)
      out.emplace_back(static_cast<Part>(i), division.total.hidden[i]);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

Division divide(const Recording& recording, const Timeline& timeline,
                const std::vector<Step>& steps, const DeviceSteps& device,
                const std::vector<Gap>& gaps, const Looks& looks, const Summary& summary,
                const std::vector<std::uint32_t>& row_of_piece, SourceLines& lines) {
  return Divider(recording, timeline, steps, device, summary, lines).run(gaps, looks, row_of_piece);
}

}  // namespace gpubusy::analysis
