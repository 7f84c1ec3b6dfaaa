// SPDX-License-Identifier: Apache-2.0
//
// A recording in memory, as the reader gives it to analysis. Plain data; nothing is judged here.
// Times: CLOCK_MONOTONIC ns. Sizes: bytes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "recording/format.hpp"

namespace gpubusy::recording {

struct Error {
  std::string message;  // names the file, the value and what was expected
};

struct Api {
  std::string name;  // as exported, e.g. "cudaLaunchKernel", "cuMemcpyHtoDAsync_v2_ptsz"
  Category category = Category::kOther;
  Layer layer = Layer::kRuntime;
};

struct Launch {
  std::uint32_t kernel;
  std::uint32_t grid[3], block[3];
  std::uint32_t shared_bytes;
};

struct Call {
  std::uint64_t start_ns, end_ns;
  std::uint32_t correlation;
  std::uint32_t thread_id;
  std::uint32_t python_stack, native_stack;
  std::uint32_t stream;
  std::int32_t result;
  std::uint16_t api;
  std::uint16_t flags;
  std::int16_t device;
  Category category;
  union {
    Launch launch;
    GraphLaunchPayload graph_launch;
    CopyPayload copy;
    MemsetPayload memset;
    AllocPayload alloc;
    SyncPayload sync;
  };
};

// What CUPTI tells of a piece of device work beyond its times.
struct Activity {
  std::uint64_t start_ns, end_ns;
  std::uint64_t graph_node;   // 0: not a node of a graph
  std::uint32_t correlation;  // CUPTI's, unique in its epoch
  std::uint32_t uncertainty_ns;
  std::uint32_t stream, context, graph;
  std::int16_t device;
  ActivityKind kind;
  std::uint8_t epoch;
  union {
    KernelActivityPayload kernel;
    CopyActivityPayload copy;
    MemsetActivityPayload memset;
  };
};
inline constexpr std::uint32_t kNoActivity = 0xffffffff;

// From CUDA events, or made of an activity.
struct DeviceTime {
  std::uint64_t start_ns, end_ns;
  std::uint32_t correlation;  // of the call
  std::uint32_t uncertainty_ns;
  std::uint32_t stream;
  std::uint32_t graph_node;
  std::int16_t device;
  TimeSource source;
  std::uint32_t activity = kNoActivity;  // index into Recording::activities
};

struct Overhead {
  std::uint64_t start_ns, end_ns;
  OverheadKind kind;
  std::uint32_t thread_id;  // gettid(), 0: not of a thread that is known
};

struct StepEdge {
  std::uint64_t time_ns;
  std::uint32_t step;  // number of the step that ended here
  std::uint32_t thread_id;
  StepSource source;
};

struct Window {
  std::uint32_t index;
  WindowKind kind;
  std::uint32_t first_step;
  std::uint32_t planned_steps, completed_steps;
  std::uint64_t begin_ns, end_ns;  // end_ns of an unfinished window: the last record's time
  bool complete;                   // ended by its last step (kEnd)
};

struct Kernel {
  std::string name;
  std::uint64_t function = 0;
};  // mangled name
struct Code {
  std::string file, name;
  std::string line_table;  // raw bytes
  std::int32_t first_line = 0;
  int python_minor = 0;
  bool cut = false;
};
struct StackNode {
  std::uint32_t parent;
  FrameKind kind;
  std::uint8_t flags;
  std::uint64_t location;
};
struct Thread {
  std::uint32_t id;
  std::uint64_t pthread;
  std::string name;
  bool named = false;
};
struct Stream {
  std::uint64_t handle;
  std::int16_t device;
  std::uint16_t flags;
  std::int32_t priority;
};
struct Device {
  std::string name;
  DeviceRecord properties;
};
// A look at a launching thread while nothing was launched.
struct GapSample {
  std::uint64_t time_ns;
  std::uint64_t since_ns;  // of the look before in the same silence, or when the silence began
  std::uint64_t argument;  // the first of the system call
  std::uint64_t run_ns, wait_ns;  // since then: on a processor, ready but on none
  std::uint32_t major_faults;     // since then
  std::uint32_t thread_id, python_stack, native_stack;
  std::uint16_t system_call;
  char state;          // as in /proc; 0: not told
  std::uint8_t flags;  // GapFlags
  GapFile file;
};
// Which thread held the GIL as a look at another found that waiting for it.
struct GilHolder {
  std::uint64_t time_ns;  // of the look
  std::uint32_t waiter, thread_id;
  std::uint32_t python_stack;  // of the holder
  std::uint8_t flags;          // GapFlags: kGapTorn
  std::string name;            // the kernel's, of the holder
};
// What the kernel had counted at an instant.
struct HostCounts {
  std::uint64_t time_ns = 0;
  std::uint64_t known = 0;  // bits by HostCounter
  std::uint32_t thread_id = 0;
  std::uint32_t step = 0;  // kEdge: that ended here
  HostMoment moment = HostMoment::kEdge;
  std::array<HostSource, kHostTopics> sources{};  // kHelper
  std::vector<std::uint64_t> values;              // one for each bit of `known`, lowest first

