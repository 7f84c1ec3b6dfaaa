// SPDX-License-Identifier: Apache-2.0
#include "recording/reader.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "recording/activities.hpp"
#include "recording/utf8.hpp"

namespace gpubusy::recording {
namespace {

// A header page or block beyond this is not ours: it would only make the reader allocate.
constexpr std::uint32_t kMaxHeaderSize = 1u << 20;
constexpr std::uint32_t kMaxBlockSize = 64u << 20;
constexpr std::uint32_t kMinBlockSize = 512;

// Later than any boot: such a time is damage, and sums of times must not overflow.
constexpr std::uint64_t kMaxTime = std::uint64_t{1} << 62;

bool plausible(std::uint64_t start_ns, std::uint64_t end_ns) {
  return start_ns <= end_ns && end_ns < kMaxTime;
}

// Ids of texts that stand in the range itself; the writer's are smaller.
constexpr std::uint32_t kFirstOwnText = 0x80000000;

constexpr std::size_t kPayloadSize = 32;  // of the largest payload of a call
static_assert(sizeof(Launch) == kPayloadSize && sizeof(LaunchPayload) <= kPayloadSize &&
              sizeof(GraphLaunchPayload) <= kPayloadSize && sizeof(CopyPayload) <= kPayloadSize &&
              sizeof(MemsetPayload) <= kPayloadSize && sizeof(AllocPayload) <= kPayloadSize &&
              sizeof(SyncPayload) <= kPayloadSize);

std::size_t payload_size(Category category) {
  switch (category) {
    case Category::kLaunch: return sizeof(LaunchPayload);
    case Category::kGraphLaunch: return sizeof(GraphLaunchPayload);
    case Category::kCopy: return sizeof(CopyPayload);
    case Category::kMemset: return sizeof(MemsetPayload);
    case Category::kDeviceAlloc:
    case Category::kDeviceFree:
    case Category::kHostAlloc:
    case Category::kHostFree: return sizeof(AllocPayload);
    case Category::kSync:
    case Category::kStream:
    case Category::kEvent:
    case Category::kHostFunction:
    case Category::kCapture: return sizeof(SyncPayload);
    case Category::kOther:
    case Category::kProfiler:
    case Category::kModule:
    case Category::kContext: break;
  }
  return 0;
}

// What is needed of a block's header, copied out of the file's bytes.
struct BlockHeaderBytes {
  std::uint32_t magic = 0, thread_id = 0, sequence = 0, committed = 0, writer = 0;
  explicit BlockHeaderBytes(const std::byte* data) {
    const auto field = [data](std::uint32_t& out, std::size_t offset) {
      std::memcpy(&out, data + offset, sizeof out);
    };
    field(magic, offsetof(BlockHeader, magic));
    field(thread_id, offsetof(BlockHeader, thread_id));
    field(sequence, offsetof(BlockHeader, sequence));
    field(committed, offsetof(BlockHeader, committed));
    field(writer, offsetof(BlockHeader, writer));
  }
};

// The bytes of one record, header included.
class RecordView {
 public:
  RecordView(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

  std::size_t size() const { return size_; }
  const std::byte* data() const { return data_; }

  // The fixed part; false where the record is too short for it.
  template <typename T>
  bool fixed(T& out) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (size_ < sizeof(T)) return false;
    std::memcpy(&out, data_, sizeof(T));
    return true;
  }

  // `bytes` of text behind `offset`; false where the record holds fewer (`out`: what there is).
  bool text(std::size_t offset, std::size_t bytes, std::string_view& out) const {
    const std::size_t there = offset < size_ ? size_ - offset : 0;
    out = {reinterpret_cast<const char*>(data_) + std::min(offset, size_), std::min(bytes, there)};
    return bytes <= there;
  }

 private:
  const std::byte* data_;
  std::size_t size_;
};

class Parser {
 public:
  explicit Parser(Recording& recording) : recording_(recording) {}

  void block(const std::byte* data, std::size_t block_size, std::size_t available, bool handed_out);
  void finish(std::uint64_t header_lost);

 private:
  void record(RecordHeader header, RecordView view, std::uint32_t thread_id);
  bool event(RecordHeader header, RecordView view, std::uint32_t thread_id);
  bool cupti(RecordHeader header, RecordView view);
  bool activity(RecordHeader header, RecordView view);
  bool definition(RecordHeader header, RecordView view);
  bool call(RecordHeader header, RecordView view, std::uint32_t thread_id);
  bool window(RecordHeader header, RecordView view);
  bool range(RecordHeader header, RecordView view);
  void finish_ranges();
  void resolve_categories();
  void close_windows();
  void seen(std::uint64_t time_ns) { last_ns_ = std::max(last_ns_, time_ns); }

