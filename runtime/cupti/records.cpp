// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/records.hpp"

#include <string.h>
#include <sys/mman.h>

#include <type_traits>

#include "recording/format.hpp"
#include "runtime/categories.hpp"
#include "runtime/clock.hpp"
#include "runtime/kernels.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime::cupti {

constinit std::atomic<bool> g_reader_gives_way{false};

namespace {

constexpr std::uint32_t kMaxCallbackId = 2048;
constexpr std::uint16_t kAsk = 0, kNotWanted = 0xffff;
// Index into the recording's functions, behind those of the hook table.
constinit std::uint16_t g_function_of[2][kMaxCallbackId] = {};
constinit std::uint32_t g_next_function = 0;
constinit std::uint32_t g_functions_file = ~std::uint32_t{0};

struct NoPayload {};

// Calls that ask for something and never lead to device work.
bool only_asks(const char* name) noexcept {
  for (const char* part :
       {"Get", "Query", "IsCapturing", "Occupancy", "PeekAtLastError", "SetDevice",
        "CallConfiguration", "CtxSetCurrent", "CtxPushCurrent", "CtxPopCurrent", "cuInit"}) {
    if (strstr(name, part) != nullptr) return true;
  }
  return false;
}

// "cudaLaunchKernel_v7000" as the header has it: without the version of the runtime.
std::size_t length_without_version(const char* name) noexcept {
  const std::size_t length = strlen(name);
  std::size_t digits = length;
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  const bool versioned =
      length - digits >= 4 && digits >= 2 && name[digits - 1] == 'v' && name[digits - 2] == '_';
  return versioned ? digits - 2 : length;
}

bool is_hooked_without_work(const char* name, std::size_t length) noexcept {
  for (std::uint32_t i = 0; i < api_count(); ++i) {
    const ApiInfo& api = api_info(i);
    if (strncmp(api.name, name, length) != 0) continue;
    const char* rest = api.name + length;
    if (*rest == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0) {
      return !is_device_work(api.category);
    }
  }
  return false;
}

std::uint16_t define_function(const Library& library, std::uint32_t domain,
                              std::uint32_t id) noexcept {
  const char* name = nullptr;
  if (library.callback_name(domain, id, &name) != kSuccess || name == nullptr) return kNotWanted;
  if (only_asks(name)) return kNotWanted;
  const std::size_t length = length_without_version(name);
  // The hooks see it; what of it went past them leads to no device work.
  if (is_hooked_without_work(name, length)) return kNotWanted;
  recording::ApiRecord r{};
  r.header.type = recording::RecordType::kFunction;
  r.header.value = api_count() + g_next_function;
  if (r.header.value >= kNotWanted) return kNotWanted;
  r.category = recording::Category::kOther;
  r.layer = domain == kDomainDriver ? recording::Layer::kDriver : recording::Layer::kRuntime;
  r.name_bytes = static_cast<std::uint16_t>(length);
  const Part part{name, length};
  if (!definitions().define(&r.header, sizeof r, &part, 1)) return kAsk;
  ++g_next_function;
  return static_cast<std::uint16_t>(r.header.value);
}

std::uint16_t function_of(const Library& library, std::uint32_t domain, std::uint32_t id) noexcept {
  if (id >= kMaxCallbackId) return kNotWanted;
  if (g_functions_file != file_generation()) {
    // They are defined once per file.
    memset(g_function_of, 0, sizeof g_function_of);
    g_next_function = 0;
    g_functions_file = file_generation();
  }
  std::uint16_t& known = g_function_of[domain == kDomainDriver][id];
  if (known == kAsk) known = define_function(library, domain, id);
  return known;
}

recording::CopyDirection direction_of(std::uint8_t copy_kind) noexcept {
  using enum recording::CopyDirection;
  switch (copy_kind) {  // CUpti_ActivityMemcpyKind
    case 1:
    case 3: return kHostToDevice;
    case 2:
    case 4: return kDeviceToHost;
    case 5:
    case 6:
    case 7:
    case 8: return kDeviceToDevice;
    case 9: return kHostToHost;
    case 10: return kPeerToPeer;
    default: return kUnknown;
  }
}

recording::MemoryKind memory_kind_of(std::uint8_t kind) noexcept {
  using enum recording::MemoryKind;
  switch (kind) {  // CUpti_ActivityMemoryKind
    case 1: return kPageable;
    case 2: return kPinned;
    case 3:
    case 6: return kDevice;
    case 4: return kArray;
    case 5:
    case 7: return kManaged;
    default: return kUnknown;
  }
}

}  // namespace

