// SPDX-License-Identifier: Apache-2.0
#include "analysis/gaps.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "analysis/looks.hpp"
#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

using recording::GapFile;
using recording::GapSample;
using recording::Recording;

constexpr std::size_t kMaxFrames = 256;

// ---- system calls
// --------------------------------------------------------------------------------

enum class CallClass : std::uint8_t {
  kRead,
  kWrite,
  kLookUp,
  kWaitInput,
  kReceive,
  kSend,
  kFutex,
  kSleep,
  kSelect,
  kWaitChild,
  kMemory,
};
struct KnownCall {
  std::uint16_t number;
  const char* name;
  CallClass type;
};
// Of x86-64, where alone the library looks into gaps.
constexpr KnownCall kCalls[] = {
    {0, "read", CallClass::kRead},
    {1, "write", CallClass::kWrite},
    {2, "open", CallClass::kLookUp},
    {3, "close", CallClass::kLookUp},
    {4, "stat", CallClass::kLookUp},
    {5, "fstat", CallClass::kLookUp},
    {6, "lstat", CallClass::kLookUp},
    {7, "poll", CallClass::kWaitInput},
    {9, "mmap", CallClass::kMemory},
    {10, "mprotect", CallClass::kMemory},
    {11, "munmap", CallClass::kMemory},
    {12, "brk", CallClass::kMemory},
    {17, "pread64", CallClass::kRead},
    {18, "pwrite64", CallClass::kWrite},
    {19, "readv", CallClass::kRead},
    {20, "writev", CallClass::kWrite},
    {21, "access", CallClass::kLookUp},
    {23, "select", CallClass::kSelect},
    {25, "mremap", CallClass::kMemory},
    {26, "msync", CallClass::kWrite},
    {28, "madvise", CallClass::kMemory},
    {35, "nanosleep", CallClass::kSleep},
    {40, "sendfile", CallClass::kWrite},
    {42, "connect", CallClass::kReceive},
    {43, "accept", CallClass::kReceive},
    {44, "sendto", CallClass::kSend},
    {45, "recvfrom", CallClass::kReceive},
    {46, "sendmsg", CallClass::kSend},
    {47, "recvmsg", CallClass::kReceive},
    {61, "wait4", CallClass::kWaitChild},
    {72, "fcntl", CallClass::kLookUp},
    {73, "flock", CallClass::kLookUp},
    {74, "fsync", CallClass::kWrite},
    {75, "fdatasync", CallClass::kWrite},
    {77, "ftruncate", CallClass::kWrite},
    {82, "rename", CallClass::kLookUp},
    {83, "mkdir", CallClass::kLookUp},
    {87, "unlink", CallClass::kLookUp},
    {89, "readlink", CallClass::kLookUp},
    {202, "futex", CallClass::kFutex},
    {217, "getdents64", CallClass::kLookUp},
    {230, "clock_nanosleep", CallClass::kSleep},
    {232, "epoll_wait", CallClass::kWaitInput},
    {247, "waitid", CallClass::kWaitChild},
    {257, "openat", CallClass::kLookUp},
    {262, "newfstatat", CallClass::kLookUp},
    {270, "pselect6", CallClass::kSelect},
    {271, "ppoll", CallClass::kWaitInput},
    {281, "epoll_pwait", CallClass::kWaitInput},
    {285, "fallocate", CallClass::kWrite},
    {288, "accept4", CallClass::kReceive},
    {295, "preadv", CallClass::kRead},
    {296, "pwritev", CallClass::kWrite},
    {326, "copy_file_range", CallClass::kWrite},
    {332, "statx", CallClass::kLookUp},
};

const KnownCall* known_call(std::uint16_t number) {
  const auto it =
      std::lower_bound(std::begin(kCalls), std::end(kCalls), number,
                       [](const KnownCall& c, std::uint16_t n) { return c.number < n; });
  return it == std::end(kCalls) || it->number != number ? nullptr : it;
}

bool any_frame(const std::vector<SourceLine>& frames, std::string_view file,
               std::string_view function = {}) {
  return std::any_of(frames.begin(), frames.end(), [&](const SourceLine& f) {
    return f.file.ends_with(file) &&
           (function.empty() || std::string_view(f.function).ends_with(function));
  });
}

bool any_name(const std::vector<std::string>& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& n) {
    return std::string_view(n).substr(0, n.find('(')) == name;
  });
}

// In backward() itself, not in a function of the program's that it calls back.
bool runs_backward(const std::vector<SourceLine>& frames) {
  return !frames.empty() && frames.front().file.ends_with("torch/autograd/graph.py") &&
         frames.front().function == "_engine_run_backward";
}