  Recording& recording_;
  std::vector<std::uint8_t> payload_bytes_;  // by call, until the categories are known
  std::vector<Correlation> correlations_;
  std::vector<ApiActivity> api_activities_;
  std::map<std::pair<WindowKind, std::uint32_t>, Window> windows_;
  std::unordered_map<std::string, std::uint32_t> own_texts_;  // texts that ranges brought along
  std::uint64_t lost_ = 0;
  std::uint64_t last_ns_ = 0;
};

// A full block is copied before it is emptied: after a death in between, or while the process runs,
// the same (writer, sequence) may be found twice. The one with more in it counts.
class LiveBlockFilter {
 public:
  void note(const BlockHeaderBytes& header, std::uint64_t at) {
    if (header.magic != kBlockMagic) return;
    const auto [it, fresh] = best_.try_emplace(key(header), Best{header.committed, at});
    if (!fresh && header.committed > it->second.committed) it->second = {header.committed, at};
  }
  bool counts(const BlockHeaderBytes& header, std::uint64_t at) const {
    if (header.magic != kBlockMagic) return true;  // the parser says what is wrong with it
    const auto it = best_.find(key(header));
    return it == best_.end() || it->second.at == at;
  }

 private:
  struct Best {
    std::uint32_t committed;
    std::uint64_t at;
  };
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
  static Key key(const BlockHeaderBytes& h) { return {h.writer, h.thread_id, h.sequence}; }
  std::map<Key, Best> best_;
};

void Parser::block(const std::byte* data, std::size_t block_size, std::size_t available,
                   bool handed_out) {
  const auto field = [&](std::size_t offset) {
    std::uint32_t value;
    std::memcpy(&value, data + offset, sizeof value);
    return value;
  };
  if (available < sizeof(BlockHeader)) {
    if (std::any_of(data, data + available, [](std::byte b) { return b != std::byte{0}; })) {
      ++recording_.torn_blocks;
      recording_.bad_bytes += available;
    }
    return;
  }
  const std::uint32_t magic = field(offsetof(BlockHeader, magic));
  if (magic != kBlockMagic) {
    // A zeroed block was reserved and never begun: normal at the end, and just before a crash.
    const bool zero = std::all_of(data, data + sizeof(BlockHeader),
                                  [](std::byte b) { return b == std::byte{0}; });
    if (!zero || handed_out) {
      ++recording_.torn_blocks;
      if (!zero) recording_.bad_bytes += available;
    }
    return;
  }
  std::size_t committed = field(offsetof(BlockHeader, committed));
  const std::size_t room = std::min(block_size, available) - sizeof(BlockHeader);
  bool torn = false;
  if (committed > room) {
    recording_.bad_bytes += committed <= block_size ? committed - room : 0;
    committed = room;
    torn = true;
  }
  const std::uint32_t thread_id = field(offsetof(BlockHeader, thread_id));
  const std::byte* at = data + sizeof(BlockHeader);
  const std::byte* const end = at + committed;
  while (static_cast<std::size_t>(end - at) >= sizeof(RecordHeader)) {
    RecordHeader header;
    std::memcpy(&header, at, sizeof header);
    if (header.size < sizeof header || header.size % 8 != 0 || header.size > end - at) break;
    record(header, RecordView(at, header.size), thread_id);
    at += header.size;
  }
  if (at != end) {
    recording_.bad_bytes += static_cast<std::uint64_t>(end - at);
    torn = true;
  }
  if (torn) ++recording_.torn_blocks;
}

void Parser::record(RecordHeader header, RecordView view, std::uint32_t thread_id) {
  bool good = true;
  switch (header.type) {
    case RecordType::kPadding: break;
    case RecordType::kCall:
    case RecordType::kDeviceTime:
    case RecordType::kStepEdge:
    case RecordType::kWindow:
    case RecordType::kLost:
    case RecordType::kRecording:
    case RecordType::kRange:
    case RecordType::kGapSample:
    case RecordType::kGilHolder:
    case RecordType::kHostCounters:
    case RecordType::kWorkerLook: good = event(header, view, thread_id); break;
    case RecordType::kActivity:
    case RecordType::kCorrelation:
    case RecordType::kApiActivity:
    case RecordType::kOverhead:
    case RecordType::kDropped: good = cupti(header, view); break;
    case RecordType::kKernel:
    case RecordType::kCode:
    case RecordType::kStackNode:
    case RecordType::kThread:
    case RecordType::kStream:
    case RecordType::kDevice:
    case RecordType::kNotice:
    case RecordType::kGraph:
    case RecordType::kSetting:
    case RecordType::kFunction:
    case RecordType::kRangeText:
    case RecordType::kModule:
    case RecordType::kReach:
    case RecordType::kHost: good = definition(header, view); break;
    default: ++recording_.unknown_records; break;
  }
  if (!good) {
    ++recording_.bad_records;
    recording_.bad_bytes += view.size();
  }
}

bool Parser::event(RecordHeader header, RecordView view, std::uint32_t thread_id) {
  switch (header.type) {
    case RecordType::kCall: return call(header, view, thread_id);
    case RecordType::kDeviceTime: {
      DeviceTimeRecord record;
      if (!view.fixed(record) || !plausible(record.start_ns, record.end_ns)) return false;
      recording_.device_times.push_back({record.start_ns, record.end_ns, header.value,
                                         record.uncertainty_ns, record.stream, record.graph_node,
                                         record.device, record.source, kNoActivity});
      seen(record.end_ns);
      return true;
    }
    case RecordType::kStepEdge: {
      StepEdgeRecord record;
      if (!view.fixed(record) || !plausible(0, record.time_ns)) return false;
      recording_.steps.push_back({record.time_ns, header.value, record.thread_id, record.source});
      seen(record.time_ns);
      return true;
    }
    case RecordType::kWindow: return window(header, view);
    case RecordType::kRange: return range(header, view);
    case RecordType::kGapSample: {
      GapSampleRecord record;
      if (!view.fixed(record) || !plausible(record.since_ns, record.time_ns)) return false;
      recording_.gap_samples.push_back(
          {record.time_ns, record.since_ns, record.argument, record.run_ns, record.wait_ns,
           record.major_faults, header.value, record.python_stack, record.native_stack,
           record.system_call, static_cast<char>(record.state), record.flags, record.file});
      seen(record.time_ns);
      return true;
    }
    case RecordType::kGilHolder: {
      GilHolderRecord record;
      if (!view.fixed(record) || !plausible(0, record.time_ns)) return false;
      record.name[sizeof record.name - 1] = '\0';
      recording_.gil_holders.push_back({record.time_ns, record.waiter, header.value,
                                        record.python_stack, record.flags, record.name});
      seen(record.time_ns);
      return true;
    }
    case RecordType::kHostCounters: {
      HostCountersRecord record;
      if (!view.fixed(record) || !plausible(0, record.time_ns) ||
          header.value > static_cast<std::uint32_t>(HostMoment::kThread)) {
        return false;
      }
      HostCounts counts{record.time_ns,
                        record.known,
                        record.thread_id,
                        record.step,
                        static_cast<HostMoment>(header.value),
                        {},
                        {}};
      std::copy(std::begin(record.sources), std::end(record.sources), counts.sources.begin());
      counts.values.resize(static_cast<std::size_t>(std::popcount(record.known)));
      const std::size_t bytes = counts.values.size() * sizeof(std::uint64_t);
      std::string_view values;
      if (!view.text(sizeof record, bytes, values)) return false;
      std::memcpy(counts.values.data(), values.data(), bytes);
      recording_.host_counts.push_back(std::move(counts));
      seen(record.time_ns);
      return true;
    }
    case RecordType::kWorkerLook: {
      WorkerLookRecord record;
      if (!view.fixed(record) || !plausible(record.since_ns, record.time_ns)) return false;
      record.name[sizeof record.name - 1] = '\0';
      recording_.worker_looks.push_back({record.time_ns, record.since_ns, record.argument,
                                         record.run_ns, record.wait_ns, record.process_run_ms,
                                         record.storage_wait_ms, record.major_faults, header.value,
                                         record.parent_pid, record.python_stack, record.system_call,
                                         static_cast<char>(record.state), record.flags, record.file,
                                         record.worker_flags, record.left_out, record.name});
      seen(record.time_ns);
      return true;
    }
    case RecordType::kRecording: {
      RecordingRecord record;
      if (!view.fixed(record) || !plausible(0, record.time_ns)) return false;
      recording_.recording_edges.push_back({record.time_ns, header.value != 0});
      seen(record.time_ns);
      return true;
    }
    case RecordType::kLost: {
      LostRecord record;
      if (!view.fixed(record) || !plausible(0, record.time_ns)) return false;
      lost_ += header.value;
      seen(record.time_ns);
      return true;
    }
    default: return false;
  }
}

bool Parser::cupti(RecordHeader header, RecordView view) {
  switch (header.type) {
    case RecordType::kActivity: return activity(header, view);
    case RecordType::kCorrelation: {
      CorrelationRecord record;
      if (!view.fixed(record) || !plausible(record.start_ns, record.end_ns)) return false;
      correlations_.push_back({header.value, activity_key(record.epoch, record.activity),
                               record.start_ns, record.end_ns});
      return true;
    }
    case RecordType::kApiActivity: {
      ApiActivityRecord record;
      if (!view.fixed(record) || !plausible(record.start_ns, record.end_ns)) return false;
      api_activities_.push_back({record.start_ns, record.end_ns,
                                 activity_key(record.epoch, header.value), record.thread,
                                 record.result, record.api});
      seen(record.end_ns);
      return true;
    }
    case RecordType::kOverhead: {
      OverheadRecord record;
      if (!view.fixed(record) || !plausible(record.start_ns, record.end_ns)) return false;
      recording_.overheads.push_back(
          {record.start_ns, record.end_ns, static_cast<OverheadKind>(header.value), record.thread});
      seen(record.end_ns);
      return true;
    }
    case RecordType::kDropped: {
      DroppedRecord record;
      if (!view.fixed(record) || !plausible(0, record.time_ns)) return false;
      recording_.dropped_activities += header.value;
      seen(record.time_ns);
      return true;
    }
    default: return false;
  }
}

bool Parser::activity(RecordHeader header, RecordView view) {
  ActivityRecord record;
  if (!view.fixed(record) || !plausible(record.start_ns, record.end_ns)) return false;
  Activity a;
  std::memset(static_cast<void*>(&a), 0, sizeof a);
  a.start_ns = record.start_ns;
  a.end_ns = record.end_ns;
  a.graph_node = record.graph_node;
  a.correlation = header.value;
  a.uncertainty_ns = record.uncertainty_ns;
  a.stream = record.stream;
  a.context = record.context;
  a.graph = record.graph;
  a.device = record.device;
  a.kind = record.kind;
  a.epoch = record.epoch;
  std::size_t payload = 0;
  switch (record.kind) {
    case ActivityKind::kKernel: payload = sizeof a.kernel; break;
    case ActivityKind::kCopy: payload = sizeof a.copy; break;
    case ActivityKind::kMemset: payload = sizeof a.memset; break;
    default: return false;
  }
  if (view.size() < sizeof record + payload) return false;
  std::memcpy(static_cast<void*>(&a.kernel), view.data() + sizeof record, payload);
  recording_.activities.push_back(a);
  seen(a.end_ns);
  return true;
}

bool Parser::call(RecordHeader header, RecordView view, std::uint32_t thread_id) {
  CallRecord record;
  if (!view.fixed(record)) return false;
  const bool is_long = (record.flags & kCallLong) != 0;
  const std::uint64_t duration =
      is_long ? std::uint64_t{record.duration} * kLongDurationUnit : record.duration;
  if (!plausible(record.start_ns, record.start_ns + duration)) return false;
  Call call;
  std::memset(static_cast<void*>(&call), 0, sizeof call);
  call.start_ns = record.start_ns;
  call.end_ns = record.start_ns + duration;
  call.correlation = header.value;
  call.thread_id = thread_id;
  call.python_stack = record.python_stack;
  call.native_stack = record.native_stack;
  call.stream = record.stream;
  call.result = record.result;
  call.api = record.api;
  call.flags = record.flags;
  call.device = record.device;
  call.category = Category::kOther;
  // The category, and so the payload's type, may be defined in a block that comes later.
  const std::size_t payload = std::min(view.size() - sizeof record, kPayloadSize);
  std::memcpy(static_cast<void*>(&call.launch), view.data() + sizeof record, payload);
  recording_.calls.push_back(call);
  payload_bytes_.push_back(static_cast<std::uint8_t>(payload));
  seen(call.end_ns);
  return true;
}

bool Parser::window(RecordHeader header, RecordView view) {
  WindowRecord record;
  if (!view.fixed(record) || !plausible(0, record.time_ns)) return false;
  if (record.kind > WindowKind::kCaptured || record.event > WindowEvent::kCut) return false;
  const auto [it, fresh] = windows_.try_emplace({record.kind, header.value});
  Window& window = it->second;
  if (fresh) {
    window = {header.value, record.kind, record.first_step, 0, 0, 0, 0, false};
  }
  if (record.event == WindowEvent::kBegin) {
    window.begin_ns = record.time_ns;
    window.first_step = record.first_step;
    window.planned_steps = record.steps;
  } else {
    window.end_ns = record.time_ns;
    window.completed_steps = record.steps;
    window.complete = record.event == WindowEvent::kEnd;
  }
  seen(record.time_ns);
  return true;
}

bool Parser::range(RecordHeader header, RecordView view) {
  RangeRecord record;
  if (!view.fixed(record) || !plausible(record.start_ns, record.end_ns)) return false;
  if (record.kind > RangeKind::kCall || record.payload_type > RangePayload::kBytes) return false;
  Range range{record.start_ns,  record.end_ns,   record.payload,       header.value,
              record.domain,    record.category, record.category_name, record.colour,
              record.thread_id, record.id,       record.kind,          record.payload_type,
              record.flags};
  bool whole = true;
  if (range.text == 0 && record.text_bytes != 0) {
    std::string_view text;
    whole = view.text(sizeof record, record.text_bytes, text);
    const auto [own, fresh] = own_texts_.try_emplace(
        repair_utf8(text), kFirstOwnText + static_cast<std::uint32_t>(own_texts_.size()));
    if (fresh) recording_.range_texts.emplace(own->second, own->first);
    range.text = own->second;
  }
  recording_.ranges.push_back(range);
  seen(range.end_ns);
  return whole;
}

// A range that was written while it was open and again when it ended is one.
void Parser::finish_ranges() {
  std::vector<Range>& ranges = recording_.ranges;
  std::unordered_map<std::uint32_t, std::uint64_t> latest;  // end by id
  for (const Range& r : ranges) {
    if (r.id != 0) latest[r.id] = std::max(latest[r.id], r.end_ns);
  }
  std::unordered_set<std::uint32_t> kept;
  const auto is_double = [&](const Range& r) {
    return r.id != 0 && (r.end_ns != latest[r.id] || !kept.insert(r.id).second);
  };
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(), is_double), ranges.end());
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.start_ns, b.end_ns) < std::pair(b.start_ns, a.end_ns);
  });
  for (Range& r : ranges) {
    for (std::uint32_t* text : {&r.text, &r.domain, &r.category_name}) {
      if (*text == 0 || recording_.range_texts.contains(*text)) continue;
      ++recording_.bad_records;  // kept without the text: its times are good
      *text = 0;
    }
  }
}