  std::optional<std::uint64_t> at(HostCounter counter) const {
    const auto bit = static_cast<unsigned>(counter);
    if ((known >> bit & 1) == 0) return std::nullopt;
    return values[static_cast<std::size_t>(std::popcount(known & ((std::uint64_t{1} << bit) - 1)))];
  }
};
// A look at the main thread of a process below this one, in such a silence.
struct WorkerLook {
  std::uint64_t time_ns;
  std::uint64_t since_ns;  // of the look at it before, in whatever silence; 0: the first
  std::uint64_t argument;
  std::uint64_t run_ns, wait_ns;  // since then, as what follows
  std::uint32_t process_run_ms, storage_wait_ms, major_faults;
  std::uint32_t pid, parent_pid, python_stack;
  std::uint16_t system_call;
  char state;          // as in /proc; 0: not told
  std::uint8_t flags;  // GapFlags
  GapFile file;
  std::uint8_t worker_flags;  // WorkerFlags
  std::uint16_t left_out;     // processes that there was no room for
  std::string name;
};
struct Range {
  std::uint64_t start_ns, end_ns;  // start_ns may lie before the recording began
  std::uint64_t payload;
  std::uint32_t text;  // of Recording::range_texts, as domain and category_name; 0: none
  std::uint32_t domain, category, category_name, colour;
  std::uint32_t thread_id;  // that began it
  std::uint32_t id;
  RangeKind kind;
  RangePayload payload_type;
  std::uint16_t flags;
};
struct RecordingEdge {
  std::uint64_t time_ns;
  bool begins;
};
struct Notice {
  std::uint64_t time_ns;
  NoticeKind kind;
  std::string text;
};
struct Graph {
  std::uint64_t graph_exec;
  std::uint32_t kernels, copies, memsets, others;
};

struct Module {           // a loaded ELF object
  std::uint64_t time_ns;  // when it was found
  std::uint64_t begin, end, base;
  std::string path;      // empty: the program itself
  std::string build_id;  // hex
  bool cut;              // the path is not whole
};

// What the host offers the process.
struct HostOffer {
  std::uint32_t flags = 0;                                                 // HostFlags
  std::uint64_t memory_bytes = 0, swap_bytes = 0, memory_limit_bytes = 0;  // limit 0: none
  std::uint64_t cpu_quota_us = 0, cpu_period_us = 0;                       // 0: none
  std::uint32_t online_processors = 0, usable_processors = 0;              // 0: not known
  std::uint32_t page_bytes = 0;
  bool known = false;  // false: recorded before there was such a thing

