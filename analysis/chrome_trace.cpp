// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "analysis/coverage.hpp"
#include "analysis/gaps.hpp"
#include "analysis/json_text.hpp"
#include "analysis/names.hpp"
#include "analysis/ranges.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/stacks/frame_slices.hpp"
#include "analysis/steps.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Call;
using recording::Category;
using recording::Recording;
using recording::Window;

// Kineto's base: all ranks of a job share it whenever they started, and ts stays small enough for a
// double to hold ns.
constexpr std::uint64_t kBaseUnit = 7'889'238ull * 1'000'000'000;

// Longer names are kept once at the top and cut in each row.
constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kCutName = 200;

constexpr std::size_t kMaxFrames = 32;
constexpr std::size_t kMaxNativeFrames = 64;
constexpr std::size_t kBufferSize = 1u << 16;
constexpr std::uint64_t kFooterReserve = 4096;
constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMaxFrameRows = 2'000'000;

// Rows of devices have the device as pid, so a process whose pid is that small (in a container) is
// shown with another.
constexpr std::uint32_t kFirstProcessPid = 64;
constexpr std::uint32_t kPidShift = 1'000'000'000;

// Rows that cross others of their thread go to rows of their own, far from any thread id.
constexpr std::uint64_t kThreadLaneShift = 10'000'000;

// Ranges that may end on another thread, or cross others, have rows of their own.
constexpr std::uint64_t kRangeRow = 900'000'000;

// Slices on one row must nest or be disjoint, else viewers drop them. Gives each slice of a row its
// lane: 0 where it fits. Slices come by start.
class Lanes {
 public:
  enum class Rule { kNested, kDisjoint };
  explicit Lanes(Rule rule) : rule_(rule) {}

  std::uint32_t place(std::uint64_t start, std::uint64_t end, std::uint32_t first_lane = 0) {
    for (std::uint32_t lane = first_lane;; ++lane) {
      if (lane >= open_.size()) open_.resize(lane + 1);
      std::vector<std::uint64_t>& ends = open_[lane];
      while (!ends.empty() && ends.back() <= start) ends.pop_back();
      const bool fits = ends.empty() || (rule_ == Rule::kNested && end <= ends.back());
      if (!fits) continue;
      ends.push_back(end);
      return lane;
    }
  }
  // Whether a slice that begins no earlier than those before has room on a lane.
  bool fits(std::uint32_t lane, std::uint64_t start, std::uint64_t end) const {
    if (lane >= open_.size()) return true;
    const std::vector<std::uint64_t>& ends = open_[lane];
    const auto over =
        std::find_if(ends.rbegin(), ends.rend(), [start](std::uint64_t e) { return e > start; });
    return over == ends.rend() || (rule_ == Rule::kNested && end <= *over);
  }
  std::uint32_t count() const { return static_cast<std::uint32_t>(open_.size()); }

 private:
  Rule rule_;
  std::vector<std::vector<std::uint64_t>> open_;
};

// The program went on, but nothing was recorded any more.
bool stopped_early(recording::FileState state) {
  switch (state) {
    case recording::FileState::kDiskFull:
    case recording::FileState::kBudgetSpent:
    case recording::FileState::kDescriptorLost:
    case recording::FileState::kWriteFailed:
    case recording::FileState::kFileLimit: return true;
    case recording::FileState::kOpen:
    case recording::FileState::kFinished:
    case recording::FileState::kExecuted: break;
  }
  return false;
}

struct OpenFrame {
  std::uint32_t last_call;
  std::uint32_t id;
  bool python, op;
};

struct ShownRange {
  std::uint64_t begin_ns, end_ns;  // as far as the window goes
  std::uint32_t index;             // into Recording::ranges
  std::uint32_t lane = 0;          // of start/end ranges
};

class Writer {
 public:
  Writer(const Recording& recording, const Timeline& timeline, const Window& window,
         NativeNames& names, std::uint64_t max_bytes, const std::string& trace_name,
         TraceFile& file, Operators* operators)
      : recording_(recording),
        timeline_(timeline),
        window_(window),
        names_(names),
        max_bytes_(max_bytes),
        trace_name_(trace_name),
        file_(file),
        operators_(operators),
        lines_(recording) {
    const std::uint64_t begin = unix_time(recording, window.begin_ns);
    base_ns_ = begin / kBaseUnit * kBaseUnit;
    pid_ = recording.pid >= kFirstProcessPid ? recording.pid : recording.pid + kPidShift;
  }

  TraceCounts run() {
    select();
    prepare_steps();
    select_ranges();
    select_frames();
    assign_device_lanes();
    header();
    rows_of_names();
    rows_of_steps();
    bool open = true;
    for (std::uint32_t i = first_; i < last_; ++i) {
      const auto [from, to] = timeline_.ops_of(i);
      const std::uint64_t rows = 1 + (to - from);
      open = frames_before(i, open);
      open = ranges_before(recording_.calls[i].start_ns, recording_.calls[i].end_ns, open);
      counts_.events += rows;
      if (open) {
        row_.clear();
        call_rows(i, from, to);
        open = keep_rows(recording_.calls[i].start_ns);
      }
      if (!open) counts_.left_out += rows;
      if (!file_.good()) break;
    }
    open = ranges_before(kEver, kEver, open);
    open = rows_of_gaps(open);
    rows_of_host(open);
    footer();
    flush(0);
    return counts_;
  }

 private:
  // Takes what row_ holds, unless the file would grow too large.
  bool keep_rows(std::uint64_t time_ns) {
    if (max_bytes_ != 0 &&
        file_.bytes() + buffer_.size() + row_.size() + kFooterReserve > max_bytes_) {
      left_out_from_ns_ = time_ns;
      return false;
    }
    buffer_ += row_;
    flush(kBufferSize);
    return true;
  }