GapKind kind_in_call(const GapSample& look, const std::vector<SourceLine>& frames) {
  const KnownCall* call = known_call(look.system_call);
  if (call == nullptr) return GapKind::kOther;
  const bool is_stream = look.file == GapFile::kPipe || look.file == GapFile::kSocket ||
                         look.file == GapFile::kCharacter;
  const bool waits = call->type == CallClass::kWaitInput || call->type == CallClass::kSelect ||
                     call->type == CallClass::kFutex || call->type == CallClass::kReceive ||
                     (call->type == CallClass::kRead && is_stream);
  if (waits && any_frame(frames, "torch/utils/data/dataloader.py", "_try_get_data")) {
    return GapKind::kWorkers;
  }
  if (call->type == CallClass::kWaitChild || (waits && any_frame(frames, "/subprocess.py"))) {
    return GapKind::kChild;
  }
  switch (call->type) {
    case CallClass::kRead: return is_stream ? GapKind::kInput : GapKind::kFileRead;
    case CallClass::kWrite: return is_stream ? GapKind::kOutput : GapKind::kFileWrite;
    case CallClass::kLookUp: return GapKind::kFileLookUp;
    case CallClass::kSelect:
      return look.argument == 0 ? GapKind::kSleep : GapKind::kInput;  // no descriptor to wait for
    case CallClass::kWaitInput:
    case CallClass::kReceive: return GapKind::kInput;
    case CallClass::kSend: return GapKind::kOutput;
    case CallClass::kFutex: return runs_backward(frames) ? GapKind::kAutograd : GapKind::kLock;
    case CallClass::kSleep: return GapKind::kSleep;
    case CallClass::kMemory: return GapKind::kMemory;
    case CallClass::kWaitChild: return GapKind::kChild;
  }
  return GapKind::kOther;
}

class Finder {
 public:
  Finder(const Recording& recording, const Looks& looks, SourceLines& lines, NativeNames* names)
      : recording_(recording), lines_(lines), names_(names), looks_(looks) {
    out_.looks = recording.gap_samples.size();
  }

  void add(const IdlePiece& piece, const Gap& gap) {
    out_.ns += gap.end_ns - gap.begin_ns;
    looks_.telling(gap.begin_ns, gap.end_ns, gap.silence_ns, gap.ender,
                   [&](const GapSample& look, const GapSample* own, std::uint64_t from,
                       std::uint64_t until) { add(piece, look, own, until - from); });
  }

  Gaps finish() {
    for (auto& [key, row] : rows_) out_.rows.push_back(std::move(row));
    std::stable_sort(out_.rows.begin(), out_.rows.end(),
                     [](const GapRow& a, const GapRow& b) { return a.ns > b.ns; });
    for (auto& [key, row] : holders_) out_.gil.rows.push_back(std::move(row));
    std::stable_sort(out_.gil.rows.begin(), out_.gil.rows.end(),
                     [](const GilHolderRow& a, const GilHolderRow& b) { return a.ns > b.ns; });
    return std::move(out_);
  }

 private:
  struct Described {
    GapKind kind;
    bool in_backward;
    SourceLine line;
    std::vector<SourceLine> inner;
    std::string native;
  };
  using Key =
      std::tuple<IdleClass, Cause, bool, GapKind, std::string, int, std::string, std::string>;

  void add(const IdlePiece& piece, const GapSample& look, const GapSample* own, std::uint64_t ns) {
    const Described d = describe(look, own);
    std::string path;
    for (const SourceLine& f : d.inner) path += f.file + '\n' + f.function + '\n';
    const GapSample& acts = acting(look, own);
    if (d.kind == GapKind::kInterpreter) add_holder(acts, ns);
    const bool in_call = (acts.flags & recording::kGapInSystemCall) != 0;
    const std::string call = in_call ? system_call_name(acts.system_call) : std::string();
    GapRow& row = rows_[{piece.idle, piece.cause, piece.input_copy, d.kind,
                         d.line.file + '\n' + d.line.function, d.line.line, path, call}];
    if (row.looks == 0) {
      row.kind = d.kind;
      row.idle = piece.idle;
      row.cause = piece.cause;
      row.input_copy = piece.input_copy;
      row.in_backward = d.in_backward;
      row.line = d.line;
      row.inner = d.inner;
      row.native = d.native;
      row.call = call;
    }
    row.ns += ns;
    ++row.looks;
    out_.seen_ns += ns;
    if (row.by_step.empty() || row.by_step.back().first != piece.step) {
      row.by_step.emplace_back(piece.step, 0);
    }
    row.by_step.back().second += ns;
  }

  void add_holder(const GapSample& waiter, std::uint64_t ns) {
    ++out_.gil.looks;
    const recording::GilHolder* holder = holder_at(recording_, waiter);
    if (holder == nullptr) return;
    ++out_.gil.known_looks;
    const SourceLine line = place_of(lines_.frames(holder->python_stack, kMaxFrames));
    GilHolderRow& row = holders_[{holder->thread_id, line.file + '\n' + line.function, line.line}];
    row.thread_id = holder->thread_id;
    const auto main = recording_.threads.find(recording_.pid);
    if (main == recording_.threads.end() || main->second.name != holder->name) {
      row.thread = holder->name;
    }
    row.line = line;
    row.ns += ns;
    ++row.looks;
  }