bool Parser::definition(RecordHeader header, RecordView view) {
  Recording& r = recording_;
  std::string_view text;
  switch (header.type) {
    case RecordType::kKernel: {
      KernelRecord record;
      if (!view.fixed(record)) return false;
      const bool whole = view.text(sizeof record, record.name_bytes, text);
      r.kernels.insert_or_assign(header.value, Kernel{repair_utf8(text), record.function});
      return whole;
    }
    case RecordType::kCode: {
      CodeRecord record;
      if (!view.fixed(record)) return false;
      std::string_view file, name, table;
      std::size_t at = sizeof record;
      bool whole = view.text(at, record.file_bytes, file);
      at += record.file_bytes;
      whole = view.text(at, record.name_bytes, name) && whole;
      at += record.name_bytes;
      whole = view.text(at, record.line_table_bytes, table) && whole;
      r.codes.insert_or_assign(
          header.value, Code{repair_utf8(file), repair_utf8(name), std::string(table),
                             record.first_line, record.python_minor, record.flags != 0 || !whole});
      return whole;
    }
    case RecordType::kStackNode: {
      StackNodeRecord record;
      if (!view.fixed(record)) return false;
      r.stack_nodes.insert_or_assign(
          header.value, StackNode{record.parent, record.kind, record.flags, record.location});
      return true;
    }
    case RecordType::kThread: {
      ThreadRecord record;
      if (!view.fixed(record)) return false;
      const bool whole = view.text(sizeof record, record.name_bytes, text);
      const bool named = (record.flags & 1) != 0;
      const auto known = r.threads.find(header.value);
      if (known == r.threads.end() || named || !known->second.named) {
        r.threads.insert_or_assign(header.value,
                                   Thread{header.value, record.pthread, repair_utf8(text), named});
      }
      return whole;
    }
    case RecordType::kStream: {
      StreamRecord record;
      if (!view.fixed(record)) return false;
      r.streams.insert_or_assign(
          header.value, Stream{record.handle, record.device, record.flags, record.priority});
      return true;
    }
    case RecordType::kDevice: {
      DeviceRecord record;
      if (!view.fixed(record)) return false;
      const bool whole = view.text(sizeof record, record.name_bytes, text);
      r.devices.insert_or_assign(static_cast<std::int32_t>(header.value),
                                 Device{repair_utf8(text), record});
      return whole;
    }
    case RecordType::kNotice: {
      NoticeRecord record;
      if (!view.fixed(record)) return false;
      const bool whole = view.text(sizeof record, record.text_bytes, text);
      r.notices.push_back(
          {record.time_ns, static_cast<NoticeKind>(header.value), repair_utf8(text)});
      return whole;
    }
    case RecordType::kGraph: {
      GraphRecord record;
      if (!view.fixed(record)) return false;
      r.graphs.insert_or_assign(header.value, Graph{record.graph_exec, record.kernels,
                                                    record.copies, record.memsets, record.others});
      return true;
    }
    case RecordType::kSetting: {
      SettingRecord record;
      if (!view.fixed(record)) return false;
      const bool whole = view.text(sizeof record, record.text_bytes, text);
      r.settings.push_back(repair_utf8(text));
      return whole;
    }
    case RecordType::kFunction: {
      ApiRecord record;
      if (!view.fixed(record) || header.value > std::numeric_limits<std::uint16_t>::max()) {
        return false;
      }
      const bool whole = view.text(sizeof record, record.name_bytes, text);
      if (header.value >= r.apis.size()) r.apis.resize(header.value + 1);
      r.apis[header.value] = {repair_utf8(text), record.category, record.layer};
      return whole;
    }
    case RecordType::kRangeText: {
      RangeTextRecord record;
      if (!view.fixed(record) || header.value == 0 || header.value >= kFirstOwnText) return false;
      const bool whole = view.text(sizeof record, record.text_bytes, text);
      r.range_texts.insert_or_assign(header.value, repair_utf8(text));
      return whole;
    }
    case RecordType::kModule: {
      ModuleRecord record;
      if (!view.fixed(record) || record.begin > record.end) return false;
      std::string_view id;
      bool whole = view.text(sizeof record, record.path_bytes, text);
      whole = view.text(sizeof record + record.path_bytes, record.build_id_bytes, id) && whole;
      std::string hex;
      for (const char c : id) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
      r.modules.push_back({record.time_ns, record.begin, record.end, record.base, repair_utf8(text),
                           std::move(hex), record.flags != 0 || !whole});
      return whole;
    }
    case RecordType::kReach: {
      ReachRecord record;
      if (!view.fixed(record)) return false;
      const bool whole = view.text(sizeof record, record.function_count, text);
      // Each is a whole state, and they only grow: blocks may be read in any order.
      if (text.size() > r.reach.size()) r.reach.resize(text.size());
      for (std::size_t i = 0; i < text.size(); ++i) {
        r.reach[i] |= static_cast<std::uint8_t>(text[i]);
      }
      r.has_reach = true;
      r.driver_loaded = r.driver_loaded || (header.value & kReachDriverLoaded) != 0;
      r.modules_left_out = std::max<std::uint64_t>(r.modules_left_out, record.modules_left_out);
      return whole;
    }
    case RecordType::kHost: {
      HostRecord record;
      if (!view.fixed(record) || (record.cpu_quota_us != 0 && record.cpu_period_us == 0)) {
        return false;
      }
      r.host_offer = {header.value,
                      record.memory_bytes,
                      record.swap_bytes,
                      record.memory_limit_bytes,
                      record.cpu_quota_us,
                      record.cpu_period_us,
                      record.online_processors,
                      record.usable_processors,
                      record.page_bytes,
                      true};
      return true;
    }
    default: return false;
  }
}

