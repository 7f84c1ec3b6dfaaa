// SPDX-License-Identifier: Apache-2.0
#include "analysis/summary.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "analysis/causes.hpp"
#include "analysis/line_vote.hpp"
#include "analysis/matrix_kernels.hpp"
#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::Recording;

std::string call_name(const Recording& recording, const Call& call) {
  if (call.api >= recording.apis.size() || recording.apis[call.api].name.empty()) {
    return "unknown call";
  }
  return std::string(api_base_name(recording.apis[call.api].name));
}

MemoryKind host_kind_of(const recording::CopyPayload& copy) {
  switch (copy.direction) {
    case CopyDirection::kHostToDevice:
    case CopyDirection::kHostToHost: return copy.source_kind;
    case CopyDirection::kDeviceToHost: return copy.destination_kind;
    default: return MemoryKind::kDevice;
  }
}

std::uint64_t median_of(std::vector<std::uint64_t>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Summariser {
 public:
  Summariser(const Recording& recording, const Timeline& timeline, const std::vector<Step>& steps,
             DeviceSteps& device, Causes& causes, SourceLines& lines)
      : recording_(recording),
        timeline_(timeline),
        steps_(steps),
        device_(device),
        causes_(causes),
        lines_(lines) {
    const auto found = timeline.devices.find(device.device);
    if (found != timeline.devices.end()) line_ = &found->second;
  }

  Summary run(std::vector<IdlePiece>& host_pauses, std::vector<std::uint32_t>& row_of_piece) {
    for (std::uint32_t i = 0; i < recording_.calls.size(); ++i) {
      const Call& call = recording_.calls[i];
      const std::uint32_t step = step_at(steps_, call.start_ns);
      follow_small_copy(i, call, step);
      if (step != kNoCall) one(i, call, step);
    }
    for (auto& [thread, open] : small_copy_) {
      if (open.call != kNoCall) end_small_copy(open, open.end_ns);
    }
    finish_copies();
    finish_kernels();
    finish_calls();
    blame_waits();
    out_.idle = rows_of(device_.pieces, row_of_piece);
    std::vector<std::uint32_t> row_of_pause;
    out_.pauses = rows_of(host_pauses, row_of_pause);
    finish_waits();
    out_.allocations.line = allocation_lines_.winner(lines_);
    out_.allocations.free_line = free_lines_.winner(lines_);
    out_.allocations.pinned_line = pinning_lines_.winner(lines_);
    out_.allocations.retry_line = retry_lines_.winner(lines_);
    out_.small_copies.line = small_copy_lines_.winner(lines_);
    out_.offloads.line = offload_lines_.winner(lines_);
    if (hiccups_.count * kFewHiccups <= out_.small_copies.count) {
      out_.small_copies.idle_ns += hiccups_.idle_ns;
    }
    out_.concurrency = concurrency_of(recording_, timeline_, steps_, device_.device, lines_);
    out_.median_kernel_ns = median_of(kernel_lengths_);
    out_.median_launch_gap_ns = median_of(launch_gaps_);
    return std::move(out_);
  }

 private:
  struct CopyKey {
    CopyDirection direction;
    MemoryKind kind;
    bool asynchronous;
    auto operator<=>(const CopyKey&) const = default;
  };
  struct SmallCopy {
    std::uint32_t call = kNoCall;
    std::uint64_t end_ns = 0;
  };
  struct Kept {  // on the host
    std::uint64_t address, bytes;
    std::uint32_t call;
    bool among_others;
  };
  struct Retry {
    std::uint64_t begin_ns = 0;  // 0: none
    std::uint64_t frees = 0;
  };
  struct LastLaunch {
    std::uint64_t start_ns;
    std::uint32_t step;
  };

  void one(std::uint32_t index, const Call& call, std::uint32_t step) {
    ++out_.calls;
    follow_retry(call);
    CallRow& row = calls_[call.api];
    const std::uint64_t host_ns = call.end_ns - call.start_ns;
    ++row.count;
    row.total_ns += host_ns;
    row.longest_ns = std::max(row.longest_ns, host_ns);
    row.failed += has_failed(call);
    switch (call.category) {
      case Category::kLaunch:
      case Category::kGraphLaunch: launch(index, call, step); break;
      case Category::kCopy: copy(index, call, step); break;
      case Category::kDeviceAlloc:
        ++out_.allocations.device_allocs;
        out_.allocations.failed += has_failed(call);
        allocation(call);
        break;
      case Category::kDeviceFree:
        ++out_.allocations.device_frees;
        allocation(call);
        break;
      case Category::kHostAlloc:
        ++out_.allocations.host_allocs;
        pinning(call);
        break;
      case Category::kHostFree:
        ++out_.allocations.host_frees;
        pinning(call);
        break;
      default: break;
    }
    if (waits_for_device(call)) wait(index, call);
  }

  void launch(std::uint32_t index, const Call& call, std::uint32_t step) {
    if (!wants_device_work(call)) return;
    ++out_.launches;
    ++launches_at_[lines_.id_of(call.python_stack)];
    const bool graph = call.category == Category::kGraphLaunch;
    out_.graph_launches += graph;
    const auto [last, fresh] = last_launch_.try_emplace(call.thread_id);
    if (!fresh && last->second.step == step) {
      launch_gaps_.push_back(call.start_ns - last->second.start_ns);
    }
    last->second = {call.start_ns, step};
    const auto [from, to] = timeline_.ops_of(index);
    for (std::size_t i = from; i < to; ++i) {
      const DeviceOp& op = timeline_.ops[timeline_.ops_by_call[i]];
      const std::uint64_t length = op.end_ns - op.start_ns;
      if (op.kind == OpKind::kCopy) copy_in_graph(call, op);
      if (op.kind != OpKind::kKernel && op.kind != OpKind::kGraph) continue;
      kernel_lengths_.push_back(length);
      out_.kernel_ns += length;
      // A graph that was timed as a whole has no kernel; ids of both kinds share the key space by
      // the high bit.
      const std::uint64_t key = op.kind == OpKind::kGraph
                                    ? (std::uint64_t{1} << 32) | call.graph_launch.graph
                                    : kernel_of(recording_, op);
      KernelTotals& totals = kernels_[key];
      ++totals.count;
      totals.ns += length;
      totals.lines.add(call.python_stack, length);
    }
  }

  void copy_in_graph(const Call& call, const DeviceOp& op) {
    const recording::CopyPayload c = copy_of(recording_, op);
    auto& [row, vote] = copies_[{c.direction, host_kind_of(c), true}];
    ++row.count;
    row.bytes += c.bytes;
    ++row.timed;
    row.timed_bytes += c.bytes;
    row.device_ns += op.end_ns - op.start_ns;
    vote.add(call.python_stack, 0);
  }

  // What is copied back last of several is what tells: a buffer that is used again and again for
  // whatever has to go either way holds one thing at a time. Gloo's copies are a collective's.
  void follow_offload(std::uint32_t index, const Call& call, std::uint32_t step) {
    const recording::CopyPayload& c = call.copy;
    if (c.bytes < kOffloadBytes) return;
    if (step != offload_step_) kept_.clear();
    offload_step_ = step;
    if (c.direction == CopyDirection::kDeviceToHost) {
      std::erase_if(kept_, [&](const Kept& k) { return k.address == c.destination; });
      kept_.push_back({c.destination, c.bytes, index, false});
      if (kept_.size() > 1) {
        for (Kept& k : kept_) k.among_others = true;
      }
      return;
    }
    if (c.direction != CopyDirection::kHostToDevice) return;
    const auto there = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) {
      return k.address == c.source && k.bytes == c.bytes;
    });
    if (there == kept_.end()) return;
    if (there->among_others && !causes_.is_collective(index)) {
      ++out_.offloads.count;
      out_.offloads.bytes += c.bytes;
      out_.offloads.alone_ns += alone_ns(there->call) + alone_ns(index);
      offload_lines_.add(recording_.calls[there->call].python_stack, 1);
    }
    kept_.erase(there);
  }

  // Of a copy's call, for how long the device ran kernels, or other copies that were queued before.
  std::uint64_t beside_others(std::uint32_t index, const Call& call) const {
    if (!line_) return 0;
    std::uint64_t own = 0;
    const auto [from, to] = timeline_.ops_of(index);
    for (std::size_t i = from; i < to; ++i) {
      const DeviceOp& op = timeline_.ops[timeline_.ops_by_call[i]];
      const std::uint64_t begin = std::max(op.start_ns, call.start_ns);
      const std::uint64_t end = std::min(op.end_ns, call.end_ns);
      own += begin < end ? end - begin : 0;
    }
    const std::uint64_t busy = covered(line_->busy, call.start_ns, call.end_ns);
    return std::max(covered(line_->kernel_busy, call.start_ns, call.end_ns),
                    busy - std::min(busy, own));
  }

  // Device time of a call's work while no kernel runs.
  std::uint64_t alone_ns(std::uint32_t call) const {
    std::uint64_t sum = 0;
    const auto [from, to] = timeline_.ops_of(call);
    for (std::size_t i = from; i < to; ++i) {
      const DeviceOp& op = timeline_.ops[timeline_.ops_by_call[i]];
      sum += op.end_ns - op.start_ns -
             (line_ ? covered(line_->kernel_busy, op.start_ns, op.end_ns) : 0);
    }
    return sum;
  }

  void copy(std::uint32_t index, const Call& call, std::uint32_t step) {
    if (has_failed(call) || (call.flags & recording::kCallCaptured)) return;
    const recording::CopyPayload& c = call.copy;
    auto& [row, vote] = copies_[{c.direction, host_kind_of(c), c.asynchronous != 0}];
    ++row.count;
    row.bytes += c.bytes;
    const std::uint64_t host_ns = call.end_ns - call.start_ns;
    row.host_ns += host_ns;
    const auto [from, to] = timeline_.ops_of(index);
    // Of a copy without a time it is not known either what ran before it.
    const std::uint64_t idle_ns = from == to ? 0 : host_ns - beside_others(index, call);
    row.host_idle_ns += idle_ns;
    if (c.bytes > kSmallCopyBytes && !causes_.is_saving(index)) {
      ++row.large_count;
      row.large_bytes += c.bytes;
      row.large_idle_ns += idle_ns;
    }
    vote.add(call.python_stack, host_ns);
    follow_offload(index, call, step);
    for (std::size_t i = from; i < to; ++i) {
      const DeviceOp& op = timeline_.ops[timeline_.ops_by_call[i]];
      row.device_ns += op.end_ns - op.start_ns;
    }
    if (from != to) {
      ++row.timed;
      row.timed_bytes += c.bytes;
    }
  }

  void allocation(const Call& call) {
    Allocations& a = out_.allocations;
    const std::uint64_t host_ns = call.end_ns - call.start_ns;
    a.host_ns += host_ns;
    a.idle_ns += host_ns - (line_ ? covered(line_->busy, call.start_ns, call.end_ns) : 0);
    allocation_lines_.add(call.python_stack, host_ns);
    if (call.category == Category::kDeviceFree) free_lines_.add(call.python_stack, host_ns);
  }

  // An allocator that is refused memory gives back what it kept and asks again: its thread does
  // nothing else meanwhile. One that is refused for good, or asks for less, is another matter.
  void follow_retry(const Call& call) {
    Allocations& a = out_.allocations;
    Retry& retry = retries_[call.thread_id];
    if (call.category == Category::kDeviceAlloc && has_failed(call)) {
      if (retry.begin_ns == 0) retry = {call.start_ns, 0};
    } else if (retry.begin_ns == 0) {
      return;
    } else if (call.category == Category::kDeviceFree) {
      ++retry.frees;
    } else if (call.category == Category::kDeviceAlloc) {
      if (retry.frees > 0) {
        const std::uint64_t host_ns = call.end_ns - retry.begin_ns;
        ++a.retries;
        a.retry_frees += retry.frees;
        a.retry_host_ns += host_ns;
        a.retry_idle_ns +=
            host_ns - (line_ ? covered(line_->busy, retry.begin_ns, call.end_ns) : 0);
        retry_lines_.add(call.python_stack, host_ns);
      }
      retry = {};
    } else if (wants_device_work(call)) {
      retry = {};
    }
  }

  void pinning(const Call& call) {
    Allocations& a = out_.allocations;
    const std::uint64_t host_ns = call.end_ns - call.start_ns;
    a.pinned_host_ns += host_ns;
    a.pinned_idle_ns += host_ns - (line_ ? covered(line_->busy, call.start_ns, call.end_ns) : 0);
    pinning_lines_.add(call.python_stack, host_ns);
  }

  // A small copy takes the host from its call to the next one of the thread: what the framework
  // does for it lies between. A wait for the copy belongs to it.
  void follow_small_copy(std::uint32_t index, const Call& call, std::uint32_t step) {
    SmallCopy& open = small_copy_[call.thread_id];
    const bool behind_another = open.call != kNoCall;
    if (open.call != kNoCall) {
      if (call.category == Category::kSync) {
        open.end_ns = call.end_ns;
        return;
      }
      const std::uint64_t pause = call.start_ns > open.end_ns ? call.start_ns - open.end_ns : 0;
      if (pause >= kLaunchPauseNs && call.python_stack != 0 &&
          call.python_stack == recording_.calls[open.call].python_stack) {
        ++hiccups_.count;
        hiccups_.idle_ns +=
            pause - (line_ ? covered(line_->kernel_busy, open.end_ns, call.start_ns) : 0);
      }
      end_small_copy(open, pause < kLaunchPauseNs ? open.end_ns + pause : open.end_ns);
    }
    const bool small = step != kNoCall && call.category == Category::kCopy && !has_failed(call) &&
                       call.copy.direction == CopyDirection::kHostToDevice &&
                       call.copy.bytes <= kSmallCopyBytes &&
                       !(call.flags & recording::kCallCaptured);
    if (!small) return;
    open = {index, call.end_ns};
    out_.small_copies.in_series += behind_another;
  }

  void end_small_copy(SmallCopy& open, std::uint64_t end_ns) {
    const Call& call = recording_.calls[std::exchange(open.call, kNoCall)];
    const std::uint64_t idle_ns =
        end_ns - call.start_ns - (line_ ? covered(line_->kernel_busy, call.start_ns, end_ns) : 0);
    ++out_.small_copies.count;
    out_.small_copies.bytes += call.copy.bytes;
    out_.small_copies.idle_ns += idle_ns;
    small_copy_lines_.add(call.python_stack, idle_ns);
  }

  WaitRow& wait_row(std::uint32_t index, const Call& call) {
    const std::uint32_t line = lines_.id_of(stack_from(index, 1));
    const auto [it, fresh] = waits_.try_emplace({line, call.api});
    if (fresh) {
      it->second.line = lines_.line(line);
      it->second.call = call_name(recording_, call);
    }
    return it->second;
  }

  void wait(std::uint32_t index, const Call& call) {
    WaitRow& row = wait_row(index, call);
    ++row.count;
    row.host_ns += call.end_ns - call.start_ns;
    if (line_) row.device_busy_ns += covered(line_->busy, call.start_ns, call.end_ns);
  }

  // The stack of a call, or where it has none that of the next (or last) one on its thread.
  std::uint32_t stack_from(std::uint32_t index, int direction) const {
    if (index == kNoCall) return 0;
    const std::uint32_t thread = recording_.calls[index].thread_id;
    std::int64_t at = index;
    for (int i = 0; i < kCallsToSearch; ++i, at += direction) {
      if (at < 0 || at >= static_cast<std::int64_t>(recording_.calls.size())) break;
      const Call& call = recording_.calls[static_cast<std::size_t>(at)];
      if (call.thread_id == thread && call.python_stack != 0) return call.python_stack;
    }
    return 0;
  }

  // A stretch may end (or begin) with a call of a helper's thread, such as a loader's that pins
  // memory: the lines are then those of the thread that asked for the work behind it.
  void use_launching_thread(const IdlePiece& piece, std::uint32_t& after, std::uint32_t& before) {
    if (piece.next_op == kNoCall) return;
    const std::uint32_t asker = timeline_.ops[piece.next_op].call;
    const std::uint32_t thread = recording_.calls[asker].thread_id;
    if (before != 0 && !lines_.line(before).user &&
        recording_.calls[piece.call].thread_id != thread) {
      const std::uint32_t line = lines_.id_of(stack_from(asker, 1));
      if (line != 0) before = line;
    }
    if (after == 0 || lines_.line(after).user ||
        recording_.calls[piece.before_call].thread_id == thread) {
      return;
    }
    for (std::uint32_t i = piece.before_call, n = 0; i > 0 && n < kCallsToSearch; --i, ++n) {
      if (recording_.calls[i].thread_id != thread) continue;
      const std::uint32_t line = lines_.id_of(stack_from(i, -1));
      if (line != 0) after = line;
      return;
    }
  }

  // Whether the work that ended a pause brings data: a copy from the host, or one close behind.
  bool brings_input(std::uint32_t next_op) const {
    if (next_op == kNoCall || !line_) return false;
    const auto at = std::lower_bound(line_->ops.begin(), line_->ops.end(), next_op);
    const auto end =
        line_->ops.end() - at > kWorkBehindPause ? at + kWorkBehindPause : line_->ops.end();
    return std::any_of(at, end, [&](std::uint32_t op) {
      return timeline_.ops[op].kind == OpKind::kCopy &&
             copy_of(recording_, timeline_.ops[op]).direction == CopyDirection::kHostToDevice;
    });
  }

  void finish_copies() {
    for (auto& [key, entry] : copies_) {
      CopyRow& row = entry.first;
      row.direction = key.direction;
      row.host_kind = key.kind;
      row.asynchronous = key.asynchronous;
      row.line = entry.second.winner(lines_);
      out_.copies.push_back(std::move(row));
    }
    std::stable_sort(out_.copies.begin(), out_.copies.end(), [](const auto& a, const auto& b) {
      return std::pair(a.host_ns, a.bytes) > std::pair(b.host_ns, b.bytes);
    });
  }

  void finish_kernels() {
    std::map<std::string, std::pair<KernelRow, std::uint64_t>>
        by_name;  // one name may have many ids
    for (const auto& [key, totals] : kernels_) {
      const auto id = static_cast<std::uint32_t>(key);
      std::string name;
      if (key >> 32) {
        name = id == 0 ? "CUDA graph" : "CUDA graph " + std::to_string(id);
      } else {
        const auto kernel = recording_.kernels.find(id);
        name = kernel == recording_.kernels.end() || kernel->second.name.empty()
                   ? "kernel of unknown name"
                   : demangle(kernel->second.name);
      }
      auto& [row, longest] = by_name[name];
      row.name = name;
      row.count += totals.count;
      row.total_ns += totals.ns;
      if (totals.ns >= longest) {
        longest = totals.ns;
        row.line = totals.lines.winner(lines_);
      }
    }
    for (auto& [name, entry] : by_name) {
      KernelRow& row = entry.first;
      row.share = out_.kernel_ns
                      ? static_cast<double>(row.total_ns) / static_cast<double>(out_.kernel_ns)
                      : 0;
      out_.kernels.push_back(std::move(row));
    }
    std::stable_sort(out_.kernels.begin(), out_.kernels.end(),
                     [](const auto& a, const auto& b) { return a.total_ns > b.total_ns; });
    for (const KernelRow& row : out_.kernels) {
      if (!is_single_precision_product(row.name)) continue;
      out_.single_precision_ns += row.total_ns;
      if (!out_.single_precision_kernel.empty()) continue;
      out_.single_precision_kernel = row.name;
      out_.single_precision_line = row.line;
    }
  }

  void finish_calls() {
    std::map<std::string, CallRow> by_name;  // versions and variants of a function are one
    for (const auto& [api, row] : calls_) {
      Call call = {};
      call.api = api;
      CallRow& sum = by_name[call_name(recording_, call)];
      sum.count += row.count;
      sum.total_ns += row.total_ns;
      sum.longest_ns = std::max(sum.longest_ns, row.longest_ns);
      sum.failed += row.failed;
    }
    for (auto& [name, row] : by_name) {
      row.name = name;
      out_.by_call.push_back(std::move(row));
    }
    std::stable_sort(out_.by_call.begin(), out_.by_call.end(),
                     [](const auto& a, const auto& b) { return a.total_ns > b.total_ns; });
  }

  void blame_waits() {
    for (const IdlePiece& piece : device_.pieces) {
      if (piece.idle != IdleClass::kAfterSync || piece.call == kNoCall) continue;
      const Call& call = recording_.calls[piece.call];
      if (waits_for_device(call)) wait_row(piece.call, call).idle_after_ns += piece.ns;
    }
  }

  std::vector<IdleRow> rows_of(std::vector<IdlePiece>& pieces,
                               std::vector<std::uint32_t>& row_of_piece) {
    using Key = std::tuple<IdleClass, Cause, bool, bool, std::uint32_t, std::uint32_t, bool>;
    struct Entry {
      IdleRow row;
      std::uint16_t api = 0;
      bool one_api = true;
      std::uint32_t last_before = kNoCall;  // of the last stretch: its parts are one piece
      std::uint32_t at = 0;                 // index into the answer
    };
    std::map<Key, Entry> rows;
    std::vector<const Entry*> entry_of_piece;
    for (IdlePiece& piece : pieces) {
      const bool outside = piece.host == HostState::kOutside && piece.idle != IdleClass::kQueued &&
                           piece.idle != IdleClass::kUnknown;
      std::uint32_t after = outside ? lines_.id_of(stack_from(piece.before_call, -1)) : 0;
      std::uint32_t before = lines_.id_of(stack_from(piece.call, 1));
      if (outside) use_launching_thread(piece, after, before);
      piece.input_copy = outside && brings_input(piece.next_op);
      // Input that is late for want of a processor is late input, as at the start of a step.
      if (piece.input_copy && piece.cause == Cause::kNoProcessor) piece.cause = Cause::kNone;
      // Looks that found the host at another line know that it was no hiccup of a series.
      const bool elsewhere =
          outside && piece.seen_stack != 0 && lines_.id_of(piece.seen_stack) != after;
      Entry& entry =
          rows[{piece.idle, piece.cause, outside, piece.input_copy, after, before, elsewhere}];
      entry_of_piece.push_back(&entry);
      IdleRow& row = entry.row;
      if (row.pieces == 0) {
        row.idle = piece.idle;
        row.cause = piece.cause;
        row.outside = outside;
        row.input_copy = piece.input_copy;
        row.region = {lines_.line(after), lines_.line(before)};
      }
      if (piece.call != kNoCall) {
        const std::uint16_t api = recording_.calls[piece.call].api;
        if (row.call.empty()) {
          row.call = call_name(recording_, recording_.calls[piece.call]);
          entry.api = api;
        }
        entry.one_api = entry.one_api && api == entry.api;
      }
      row.ns += piece.ns;
      row.pieces +=
          row.pieces == 0 || piece.before_call == kNoCall || piece.before_call != entry.last_before;
      entry.last_before = piece.before_call;
      if (row.by_step.empty() || row.by_step.back().first != piece.step) {
        row.by_step.emplace_back(piece.step, 0);
      }
      row.by_step.back().second += piece.ns;
    }
    std::vector<Entry*> order;
    for (auto& [key, entry] : rows) {
      if (!entry.one_api) entry.row.call.clear();
      IdleRow& row = entry.row;
      const std::uint32_t after = std::get<4>(key), before = std::get<5>(key);
      if (row.cause == Cause::kNone && row.idle == IdleClass::kHostElsewhere && after == before &&
          after != 0 && !std::get<6>(key) && launches_at_[after] >= kFewHiccups * row.pieces) {
        row.cause = Cause::kSeries;
      }
      order.push_back(&entry);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].cause = entry_of_piece[i]->row.cause;
    std::stable_sort(order.begin(), order.end(),
                     [](const Entry* a, const Entry* b) { return a->row.ns > b->row.ns; });
    std::vector<IdleRow> out;
    for (Entry* entry : order) {
      entry->at = static_cast<std::uint32_t>(out.size());
      out.push_back(std::move(entry->row));
    }
    row_of_piece.clear();
    for (const Entry* entry : entry_of_piece) row_of_piece.push_back(entry->at);
    return out;
  }

  void finish_waits() {
    for (auto& [key, row] : waits_) out_.waits.push_back(std::move(row));
    std::stable_sort(out_.waits.begin(), out_.waits.end(),
                     [](const auto& a, const auto& b) { return a.host_ns > b.host_ns; });
  }

  struct KernelTotals {
    std::uint64_t count = 0, ns = 0;
    LineVote lines;
  };

  const Recording& recording_;
  const Timeline& timeline_;
  const std::vector<Step>& steps_;
  DeviceSteps& device_;
  Causes& causes_;
  SourceLines& lines_;
  const DeviceLine* line_ = nullptr;
  Summary out_;
  std::map<std::uint16_t, CallRow> calls_;
  std::map<CopyKey, std::pair<CopyRow, LineVote>> copies_;
  std::unordered_map<std::uint64_t, KernelTotals> kernels_;
  std::map<std::pair<std::uint32_t, std::uint16_t>, WaitRow> waits_;  // by line id and api
  std::unordered_map<std::uint32_t, LastLaunch> last_launch_;
  std::vector<std::uint64_t> kernel_lengths_, launch_gaps_;
  std::unordered_map<std::uint32_t, SmallCopy>
      small_copy_;       // by thread: the last call, if it is one
  SmallCopies hiccups_;  // long pauses from small copy to small copy of one line
  std::unordered_map<std::uint32_t, std::uint64_t> launches_at_;  // by line id
  std::unordered_map<std::uint32_t, Retry> retries_;              // by thread
  std::vector<Kept> kept_;                                        // in the step `offload_step_`
  std::uint32_t offload_step_ = kNoCall;
  LineVote offload_lines_;
  LineVote allocation_lines_, free_lines_, pinning_lines_, small_copy_lines_, retry_lines_;
};

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  const double middle = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {values.front(), middle, values.back()};
}

Summary summarise(const Recording& recording, const Timeline& timeline,
                  const std::vector<Step>& steps, DeviceSteps& device,
                  std::vector<IdlePiece>& host_pauses, Causes& causes, SourceLines& lines,
                  std::vector<std::uint32_t>& row_of_piece) {
  return Summariser(recording, timeline, steps, device, causes, lines)
      .run(host_pauses, row_of_piece);
}

}  // namespace gpubusy::analysis
