// SPDX-License-Identifier: Apache-2.0
//
// Builds recordings for tests without the runtime: a test says what happened, the builder writes
// the bytes that the runtime would have written. Times: CLOCK_MONOTONIC ns, as given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recording/format.hpp"
#include "recording/recording.hpp"

namespace gpubusy::testing {

namespace rec = gpubusy::recording;

struct CallOptions {
  std::uint32_t thread = 0;  // 0: the builder's current thread
  std::uint32_t python_stack = 0;
  std::uint32_t native_stack = 0;
  std::uint32_t stream = 7;
  std::int16_t device = 0;
  std::int32_t result = 0;
  std::uint16_t flags = 0;
};

struct GapOptions {
  std::uint32_t thread = 0;  // 0: the builder's current thread
  std::uint32_t python_stack = 0, native_stack = 0;
  std::uint16_t system_call = 0;
  std::uint64_t argument = 0, run_ns = 0, wait_ns = 0;
  std::uint32_t major_faults = 0;
  char state = 'R';
  std::uint8_t flags = 0;
  rec::GapFile file = rec::GapFile::kNone;
};

struct WorkerOptions {
  std::uint32_t pid = 500, parent_pid = 0, python_stack = 0;
  std::uint16_t system_call = 0;
  std::uint64_t argument = 0, run_ns = 0, wait_ns = 0;
  std::uint32_t process_run_ms = 0, storage_wait_ms = 0, major_faults = 0;
  char state = 'R';
  std::uint8_t flags = 0, worker_flags = rec::kWorkerForked;
  rec::GapFile file = rec::GapFile::kNone;
  std::uint16_t left_out = 0;
  const char* name = "python";
};

struct RangeOptions {
  std::uint32_t thread = 0;  // that began it; 0: the builder's current thread
  std::uint32_t domain = 0, category = 0, category_name = 0, colour = 0, id = 0;
  rec::RangeKind kind = rec::RangeKind::kPushPop;
  rec::RangePayload payload_type = rec::RangePayload::kNone;
  std::uint64_t payload = 0;
  std::uint16_t flags = 0;
};

using HostValues = std::map<rec::HostCounter, std::uint64_t>;

class RecordingBuilder {
 public:
  static constexpr std::uint64_t kStart = 1'000'000'000;                  // CLOCK_MONOTONIC
  static constexpr std::uint64_t kUnixStart = 1'800'000'000'000'000'000;  // CLOCK_REALTIME

  explicit RecordingBuilder(std::uint32_t pid = 4242, std::uint32_t block_size = rec::kBlockSize);

  // ---- header ----
  RecordingBuilder& rank(int rank, int world_size, int local_rank);
  RecordingBuilder& state(rec::FileState state);
  RecordingBuilder& lost(std::uint64_t records);
  RecordingBuilder& host(std::string host);
  RecordingBuilder& command(std::vector<std::string> arguments);
  RecordingBuilder& steps_seen(std::uint64_t steps);
  RecordingBuilder& version(std::uint32_t version);

  // ---- definitions; each returns the id ----
  std::uint16_t api(const std::string& name, rec::Category category,
                    rec::Layer layer = rec::Layer::kRuntime);
  std::uint32_t kernel(const std::string& mangled_name);
  std::uint32_t code(const std::string& file, const std::string& name, int first_line,
                     const std::string& line_table, int python_minor = 11);
  std::uint32_t node(std::uint32_t parent, std::uint32_t code, std::uint32_t offset);
  // A frame at `line` of a function that begins at the same line: needs no real line table.
  std::uint32_t frame(std::uint32_t parent, const std::string& file, const std::string& function,
                      int line);
  // A native frame; `cut`: the stack goes on behind it.
  std::uint32_t native_node(std::uint32_t parent, std::uint64_t return_address, bool cut = false);
  std::uint32_t graph(std::uint32_t kernels, std::uint32_t copies, std::uint32_t memsets);
  void thread(std::uint32_t id, const std::string& name, bool named_by_program = false);
  std::uint32_t range_text(const std::string& text);
  void stream(std::uint32_t id, std::int16_t device);
  void device(std::int32_t ordinal, const std::string& name);
  void notice(std::uint64_t time_ns, rec::NoticeKind kind, const std::string& text);
  void setting(const std::string& text);
  // `build_id`: bytes.
  void module(const std::string& path, std::uint64_t begin, std::uint64_t end,
              const std::string& build_id = {});
  // ReachFlags by api id.
  void reach(bool driver_loaded, const std::vector<std::uint8_t>& ways);