void Parser::resolve_categories() {
  for (std::size_t i = 0; i < recording_.calls.size(); ++i) {
    Call& call = recording_.calls[i];
    const bool known = call.api < recording_.apis.size() && !recording_.apis[call.api].name.empty();
    const Category category = known ? recording_.apis[call.api].category : Category::kOther;
    if (known && payload_bytes_[i] >= payload_size(category)) {
      call.category = category;
      if (category == Category::kLaunch) {
        LaunchPayload p;
        std::memcpy(&p, static_cast<const void*>(&call.launch), sizeof p);
        call.launch = {p.kernel,
                       {p.grid_x, p.grid_y, p.grid_z},
                       {p.block_x, p.block_y, p.block_z},
                       p.shared_bytes};
      }
    } else {
      ++recording_.bad_records;  // kept as a call of kind "other": its times are good
    }
  }
  payload_bytes_ = {};
}

void Parser::close_windows() {
  for (auto& [key, window] : windows_) {
    if (window.end_ns == 0) {
      window.end_ns = std::max(last_ns_, window.begin_ns);
      const auto inside = [&w = window](const StepEdge& edge) {
        return edge.time_ns > w.begin_ns && edge.time_ns <= w.end_ns;
      };
      window.completed_steps = static_cast<std::uint32_t>(
          std::count_if(recording_.steps.begin(), recording_.steps.end(), inside));
    }
    if (window.begin_ns == 0) window.begin_ns = recording_.start_ns;  // its begin was lost
    if (window.begin_ns > window.end_ns) {
      ++recording_.bad_records;
      continue;
    }
    recording_.windows.push_back(window);
  }
  std::sort(recording_.windows.begin(), recording_.windows.end(),
            [](const Window& a, const Window& b) {
              return std::pair(a.begin_ns, a.index) < std::pair(b.begin_ns, b.index);
            });
}