  Described describe(const GapSample& look, const GapSample* own) {
    Described d;
    const std::vector<SourceLine> frames = lines_.frames(look.python_stack, kMaxFrames);
    const std::vector<std::string> native = native_of(look.native_stack);
    d.kind = kind_of(look, own, frames, native);
    d.in_backward = runs_backward(frames);
    if (!native.empty()) d.native = native.front();
    const auto user =
        std::find_if(frames.begin(), frames.end(), [](const SourceLine& f) { return f.user; });
    d.line = place_of(frames);
    // Frames of libraries below the user's: what it called, and what that ended in.
    const auto below = user == frames.end() ? 0 : user - frames.begin();
    if (below > 0) d.inner.push_back(frames[static_cast<std::size_t>(below - 1)]);
    if (below > 1) d.inner.push_back(frames.front());
    return d;
  }

  std::vector<std::string> native_of(std::uint32_t stack) {
    std::vector<std::string> out;
    if (names_ == nullptr) return out;
    for (std::uint32_t id = stack; id != 0 && out.size() < kMaxFrames;) {
      const auto node = recording_.stack_nodes.find(id);
      if (node == recording_.stack_nodes.end()) break;
      if (node->second.kind == recording::FrameKind::kNative) {
        for (const NativeFrame& f : names_->at(node->second.location)) {
          if (!f.function.empty()) out.push_back(f.function);
        }
      }
      id = node->second.parent;
    }
    return out;
  }

  const Recording& recording_;
  SourceLines& lines_;
  NativeNames* names_;
  const Looks& looks_;
  std::map<Key, GapRow> rows_;
  std::map<std::tuple<std::uint32_t, std::string, int>, GilHolderRow> holders_;
  Gaps out_;
};

}  // namespace

bool is_gap(const IdlePiece& piece) {
  return piece.idle == IdleClass::kStepStart || piece.idle == IdleClass::kHostElsewhere ||
         piece.idle == IdleClass::kAfterSync;
}

std::string system_call_name(std::uint16_t number) {
  const KnownCall* call = known_call(number);
  return call == nullptr ? fmt::format("system call {}", number) : call->name;
}

bool waits_for_memory(const GapSample& look) {
  if ((look.flags & recording::kGapOutside) != 0 && (look.state == 'D' || look.state == 'S')) {
    return true;
  }
  // With kGapOutside it has been woken between two questions.
  if (look.state != 'R' || (look.flags & recording::kGapInSystemCall) != 0) return false;
  const std::uint64_t time = look.time_ns - look.since_ns;
  const std::uint64_t off = time - std::min(time, look.run_ns);
  // Ready for nearly all of it: a processor is what was missing, fault or not.
  const std::uint64_t blocked = off - std::min(off, look.wait_ns);
  const std::uint64_t in_faults = off + look.major_faults * kFaultRunNs;
  return look.major_faults > 0 && in_faults * 2 > time && blocked * 4 > off &&
         off <= look.major_faults * kLongestFaultNs;
}

bool is_collecting(const GapSample& look, const GapSample* own) {
  return ((look.flags | (own != nullptr ? own->flags : 0)) & recording::kGapCollecting) != 0;
}

bool lacks_processor(const GapSample& look) {
  return look.state == 'R' && look.wait_ns > look.run_ns;
}

SourceLine place_of(const std::vector<SourceLine>& frames) {
  const auto user =
      std::find_if(frames.begin(), frames.end(), [](const SourceLine& f) { return f.user; });
  return user != frames.end() ? *user : frames.empty() ? SourceLine() : frames.front();
}

const recording::GilHolder* holder_at(const Recording& recording, const GapSample& look) {
  const auto& holders = recording.gil_holders;  // by time
  auto at = std::lower_bound(
      holders.begin(), holders.end(), look.time_ns,
      [](const recording::GilHolder& h, std::uint64_t time) { return h.time_ns < time; });
  for (; at != holders.end() && at->time_ns == look.time_ns; ++at) {
    if (at->waiter == look.thread_id) return &*at;
  }
  return nullptr;
}