std::uint64_t Translator::translate(const Library& library, const Activities& cupti,
                                    const Clock& clock, const FullBuffer& buffer,
                                    ThreadState& writer) noexcept {
  library_ = &library;
  clock_ = &clock;
  writer_ = &writer;
  if (buffer.epoch != epoch_) newest_call_ = 0;  // it may have begun to count anew
  epoch_ = buffer.epoch;
  now_ns_ = now_ns();
  came_in_ = 0;
  Record* next = nullptr;
  while (!g_reader_gives_way.load(std::memory_order_relaxed) &&
         cupti.next(buffer.data, buffer.valid, &next) == kSuccess) {
    record(*next);
  }
  // Its call's record may follow in the next buffer; then the reader has both and takes this.
  if (external_call_ != 0) write_correlation(0, 0);
  return came_in_;
}

template <class Header, class Payload>
void Translator::write(const Header& header, const Payload& payload) noexcept {
  constexpr std::size_t kPayload = std::is_empty_v<Payload> ? 0 : sizeof payload;
  constexpr std::size_t kSize = sizeof header + kPayload;
  static_assert(kSize % 8 == 0);
  auto* out = static_cast<char*>(reserve_record(*writer_, kSize, now_ns_));
  if (out == nullptr) return;
  memcpy(out, &header, sizeof header);
  reinterpret_cast<recording::RecordHeader*>(out)->size = static_cast<std::uint16_t>(kSize);
  if constexpr (kPayload != 0) memcpy(out + sizeof header, &payload, kPayload);
  commit_record(*writer_, kSize);
}

void Translator::record(const Record& record) noexcept {
  switch (record.kind) {
    case kConcurrentKernel:
    case Kind::kKernel: return kernel(reinterpret_cast<const KernelRecord&>(record));
    case kMemcpy: return copy(reinterpret_cast<const MemcpyRecord&>(record));
    case kMemcpyPeer: return peer_copy(reinterpret_cast<const MemcpyPeerRecord&>(record));
    case kMemset: return memset(reinterpret_cast<const MemsetRecord&>(record));
    case kRuntime:
    case kDriver: return api(reinterpret_cast<const ApiRecord&>(record));
    case kExternalCorrelation:
      return external(reinterpret_cast<const ExternalCorrelationRecord&>(record));
    case kOverhead: return overhead(reinterpret_cast<const OverheadRecord&>(record));
    default: return;  // a kind of the program's
  }
}

// False: the work had not ended when a flush was forced; it counts as not timed.
template <class Source>
bool Translator::fill(void* activity, const Source& r, std::uint8_t kind) noexcept {
  if (r.start == 0 || r.end < r.start) return false;
  auto& a = *static_cast<recording::ActivityRecord*>(activity);
  const Clock::Time start = clock_->convert(r.start);
  a.header.type = recording::RecordType::kActivity;
  a.header.value = r.correlation;
  a.start_ns = start.ns;
  a.end_ns = clock_->convert(r.end).ns;
  if (a.end_ns < a.start_ns) a.end_ns = a.start_ns;
  a.uncertainty_ns = start.uncertainty_ns;
  a.epoch = static_cast<std::uint8_t>(epoch_);
  a.stream = r.stream;
  a.context = r.context;
  a.device = static_cast<std::int16_t>(r.device);
  a.kind = static_cast<recording::ActivityKind>(kind);
  a.graph_node = r.graph_node;
  a.graph = r.graph;
  saw(r.correlation, kWork);
  return true;
}