template <typename T, typename Key>
void sort_by(std::vector<T>& items, Key key) {
  const auto less = [&](const T& a, const T& b) { return key(a) < key(b); };
  if (!std::is_sorted(items.begin(), items.end(), less)) {
    std::stable_sort(items.begin(), items.end(), less);
  }
}

void Parser::finish(std::uint64_t header_lost) {
  recording_.lost_records = std::max(header_lost, lost_);
  resolve_categories();
  sort_by(recording_.calls, [](const Call& c) { return c.start_ns; });
  join_activities(recording_, std::move(correlations_), std::move(api_activities_));
  if (recording_.unhooked_calls != 0) {
    sort_by(recording_.calls, [](const Call& c) { return c.start_ns; });
  }
  const ThreadNames threads(recording_);
  for (Overhead& o : recording_.overheads) o.thread_id = threads.find(o.thread_id);
  sort_by(recording_.overheads, [](const Overhead& o) { return o.start_ns; });
  sort_by(recording_.device_times, [](const DeviceTime& t) { return t.start_ns; });
  sort_by(recording_.steps, [](const StepEdge& e) { return e.time_ns; });
  sort_by(recording_.recording_edges, [](const RecordingEdge& e) { return e.time_ns; });
  sort_by(recording_.notices, [](const Notice& n) { return n.time_ns; });
  sort_by(recording_.host_counts, [](const HostCounts& h) { return h.time_ns; });
  sort_by(recording_.worker_looks, [](const WorkerLook& w) { return w.time_ns; });
  sort_by(recording_.gil_holders, [](const GilHolder& g) { return g.time_ns; });
  sort_by(recording_.gap_samples, [](const GapSample& g) { return g.time_ns; });
  finish_ranges();
  close_windows();
  if (recording_.end_ns == 0) recording_.end_ns = last_ns_;
}