GapKind kind_of(const GapSample& look, const GapSample* own, const std::vector<SourceLine>& frames,
                const std::vector<std::string>& native) {
  const GapSample& acts = acting(look, own);
  if ((acts.flags & recording::kGapInterpreter) != 0 ||
      (&acts == &look && any_name(native, "take_gil"))) {
    return GapKind::kInterpreter;
  }
  if (is_collecting(look, own)) return GapKind::kCollector;
  if (waits_for_memory(acts)) return GapKind::kPageFault;
  if (&acts != &look) {
    return lacks_processor(acts)   ? GapKind::kNoProcessor
           : runs_backward(frames) ? GapKind::kAutograd
                                   : GapKind::kRuns;
  }
  if (any_name(native, "gc_collect_main") || any_name(native, "_PyGC_Collect")) {
    return GapKind::kCollector;
  }
  if ((look.flags & recording::kGapInSystemCall) != 0) return kind_in_call(look, frames);
  if (look.state != 'R') return GapKind::kOther;
  return lacks_processor(look) ? GapKind::kNoProcessor : GapKind::kRuns;
}

std::vector<Gap> gaps_of(const Recording& recording, const std::vector<IdlePiece>& pieces,
                         const std::vector<IdlePiece>& host_pauses) {
  std::vector<Gap> out;
  // Only while no thread is in a call: else the call is what the device waits for.
  std::size_t first = 0;
  for (std::uint32_t p = 0; p < pieces.size(); ++p) {
    const IdlePiece& piece = pieces[p];
    if (!is_gap(piece)) continue;
    const std::uint64_t end = piece.begin_ns + piece.ns;
    while (first < host_pauses.size() &&
           host_pauses[first].begin_ns + host_pauses[first].ns <= piece.begin_ns) {
      ++first;
    }
    for (std::size_t i = first; i < host_pauses.size() && host_pauses[i].begin_ns < end; ++i) {
      const IdlePiece& pause = host_pauses[i];
      const std::uint64_t from = std::max(piece.begin_ns, pause.begin_ns);
      const std::uint64_t until = std::min(end, pause.begin_ns + pause.ns);
      const std::uint32_t ender = pause.call == kNoCall ? 0 : recording.calls[pause.call].thread_id;
      if (from < until) out.push_back({p, ender, pause.begin_ns, from, until});
    }
  }
  return out;
}

Gaps find_gaps(const Recording& recording, const std::vector<IdlePiece>& pieces,
               const std::vector<Gap>& gaps, const Looks& looks, SourceLines& lines,
               NativeNames* names) {
  Finder finder(recording, looks, lines, names);
  for (const Gap& gap : gaps) finder.add(pieces[gap.piece], gap);
  return finder.finish();
}

const char* gap_title(GapKind kind) {
  switch (kind) {
    case GapKind::kNotSeen: return "not looked at";
    case GapKind::kRuns: return "runs";
    case GapKind::kNoProcessor: return "waits for a processor";
    case GapKind::kInterpreter: return "waits for the GIL";
    case GapKind::kCollector: return "collects garbage";
    case GapKind::kWorkers: return "waits for a DataLoader worker";
    case GapKind::kChild: return "waits for a child process";
    case GapKind::kAutograd: return "waits for autograd's threads";
    case GapKind::kLock: return "waits for a lock";
    case GapKind::kSleep: return "sleeps";
    case GapKind::kPageFault: return "waits for memory (page fault)";
    case GapKind::kFileRead: return "reads a file";
    case GapKind::kFileWrite: return "writes a file";
    case GapKind::kFileLookUp: return "looks up files";
    case GapKind::kInput: return "waits for input";
    case GapKind::kOutput: return "writes output";
    case GapKind::kMemory: return "maps memory";
    case GapKind::kOther: break;
  }
  return "something else";
}

const char* gap_id(GapKind kind) {
  switch (kind) {
    case GapKind::kNotSeen: return "not_seen";
    case GapKind::kRuns: return "runs";
    case GapKind::kNoProcessor: return "no_processor";
    case GapKind::kInterpreter: return "gil";
    case GapKind::kCollector: return "garbage_collection";
    case GapKind::kWorkers: return "data_loader_workers";
    case GapKind::kChild: return "child_process";
    case GapKind::kAutograd: return "autograd";
    case GapKind::kLock: return "lock";
    case GapKind::kSleep: return "sleep";
    case GapKind::kPageFault: return "page_fault";
    case GapKind::kFileRead: return "file_read";
    case GapKind::kFileWrite: return "file_write";
    case GapKind::kFileLookUp: return "file_look_up";
    case GapKind::kInput: return "input";
    case GapKind::kOutput: return "output";
    case GapKind::kMemory: return "memory_mapping";
    case GapKind::kOther: break;
  }
  return "other";
}

std::string to_text(const GapRow& row) {
  std::string text = to_text(row.line);
  for (const SourceLine& f : row.inner) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : " > ", source_name(f.file), f.function);
  }
  return text;
}

std::string doing_text(const GapRow& row) {
  return row.call.empty() ? std::string(gap_title(row.kind))
                          : fmt::format("{} ({})", gap_title(row.kind), row.call);
}

}  // namespace gpubusy::analysis