// A call's work came in once both its number and a first piece of work were seen; in any order, and
// with other calls' nodes in between.
void Translator::saw(std::uint32_t correlation, std::uint8_t what) noexcept {
  if (seen_ == nullptr) {
    void* p = mmap(nullptr, sizeof(Seen) * kSeenSlots, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    seen_ = static_cast<Seen*>(p);
  }
  Seen& seen = seen_[correlation % kSeenSlots];
  if (seen.correlation != correlation) seen = {correlation, 0};
  const std::uint8_t before = seen.what;
  seen.what |= what;
  if (seen.what == (kCall | kWork) && before != seen.what) ++came_in_;
}

void Translator::kernel(const KernelRecord& r) noexcept {
  recording::ActivityRecord a{};
  if (!fill(&a, r, static_cast<std::uint8_t>(recording::ActivityKind::kKernel))) return;
  recording::KernelActivityPayload p{};
  p.kernel = kernel_id_by_name(r.name == nullptr ? "" : r.name);
  p.dynamic_shared_bytes = static_cast<std::uint32_t>(r.dynamic_shared);
  p.static_shared_bytes = static_cast<std::uint32_t>(r.static_shared);
  p.local_bytes = r.local_per_thread;
  p.grid_x = static_cast<std::uint32_t>(r.grid[0]);
  p.grid_y = static_cast<std::uint16_t>(r.grid[1]);
  p.grid_z = static_cast<std::uint16_t>(r.grid[2]);
  p.block_x = static_cast<std::uint16_t>(r.block[0]);
  p.block_y = static_cast<std::uint16_t>(r.block[1]);
  p.block_z = static_cast<std::uint16_t>(r.block[2]);
  p.registers = r.registers;
  write(a, p);
}

void Translator::copy(const MemcpyRecord& r) noexcept {
  recording::ActivityRecord a{};
  if (!fill(&a, r, static_cast<std::uint8_t>(recording::ActivityKind::kCopy))) return;
  recording::CopyActivityPayload p{};
  p.bytes = r.bytes;
  p.direction = direction_of(r.copy_kind);
  p.source_kind = memory_kind_of(r.source_kind);
  p.destination_kind = memory_kind_of(r.destination_kind);
  p.asynchronous = (r.flags & kCopyAsync) != 0 ? 1 : 0;
  p.source_device = p.destination_device = -1;
  write(a, p);
}

void Translator::peer_copy(const MemcpyPeerRecord& r) noexcept {
  recording::ActivityRecord a{};
  if (!fill(&a, r, static_cast<std::uint8_t>(recording::ActivityKind::kCopy))) return;
  recording::CopyActivityPayload p{};
  p.bytes = r.bytes;
  p.direction = recording::CopyDirection::kPeerToPeer;
  p.source_kind = memory_kind_of(r.source_kind);
  p.destination_kind = memory_kind_of(r.destination_kind);
  p.asynchronous = (r.flags & kCopyAsync) != 0 ? 1 : 0;
  p.source_device = static_cast<std::int16_t>(r.source_device);
  p.destination_device = static_cast<std::int16_t>(r.destination_device);
  write(a, p);
}

void Translator::memset(const MemsetRecord& r) noexcept {
  recording::ActivityRecord a{};
  if (!fill(&a, r, static_cast<std::uint8_t>(recording::ActivityKind::kMemset))) return;
  write(a, recording::MemsetActivityPayload{r.bytes, r.value, 0});
}

void Translator::external(const ExternalCorrelationRecord& r) noexcept {
  if (r.external_kind != kOurExternalKind || !is_our_external_id(r.external_id)) return;
  // The one before had no record of its call behind it.
  if (external_call_ != 0) write_correlation(0, 0);
  external_call_ = static_cast<std::uint32_t>(r.external_id);
  external_activity_ = r.correlation;
  saw(r.correlation, kCall);
}

void Translator::write_correlation(std::uint64_t start_ns, std::uint64_t end_ns) noexcept {
  recording::CorrelationRecord c{};
  c.header.type = recording::RecordType::kCorrelation;
  c.header.value = external_call_;
  c.activity = external_activity_;
  c.epoch = epoch_ & 0xff;
  c.start_ns = start_ns;
  c.end_ns = end_ns;
  write(c, NoPayload{});
  external_call_ = 0;
}

void Translator::api(const ApiRecord& r) noexcept {
  if (r.correlation > newest_call_) newest_call_ = r.correlation;
  const Clock::Time start = clock_->convert(r.start), end = clock_->convert(r.end);
  const std::uint64_t end_ns = end.ns < start.ns ? start.ns : end.ns;
  if (external_call_ != 0) {
    const bool of_this = external_activity_ == r.correlation;
    write_correlation(of_this ? start.ns : 0, of_this ? end_ns : 0);
    if (of_this) return;
  }
  const std::uint16_t function =
      function_of(*library_, r.kind == kDriver ? kDomainDriver : kDomainRuntime, r.callback_id);
  if (function == kAsk || function == kNotWanted) return;
  recording::ApiActivityRecord a{};
  a.header.type = recording::RecordType::kApiActivity;
  a.header.value = r.correlation;
  a.start_ns = start.ns;
  a.end_ns = end_ns;
  a.thread = r.thread;
  a.result = static_cast<std::int32_t>(r.result);
  a.api = function;
  a.epoch = static_cast<std::uint16_t>(epoch_ & 0xff);
  write(a, NoPayload{});
}

void Translator::overhead(const OverheadRecord& r) noexcept {
  if (r.start == 0 || r.end < r.start) return;
  recording::OverheadRecord o{};
  o.header.type = recording::RecordType::kOverhead;
  o.header.value = r.overhead_kind;
  o.start_ns = clock_->convert(r.start).ns;
  o.end_ns = clock_->convert(r.end).ns;
  if (o.end_ns < o.start_ns) o.end_ns = o.start_ns;
  o.thread = r.object_kind == kObjectThread ? r.thread : 0;
  write(o, NoPayload{});
}

}  // namespace gpubusy::runtime::cupti
