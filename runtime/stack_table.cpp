// SPDX-License-Identifier: Apache-2.0
#include "runtime/stack_table.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#include "runtime/keep_errno.hpp"
#include "runtime/python/frames.hpp"
#include "runtime/python/layout.hpp"

namespace gpubusy::runtime {
namespace {

using recording::FrameKind;

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;

// ---- tables ------------------------------------------------------------------------------------

// Written before its id is published through a bucket or `next`, then never again.
struct Node {
  std::uint64_t location;
  std::uint32_t parent;
  std::uint32_t kind_and_cut;  // FrameKind | cut << 8
  std::uint32_t next;          // in the bucket
  std::uint32_t reserved;
};

// One for each address that a code object was met at. Who stands there may change: see find_code.
struct CodeSlot {
  std::atomic<const void*> code;
  std::atomic<std::uint64_t> fingerprint;   // 0 while being changed
  std::atomic<std::uint32_t> id_and_flags;  // id << 1 | is an optimizer's wrapper
  std::uint32_t next;
};

// By content, so that a function which is exec'd again and again stays one code.
struct Content {
  std::uint64_t hash;
  std::uint32_t id;
  std::uint32_t next;
};

constexpr unsigned kNodeBucketBits = 18;
constexpr unsigned kCodeBucketBits = 14;

struct Tables {
  std::atomic<std::uint32_t> node_buckets[1u << kNodeBucketBits];
  std::atomic<std::uint32_t> code_buckets[1u << kCodeBucketBits];
  std::uint32_t content_buckets[1u << kCodeBucketBits];
  Node nodes[kMaxStackNodes];
  CodeSlot slots[kMaxCodes];
  Content contents[kMaxCodes];
};

constinit std::atomic<Tables*> g_tables{nullptr};
constinit std::atomic<std::uint32_t> g_epoch{1};  // of the tables; memos of another are void
constinit std::atomic<std::uint32_t> g_last_node{0};
constinit std::atomic<std::uint32_t> g_last_code{0};
constinit std::atomic<std::uint64_t> g_refused{0};
// Guards insertion, not reading, and no call to the sink.
constinit pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
std::uint32_t g_slots_used = 0, g_contents_used = 0;  // under g_lock

Tables* map_tables() noexcept {
  void* p = mmap(nullptr, sizeof(Tables), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  // With transparent huge pages "always" a handful of nodes would cost 2 MiB per table.
  madvise(p, sizeof(Tables), MADV_NOHUGEPAGE);
  auto* fresh = static_cast<Tables*>(p);  // zeroed is the empty state
  Tables* expected = nullptr;
  if (!g_tables.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) {
    munmap(p, sizeof(Tables));
    return expected;
  }
  return fresh;
}

Tables* tables() noexcept {
  Tables* t = g_tables.load(std::memory_order_acquire);
  return t != nullptr ? t : map_tables();
}

std::uint32_t take_id(std::atomic<std::uint32_t>& last, std::uint32_t limit) noexcept {
  std::uint32_t id = last.load(std::memory_order_relaxed);
  do {
    if (id + 1 >= limit) return 0;
  } while (!last.compare_exchange_weak(id, id + 1, std::memory_order_relaxed));
  return id + 1;
}

// Gives an unused id back, unless another thread has taken the next one by now.
void drop_id(std::atomic<std::uint32_t>& last, std::uint32_t id) noexcept {
  last.compare_exchange_strong(id, id - 1, std::memory_order_relaxed);
}

// ---- nodes -------------------------------------------------------------------------------------

struct NodeKey {
  std::uint64_t location;
  std::uint32_t parent;
  std::uint32_t kind_and_cut;
};

std::size_t bucket_of(const NodeKey& k) noexcept {
  std::uint64_t h = (k.location ^ k.parent * 0xff51afd7ed558ccdull) * kGolden;
  h ^= h >> 29;
  return static_cast<std::size_t>((h + k.kind_and_cut) * kGolden >> (64 - kNodeBucketBits));
}

std::uint32_t find_node(const Tables& t, std::uint32_t first, const NodeKey& k) noexcept {
  for (std::uint32_t id = first; id != 0; id = t.nodes[id].next) {
    const Node& n = t.nodes[id];
    if (n.location == k.location && n.parent == k.parent && n.kind_and_cut == k.kind_and_cut) {
      return id;
    }
  }
  return 0;
}

[[gnu::noinline]] std::uint32_t add_node(Tables& t, DefinitionSink& sink,
                                         const NodeKey& k) noexcept {
  const std::uint32_t id = take_id(g_last_node, kMaxStackNodes);
  if (id == 0) return 0;
  // The definition goes out before the id can be used. When two threads meet the same new frame at
  // once, one of two definitions stays unused, which does no harm.
  recording::StackNodeRecord record{};
  record.header.type = recording::RecordType::kStackNode;
  record.header.value = id;
  record.parent = k.parent;
  record.kind = static_cast<FrameKind>(k.kind_and_cut & 0xff);
  record.flags = static_cast<std::uint8_t>(k.kind_and_cut >> 8);
  record.location = k.location;
  if (!sink.define(&record.header, sizeof record, nullptr, 0)) {
    drop_id(g_last_node, id);
    return 0;
  }
  std::atomic<std::uint32_t>& bucket = t.node_buckets[bucket_of(k)];
  pthread_mutex_lock(&g_lock);
  const std::uint32_t first = bucket.load(std::memory_order_relaxed);
  std::uint32_t known = find_node(t, first, k);
  if (known == 0) {
    t.nodes[id] = {k.location, k.parent, k.kind_and_cut, first, 0};
    bucket.store(id, std::memory_order_release);
    known = id;
  }
  pthread_mutex_unlock(&g_lock);
  return known;
}

[[gnu::always_inline]] inline std::uint32_t node_of(Tables& t, DefinitionSink& sink,
                                                    const NodeKey& k) noexcept {
  const std::uint32_t first = t.node_buckets[bucket_of(k)].load(std::memory_order_acquire);
  const std::uint32_t id = find_node(t, first, k);
  return id != 0 ? id : add_node(t, sink, k);
}

// ---- codes -------------------------------------------------------------------------------------

// Appends a str object as UTF-8. What surrogateescape made of undecodable bytes in a path becomes
// those bytes again. Returns false where it had to cut.
template <class Memory>
bool append_text(Memory& memory, const python::Layout& l, const char* s, char* out,
                 std::size_t limit, std::uint16_t* size) noexcept {
  *size = 0;
  auto state = memory.template load<std::uint32_t>(s, python::kStringState);
  if ((state >> 2 & 7) == 0) state >>= 14;  // 3.14 gives 16 bits to the field before, else 2
  const unsigned width = state >> 2 & 7;
  const auto length = memory.template load<std::int64_t>(s, python::kStringLength);
  if ((state >> 5 & 1) == 0 || (width != 1 && width != 2 && width != 4) || length < 0) return false;
  const char* data = s + ((state >> 6 & 1) != 0 ? l.ascii_header : l.compact_header);
  std::size_t n = 0;
  for (std::int64_t i = 0; i < length; ++i) {
    const char* at = data + i * width;
    const std::uint32_t c = width == 1   ? memory.template load<std::uint8_t>(at, 0)
                            : width == 2 ? memory.template load<std::uint16_t>(at, 0)
                                         : memory.template load<std::uint32_t>(at, 0);
    unsigned char bytes[4];
    std::size_t count;
    if (c < 0x80) {
      bytes[0] = static_cast<unsigned char>(c);
      count = 1;
    } else if (c < 0x800) {
      bytes[0] = static_cast<unsigned char>(0xc0 | c >> 6);
      bytes[1] = static_cast<unsigned char>(0x80 | (c & 63));
      count = 2;
    } else if (c >= 0xdc80 && c <= 0xdcff) {
      bytes[0] = static_cast<unsigned char>(c & 0xff);
      count = 1;
    } else if (c < 0x10000) {
      bytes[0] = static_cast<unsigned char>(0xe0 | c >> 12);
      bytes[1] = static_cast<unsigned char>(0x80 | (c >> 6 & 63));
      bytes[2] = static_cast<unsigned char>(0x80 | (c & 63));
      count = 3;
    } else {
      bytes[0] = static_cast<unsigned char>(0xf0 | (c >> 18 & 7));
      bytes[1] = static_cast<unsigned char>(0x80 | (c >> 12 & 63));
      bytes[2] = static_cast<unsigned char>(0x80 | (c >> 6 & 63));
      bytes[3] = static_cast<unsigned char>(0x80 | (c & 63));
      count = 4;
    }
    if (n + count > limit) {
      *size = static_cast<std::uint16_t>(n);
      return false;
    }
    std::memcpy(out + n, bytes, count);
    n += count;
  }
  *size = static_cast<std::uint16_t>(n);
  return true;
}

std::uint64_t hash_bytes(std::uint64_t h, const void* data, std::size_t size) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  for (; size >= 8; p += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    h = (h ^ word) * kGolden;
    h ^= h >> 32;
  }
  std::uint64_t word = size;  // the length of the rest keeps neighbours apart
  std::memcpy(reinterpret_cast<char*>(&word) + 1, p, size < 7 ? size : 7);
  h = (h ^ word) * kGolden;
  return h ^ h >> 32;
}

constexpr std::size_t kMaxFile = 4096;
constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kMaxLineTable =
    recording::kMaxRecordSize - sizeof(recording::CodeRecord) - kMaxFile - kMaxName - 8;
constexpr std::uint8_t kTextCut = 1, kLineTableCut = 2;

// What a reader of the recording needs of a code object.
struct CodeText {
  recording::CodeRecord record;
  const char* table;
  char file[kMaxFile], name[kMaxName];
};

// `scratch`: room for kMaxLineTable bytes, where memory is copied.
template <class Memory>
void read_code(Memory& memory, const python::Interpreter& py, const char* code, CodeText& text,
               char* scratch) noexcept {
  const python::Layout& l = py.layout;
  const auto word = [&memory](const char* base, int offset) {
    return memory.template load<const char*>(base, offset);
  };
  recording::CodeRecord& record = text.record;
  record = {};
  if (!append_text(memory, l, word(code, l.file), text.file, sizeof text.file,
                   &record.file_bytes)) {
    record.flags |= kTextCut;
  }
  if (!append_text(memory, l, word(code, l.name_qualified), text.name, sizeof text.name,
                   &record.name_bytes)) {
    record.flags |= kTextCut;
  }
  const char* table_object = word(code, l.line_table);
  text.table = text.file;  // anything: no bytes of it are read
  std::size_t table_bytes = 0;
  if (table_object != nullptr && word(table_object, python::kObjectType) == py.bytes_type) {
    const auto n = memory.template load<std::int64_t>(table_object, python::kObjectSize);
    table_bytes = n < 0 ? 0 : static_cast<std::size_t>(n);
    if (table_bytes > kMaxLineTable) {
      table_bytes = kMaxLineTable;
      record.flags |= kLineTableCut;
    }
    text.table = memory.bytes(table_object + python::kBytesData, table_bytes, scratch);
    if (text.table == nullptr) table_bytes = 0;
  }
  record.first_line = memory.template load<std::int32_t>(code, l.first_line);
  record.python_minor = l.minor;
  record.line_table_bytes = static_cast<std::uint16_t>(table_bytes);
}

// The id of that content; a new one is sent to the sink. 0: could not be defined.
std::uint32_t define_code(Tables& t, DefinitionSink& sink, CodeText& text) noexcept {
  recording::CodeRecord& record = text.record;
  std::uint64_t hash = static_cast<std::uint32_t>(record.first_line) * kGolden;
  hash = hash_bytes(hash, text.file, record.file_bytes);
  hash = hash_bytes(hash, text.name, record.name_bytes);
  hash = hash_bytes(hash, text.table, record.line_table_bytes);
  std::uint32_t& bucket = t.content_buckets[hash >> (64 - kCodeBucketBits)];

  const auto known = [&]() noexcept -> std::uint32_t {  // under g_lock
    for (std::uint32_t i = bucket; i != 0; i = t.contents[i].next) {
      if (t.contents[i].hash == hash) return t.contents[i].id;
    }
    return 0;
  };
  pthread_mutex_lock(&g_lock);
  std::uint32_t id = known();
  pthread_mutex_unlock(&g_lock);
  if (id != 0) return id;

  id = take_id(g_last_code, kMaxCodes);
  if (id == 0) return 0;
  record.header.type = recording::RecordType::kCode;
  record.header.value = id;
  const Part parts[] = {{text.file, record.file_bytes},
                        {text.name, record.name_bytes},
                        {text.table, record.line_table_bytes}};
  if (!sink.define(&record.header, sizeof record, parts, 3)) {
    drop_id(g_last_code, id);
    return 0;
  }
  pthread_mutex_lock(&g_lock);
  if (const std::uint32_t other = known()) {
    id = other;
  } else if (g_contents_used + 1 < kMaxCodes) {
    const std::uint32_t i = ++g_contents_used;
    t.contents[i] = {hash, id, bucket};
    bucket = i;
  }
  pthread_mutex_unlock(&g_lock);
  return id;
}

std::size_t code_bucket_of(const void* code) noexcept {
  return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(code) * kGolden >>
                                  (64 - kCodeBucketBits));
}

CodeSlot* find_slot(Tables& t, std::uint32_t first, const void* code) noexcept {
  for (std::uint32_t i = first; i != 0; i = t.slots[i].next) {
    if (t.slots[i].code.load(std::memory_order_relaxed) == code) return &t.slots[i];
  }
  return nullptr;
}

[[gnu::noinline]] std::uint32_t add_code(Tables& t, DefinitionSink& sink,
                                         const python::Interpreter& py, const char* code,
                                         std::uint64_t fingerprint) noexcept {
  // A frame may hold something else than a code object (None, in 3.13).
  if (python::load<const void*>(code, python::kObjectType) != py.code_type) return 0;
  CodeText text;
  python::OwnMemory own;
  read_code(own, py, code, text, nullptr);
  const std::uint32_t id = define_code(t, sink, text);
  if (id == 0) return 0;
  const std::uint32_t value = id << 1 | (python::is_optimizer_wrapper(code) ? 1 : 0);
  std::atomic<std::uint32_t>& bucket = t.code_buckets[code_bucket_of(code)];
  pthread_mutex_lock(&g_lock);
  const std::uint32_t first = bucket.load(std::memory_order_relaxed);
  if (CodeSlot* slot = find_slot(t, first, code)) {
    // The address is used again. A reader that still sees the old fingerprint must not take the new
    // id: it reads the fingerprint, the id and the fingerprint once more.
    slot->fingerprint.store(0, std::memory_order_relaxed);
    slot->id_and_flags.store(value, std::memory_order_release);
    slot->fingerprint.store(fingerprint, std::memory_order_release);
  } else if (g_slots_used + 1 < kMaxCodes) {
    const std::uint32_t i = ++g_slots_used;
    CodeSlot& fresh = t.slots[i];
    fresh.code.store(code, std::memory_order_relaxed);
    fresh.id_and_flags.store(value, std::memory_order_relaxed);
    fresh.fingerprint.store(fingerprint, std::memory_order_relaxed);
    fresh.next = first;
    bucket.store(i, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_lock);
  return value;
}

// id << 1 | is an optimizer's wrapper; 0: could not be defined.
[[gnu::always_inline]] inline std::uint32_t code_of(Tables& t, DefinitionSink& sink,
                                                    const python::Interpreter& py, const char* code,
                                                    std::uint64_t fingerprint) noexcept {
  const std::uint32_t first = t.code_buckets[code_bucket_of(code)].load(std::memory_order_acquire);
  if (const CodeSlot* slot = find_slot(t, first, code)) {
    if (slot->fingerprint.load(std::memory_order_acquire) == fingerprint) {
      const std::uint32_t value = slot->id_and_flags.load(std::memory_order_acquire);
      if (slot->fingerprint.load(std::memory_order_relaxed) == fingerprint) return value;
    }
  }
  return add_code(t, sink, py, code, fingerprint);
}

// ---- memos -------------------------------------------------------------------------------------

// The last stack seen by threads that share this memo (mostly one). A memo only saves look-ups:
// what it says holds for any thread whose frames are equal. So it needs no owner, no thread-local
// storage and no clean-up; a thread that finds it in use does without.
struct MemoFrame {
  const void* code;
  std::uint64_t fingerprint;
  std::int32_t offset;
  std::uint32_t node;
  std::uint32_t is_wrapper;
  std::uint32_t code_id;
};
struct alignas(64) Memo {
  std::atomic<bool> busy;
  bool cut;
  std::uint32_t epoch;
  int count;
  MemoFrame frames[kMaxStackFrames];  // outermost first
};
constexpr unsigned kMemoBits = 6;
constinit Memo g_memos[1u << kMemoBits] = {};

Memo* borrow_memo() noexcept {
  const auto self = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
  Memo& memo = g_memos[self * kGolden >> (64 - kMemoBits)];
  if (memo.busy.load(std::memory_order_relaxed) ||
      memo.busy.exchange(true, std::memory_order_acquire)) {
    return nullptr;
  }
  return &memo;
}

}  // namespace

std::uint32_t capture_python_stack(DefinitionSink& sink, python::OptimizerCall* call) noexcept {
  PythonFrames frames;
  return capture_python_stack(sink, call, frames);
}

std::uint32_t capture_python_stack(DefinitionSink& sink, python::OptimizerCall* call,
                                   PythonFrames& out) noexcept {
  if (call != nullptr) *call = {};
  out.count = 0;
  python::Frame* const frames = out.frames;
  const int count = python::walk(frames, kMaxStackFrames, &out.chain);
  if (count == 0) return 0;
  const bool cut = out.chain.cut;
  const python::Interpreter& py = *python::ready_interpreter();
  KeepErrno keep;
  // In this order: a reset in between voids what the memo gets to know here.
  const std::uint32_t epoch = g_epoch.load(std::memory_order_acquire);
  Tables* t = tables();
  if (t == nullptr) return 0;

  Memo* memo = borrow_memo();
  if (memo != nullptr && (memo->epoch != epoch || memo->cut != cut)) {
    memo->epoch = epoch;
    memo->cut = cut;
    memo->count = 0;
  }
  std::uint32_t node = 0;
  int wrapper = -1;  // depth from the root of the outermost optimizer wrapper
  int depth = 0;
  if (memo != nullptr) {
    const int known = memo->count < count ? memo->count : count;
    for (; depth < known; ++depth) {
      const MemoFrame& m = memo->frames[depth];
      python::Frame& f = frames[count - 1 - depth];
      if (m.code != f.code || m.offset != f.offset ||
          m.fingerprint != python::fingerprint(py.layout, static_cast<const char*>(f.code))) {
        break;
      }
      node = m.node;
      f.code_id = m.code_id;
      if (m.is_wrapper != 0 && wrapper < 0) wrapper = depth;
    }
    memo->count = depth;  // what follows is overwritten
  }
  for (; depth < count; ++depth) {
    python::Frame& f = frames[count - 1 - depth];
    const auto* code = static_cast<const char*>(f.code);
    const std::uint64_t fingerprint = python::fingerprint(py.layout, code);
    const std::uint32_t value = code_of(*t, sink, py, code, fingerprint);
    std::uint32_t next = 0;
    if (value != 0) {
      f.code_id = value >> 1;
      const std::uint32_t flags = depth == 0 && cut ? 1u << 8 : 0;
      next = node_of(
          *t, sink, {location_of(f), node, static_cast<std::uint32_t>(FrameKind::kPython) | flags});
    }
    if (next == 0) {
      g_refused.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    node = next;
    if ((value & 1) != 0 && wrapper < 0) wrapper = depth;
    if (memo != nullptr) {
      memo->frames[depth] = {f.code, fingerprint, f.offset, node, value & 1, value >> 1};
      memo->count = depth + 1;
    }
  }
  if (memo != nullptr) memo->busy.store(false, std::memory_order_release);
  if (depth == count) {
    out.epoch = epoch;
    out.count = count;
  }
  if (call != nullptr) {
    if (depth < count) {
      *call = python::current_optimizer_call();
    } else if (wrapper >= 0) {
      *call = python::optimizer_call_of_frame(frames[count - 1 - wrapper].frame);
    }
  }
  return node;
}

RemoteCodes* RemoteCodes::map() noexcept {
  void* p = mmap(nullptr, sizeof(RemoteCodes) + kRead * (sizeof(CodeText) + kMaxLineTable),
                 PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<RemoteCodes*>(p);
}

RemoteCodes::Known& RemoteCodes::known_of(const python::RemoteFrame& frame,
                                          std::uint64_t process) noexcept {
  return known_[(code_bucket_of(frame.code) ^ process) % kKnown];
}

std::uint32_t RemoteCodes::known_id_of(const python::RemoteFrame& frame,
                                       std::uint64_t process) noexcept {
  const std::uint32_t epoch = g_epoch.load(std::memory_order_acquire);
  if (epoch_ != epoch) {
    epoch_ = epoch;
    for (Known& known : known_) known = {};
  }
  const Known& known = known_of(frame, process);
  if (known.code == frame.code && known.fingerprint == frame.fingerprint &&
      known.process == process) {
    return known.id;
  }
  // What another process has made since it was forked may have the address and the fingerprint of
  // a code of this one.
  if (process != 0) return 0;
  Tables& t = *tables();
  const std::uint32_t first =
      t.code_buckets[code_bucket_of(frame.code)].load(std::memory_order_acquire);
  if (const CodeSlot* slot = find_slot(t, first, frame.code)) {
    if (slot->fingerprint.load(std::memory_order_acquire) == frame.fingerprint) {
      const std::uint32_t value = slot->id_and_flags.load(std::memory_order_acquire);
      if (slot->fingerprint.load(std::memory_order_relaxed) == frame.fingerprint) return value >> 1;
    }
  }
  return 0;
}

// Reads several codes and then looks once whether their frames are still there: so the codes that
// these hold were alive while they were copied.
void RemoteCodes::define(DefinitionSink& sink, python::RemoteMemory& memory,
                         const python::RemoteThread& thread, const python::RemoteStack& stack,
                         const python::RemoteFrame* frames, python::RemoteFrame* second, int max,
                         const int* depths, int count, std::uint32_t* ids) noexcept {
  Tables& t = *tables();
  auto* texts = reinterpret_cast<CodeText*>(this + 1);
  char* scratch = reinterpret_cast<char*>(texts + kRead);
  bool whole[kRead];
  for (int i = 0; i < count; ++i) {
    const python::RemoteFrame& f = frames[stack.count - 1 - depths[i]];
    read_code(memory, *thread.python, f.code, texts[i], scratch + i * kMaxLineTable);
    whole[i] = !memory.failed();
    if (memory.failed()) memory.forget();
  }
  const int there = python::still_there(memory, thread, frames, stack.count, second, max);
  for (int i = 0; i < count; ++i) {
    if (!whole[i] || there <= depths[i]) continue;
    const python::RemoteFrame& f = frames[stack.count - 1 - depths[i]];
    ids[depths[i]] = define_code(t, sink, texts[i]);
    if (ids[depths[i]] != 0) {
      known_of(f, thread.process) = {f.code, f.fingerprint, thread.process, ids[depths[i]]};
    }
  }
}

std::uint32_t RemoteCodes::intern(DefinitionSink& sink, python::RemoteMemory& memory,
                                  const python::RemoteThread& thread, python::RemoteStack& stack,
                                  python::RemoteFrame* frames, python::RemoteFrame* second,
                                  int max) noexcept {
  Tables* t = tables();
  if (t == nullptr) return 0;
  std::uint32_t ids[kMaxStackFrames];  // outermost first
  const int count = stack.count < kMaxStackFrames ? stack.count : kMaxStackFrames;
  int unknown[kRead];
  int waiting = 0;
  for (int depth = 0; depth < count; ++depth) {
    ids[depth] = known_id_of(frames[stack.count - 1 - depth], thread.process);
    if (ids[depth] == 0) unknown[waiting++] = depth;
    if (waiting == kRead || (waiting > 0 && depth + 1 == count)) {
      define(sink, memory, thread, stack, frames, second, max, unknown, waiting, ids);
      waiting = 0;
    }
  }
  // What cannot be named ends the stack, and the rest counts as torn.
  std::uint32_t node = 0;
  for (int depth = 0; depth < count; ++depth) {
    const python::RemoteFrame& f = frames[stack.count - 1 - depth];
    std::uint32_t next = 0;
    if (ids[depth] != 0) {
      const auto offset = static_cast<std::uint32_t>(f.offset < 0 ? 0 : f.offset);
      const std::uint32_t flags = depth == 0 && stack.cut ? 1u << 8 : 0;
      next = node_of(*t, sink,
                     {std::uint64_t{ids[depth]} << 32 | offset, node,
                      static_cast<std::uint32_t>(FrameKind::kPython) | flags});
    }
    if (next == 0) {
      stack.torn = true;
      break;
    }
    node = next;
  }
  return node;
}

std::uint32_t intern_frame(DefinitionSink& sink, std::uint32_t parent, FrameKind kind,
                           std::uint64_t location, bool cut) noexcept {
  KeepErrno keep;
  Tables* t = tables();
  if (t == nullptr) return 0;
  const std::uint32_t flags = cut ? 1u << 8 : 0;
  const std::uint32_t node =
      node_of(*t, sink, {location, parent, static_cast<std::uint32_t>(kind) | flags});
  if (node == 0) g_refused.fetch_add(1, std::memory_order_relaxed);
  return node;
}

std::uint32_t stack_epoch() noexcept { return g_epoch.load(std::memory_order_acquire); }

std::uint32_t intern_native_stack(DefinitionSink& sink, const std::uint64_t* frames, int count,
                                  bool cut) noexcept {
  std::uint32_t node = 0;
  for (int i = count - 1; i >= 0; --i) {
    const std::uint32_t next =
        intern_frame(sink, node, FrameKind::kNative, frames[i], cut && i == count - 1);
    if (next == 0) break;
    node = next;
  }
  return node;
}

StackTableCounts stack_table_counts() noexcept {
  return {g_last_node.load(std::memory_order_relaxed), g_last_code.load(std::memory_order_relaxed),
          g_refused.load(std::memory_order_relaxed)};
}

namespace {

void start_over() noexcept {
  g_slots_used = 0;
  g_contents_used = 0;
  g_last_node.store(0, std::memory_order_relaxed);
  g_last_code.store(0, std::memory_order_relaxed);
  g_refused.store(0, std::memory_order_relaxed);
  g_epoch.fetch_add(1, std::memory_order_release);
}

}  // namespace

void reset_stack_table() noexcept {
  KeepErrno keep;
  pthread_mutex_lock(&g_lock);
  Tables* old = g_tables.exchange(nullptr, std::memory_order_acq_rel);
  start_over();
  pthread_mutex_unlock(&g_lock);
  // A late reader finds zeros there: an empty table.
  if (old != nullptr) madvise(old, sizeof(Tables), MADV_DONTNEED);
}

void reset_stack_table_after_fork() noexcept {
  KeepErrno keep;
  python::after_fork();
  g_lock = PTHREAD_MUTEX_INITIALIZER;  // another thread of the parent may have held it
  for (Memo& memo : g_memos) memo.busy.store(false, std::memory_order_relaxed);
  if (Tables* old = g_tables.exchange(nullptr, std::memory_order_relaxed)) {
    munmap(old, sizeof(Tables));
  }
  start_over();
}

}  // namespace gpubusy::runtime