  // Ranges of the window, cut at its ends: a range may hold the whole run of a program. A call that
  // began in the window is shown to its end, so a range round it is too.
  void select_ranges() {
    std::map<std::uint32_t, std::uint64_t> last_call;  // end by thread
    for (std::uint32_t i = first_; i < last_; ++i) {
      std::uint64_t& end = last_call[recording_.calls[i].thread_id];
      end = std::max(end, recording_.calls[i].end_ns);
    }
    const std::vector<recording::Range>& all = recording_.ranges;
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      const recording::Range& range = all[i];
      const bool instant = range.kind == recording::RangeKind::kMark;
      if (range.start_ns > window_.end_ns) break;
      if (range.end_ns < window_.begin_ns || (!instant && range.end_ns == window_.begin_ns))
        continue;
      if (range.start_ns == window_.end_ns && window_.complete) continue;  // of the next one
      std::uint64_t end = window_.end_ns;
      if (!steps_.empty() && range.thread_id == step_thread_)
        end = std::max(end, steps_.back().end_ns);
      const auto call = last_call.find(range.thread_id);
      if (call != last_call.end()) end = std::max(end, call->second);
      ranges_.push_back(
          {std::max(range.start_ns, window_.begin_ns), std::min(range.end_ns, end), i});
      if (range.kind != recording::RangeKind::kStartEnd) launches_.try_emplace(range.thread_id, 0);
    }
    std::stable_sort(ranges_.begin(), ranges_.end(), [](const ShownRange& a, const ShownRange& b) {
      return std::pair(a.begin_ns, b.end_ns) < std::pair(b.begin_ns, a.end_ns);
    });
    for (ShownRange& range : ranges_) {
      if (all[range.index].kind != recording::RangeKind::kStartEnd) continue;
      range.lane = start_end_.place(range.begin_ns, range.end_ns);
    }
  }

  // Steps and ranges of a thread are there already: frames keep out of their way.
  void select_frames() {
    if (operators_ == nullptr) return;
    FrameSlices::ByThread obstacles, library_calls;
    for (const Step& step : steps_) {
      obstacles[step_thread_].push_back({step.begin_ns, step.end_ns});
    }
    for (const ShownRange& shown : ranges_) {
      const recording::Range& range = recording_.ranges[shown.index];
      if (range.kind != recording::RangeKind::kPushPop &&
          range.kind != recording::RangeKind::kCall) {
        continue;
      }
      if (crosses_step(range.thread_id, shown.begin_ns, shown.end_ns)) continue;
      obstacles[range.thread_id].push_back({shown.begin_ns, shown.end_ns});
      if (range.kind == recording::RangeKind::kCall) {
        library_calls[range.thread_id].push_back({shown.begin_ns, shown.end_ns});
      }
    }
    frames_.emplace(recording_, *operators_, first_, last_, std::move(obstacles),
                    std::move(library_calls), kMaxFrameRows);
  }

  // The frames that begin with a call, outermost first, and the ranges before them.
  bool frames_before(std::uint32_t index, bool more) {
    if (!frames_) return more;
    const std::uint32_t thread = recording_.calls[index].thread_id;
    std::vector<OpenFrame>& open = open_frames_[thread];
    while (!open.empty() && open.back().last_call < index) open.pop_back();
    const std::vector<FrameSlice>& slices = frames_->slices();
    for (; next_frame_ < slices.size() && slices[next_frame_].first_call == index; ++next_frame_) {
      const FrameSlice& slice = slices[next_frame_];
      // A library's call of the same length is inside of it.
      more = ranges_before(slice.begin_ns, slice.end_ns + 1, more);
      if (!more) continue;
      Lanes& lanes = thread_lanes_.try_emplace(thread, Lanes::Rule::kNested).first->second;
      // Beside its row a frame would stand round nothing.
      if (crosses_step(thread, slice.begin_ns, slice.end_ns) ||
          !lanes.fits(0, slice.begin_ns, slice.end_ns)) {
        continue;
      }
      lanes.place(slice.begin_ns, slice.end_ns);
      row_.clear();
      frame_row(slice, thread, open);
      more = keep_rows(slice.begin_ns);
      counts_.frames += more;
    }
    return more;
  }

  void frame_row(const FrameSlice& slice, std::uint32_t thread, std::vector<OpenFrame>& open) {
    const bool python = slice.kind == FrameSlice::Kind::kPython;
    const char* category = python                                      ? "python_function"
                           : slice.kind == FrameSlice::Kind::kOperator ? "cpu_op"
                                                                       : "user_annotation";
    row_comma();
    row("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": ", category);
    const std::string& name = frames_->name(slice.name);
    append_json_string(row_, name.size() > kMaxName ? shorten(name, kMaxName, false) : name);
    row(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, thread);
    append_ts(row_, slice.begin_ns);
    row_ += ", \"dur\": ";
    append_microseconds(row_, slice.end_ns - slice.begin_ns);
    const std::uint32_t id = ++(python ? last_python_id_ : last_external_id_);
    if (python) {
      const auto parent =
          std::find_if(open.rbegin(), open.rend(), [](const OpenFrame& o) { return o.python; });
      row(", \"args\": {{\"Python id\": {}, \"Python parent id\": ", id);
      row_ += parent == open.rend() ? "null" : std::to_string(parent->id);
    } else {
      row(", \"args\": {{\"External id\": {}", id);
    }
    row_ += "}}";
    open.push_back({slice.last_call, id, python, slice.kind == FrameSlice::Kind::kOperator});
  }

  // Of the innermost operator round a call; 0: none.
  std::uint32_t external_id(const Call& call) const {
    const auto found = open_frames_.find(call.thread_id);
    if (found == open_frames_.end()) return 0;
    const auto op = std::find_if(found->second.rbegin(), found->second.rend(),
                                 [](const OpenFrame& o) { return o.op; });
    return op == found->second.rend() ? 0 : op->id;
  }

  // The ranges that stand before a slice in the order of slices.
  bool ranges_before(std::uint64_t begin_ns, std::uint64_t end_ns, bool open) {
    for (; next_range_ < ranges_.size() && file_.good(); ++next_range_) {
      const ShownRange& range = ranges_[next_range_];
      if (range.begin_ns > begin_ns || (range.begin_ns == begin_ns && range.end_ns < end_ns)) break;
      ++counts_.events;
      if (open) {
        row_.clear();
        range_row(range);
        open = keep_rows(range.begin_ns);
      }
      if (!open) ++counts_.left_out;
    }
    return open;
  }

  void range_row(const ShownRange& shown) {
    const recording::Range& range = recording_.ranges[shown.index];
    const bool instant = range.kind == recording::RangeKind::kMark;
    std::uint64_t tid = range.thread_id;
    if (range.kind == recording::RangeKind::kStartEnd) {
      tid = kRangeRow + shown.lane;
    } else if (!instant) {
      Lanes& lanes = thread_lanes_.try_emplace(range.thread_id, Lanes::Rule::kNested).first->second;
      const bool crosses = crosses_step(range.thread_id, shown.begin_ns, shown.end_ns);
      tid += lanes.place(shown.begin_ns, shown.end_ns, crosses ? 1 : 0) * kThreadLaneShift;
    }
    row_comma();
    row_ += instant ? "{\"ph\": \"i\", \"s\": \"t\"" : "{\"ph\": \"X\"";
    row_ += ", \"cat\": \"user_annotation\", \"name\": ";
    const std::string& name = range_name(recording_, range);
    append_json_string(row_, name.size() > kMaxName ? shorten(name, kMaxName, false) : name);
    row(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, tid);
    append_ts(row_, shown.begin_ns);
    if (!instant) {
      row_ += ", \"dur\": ";
      append_microseconds(row_, shown.end_ns - shown.begin_ns);
    }
    row_ += ", \"args\": {";
    range_args(range, shown);
    row_ += "}}";
  }

  // What a launching thread was seen to do while it launched nothing. A look at a thread that had
  // not run since the one before says nothing new.
  bool rows_of_gaps(bool open) {
    for (const recording::GapSample& look : recording_.gap_samples) {
      if (look.time_ns < window_.begin_ns || look.time_ns > window_.end_ns ||
          (look.flags & recording::kGapUnmoved) != 0 || !file_.good()) {
        continue;
      }
      if (!open) {
        ++counts_.left_out;
        continue;
      }
      row_.clear();
      row_comma();
      row_ += "{\"ph\": \"i\", \"s\": \"t\", \"cat\": \"gap\", \"name\": ";
      const GapKind kind = kind_of(look, lines_.frames(look.python_stack, kMaxFrames), {});
      append_json_string(row_, gap_title(kind));
      row(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, look.thread_id);
      append_ts(row_, look.time_ns);
      row_ += ", \"args\": {\"looked at before (us)\": ";
      append_microseconds(row_, look.time_ns - look.since_ns);
      if ((look.flags & recording::kGapInSystemCall) != 0) {
        row_ += ", \"system call\": ";
        append_json_string(row_, system_call_name(look.system_call));
      }
      row_ += python_args(look.python_stack);
      row_ += native_args(look.native_stack);
      row_ += "}}";
      open = keep_rows(look.time_ns);
    }
    return open;
  }

  // One counter event: a value holds until the next event of its name.
  bool counter(const char* name, std::uint64_t time_ns,
               std::initializer_list<std::pair<const char*, std::optional<double>>> values) {
    const bool any = std::any_of(values.begin(), values.end(),
                                 [](const auto& value) { return value.second.has_value(); });
    if (!any) return true;
    row_.clear();
    row_comma();
    row("{{\"ph\": \"C\", \"name\": \"{}\", \"pid\": {}, \"tid\": 0, \"ts\": ", name, pid_);
    append_ts(row_, time_ns);
    row_ += ", \"args\": {";
    const char* comma = "";
    for (const auto& [key, value] : values) {
      if (!value) continue;
      row("{}\"{}\": ", comma, key);
      append_number(row_, *value);
      comma = ", ";
    }
    row_ += "}}";
    return keep_rows(time_ns);
  }

  // What the kernel counted, as rates from one sample of the helper thread to the next.
  void rows_of_host(bool open) {
    using recording::HostCounter;
    const recording::HostCounts* before = nullptr;
    for (const recording::HostCounts& counts : recording_.host_counts) {
      if (counts.moment != recording::HostMoment::kHelper) continue;
      const recording::HostCounts* const from = std::exchange(before, &counts);
      if (from == nullptr || from->thread_id != counts.thread_id ||
          from->time_ns >= counts.time_ns || counts.time_ns < window_.begin_ns ||
          from->time_ns > window_.end_ns || !file_.good()) {
        continue;
      }
      if (!open) {
        ++counts_.left_out;
        continue;
      }
      const auto ns = static_cast<double>(counts.time_ns - from->time_ns);
      const auto rate = [&](HostCounter c, double scale) -> std::optional<double> {
        const auto a = from->at(c), b = counts.at(c);
        if (!a || !b || *b < *a) return std::nullopt;
        return static_cast<double>(*b - *a) / ns * scale;
      };
      const std::uint64_t time = std::max(from->time_ns, window_.begin_ns);
      constexpr double kSecond = 1e9, kPercent = 100;
      open = counter("host: processors in use", time,
                     {{"user", rate(HostCounter::kUserNs, 1)},
                      {"system", rate(HostCounter::kSystemNs, 1)}}) &&
             counter("host: page faults per s", time,
                     {{"major", rate(HostCounter::kMajorFaults, kSecond)},
                      {"minor", rate(HostCounter::kMinorFaults, kSecond)}}) &&
             counter("host: context switches per s", time,
                     {{"voluntary", rate(HostCounter::kVoluntarySwitches, kSecond)},
                      {"involuntary", rate(HostCounter::kInvoluntarySwitches, kSecond)}}) &&
             counter("host: processors throttled", time,
                     {{"throttled", rate(HostCounter::kThrottledNs, 1)}}) &&
             counter("host: pressure (%)", time,
                     {{"cpu", rate(HostCounter::kCpuSomeNs, kPercent)},
                      {"io", rate(HostCounter::kIoSomeNs, kPercent)},
                      {"memory", rate(HostCounter::kMemorySomeNs, kPercent)}}) &&
             counter("host: pages swapped per s", time,
                     {{"in", rate(HostCounter::kSwapInPages, kSecond)},
                      {"out", rate(HostCounter::kSwapOutPages, kSecond)}});
    }
  }

  void range_args(const recording::Range& range, const ShownRange& shown) {
    const char* comma = "";
    const auto key = [&](const char* name) {
      row("{}\"{}\": ", comma, name);
      comma = ", ";
    };
    if (range.domain != 0) {
      key("domain");
      append_json_string(row_, range_text(recording_, range.domain));
    }
    if (range.category != 0) {
      key("category");
      const std::string& category = range_text(recording_, range.category_name);
      if (category.empty()) {
        row("{}", range.category);
      } else {
        append_json_string(row_, category);
      }
    }
    if (range.payload_type != recording::RangePayload::kNone) {
      key(range.payload_type == recording::RangePayload::kBytes ? "bytes" : "payload");
      row_ += range_payload(range);
    }
    if ((range.flags & recording::kRangeColour) != 0) {
      key("colour");
      row("\"#{:08x}\"", range.colour);
    }
    if (range.kind == recording::RangeKind::kStartEnd) {
      key("thread");
      row("{}", range.thread_id);
    }
    if (range.start_ns < shown.begin_ns) {
      key("began before the window (us)");
      append_microseconds(row_, shown.begin_ns - range.start_ns);
    }
    if ((range.flags & recording::kRangeOpen) != 0) {
      key("still open");
      row_ += "true";
    } else if (range.end_ns > shown.end_ns) {
      key("ended behind the window (us)");
      append_microseconds(row_, range.end_ns - shown.end_ns);
    }
    if ((range.flags & recording::kRangeCut) != 0) {
      key("name was cut");
      row_ += "true";
    }
  }

  void select() {
    const std::vector<Call>& calls = recording_.calls;
    const auto from = [&](std::uint64_t time) {
      return static_cast<std::uint32_t>(
          std::partition_point(calls.begin(), calls.end(),
                               [time](const Call& c) { return c.start_ns < time; }) -
          calls.begin());
    };
    first_ = from(window_.begin_ns);
    // A complete window ends where the next may begin; any other keeps its last instant.
    last_ = from(window_.complete ? window_.end_ns : window_.end_ns + 1);
    for (std::uint32_t i = first_; i < last_; ++i) {
      ++launches_[calls[i].thread_id];
      const auto [begin, end] = timeline_.ops_of(i);
      for (std::size_t op = begin; op < end; ++op) ops_.push_back(timeline_.ops_by_call[op]);
      untimed_ += begin == end && wants_device_work(calls[i]);
    }
    std::sort(ops_.begin(), ops_.end());  // by start, as in the timeline
  }

  // Steps are shown on the thread that ends them; an edge inside one of that thread's calls moves
  // to the end of the call, for rows must not cross.
  void prepare_steps() {
    steps_ = steps_of(recording_, window_);
    counts_.steps = static_cast<std::uint32_t>(steps_.size());
    if (steps_.empty()) return;
    std::map<std::uint32_t, std::size_t> votes;
    for (const recording::StepEdge& edge : recording_.steps) {
      if (edge.time_ns > window_.begin_ns && edge.time_ns <= window_.end_ns) {
        ++votes[edge.thread_id];
      }
    }
    step_thread_ = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
                     return a.second < b.second;
                   })->first;
    std::size_t next = 0;
    for (std::uint32_t i = first_; i < last_ && next < steps_.size(); ++i) {
      const Call& call = recording_.calls[i];
      while (next < steps_.size() && steps_[next].end_ns <= call.start_ns) ++next;
      if (next == steps_.size()) break;
      if (call.thread_id != step_thread_ || call.end_ns <= steps_[next].end_ns) continue;
      if (next + 1 < steps_.size()) {
        if (call.end_ns >= steps_[next + 1].end_ns) continue;  // longer than a step: own row
        steps_[next + 1].begin_ns = call.end_ns;
      }
      steps_[next].end_ns = call.end_ns;
    }
  }

  // Lies neither in one step, nor round whole ones.
  bool crosses_step(std::uint32_t thread_id, std::uint64_t begin_ns, std::uint64_t end_ns) const {
    if (thread_id != step_thread_ || steps_.empty()) return false;
    const auto first = std::partition_point(steps_.begin(), steps_.end(),
                                            [&](const Step& s) { return s.end_ns <= begin_ns; });
    if (first == steps_.end() || first->begin_ns >= end_ns) return false;  // outside of all
    if (begin_ns > first->begin_ns) return end_ns > first->end_ns;
    const auto last = std::prev(std::partition_point(
        first, steps_.end(), [&](const Step& s) { return s.begin_ns < end_ns; }));
    return end_ns < last->end_ns && !(first == last && begin_ns == first->begin_ns);
  }

  void assign_device_lanes() {
    for (const std::uint32_t op : ops_) {
      const DeviceOp& o = timeline_.ops[op];
      max_stream_ = std::max(max_stream_, o.stream);
      const auto [lanes, fresh] =
          streams_.try_emplace({o.device, o.stream}, Lanes::Rule::kDisjoint);
      const std::uint32_t lane = lanes->second.place(o.start_ns, o.end_ns);
      if (lane > 0) op_lanes_[op] = lane;
      sources_.insert(o.source);
      if (o.device >= 0) devices_.insert(o.device);
    }
    for (const auto& [device, properties] : recording_.devices) {
      if (device >= 0 && device < static_cast<std::int32_t>(kFirstProcessPid)) {
        devices_.insert(device);
      }
    }
    stream_lane_shift_ = (std::uint64_t{max_stream_} / 1000 + 1) * 1000;
  }

  std::uint64_t stream_row(std::uint32_t stream, std::uint32_t lane) const {
    return stream + lane * stream_lane_shift_;
  }

  // ---- pieces of JSON ----

  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
  }
  void flush(std::size_t keep) {
    if (buffer_.size() <= keep) return;
    file_.write(buffer_);
    buffer_.clear();
  }
  void comma() {
    buffer_ += any_row_ ? ",\n" : "\n";
    any_row_ = true;
  }
  void append_ts(std::string& out, std::uint64_t time_ns) const {
    append_microseconds(out, unix_time(recording_, time_ns) - base_ns_);
  }

  // ---- the top of the file ----

  void header() {
    buffer_ += "{\n\"schemaVersion\": 1,\n\"deviceProperties\": [";
    bool first = true;
    std::uint32_t runtime_version = 0, driver_version = 0;
    for (const std::int32_t id : devices_) {
      const auto found = recording_.devices.find(id);
      static const recording::Device kUnknown = {"unknown", {}};
      const recording::Device& device =
          found == recording_.devices.end() ? kUnknown : found->second;
      const recording::DeviceRecord& p = device.properties;
      runtime_version = std::max(runtime_version, p.runtime_version);
      driver_version = std::max(driver_version, p.driver_version);
      put("{}\n  {{\"id\": {}, \"name\": ", first ? "" : ",", id);
      append_json_string(buffer_, device.name);
      put(", \"totalGlobalMem\": {}, \"computeMajor\": {}, \"computeMinor\": {}, "
          "\"maxThreadsPerBlock\": {}, \"maxThreadsPerMultiprocessor\": {}, \"regsPerBlock\": {}, "
          "\"warpSize\": {}, \"sharedMemPerBlock\": {}, \"numSms\": {}, "
          "\"sharedMemPerMultiprocessor\": {}}}",
          p.total_memory, p.compute_major, p.compute_minor, p.max_threads_per_block,
          p.max_threads_per_sm, p.registers_per_block, p.warp_size, p.shared_per_block, p.sm_count,
          p.shared_per_sm);
      first = false;
    }
    put("],\n\"cupti_version\": 0,\n\"cuda_runtime_version\": {},\n\"cuda_driver_version\": {},\n",
        runtime_version, driver_version);
    if (recording_.rank >= 0) {
      put("\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}, "
          "\"pg_count\": 0, \"pg_config\": [], \"nccl_version\": \"unknown\"}},\n",
          recording_.rank, std::max(recording_.world_size, recording_.rank + 1));
    }
    put("\"trace_id\": \"{:08X}{:08X}{:016X}\",\n\"host_name\": ", recording_.pid, window_.index,
        unix_time(recording_, window_.begin_ns));
    append_json_string(buffer_, recording_.host);
    put(",\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": {},\n", base_ns_);
    about();
    buffer_ += "\"traceEvents\": [";
    flush(kBufferSize);
  }

  // What the trace rests on, for people and for scripts.
  void about() {
    put("\"gpubusy\": {{\n  \"version\": ");
    append_json_string(buffer_, recording_.library_version);
    buffer_ += ",\n  \"time source\": ";
    append_json_string(buffer_, source_text());
    const char* kind = window_.kind == recording::WindowKind::kScheduled  ? "scheduled"
                       : window_.kind == recording::WindowKind::kPrelude  ? "prelude"
                       : window_.kind == recording::WindowKind::kCaptured ? "captured"
                                                                          : "whole run";
    put(",\n  \"window\": {{\"index\": {}, \"kind\": \"{}\", \"first_step\": {}, "
        "\"planned_steps\": "
        "{}, \"completed_steps\": {}, \"complete\": {}}},\n",
        window_.index, kind, window_.first_step, window_.planned_steps, counts_.steps,
        window_.complete);
    const recording::StepSource source =
        recording_.steps.empty() ? recording::StepSource::kNone : recording_.steps.front().source;
    put("  \"step source\": \"{}\",\n", step_source_name(source));
    put("  \"calls\": {}, \"device work\": {}, \"device work without time\": {},\n", last_ - first_,
        ops_.size(), untimed_);
    about_layers();
    put("  \"lost records\": {}, \"torn blocks\": {}, \"bad records\": {}, \"recording state\": "
        "\"{}\",\n",
        recording_.lost_records, recording_.torn_blocks, recording_.bad_records,
        file_state_name(recording_.state));
    put("  \"process id\": {},\n", recording_.pid);
    if (recording_.local_rank >= 0) put("  \"local rank\": {},\n", recording_.local_rank);
    put("  \"command\": [");
    for (std::size_t i = 0; i < recording_.command_line.size(); ++i) {
      if (i > 0) buffer_ += ", ";
      append_json_string(buffer_, recording_.command_line[i]);
    }
    buffer_ += "],\n  \"settings\": [";
    for (std::size_t i = 0; i < recording_.settings.size(); ++i) {
      if (i > 0) buffer_ += ", ";
      append_json_string(buffer_, recording_.settings[i]);
    }
    buffer_ += "],\n  \"notices\": [";
    for (std::size_t i = 0; i < std::min<std::size_t>(recording_.notices.size(), 100); ++i) {
      if (i > 0) buffer_ += ", ";
      append_json_string(buffer_, recording_.notices[i].text);
    }
    buffer_ += "],\n  \"long names\": {";
    for (std::uint32_t i = first_; i < last_; ++i) {
      const Call& call = recording_.calls[i];
      if (call.category == Category::kLaunch) name_kernel(call.launch.kernel);
    }
    for (const std::uint32_t op : ops_) {
      if (timeline_.ops[op].kind == OpKind::kKernel) {
        name_kernel(kernel_of(recording_, timeline_.ops[op]));
      }
    }
    buffer_ += "}\n},\n";
  }

  // Its name as rows will have it; a long one in full here, once.
  void name_kernel(std::uint32_t kernel) {
    const auto [name, fresh] = kernel_names_.try_emplace(kernel);
    if (!fresh) return;
    name->second = kernel_name(kernel);
    if (name->second.size() <= kMaxName) {
      name->second = json_string(name->second);
      return;
    }
    // The hooks and CUPTI may each have told it.
    const auto [number, first_time] = long_names_.try_emplace(name->second, kernel);
    if (first_time) {
      put("{}\n    \"{}\": ", long_names_.size() > 1 ? "," : "", kernel);
      append_json_string(buffer_, name->second);
    }
    name->second = json_string(shorten(name->second, kCutName, false) +
                               fmt::format(" (long name {})", number->second));
    flush(kBufferSize);
  }

  // Of the whole recording: how calls came to the hooks.
  void about_layers() {
    const Reach reach = reach_of(recording_);
    const auto layer = [&](const char* name, const LayerReach& l, const char* end) {
      put("\"{}\": {{\"calls\": {}", name, l.calls);
      if (reach.known) {
        put(", \"linked calls\": {}, \"functions by dlsym\": {}, \"functions by dlvsym\": {}, "
            "\"functions by cuGetProcAddress\": {}",
            l.linked_calls, l.by_dlsym, l.by_dlvsym, l.by_proc_address);
      }
      put("}}{}", end);
    };
    put("  \"layers\": {{");
    layer("runtime", reach.runtime(), ", ");
    layer("driver", reach.driver(), "},\n");
  }

  std::string source_text() const {
    std::string text;
    for (const recording::TimeSource source : sources_) {
      text += (text.empty() ? "" : ", ") + std::string(time_source_name(source));
    }
    return text.empty() ? "none" : text;
  }

  std::string kernel_name(std::uint32_t id) const {
    const auto found = recording_.kernels.find(id);
    if (found == recording_.kernels.end() || found->second.name.empty()) {
      return fmt::format("kernel {} of unknown name", id);
    }
    return demangle(found->second.name);
  }

  // ---- rows ----

  void meta(const char* name, std::uint64_t pid, std::uint64_t tid, const char* key,
            const std::string& json_value) {
    comma();
    put("{{\"ph\": \"M\", \"name\": \"{}\", \"ts\": ", name);
    append_ts(buffer_, window_.begin_ns);
    put(", \"pid\": {}, \"tid\": {}, \"args\": {{\"{}\": {}}}}}", pid, tid, key, json_value);
    flush(kBufferSize);
  }

  void rows_of_names() {
    std::string program =
        recording_.command_line.empty() ? recording_.executable : recording_.command_line.front();
    program = program.substr(program.rfind('/') + 1);
    if (program.empty()) program = "process";
    meta("process_name", pid_, 0, "name", json_string(program));
    meta("process_labels", pid_, 0, "labels", "\"CPU\"");
    meta("process_sort_index", pid_, 0, "sort_index", std::to_string(pid_));
    for (const std::int32_t device : devices_) {
      const auto id = static_cast<std::uint64_t>(device);
      meta("process_name", id, 0, "name", json_string(program));
      meta("process_labels", id, 0, "labels", fmt::format("\"GPU {}\"", device));
      meta("process_sort_index", id, 0, "sort_index", std::to_string(5'000'000 + device));
    }
    for (const auto& [thread, calls] : launches_) {
      const auto found = recording_.threads.find(thread);
      const std::string name = found == recording_.threads.end() ? "" : found->second.name;
      meta("thread_name", pid_, thread, "name",
           json_string(fmt::format("thread {} ({})", thread, name.empty() ? program : name)));
      meta("thread_sort_index", pid_, thread, "sort_index", std::to_string(thread));
    }
    for (std::uint32_t lane = 0; lane < start_end_.count(); ++lane) {
      meta("thread_name", pid_, kRangeRow + lane, "name",
           lane == 0 ? "\"ranges\"" : json_string(fmt::format("ranges (overlapping, {})", lane)));
      meta("thread_sort_index", pid_, kRangeRow + lane, "sort_index",
           std::to_string(kRangeRow + lane));
    }
    for (const auto& [key, lanes] : streams_) {
      const auto& [device, stream] = key;
      for (std::uint32_t lane = 0; lane < lanes.count(); ++lane) {
        const std::uint64_t row = stream_row(stream, lane);
        meta("thread_name", static_cast<std::uint64_t>(device), row, "name",
             json_string(lane == 0 ? fmt::format("stream {} ", stream)
                                   : fmt::format("stream {} (overlapping, {})", stream, lane)));
        meta("thread_sort_index", static_cast<std::uint64_t>(device), row, "sort_index",
             std::to_string(stream * 100 + lane));
      }
    }
  }

  void instant(const std::string& name, std::uint64_t time_ns) {
    comma();
    buffer_ += "{\"ph\": \"i\", \"s\": \"g\", \"name\": ";
    append_json_string(buffer_, name);
    put(", \"pid\": {}, \"tid\": {}, \"ts\": ", pid_, step_thread_ ? step_thread_ : pid_);
    append_ts(buffer_, time_ns);
    buffer_ += '}';
  }

  void rows_of_steps() {
    instant("Iteration Start: gpubusy", window_.begin_ns);
    for (const Step& step : steps_) {
      comma();
      put("{{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{}\", \"pid\": "
          "{}, "
          "\"tid\": {}, \"ts\": ",
          step.number, pid_, step_thread_);
      append_ts(buffer_, step.begin_ns);
      buffer_ += ", \"dur\": ";
      append_microseconds(buffer_, step.end_ns - step.begin_ns);
      buffer_ += ", \"args\": {}}";
      flush(kBufferSize);
    }
  }

  template <typename... Args>
  void row(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(row_), format, std::forward<Args>(args)...);
  }
  void row_comma() {
    row_ += any_row_ ? ",\n" : "\n";
    any_row_ = true;
  }

  // A call, its device work, and the arrows between them; always together.
  void call_rows(std::uint32_t index, std::size_t from, std::size_t to) {
    const Call& call = recording_.calls[index];
    const bool driver = call.api < recording_.apis.size() &&
                        recording_.apis[call.api].layer == recording::Layer::kDriver;
    Lanes& lanes = thread_lanes_.try_emplace(call.thread_id, Lanes::Rule::kNested).first->second;
    const std::uint32_t lane =
        lanes.place(call.start_ns, call.end_ns,
                    crosses_step(call.thread_id, call.start_ns, call.end_ns) ? 1 : 0);
    const std::uint64_t tid = call.thread_id + lane * kThreadLaneShift;
    row_comma();
    row("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": ",
        driver ? "cuda_driver" : "cuda_runtime", api_name(call.api), pid_, tid);
    append_ts(row_, call.start_ns);
    row_ += ", \"dur\": ";
    append_microseconds(row_, call.end_ns - call.start_ns);
    row(", \"args\": {{\"correlation\": {}", call.correlation);
    const std::uint32_t external = external_id(call);
    if (external != 0) row(", \"External id\": {}", external);
    if (call.result != 0) row(", \"result\": {}", call.result);
    if (call.flags & recording::kCallUnhooked) row_ += ", \"seen by\": \"CUPTI only\"";
    if (call.flags & recording::kCallCaptured) row_ += ", \"captured\": true";
    if (wants_device_work(call) && from == to) row_ += ", \"device time\": \"not measured\"";
    switch (call.category) {
      case Category::kCopy: row(", \"bytes\": {}", call.copy.bytes); break;
      case Category::kMemset: row(", \"bytes\": {}", call.memset.bytes); break;
      case Category::kDeviceAlloc:
      case Category::kHostAlloc: row(", \"bytes\": {}", call.alloc.bytes); break;
      default: break;
    }
    row_ += python_args(call.python_stack);
    row_ += native_args(call.native_stack);
    row_ += "}}";
    for (std::size_t i = from; i < to; ++i) {
      const std::uint32_t op = timeline_.ops_by_call[i];
      const std::uint64_t stream = device_row(call, op);
      const DeviceOp& o = timeline_.ops[op];
      // The nodes of a graph share a correlation, but arrows with one id would be taken for one.
      const std::uint64_t id = call.correlation + (std::uint64_t{i - from} << 32);
      arrow('s', id, pid_, tid, call.start_ns);
      arrow('f', id, static_cast<std::uint64_t>(o.device), stream, o.start_ns);
    }
  }

  void arrow(char phase, std::uint64_t id, std::uint64_t pid, std::uint64_t tid,
             std::uint64_t time_ns) {
    row_comma();
    row("{{\"ph\": \"{}\", \"id\": {}, \"pid\": {}, \"tid\": {}, \"ts\": ", phase, id, pid, tid);
    append_ts(row_, time_ns);
    row_ += ", \"cat\": \"ac2g\", \"name\": \"ac2g\"";
    row_ += phase == 'f' ? ", \"bp\": \"e\"}" : "}";
  }

  std::uint64_t device_row(const Call& call, std::uint32_t index) {
    const DeviceOp& op = timeline_.ops[index];
    const auto lane = op_lanes_.find(index);
    const std::uint64_t tid = stream_row(op.stream, lane == op_lanes_.end() ? 0 : lane->second);
    row_comma();
    const char* category = op.kind == OpKind::kCopy     ? "gpu_memcpy"
                           : op.kind == OpKind::kMemset ? "gpu_memset"
                                                        : "kernel";
    row("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": ", category);
    op_name(call, op);
    row(", \"pid\": {}, \"tid\": {}, \"ts\": ", op.device, tid);
    append_ts(row_, op.start_ns);
    row_ += ", \"dur\": ";
    append_microseconds(row_, op.end_ns - op.start_ns);
    row_ += ", \"args\": {";
    const std::uint32_t external = external_id(call);
    if (external != 0) row("\"External id\": {}, ", external);
    const bool kernel = op.kind == OpKind::kKernel;
    if (kernel || op.kind == OpKind::kGraph) row_ += "\"queued\": 0, ";
    const recording::Activity* activity =
        op.activity == recording::kNoActivity ? nullptr : &recording_.activities[op.activity];
    row("\"device\": {}, \"context\": {}, \"stream\": {}, \"correlation\": {}", op.device,
        activity == nullptr ? 1 : activity->context, op.stream, call.correlation);
    if (kernel && activity != nullptr) {
      const recording::KernelActivityPayload& k = activity->kernel;
      row(", \"registers per thread\": {}", k.registers);
      kernel_args({k.kernel,
                   {k.grid_x, k.grid_y, k.grid_z},
                   {k.block_x, k.block_y, k.block_z},
                   k.dynamic_shared_bytes + k.static_shared_bytes},
                  op.device);
    } else if (kernel && call.category == Category::kLaunch) {
      kernel_args(call.launch, op.device);
    } else if (op.kind == OpKind::kGraph) {
      graph_args(call, op);
    } else if (!kernel) {
      const std::uint64_t bytes = op.kind == OpKind::kCopy ? copy_of(recording_, op).bytes
                                                           : memset_bytes_of(recording_, op);
      const std::uint64_t length = op.end_ns - op.start_ns;
      row(", \"bytes\": {}, \"memory bandwidth (GB/s)\": ", bytes);
      append_number(row_, length ? static_cast<double>(bytes) / static_cast<double>(length) : 0);
    }
    if (activity != nullptr && activity->graph != 0) {
      row(", \"graph id\": {}, \"graph node id\": {}", activity->graph, activity->graph_node);
    }
    row(", \"time source\": \"{}\"", time_source_name(op.source));
    if (op.uncertainty_ns > 0) {
      row_ += ", \"time uncertainty (us)\": ";
      append_microseconds(row_, op.uncertainty_ns);
    }
    row_ += "}}";
    return tid;
  }

  void op_name(const Call& call, const DeviceOp& op) {
    switch (op.kind) {
      case OpKind::kCopy: {
        const recording::CopyPayload c = copy_of(recording_, op);
        row("\"Memcpy {} ({} -> {})\"", direction_name(c.direction),
            memory_kind_name(c.source_kind), memory_kind_name(c.destination_kind));
        return;
      }
      case OpKind::kMemset: row_ += "\"Memset (Device)\""; return;
      case OpKind::kGraph:
        row("\"CUDA graph {}", call.graph_launch.graph);
        if (op.graph_node != 0) row(" node {}", op.graph_node);
        row_ += '"';
        return;
      case OpKind::kKernel: break;
    }
    const auto name = kernel_names_.find(kernel_of(recording_, op));
    row_ += name != kernel_names_.end() ? name->second : "\"work of unknown kind\"";
  }

  void kernel_args(const recording::Launch& launch, std::int16_t device) {
    const auto found = recording_.devices.find(device);
    const std::uint32_t sms =
        found == recording_.devices.end() ? 0 : found->second.properties.sm_count;
    const double blocks = static_cast<double>(launch.grid[0]) * launch.grid[1] * launch.grid[2];
    const double threads = static_cast<double>(launch.block[0]) * launch.block[1] * launch.block[2];
    row_ += ", \"shared memory\": ";
    row("{}, \"blocks per SM\": ", launch.shared_bytes);
    append_number(row_, sms ? blocks / sms : 0);
    row_ += ", \"warps per SM\": ";
    append_number(row_, sms ? blocks * threads / 32 / sms : 0);
    row(", \"grid\": [{}, {}, {}], \"block\": [{}, {}, {}]", launch.grid[0], launch.grid[1],
        launch.grid[2], launch.block[0], launch.block[1], launch.block[2]);
  }

  void graph_args(const Call& call, const DeviceOp& op) {
    const auto found = recording_.graphs.find(call.graph_launch.graph);
    if (found == recording_.graphs.end() || op.graph_node != 0) return;
    row(", \"graph kernels\": {}, \"graph copies\": {}, \"graph memsets\": {}",
        found->second.kernels, found->second.copies, found->second.memsets);
  }

  const std::string& api_name(std::uint16_t api) {
    const auto [it, fresh] = api_names_.try_emplace(api);
    if (fresh) {
      const bool known = api < recording_.apis.size() && !recording_.apis[api].name.empty();
      it->second = json_string(known ? api_base_name(recording_.apis[api].name) : "unknown call");
    }
    return it->second;
  }

  const std::string& python_args(std::uint32_t stack) {
    const auto [it, fresh] = python_args_.try_emplace(stack);
    if (!fresh || stack == 0) return it->second;
    const SourceLine& line = lines_.of_stack(stack);
    if (!line.known()) return it->second;
    std::string text = ", \"Python\": ";
    append_json_string(text, to_text(line));
    std::string frames;  // innermost first, as torch.profiler has them
    for (const SourceLine& frame : lines_.frames(stack, kMaxFrames)) {
      frames += fmt::format("{}{}({}): {}", frames.empty() ? "" : ";", frame.file, frame.line,
                            frame.function);
    }
    text += ", \"Call stack\": ";
    append_json_string(text, frames);
    return it->second = std::move(text);
  }

  // Functions of native code and of Python, innermost first. A stack that goes on behind the last
  // one ends in "...".
  const std::string& native_args(std::uint32_t stack) {
    const auto [it, fresh] = native_args_.try_emplace(stack);
    if (!fresh || stack == 0) return it->second;
    std::string frames;
    std::size_t count = 0;
    bool cut = false;
    for (std::uint32_t id = stack; id != 0; ++count) {
      const auto node = recording_.stack_nodes.find(id);
      if (node == recording_.stack_nodes.end()) break;
      cut = (node->second.flags & 1) != 0 || count == kMaxNativeFrames;
      if (count == kMaxNativeFrames) break;
      if (!frames.empty()) frames += ';';
      if (node->second.kind == recording::FrameKind::kPython) {
        const SourceLine line = lines_.of_frame(node->second);
        frames += line.known() ? fmt::format("{}({}): {}", line.file, line.line, line.function)
                               : "unknown Python code";
      } else {
        const char* comma = "";
        for (const NativeFrame& frame : names_.at(node->second.location)) {
          frames += comma + to_text(frame);
          comma = ";";
        }
      }
      id = node->second.parent;
    }
    if (frames.empty()) return it->second;
    std::string text = ", \"Native stack\": ";
    append_json_string(text, cut ? frames + ";..." : frames);
    return it->second = std::move(text);
  }

  // ---- the end of the file ----

  void footer() {
    if (counts_.left_out > 0) {
      instant(fmt::format("Truncated: {} of {} rows left out from here on", counts_.left_out,
                          counts_.events),
              left_out_from_ns_);
    }
    const bool stopped = !window_.complete && stopped_early(recording_.state);
    if (stopped) {
      instant(fmt::format("Truncated: the recording stopped here ({}), {} records lost",
                          file_state_name(recording_.state), recording_.lost_records),
              first_ < last_ ? recording_.calls[last_ - 1].end_ns : window_.end_ns);
    }
    instant("Record Window End", window_.end_ns);
    // No brackets behind the events: TensorBoard looks for the last one.
    put("\n],\n\"truncated\": {},\n\"rows left out\": {},\n\"frame rows\": {},\n"
        "\"frame rows left out\": {},\n\"traceName\": ",
        counts_.left_out > 0 || stopped, counts_.left_out, counts_.frames,
        frames_ ? frames_->slices().size() - counts_.frames + frames_->left_out() : 0);
    std::string name = trace_name_;
    for (char& c : name) {
      if (c == '[' || c == ']' || c == '{' || c == '}') c = '_';
    }
    append_json_string(buffer_, name);
    buffer_ += "\n}\n";
  }

  const Recording& recording_;
  const Timeline& timeline_;
  const Window& window_;
  NativeNames& names_;
  const std::uint64_t max_bytes_;
  const std::string& trace_name_;
  TraceFile& file_;
  Operators* const operators_;
  std::optional<FrameSlices> frames_;
  std::size_t next_frame_ = 0;
  std::map<std::uint32_t, std::vector<OpenFrame>> open_frames_;  // by thread, outermost first
  std::uint32_t last_python_id_ = 0, last_external_id_ = 0;
  SourceLines lines_;
  TraceCounts counts_;
  std::uint64_t base_ns_ = 0;
  std::uint32_t pid_ = 0;
  std::uint32_t first_ = 0, last_ = 0;  // calls of the window
  std::vector<std::uint32_t> ops_;
  std::uint64_t untimed_ = 0;
  std::vector<Step> steps_;
  std::uint32_t step_thread_ = 0;
  std::map<std::uint32_t, std::uint64_t> launches_;  // calls by thread
  std::map<std::pair<std::int16_t, std::uint32_t>, Lanes> streams_;
  std::unordered_map<std::uint32_t, std::uint32_t> op_lanes_;  // those that are not 0
  std::map<std::uint32_t, Lanes> thread_lanes_;
  std::vector<ShownRange> ranges_;  // in the order of slices
  std::size_t next_range_ = 0;
  Lanes start_end_{Lanes::Rule::kNested};
  std::set<std::int32_t> devices_;
  std::set<recording::TimeSource> sources_;
  std::uint32_t max_stream_ = 0;
  std::uint64_t stream_lane_shift_ = 1000;
  std::uint64_t left_out_from_ns_ = 0;
  std::unordered_map<std::uint32_t, std::string> kernel_names_;  // as JSON
  std::unordered_map<std::string, std::uint32_t> long_names_;    // in full, and its number
  std::unordered_map<std::uint16_t, std::string> api_names_;     // as JSON
  std::unordered_map<std::uint32_t, std::string> python_args_;   // as JSON
  std::unordered_map<std::uint32_t, std::string> native_args_;   // as JSON
  std::string buffer_, row_;
  bool any_row_ = false;
};

}  // namespace

std::uint64_t unix_time(const Recording& recording, std::uint64_t time_ns) {
  // Unsigned arithmetic: times before the start of the recording come out right as well.
  return recording.start_unix_ns + (time_ns - recording.start_ns);
}

TraceCounts write_trace(const Recording& recording, const Timeline& timeline, const Window& window,
                        NativeNames& names, std::uint64_t max_bytes, const std::string& trace_name,
                        TraceFile& file, Operators* operators) {
  return Writer(recording, timeline, window, names, max_bytes, trace_name, file, operators).run();
}

}  // namespace gpubusy::analysis