  double quota_processors() const {
    return cpu_quota_us == 0
               ? 0
               : static_cast<double>(cpu_quota_us) / static_cast<double>(cpu_period_us);
  }
  // Whether the quota is less than the processors that may be used.
  bool is_capped() const {
    const double quota = quota_processors();
    return quota > 0 && (usable_processors == 0 || quota < usable_processors);
  }
  // What the process can use at a time in the long run; 0: not known.
  double effective_processors() const {
    return is_capped() ? quota_processors() : usable_processors;
  }
};

struct Recording {
  std::string path;
  bool from_trace = false;  // made of a trace (analysis/trace_import): steps are what it had marked
  std::uint32_t version = 0, pid = 0, parent_pid = 0;
  int rank = -1, world_size = -1, local_rank = -1;
  std::uint64_t run = 0;  // of the launcher (FileHeader::run); 0: of none
  FileState state = FileState::kOpen;
  std::uint64_t start_ns = 0, start_unix_ns = 0, end_ns = 0;
  std::uint64_t lost_records = 0, steps_seen = 0;
  std::string library_version, host, executable;
  std::vector<std::string> command_line;
  std::vector<std::string> settings;

  std::vector<Api> apis;                 // by api id
  std::vector<Call> calls;               // by start_ns
  std::vector<DeviceTime> device_times;  // by start_ns
  std::vector<Activity> activities;      // what device_times refer to
  std::vector<Overhead> overheads;       // by start_ns
  std::vector<StepEdge> steps;           // by time
  std::vector<Window> windows;           // by index
  std::vector<Notice> notices;
  std::vector<RecordingEdge> recording_edges;  // by time
  std::vector<Range> ranges;                   // by start_ns, longest first
  std::vector<GapSample> gap_samples;          // by time_ns
  std::vector<GilHolder> gil_holders;          // by time_ns
  std::vector<HostCounts> host_counts;         // by time_ns
  std::vector<WorkerLook> worker_looks;        // by time_ns
  std::unordered_map<std::uint32_t, Kernel> kernels;
  std::unordered_map<std::uint32_t, Code> codes;
  std::unordered_map<std::uint32_t, StackNode> stack_nodes;
  std::unordered_map<std::uint32_t, Thread> threads;
  std::unordered_map<std::uint32_t, std::string> range_texts;
  std::unordered_map<std::uint32_t, Stream> streams;
  std::unordered_map<std::uint32_t, Graph> graphs;
  std::unordered_map<std::int32_t, Device> devices;
  std::vector<Module> modules;      // as found
  std::vector<std::uint8_t> reach;  // ReachFlags by api id
  bool has_reach = false;           // false: recorded before there was such a thing
  bool driver_loaded = false;
  std::uint64_t modules_left_out = 0;
  HostOffer host_offer;

  std::uint64_t dropped_activities = 0;  // CUPTI's records that were lost
  std::uint64_t orphan_activities = 0;   // device work without a call that was seen
  std::uint64_t unhooked_calls = 0;      // calls with kCallUnhooked
  // By how much CUPTI's times of calls lie outside of the calls themselves, at most.
  std::uint64_t activity_clock_error_ns = 0;

  // What the reader met: never silent.
  std::uint64_t torn_blocks = 0;      // blocks cut short by a crash or a bad record
  std::uint64_t unknown_records = 0;  // types of a newer version, skipped
  std::uint64_t bad_records = 0;      // too short for their type, or naming what is not there
  std::uint64_t bad_bytes = 0;        // bytes that could not be read as records
};

// Reads one file. Tolerates a torn tail; an error only where nothing can be read at all.
tl::expected<Recording, Error> read_file(const std::string& path);

// All recordings of a directory (or the one file), by start time. Files that cannot be read become
// entries of `skipped`.
struct Session {
  std::string path;
  std::vector<Recording> processes;
  std::vector<Error> skipped;
};
// `run`: of a directory, the recordings of this run of the launcher alone (FileHeader::run), which
// may be none; 0: all.
tl::expected<Session, Error> read_session(const std::string& path, std::uint64_t run = 0);

}  // namespace gpubusy::recording
