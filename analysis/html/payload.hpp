// SPDX-License-Identifier: Apache-2.0
//
// The timeline of one process for the HTML report: lanes of events that do not overlap, as columns
// of numbers, and the words for them. docs/html-report.md has the format. Thread-safety: one thread
// per object; the process must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/html/judged_process.hpp"
#include "analysis/html/text_sink.hpp"
#include "analysis/source_lines.hpp"
#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

// What an event is, for its colour and its row. Numbers are in files: only append.
enum class EventKind : std::uint8_t {
  kKernel,
  kCopyToDevice,
  kCopyToHost,
  kOtherCopy,
  kMemset,
  kGraph,
  kLaunchCall,
  kWaitCall,
  kCopyCall,
  kMemoryCall,
  kOtherCall,
  kRange,
  kStep,
  kIdle,  // and the IdleClass added
};

enum class LaneKind : std::uint8_t { kSteps, kIdle, kDevice, kCalls, kRanges };

class TimelinePayload {
 public:
  // Of the windows that the verdict is about. At most `max_events` events, the earliest.
  TimelinePayload(const JudgedProcess& process, std::uint64_t max_events);

  // One JSON object: lanes, names, frames.
  std::string head() const;
  // The numbers, as varints: stack nodes, then each lane's columns.
  void write_columns(Base64Stream& out) const;

  std::uint64_t events() const { return events_; }
  std::uint64_t left_out() const { return left_out_; }

 private:
  struct Event {
    std::uint64_t begin_ns = 0, end_ns = 0;
    std::uint64_t bytes = 0;
    std::uint32_t name = 0;                     // index into names_
    std::uint32_t stack = 0, before_stack = 0;  // stack nodes; before_stack: of the call before
    std::uint32_t call = 0;    // of calls their number, of work the call's; 0: none
    std::uint32_t result = 0;  // of a call
    std::uint32_t gap = 0;     // of idle time: index into gaps_
  };
  struct Lane {
    LaneKind kind;
    std::string label;
    std::int16_t device = -1;
    std::uint32_t stream = 0, thread = 0;
    std::uint32_t depth = 0;    // 0: the first lane of its row
    std::vector<Event> events;  // by begin, disjoint
  };
  struct Gap {
    std::uint32_t first_piece = 0, pieces = 0;  // of DeviceSteps::pieces
  };
  using RowKey = std::tuple<LaneKind, std::int32_t, std::uint32_t>;  // device or thread, stream

  void add_calls_and_work(std::uint64_t max_events);
  void add_call(std::uint32_t index);
  void add_ranges();
  void add_steps();
  void add_idle();
  void place(const RowKey& row, const Event& event);
  void name_lanes();

  std::uint32_t name_of(EventKind kind, const std::string& text);
  std::uint32_t call_name(const recording::Call& call);
  std::uint32_t work_name(const DeviceOp& op);
  std::uint32_t node_of(std::uint32_t python_stack);

  const recording::Recording& recording_;
  const Timeline& timeline_;
  const StepSelection& selection_;
  const DeviceSteps& times_;
  SourceLines lines_;
  std::uint64_t begin_ns_ = 0, end_ns_ = 0;  // of all windows
  std::uint64_t events_ = 0, left_out_ = 0, outside_ = 0;
  std::uint64_t cut_ns_ = 0;  // from here on events were left out; 0: nowhere
  std::uint32_t next_call_ = 1;
  std::map<RowKey, std::vector<Lane>> rows_;
  std::vector<Gap> gaps_;

  std::map<std::pair<EventKind, std::string>, std::uint32_t> name_ids_;
  std::vector<std::pair<EventKind, std::string>> names_;
  std::map<std::pair<std::uint16_t, EventKind>, std::uint32_t> call_names_;
  std::unordered_map<std::uint32_t, std::uint32_t> kernel_names_;
  std::unordered_map<std::uint32_t, std::uint32_t> node_by_stack_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> nodes_;  // parent, frame; ids from 1
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> node_ids_;
  std::vector<SourceLine> frames_;
  std::map<std::tuple<std::string, std::string, int>, std::uint32_t> frame_ids_;
};

}  // namespace gpubusy::analysis