std::string hex(const std::byte* data, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) {
    fmt::format_to(std::back_inserter(out), "{}{:02x}", i ? " " : "",
                   static_cast<unsigned>(data[i]));
  }
  return out;
}

// Text in a fixed field: up to the first '\0'.
std::string_view field_text(const std::byte* data, std::size_t size) {
  const char* text = reinterpret_cast<const char*>(data);
  return {text, strnlen(text, size)};
}

}  // namespace

tl::expected<Recording, Error> read_source(const std::string& name, const ByteSource& source) {
  const auto fail = [&](std::string text) {
    return tl::make_unexpected(Error{fmt::format("{}: {}", name, text)});
  };
  static_assert(sizeof(FileHeader) <= kHeaderSize);
  std::vector<std::byte> page(kHeaderSize);
  const std::size_t got = source.read(0, page.data(), page.size());
  if (got < page.size()) {
    return fail(fmt::format("has {} bytes; a recording has at least {}", got, page.size()));
  }
  if (std::memcmp(page.data(), kFileMagic, sizeof kFileMagic) != 0) {
    return fail(fmt::format("is not a recording: it begins with {}; expected {} (\"GPUBUSY\\n\")",
                            hex(page.data(), 8),
                            hex(reinterpret_cast<const std::byte*>(kFileMagic), 8)));
  }
  const auto number = [&](std::size_t offset, auto& out) {
    std::memcpy(&out, page.data() + offset, sizeof out);
    return out;
  };
  Recording recording;
  recording.path = name;
  std::uint32_t header_size, block_size, state;
  std::uint64_t lost, blocks;
  number(offsetof(FileHeader, version), recording.version);
  number(offsetof(FileHeader, header_size), header_size);
  number(offsetof(FileHeader, block_size), block_size);
  if (recording.version == 0 || recording.version > kFormatVersion) {
    return fail(fmt::format("has format version {}; this gpubusy reads 1 to {}", recording.version,
                            kFormatVersion));
  }
  if (header_size < kHeaderSize || header_size > kMaxHeaderSize) {
    return fail(fmt::format("has a header of {} bytes; expected {} to {}", header_size, kHeaderSize,
                            kMaxHeaderSize));
  }
  if (block_size < kMinBlockSize || block_size > kMaxBlockSize || block_size % 8 != 0) {
    return fail(fmt::format("has blocks of {} bytes; expected a multiple of 8 from {} to {}",
                            block_size, kMinBlockSize, kMaxBlockSize));
  }
  number(offsetof(FileHeader, pid), recording.pid);
  number(offsetof(FileHeader, parent_pid), recording.parent_pid);
  number(offsetof(FileHeader, start_ns), recording.start_ns);
  number(offsetof(FileHeader, start_unix_ns), recording.start_unix_ns);
  number(offsetof(FileHeader, rank), recording.rank);
  number(offsetof(FileHeader, world_size), recording.world_size);
  number(offsetof(FileHeader, local_rank), recording.local_rank);
  number(offsetof(FileHeader, run), recording.run);
  number(offsetof(FileHeader, state), state);
  number(offsetof(FileHeader, end_ns), recording.end_ns);
  number(offsetof(FileHeader, lost_records), lost);
  number(offsetof(FileHeader, blocks), blocks);
  number(offsetof(FileHeader, steps_seen), recording.steps_seen);
  if (state > static_cast<std::uint32_t>(FileState::kFileLimit)) {
    ++recording.bad_records;
    state = static_cast<std::uint32_t>(FileState::kOpen);
  }
  recording.state = static_cast<FileState>(state);
  const auto text = [&](std::size_t offset, std::size_t size) {
    return repair_utf8(field_text(page.data() + offset, size));
  };
  recording.library_version =
      text(offsetof(FileHeader, library_version), sizeof FileHeader::library_version);
  recording.host = text(offsetof(FileHeader, host), sizeof FileHeader::host);
  recording.executable = text(offsetof(FileHeader, executable), sizeof FileHeader::executable);
  const std::size_t line_size = sizeof FileHeader::command_line;
  for (std::size_t at = 0; at < line_size;) {
    const std::byte* start = page.data() + offsetof(FileHeader, command_line) + at;
    const std::string_view argument = field_text(start, line_size - at);
    // Arguments may be empty, so only a run of zeros to the end is the end.
    if (argument.empty() && std::all_of(start, start + (line_size - at),
                                        [](std::byte b) { return b == std::byte{0}; })) {
      break;
    }
    recording.command_line.push_back(repair_utf8(argument));
    at += argument.size() + 1;
  }

  // Only as large a buffer as the file can fill: a small file must not cost a large block.
  const std::uint64_t size = source.size();
  const std::uint64_t behind = size > header_size ? size - header_size : 0;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(block_size, behind)));
  LiveBlockFilter filter;
  for (std::uint64_t at = header_size; at < size; at += block_size) {
    std::byte head[sizeof(BlockHeader)];
    if (source.read(at, head, sizeof head) == sizeof head) filter.note(BlockHeaderBytes(head), at);
  }
  Parser parser(recording);
  std::uint64_t index = 0;
  for (std::uint64_t at = header_size; at < size; at += block_size, ++index) {
    // The header first: a block that was hardly begun need not be read whole.
    const std::size_t head =
        source.read(at, buffer.data(), std::min(buffer.size(), sizeof(BlockHeader)));
    std::size_t available = head;
    if (head == sizeof(BlockHeader)) {
      const BlockHeaderBytes header(buffer.data());
      if (!filter.counts(header, at)) continue;
      const std::uint32_t committed = header.committed;
      const std::uint64_t there = std::min<std::uint64_t>({block_size, size - at, buffer.size()});
      const std::uint64_t wanted =
          std::min<std::uint64_t>(there, std::uint64_t{committed} + sizeof(BlockHeader));
      available +=
          source.read(at + head, buffer.data() + head, static_cast<std::size_t>(wanted) - head);
    }
    parser.block(buffer.data(), block_size, available, index < blocks);
  }
  // A process that ended in an orderly way has written all that it had begun: the file was cut
  // since.
  const bool orderly =
      recording.state == FileState::kFinished || recording.state == FileState::kExecuted;
  if (orderly && index < blocks) recording.torn_blocks += blocks - index;
  parser.finish(lost);
  return recording;
}

}  // namespace gpubusy::recording
