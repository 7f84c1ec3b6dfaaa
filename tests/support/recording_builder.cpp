// SPDX-License-Identifier: Apache-2.0
#include "tests/support/recording_builder.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "recording/reader.hpp"
#include "tests/support/memory_source.hpp"

namespace gpubusy::testing {
namespace {

template <typename T>
T record(rec::RecordType type, std::uint32_t value) {
  T out;
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  out.header.type = type;
  out.header.value = value;
  return out;
}

}  // namespace

RecordingBuilder::RecordingBuilder(std::uint32_t pid, std::uint32_t block_size)
    : pid_(pid), block_size_(block_size), thread_(pid) {}

RecordingBuilder& RecordingBuilder::rank(int rank, int world_size, int local_rank) {
  rank_ = rank;
  world_size_ = world_size;
  local_rank_ = local_rank;
  return *this;
}
RecordingBuilder& RecordingBuilder::state(rec::FileState state) {
  state_ = state;
  return *this;
}
RecordingBuilder& RecordingBuilder::lost(std::uint64_t records) {
  lost_ = records;
  return *this;
}
RecordingBuilder& RecordingBuilder::host(std::string host) {
  host_ = std::move(host);
  return *this;
}
RecordingBuilder& RecordingBuilder::command(std::vector<std::string> arguments) {
  command_ = std::move(arguments);
  return *this;
}
RecordingBuilder& RecordingBuilder::steps_seen(std::uint64_t steps) {
  steps_seen_ = steps;
  return *this;
}
RecordingBuilder& RecordingBuilder::version(std::uint32_t version) {
  version_ = version;
  return *this;
}

void RecordingBuilder::append(std::uint32_t thread, const void* record, std::size_t size,
                              std::string_view text) {
  const std::size_t total = (size + text.size() + 7) / 8 * 8;
  if (total > rec::kMaxRecordSize || total > block_size_ - sizeof(rec::BlockHeader)) {
    std::fprintf(stderr, "record of %zu bytes does not fit\n", total);
    std::abort();
  }
  const auto it = open_block_.find(thread);
  if (it == open_block_.end() ||
      blocks_[it->second].data.size() + total > block_size_ - sizeof(rec::BlockHeader)) {
    const std::uint32_t sequence = it == open_block_.end() ? 0 : blocks_[it->second].sequence + 1;
    blocks_.push_back({thread, sequence, last_ns_, {}});
    open_block_[thread] = blocks_.size() - 1;
  }
  std::vector<std::byte>& data = blocks_[open_block_[thread]].data;
  const std::size_t at = data.size();
  data.resize(at + total);
  std::memcpy(data.data() + at, record, size);
  if (!text.empty()) std::memcpy(data.data() + at + size, text.data(), text.size());
  const auto stored = static_cast<std::uint16_t>(total);
  std::memcpy(data.data() + at + offsetof(rec::RecordHeader, size), &stored, sizeof stored);
}

std::uint16_t RecordingBuilder::api(const std::string& name, rec::Category category,
                                    rec::Layer layer) {
  const auto id = static_cast<std::uint16_t>(apis_.size());
  const auto [it, fresh] = apis_.emplace(name, id);
  if (fresh) {
    auto r = record<rec::ApiRecord>(rec::RecordType::kFunction, id);
    r.category = category;
    r.layer = layer;
    r.name_bytes = static_cast<std::uint16_t>(name.size());
    append(thread_, &r, sizeof r, name);
  }
  return it->second;
}

std::uint32_t RecordingBuilder::kernel(const std::string& mangled_name) {
  auto r = record<rec::KernelRecord>(rec::RecordType::kKernel, next_kernel_);
  r.function = 0x1000u + next_kernel_;
  r.name_bytes = static_cast<std::uint32_t>(mangled_name.size());
  append(thread_, &r, sizeof r, mangled_name);
  return next_kernel_++;
}

std::uint32_t RecordingBuilder::code(const std::string& file, const std::string& name,
                                     int first_line, const std::string& line_table,
                                     int python_minor) {
  auto r = record<rec::CodeRecord>(rec::RecordType::kCode, next_code_);
  r.first_line = first_line;
  r.python_minor = static_cast<std::uint8_t>(python_minor);
  r.file_bytes = static_cast<std::uint16_t>(file.size());
  r.name_bytes = static_cast<std::uint16_t>(name.size());
  r.line_table_bytes = static_cast<std::uint16_t>(line_table.size());
  append(thread_, &r, sizeof r, file + name + line_table);
  return next_code_++;
}

std::uint32_t RecordingBuilder::node(std::uint32_t parent, std::uint32_t code,
                                     std::uint32_t offset) {
  auto r = record<rec::StackNodeRecord>(rec::RecordType::kStackNode, next_node_);
  r.parent = parent;
  r.kind = rec::FrameKind::kPython;
  r.location = (std::uint64_t{code} << 32) | offset;
  append(thread_, &r, sizeof r);
  return next_node_++;
}

std::uint32_t RecordingBuilder::native_node(std::uint32_t parent, std::uint64_t return_address,
                                            bool cut) {
  auto r = record<rec::StackNodeRecord>(rec::RecordType::kStackNode, next_node_);
  r.parent = parent;
  r.kind = rec::FrameKind::kNative;
  r.flags = cut ? 1 : 0;
  r.location = return_address;
  append(thread_, &r, sizeof r);
  return next_node_++;
}

std::uint32_t RecordingBuilder::frame(std::uint32_t parent, const std::string& file,
                                      const std::string& function, int line) {
  // CPython 3.11 table: one entry of form 13 (no columns), 8 code units, line delta 0.
  const std::string table = {static_cast<char>(0x80 | (13 << 3) | 7), '\0'};
  const auto [it, fresh] = codes_.try_emplace(file + '\0' + function + std::to_string(line), 0);
  if (fresh) it->second = code(file, function, line, table);
  return node(parent, it->second, 2);
}

std::uint32_t RecordingBuilder::graph(std::uint32_t kernels, std::uint32_t copies,
                                      std::uint32_t memsets) {
  auto r = record<rec::GraphRecord>(rec::RecordType::kGraph, next_graph_);
  r.graph_exec = 0x9000u + next_graph_;
  r.kernels = kernels;
  r.copies = copies;
  r.memsets = memsets;
  append(thread_, &r, sizeof r);
  return next_graph_++;
}

void RecordingBuilder::thread(std::uint32_t id, const std::string& name, bool named_by_program) {
  auto r = record<rec::ThreadRecord>(rec::RecordType::kThread, id);
  r.first_ns = last_ns_;
  r.flags = named_by_program ? 1 : 0;
  r.name_bytes = static_cast<std::uint32_t>(name.size());
  append(id, &r, sizeof r, name);
}

void RecordingBuilder::stream(std::uint32_t id, std::int16_t device) {
  auto r = record<rec::StreamRecord>(rec::RecordType::kStream, id);
  r.handle = id == 7 ? 0 : 0x5000u + id;
  r.device = device;
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::device(std::int32_t ordinal, const std::string& name) {
  auto r = record<rec::DeviceRecord>(rec::RecordType::kDevice, static_cast<std::uint32_t>(ordinal));
  r.total_memory = 80ull << 30;
  r.sm_count = 132;
  r.compute_major = 9;
  r.max_threads_per_block = 1024;
  r.max_threads_per_sm = 2048;
  r.registers_per_block = 65536;
  r.warp_size = 32;
  r.shared_per_block = 49152;
  r.shared_per_sm = 233472;
  r.runtime_version = 13000;
  r.driver_version = 13000;
  r.name_bytes = static_cast<std::uint32_t>(name.size());
  append(thread_, &r, sizeof r, name);
}

void RecordingBuilder::notice(std::uint64_t time_ns, rec::NoticeKind kind,
                              const std::string& text) {
  auto r = record<rec::NoticeRecord>(rec::RecordType::kNotice, static_cast<std::uint32_t>(kind));
  r.time_ns = time_ns;
  r.text_bytes = static_cast<std::uint32_t>(text.size());
  append(thread_, &r, sizeof r, text);
}

void RecordingBuilder::setting(const std::string& text) {
  auto r = record<rec::SettingRecord>(rec::RecordType::kSetting, 0);
  r.text_bytes = static_cast<std::uint32_t>(text.size());
  append(thread_, &r, sizeof r, text);
}

void RecordingBuilder::module(const std::string& path, std::uint64_t begin, std::uint64_t end,
                              const std::string& build_id) {
  auto r = record<rec::ModuleRecord>(rec::RecordType::kModule, next_module_++);
  r.time_ns = last_ns_;
  r.begin = r.base = begin;
  r.end = end;
  r.path_bytes = static_cast<std::uint16_t>(path.size());
  r.build_id_bytes = static_cast<std::uint8_t>(build_id.size());
  append(thread_, &r, sizeof r, path + build_id);
}

void RecordingBuilder::reach(bool driver_loaded, const std::vector<std::uint8_t>& ways) {
  auto r = record<rec::ReachRecord>(rec::RecordType::kReach,
                                    driver_loaded ? rec::kReachDriverLoaded : 0u);
  r.time_ns = last_ns_;
  r.function_count = static_cast<std::uint32_t>(ways.size());
  append(thread_, &r, sizeof r, {reinterpret_cast<const char*>(ways.data()), ways.size()});
}

std::uint32_t RecordingBuilder::call(std::uint64_t start, std::uint64_t end, std::uint16_t api,
                                     const void* payload, std::size_t payload_bytes,
                                     CallOptions options) {
  auto r = record<rec::CallRecord>(rec::RecordType::kCall, next_correlation_);
  r.start_ns = start;
  const std::uint64_t duration = end - start;
  const bool is_long = duration > 0xffffffffu;
  r.duration = static_cast<std::uint32_t>(is_long ? duration / rec::kLongDurationUnit : duration);
  r.api = api;
  r.flags = options.flags;
  if (is_long) r.flags |= rec::kCallLong;
  r.result = static_cast<std::int16_t>(options.result);
  r.python_stack = options.python_stack;
  r.native_stack = options.native_stack;
  r.stream = options.stream;
  r.device = options.device;
  last_ns_ = std::max(last_ns_, end);
  append(options.thread ? options.thread : thread_, &r, sizeof r,
         {static_cast<const char*>(payload), payload_bytes});
  return next_correlation_++;
}

void RecordingBuilder::recording_edge(std::uint64_t time, bool begins) {
  auto r = record<rec::RecordingRecord>(rec::RecordType::kRecording, begins ? 1 : 0);
  r.time_ns = time;
  append(thread_, &r, sizeof r, {});
}

std::uint32_t RecordingBuilder::launch(std::uint64_t start, std::uint64_t end, std::uint32_t kernel,
                                       CallOptions options) {
  const rec::LaunchPayload p = {kernel, 0, 108, 1, 1, 256, 1, 1, 0};
  return call(start, end, api("cudaLaunchKernel", rec::Category::kLaunch), &p, sizeof p, options);
}

std::uint32_t RecordingBuilder::graph_launch(std::uint64_t start, std::uint64_t end,
                                             std::uint32_t graph, CallOptions options) {
  const rec::GraphLaunchPayload p = {0x9000u + graph, graph, 0};
  return call(start, end, api("cudaGraphLaunch", rec::Category::kGraphLaunch), &p, sizeof p,
              options);
}

std::uint32_t RecordingBuilder::copy(std::uint64_t start, std::uint64_t end, std::uint64_t bytes,
                                     rec::CopyDirection direction, rec::MemoryKind host_kind,
                                     bool asynchronous, CallOptions options) {
  rec::CopyPayload p = {};
  p.bytes = bytes;
  p.source = 0x7000;
  p.destination = 0x8000;
  p.direction = direction;
  p.source_kind =
      direction == rec::CopyDirection::kHostToDevice ? host_kind : rec::MemoryKind::kDevice;
  p.destination_kind =
      direction == rec::CopyDirection::kDeviceToHost ? host_kind : rec::MemoryKind::kDevice;
  p.asynchronous = asynchronous ? 1 : 0;
  p.source_device = p.destination_device = -1;
  const char* name = asynchronous ? "cudaMemcpyAsync" : "cudaMemcpy";
  return call(start, end, api(name, rec::Category::kCopy), &p, sizeof p, options);
}

std::uint32_t RecordingBuilder::memset(std::uint64_t start, std::uint64_t end, std::uint64_t bytes,
                                       CallOptions options) {
  rec::MemsetPayload p = {};
  p.bytes = bytes;
  p.destination = 0x8000;
  p.asynchronous = 1;
  return call(start, end, api("cudaMemsetAsync", rec::Category::kMemset), &p, sizeof p, options);
}

std::uint32_t RecordingBuilder::sync(std::uint64_t start, std::uint64_t end, CallOptions options) {
  const rec::SyncPayload p = {};
  return call(start, end, api("cudaStreamSynchronize", rec::Category::kSync), &p, sizeof p,
              options);
}

std::uint32_t RecordingBuilder::alloc(std::uint64_t start, std::uint64_t end, std::uint64_t bytes,
                                      CallOptions options) {
  const rec::AllocPayload p = {0x8000, bytes};
  options.stream = 0;
  return call(start, end, api("cudaMalloc", rec::Category::kDeviceAlloc), &p, sizeof p, options);
}

std::uint32_t RecordingBuilder::free(std::uint64_t start, std::uint64_t end, CallOptions options) {
  const rec::AllocPayload p = {0x8000, 0};
  options.stream = 0;
  return call(start, end, api("cudaFree", rec::Category::kDeviceFree), &p, sizeof p, options);
}

void RecordingBuilder::device_time(std::uint32_t correlation, std::uint64_t start,
                                   std::uint64_t end, CallOptions options,
                                   std::uint32_t uncertainty, rec::TimeSource source,
                                   std::uint32_t graph_node) {
  auto r = record<rec::DeviceTimeRecord>(rec::RecordType::kDeviceTime, correlation);
  r.start_ns = start;
  r.end_ns = end;
  r.uncertainty_ns = uncertainty;
  r.stream = options.stream;
  r.device = options.device;
  r.source = source;
  r.graph_node = graph_node;
  last_ns_ = std::max(last_ns_, end);
  append(options.thread ? options.thread : thread_, &r, sizeof r);
}

namespace {

template <class Payload>
struct WithPayload {
  rec::ActivityRecord record;
  Payload payload;
};

template <class Payload>
WithPayload<Payload> activity_record(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                                     rec::ActivityKind kind,
                                     const RecordingBuilder::ActivityOptions& options) {
  WithPayload<Payload> r{};
  r.record = record<rec::ActivityRecord>(rec::RecordType::kActivity, activity);
  r.record.start_ns = start;
  r.record.end_ns = end;
  r.record.graph_node = options.graph_node;
  r.record.uncertainty_ns = options.uncertainty;
  r.record.stream = options.stream;
  r.record.context = options.context;
  r.record.graph = options.graph;
  r.record.device = options.device;
  r.record.kind = kind;
  return r;
}

}  // namespace

void RecordingBuilder::kernel_activity(std::uint32_t activity, std::uint64_t start,
                                       std::uint64_t end, std::uint32_t kernel,
                                       ActivityOptions options) {
  auto r = activity_record<rec::KernelActivityPayload>(activity, start, end,
                                                       rec::ActivityKind::kKernel, options);
  r.payload = {kernel, 1024, 512, 0, 64, 2, 1, 128, 1, 1, 40};
  last_ns_ = std::max(last_ns_, end);
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::copy_activity(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                                     std::uint64_t bytes, rec::CopyDirection direction,
                                     ActivityOptions options) {
  auto r = activity_record<rec::CopyActivityPayload>(activity, start, end, rec::ActivityKind::kCopy,
                                                     options);
  const bool from_host = direction == rec::CopyDirection::kHostToDevice;
  r.payload = {bytes,
               direction,
               from_host ? rec::MemoryKind::kPinned : rec::MemoryKind::kDevice,
               from_host ? rec::MemoryKind::kDevice : rec::MemoryKind::kPinned,
               1,
               -1,
               -1};
  last_ns_ = std::max(last_ns_, end);
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::memset_activity(std::uint32_t activity, std::uint64_t start,
                                       std::uint64_t end, std::uint64_t bytes,
                                       ActivityOptions options) {
  auto r = activity_record<rec::MemsetActivityPayload>(activity, start, end,
                                                       rec::ActivityKind::kMemset, options);
  r.payload = {bytes, 0, 0};
  last_ns_ = std::max(last_ns_, end);
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::correlation(std::uint32_t call, std::uint32_t activity, std::uint64_t start,
                                   std::uint64_t end) {
  auto r = record<rec::CorrelationRecord>(rec::RecordType::kCorrelation, call);
  r.activity = activity;
  r.start_ns = start;
  r.end_ns = end;
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::api_activity(std::uint32_t activity, std::uint64_t start, std::uint64_t end,
                                    std::uint32_t thread, std::uint16_t api) {
  auto r = record<rec::ApiActivityRecord>(rec::RecordType::kApiActivity, activity);
  r.start_ns = start;
  r.end_ns = end;
  r.thread = thread;
  r.api = api;
  last_ns_ = std::max(last_ns_, end);
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::overhead(rec::OverheadKind kind, std::uint64_t start, std::uint64_t end,
                                std::uint32_t thread) {
  auto r =
      record<rec::OverheadRecord>(rec::RecordType::kOverhead, static_cast<std::uint32_t>(kind));
  r.start_ns = start;
  r.end_ns = end;
  r.thread = thread;
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::dropped(std::uint64_t time, std::uint32_t count) {
  auto r = record<rec::DroppedRecord>(rec::RecordType::kDropped, count);
  r.time_ns = time;
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::gap_sample(std::uint64_t time, std::uint64_t since, GapOptions o) {
  auto r = record<rec::GapSampleRecord>(rec::RecordType::kGapSample, o.thread ? o.thread : thread_);
  r.time_ns = time;
  r.since_ns = since;
  r.argument = o.argument;
  r.run_ns = o.run_ns;
  r.wait_ns = o.wait_ns;
  r.major_faults = o.major_faults;
  r.python_stack = o.python_stack;
  r.native_stack = o.native_stack;
  r.system_call = o.system_call;
  r.state = static_cast<std::uint8_t>(o.state);
  r.flags = o.flags;
  r.file = o.file;
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::gil_holder(std::uint64_t time, std::uint32_t waiter, std::uint32_t holder,
                                  std::uint32_t python_stack, const char* name,
                                  std::uint8_t flags) {
  auto r = record<rec::GilHolderRecord>(rec::RecordType::kGilHolder, holder);
  r.time_ns = time;
  r.waiter = waiter;
  r.python_stack = python_stack;
  r.flags = flags;
  std::strncpy(r.name, name, sizeof r.name - 1);
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::worker_look(std::uint64_t time, std::uint64_t since, WorkerOptions o) {
  auto r = record<rec::WorkerLookRecord>(rec::RecordType::kWorkerLook, o.pid);
  r.time_ns = time;
  r.since_ns = since;
  r.argument = o.argument;
  r.run_ns = o.run_ns;
  r.wait_ns = o.wait_ns;
  r.process_run_ms = o.process_run_ms;
  r.storage_wait_ms = o.storage_wait_ms;
  r.major_faults = o.major_faults;
  r.parent_pid = o.parent_pid;
  r.python_stack = o.python_stack;
  r.system_call = o.system_call;
  r.state = static_cast<std::uint8_t>(o.state);
  r.flags = o.flags;
  r.file = o.file;
  r.worker_flags = o.worker_flags;
  r.left_out = o.left_out;
  std::strncpy(r.name, o.name, sizeof r.name - 1);
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::host_offer(rec::HostRecord offer) {
  offer.header.type = rec::RecordType::kHost;
  offer.header.size = sizeof offer;
  append(thread_, &offer, sizeof offer);
}

void RecordingBuilder::counts(rec::HostCountersRecord r, const HostValues& values) {
  std::string behind;
  for (const auto& [counter, value] : values) {
    r.known |= std::uint64_t{1} << static_cast<unsigned>(counter);
    behind.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  r.header.size = static_cast<std::uint16_t>(sizeof r + behind.size());
  append(thread_, &r, sizeof r, behind);
}

void RecordingBuilder::host_edge(std::uint64_t time, std::uint32_t step, const HostValues& values) {
  auto r = record<rec::HostCountersRecord>(rec::RecordType::kHostCounters,
                                           static_cast<std::uint32_t>(rec::HostMoment::kEdge));
  r.time_ns = time;
  r.thread_id = thread_;
  r.step = step;
  counts(r, values);
}

void RecordingBuilder::host_counts(std::uint64_t time, const HostValues& values,
                                   std::array<rec::HostSource, rec::kHostTopics> sources,
                                   std::uint32_t helper) {
  auto r = record<rec::HostCountersRecord>(rec::RecordType::kHostCounters,
                                           static_cast<std::uint32_t>(rec::HostMoment::kHelper));
  r.time_ns = time;
  r.thread_id = helper;
  std::copy(sources.begin(), sources.end(), std::begin(r.sources));
  counts(r, values);
}

void RecordingBuilder::host_thread(std::uint64_t time, std::uint32_t thread,
                                   const HostValues& values) {
  auto r = record<rec::HostCountersRecord>(rec::RecordType::kHostCounters,
                                           static_cast<std::uint32_t>(rec::HostMoment::kThread));
  r.time_ns = time;
  r.thread_id = thread;
  counts(r, values);
}

void RecordingBuilder::step_edge(std::uint64_t time, std::uint32_t step, rec::StepSource source) {
  auto r = record<rec::StepEdgeRecord>(rec::RecordType::kStepEdge, step);
  r.time_ns = time;
  r.thread_id = thread_;
  r.source = source;
  last_ns_ = std::max(last_ns_, time);
  append(thread_, &r, sizeof r);
  steps_seen_ = std::max<std::uint64_t>(steps_seen_, step + 1);
}

void RecordingBuilder::window(rec::WindowEvent event, std::uint64_t time, std::uint32_t index,
                              std::uint32_t first_step, std::uint32_t steps, rec::WindowKind kind) {
  auto r = record<rec::WindowRecord>(rec::RecordType::kWindow, index);
  r.time_ns = time;
  r.first_step = first_step;
  r.steps = steps;
  r.kind = kind;
  r.event = event;
  last_ns_ = std::max(last_ns_, time);
  append(thread_, &r, sizeof r);
}

std::uint32_t RecordingBuilder::range_text(const std::string& text) {
  auto r = record<rec::RangeTextRecord>(rec::RecordType::kRangeText, next_range_text_);
  r.text_bytes = static_cast<std::uint32_t>(text.size());
  append(thread_, &r, sizeof r, text);
  return next_range_text_++;
}

void RecordingBuilder::range(std::uint64_t start, std::uint64_t end, std::uint32_t text,
                             RangeOptions options) {
  range(start, end, text, "", options);
}
void RecordingBuilder::range(std::uint64_t start, std::uint64_t end, const std::string& text,
                             RangeOptions options) {
  range(start, end, 0, text, options);
}
void RecordingBuilder::range(std::uint64_t start, std::uint64_t end, std::uint32_t text,
                             const std::string& beside, RangeOptions options) {
  auto r = record<rec::RangeRecord>(rec::RecordType::kRange, text);
  r.start_ns = start;
  r.end_ns = end;
  r.payload = options.payload;
  r.domain = options.domain;
  r.category = options.category;
  r.category_name = options.category_name;
  r.colour = options.colour;
  r.thread_id = options.thread ? options.thread : thread_;
  r.id = options.id;
  r.kind = options.kind;
  r.payload_type = options.payload_type;
  r.flags = options.flags;
  r.text_bytes = static_cast<std::uint16_t>(beside.size());
  last_ns_ = std::max(last_ns_, end);
  append(thread_, &r, sizeof r, beside);
}

void RecordingBuilder::lost_record(std::uint64_t time, std::uint32_t count) {
  auto r = record<rec::LostRecord>(rec::RecordType::kLost, count);
  r.time_ns = time;
  append(thread_, &r, sizeof r);
}

void RecordingBuilder::raw(rec::RecordType type, std::uint32_t value, std::string_view body) {
  rec::RecordHeader header = {type, 0, value};
  append(thread_, &header, sizeof header, body);
}

std::vector<std::byte> RecordingBuilder::bytes() const {
  std::vector<std::byte> out(rec::kHeaderSize);
  const auto put = [&out](std::size_t offset, auto value) {
    std::memcpy(out.data() + offset, &value, sizeof value);
  };
  const auto put_text = [&out](std::size_t offset, std::size_t room, std::string_view text) {
    std::memcpy(out.data() + offset, text.data(), std::min(room - 1, text.size()));
  };
  using H = rec::FileHeader;
  std::memcpy(out.data(), rec::kFileMagic, sizeof rec::kFileMagic);
  put(offsetof(H, version), version_);
  put(offsetof(H, header_size), rec::kHeaderSize);
  put(offsetof(H, block_size), block_size_);
  put(offsetof(H, pid), pid_);
  put(offsetof(H, parent_pid), std::uint32_t{1});
  put(offsetof(H, pointer_bits), std::uint32_t{64});
  put(offsetof(H, start_ns), kStart);
  put(offsetof(H, start_unix_ns), kUnixStart);
  put(offsetof(H, rank), rank_);
  put(offsetof(H, world_size), world_size_);
  put(offsetof(H, local_rank), local_rank_);
  put(offsetof(H, state), static_cast<std::uint32_t>(state_));
  put(offsetof(H, end_ns), state_ == rec::FileState::kOpen ? std::uint64_t{0} : last_ns_);
  put(offsetof(H, lost_records), lost_);
  put(offsetof(H, blocks), static_cast<std::uint64_t>(blocks_.size()));
  put(offsetof(H, last_flush_ns), last_ns_);
  put(offsetof(H, steps_seen), steps_seen_);
  put_text(offsetof(H, library_version), sizeof H::library_version, "0.1.0");
  put_text(offsetof(H, host), sizeof H::host, host_);
  put_text(offsetof(H, executable), sizeof H::executable, "/usr/bin/python3");
  std::string line;
  for (const std::string& argument : command_) line += argument + '\0';
  put_text(offsetof(H, command_line), sizeof H::command_line, line);

  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const std::size_t at = out.size();
    const bool last = i + 1 == blocks_.size();
    out.resize(at + (last ? sizeof(rec::BlockHeader) + block.data.size() : block_size_));
    using B = rec::BlockHeader;
    put(at + offsetof(B, magic), rec::kBlockMagic);
    put(at + offsetof(B, thread_id), block.thread);
    put(at + offsetof(B, sequence), block.sequence);
    put(at + offsetof(B, committed), static_cast<std::uint32_t>(block.data.size()));
    put(at + offsetof(B, start_ns), block.start_ns);
    std::copy(block.data.begin(), block.data.end(),
              out.begin() + static_cast<std::ptrdiff_t>(at + sizeof(rec::BlockHeader)));
  }
  return out;
}

void RecordingBuilder::write(const std::string& path) const {
  const std::vector<std::byte> data = bytes();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  if (!out.flush()) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::abort();
  }
}

rec::Recording RecordingBuilder::read() const {
  const std::vector<std::byte> data = bytes();
  auto recording = rec::read_source("built", MemorySource(data.data(), data.size()));
  if (!recording) {
    std::fprintf(stderr, "%s\n", recording.error().message.c_str());
    std::abort();
  }
  return std::move(*recording);
}

}  // namespace gpubusy::testing