  // ---- events; calls return their correlation id ----
  void use_thread(std::uint32_t id) { thread_ = id; }
  // Recording begins or pauses between windows.
  void recording_edge(std::uint64_t time, bool begins);
  std::uint32_t launch(std::uint64_t start, std::uint64_t end, std::uint32_t kernel,
                       CallOptions options = {});
  std::uint32_t graph_launch(std::uint64_t start, std::uint64_t end, std::uint32_t graph,
                             CallOptions options = {});
  std::uint32_t copy(std::uint64_t start, std::uint64_t end, std::uint64_t bytes,
                     rec::CopyDirection direction, rec::MemoryKind host_kind, bool asynchronous,
                     CallOptions options = {});
  std::uint32_t memset(std::uint64_t start, std::uint64_t end, std::uint64_t bytes,
                       CallOptions options = {});
  std::uint32_t sync(std::uint64_t start, std::uint64_t end, CallOptions options = {});
  std::uint32_t alloc(std::uint64_t start, std::uint64_t end, std::uint64_t bytes,
                      CallOptions options = {});
  std::uint32_t free(std::uint64_t start, std::uint64_t end, CallOptions options = {});
  std::uint32_t call(std::uint64_t start, std::uint64_t end, std::uint16_t api, const void* payload,
                     std::size_t payload_bytes, CallOptions options = {});
  void device_time(std::uint32_t correlation, std::uint64_t start, std::uint64_t end,
                   CallOptions options = {}, std::uint32_t uncertainty = 500,
                   rec::TimeSource source = rec::TimeSource::kEvents, std::uint32_t graph_node = 0);
  // What CUPTI saw; `activity` is its correlation id.
  struct ActivityOptions {
    std::uint32_t stream = 7, context = 1, graph = 0;
    std::uint64_t graph_node = 0;
    std::int16_t device = 0;
    std::uint32_t uncertainty = 20;
  };
  void kernel_activity(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                       std::uint32_t kernel, ActivityOptions options);
  void copy_activity(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                     std::uint64_t bytes, rec::CopyDirection direction, ActivityOptions options);
  void memset_activity(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                       std::uint64_t bytes, ActivityOptions options);
  void correlation(std::uint32_t call, std::uint32_t activity, std::uint64_t start = 0,
                   std::uint64_t end = 0);
  void api_activity(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                    std::uint32_t thread, std::uint16_t api);
  void overhead(rec::OverheadKind kind, std::uint64_t start, std::uint64_t end,
                std::uint32_t thread = 0);
  void dropped(std::uint64_t time, std::uint32_t count);
  void gap_sample(std::uint64_t time, std::uint64_t since, GapOptions options);
  // Beside the look at `waiter` of that time.
  void gil_holder(std::uint64_t time, std::uint32_t waiter, std::uint32_t holder,
                  std::uint32_t python_stack = 0, const char* name = "python",
                  std::uint8_t flags = 0);
  void worker_look(std::uint64_t time, std::uint64_t since, WorkerOptions options);
  // What is not given is not known.
  void host_offer(rec::HostRecord offer);
  // Counted at the edge that ends a step, by the current thread.
  void host_edge(std::uint64_t time, std::uint32_t step, const HostValues& values);
  // … by the helper thread.
  void host_counts(std::uint64_t time, const HostValues& values,
                   std::array<rec::HostSource, rec::kHostTopics> sources = {},
                   std::uint32_t helper = 9999);
  // … of a launching thread.
  void host_thread(std::uint64_t time, std::uint32_t thread, const HostValues& values);
  void step_edge(std::uint64_t time, std::uint32_t step,
                 rec::StepSource source = rec::StepSource::kOptimizer);
  void window(rec::WindowEvent event, std::uint64_t time, std::uint32_t index,
              std::uint32_t first_step, std::uint32_t steps,
              rec::WindowKind kind = rec::WindowKind::kScheduled);
  void range(std::uint64_t start, std::uint64_t end, std::uint32_t text, RangeOptions options = {});
  // With its text beside it.
  void range(std::uint64_t start, std::uint64_t end, const std::string& text,
             RangeOptions options = {});
  void lost_record(std::uint64_t time, std::uint32_t count);
  void raw(rec::RecordType type, std::uint32_t value, std::string_view body);

  // ---- results ----
  std::vector<std::byte> bytes() const;  // the last block ends with its last record
  void write(const std::string& path) const;
  rec::Recording read() const;  // through the reader; aborts where the reader refuses

 private:
  void counts(rec::HostCountersRecord record, const HostValues& values);
  struct Block {
    std::uint32_t thread;
    std::uint32_t sequence;
    std::uint64_t start_ns;
    std::vector<std::byte> data;
  };
  void range(std::uint64_t start, std::uint64_t end, std::uint32_t text, const std::string& beside,
             RangeOptions options);
  void append(std::uint32_t thread, const void* record, std::size_t size,
              std::string_view text = {});

  std::uint32_t pid_;
  std::uint32_t block_size_;
  std::uint32_t version_ = rec::kFormatVersion;
  std::uint32_t thread_;
  int rank_ = -1, world_size_ = -1, local_rank_ = -1;
  rec::FileState state_ = rec::FileState::kFinished;
  std::uint64_t lost_ = 0;
  std::uint64_t steps_seen_ = 0;
  std::uint64_t last_ns_ = kStart;
  std::string host_ = "node1";
  std::vector<std::string> command_ = {"python", "train.py"};
  std::vector<Block> blocks_;
  std::map<std::uint32_t, std::size_t> open_block_;  // by thread
  std::map<std::string, std::uint16_t> apis_;
  std::map<std::string, std::uint32_t> codes_;
  std::uint32_t next_kernel_ = 1, next_code_ = 1, next_node_ = 1, next_graph_ = 1;
  std::uint32_t next_correlation_ = 1, next_module_ = 1, next_range_text_ = 1;
};

}  // namespace gpubusy::testing
