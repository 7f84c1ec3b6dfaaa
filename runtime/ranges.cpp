// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranges.hpp"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "config/config.hpp"
#include "runtime/clock.hpp"
#include "runtime/keep_errno.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/recorder.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime {

struct RangeText {
  std::uint32_t id;
  std::uint32_t hash;
  std::atomic<std::uint32_t> defined;  // file_generation() + 1 of the file that has it
  std::uint32_t bytes;
  char text[8];  // and more; terminated
};

struct RangeDomain {
  std::atomic<RangeText*> name{nullptr};
};

struct OpenRange {
  std::uint64_t start_ns;
  std::uint64_t payload;
  RangeText* registered;
  std::uint32_t text_begin, text_bytes;  // in the text of the thread's stack
  std::uint32_t category, colour;
  std::uint32_t id;  // of the record that was written while it was open
  std::uint16_t flags;
  recording::RangePayload payload_type;
  std::uint8_t marks;  // kEndsStep, …
  std::uint8_t domain;
};

struct RangeStack {
  RangeStack* next;  // of all stacks
  std::atomic<bool> taken;
  std::uint32_t depth;
  std::uint32_t levels[kRangeDomains];
  // Of these, what found no room. Always the innermost ones of the domain: while there is one, the
  // next goes the same way.
  std::uint32_t beyond[kRangeDomains];
  OpenRange open[kOpenPerThread];
  char text[64 * 1024];
};

namespace {

constexpr std::uint32_t kDefaultDomain = 0;
constexpr std::uint32_t kOtherDomains = kRangeDomains - 1;

// What did not fit, since the process began.
struct Limits {
  std::atomic<std::uint64_t> texts{0}, domains{0}, deep{0}, open{0}, categories{0}, cut{0};
};
constinit Limits g_limits;

void count(std::atomic<std::uint64_t>& n) noexcept { n.fetch_add(1, std::memory_order_relaxed); }

// ---- texts

constexpr std::size_t kTextSlots = 1u << 14;
constexpr std::size_t kArenaBytes = 2u << 20;
// Messages may be new each time ("step 1", "step 2", …): they leave room for what the program
// registers, and are written beside each range once their part is full.
enum class TextUse : std::uint8_t { kMessage, kRegistered, kDomain };
constexpr std::size_t kShareOf[] = {8, 20, 24};  // of 32
constexpr std::uint32_t most_texts(TextUse use) noexcept {
  return static_cast<std::uint32_t>(kTextSlots / 32 * kShareOf[static_cast<std::size_t>(use)]);
}
constexpr std::size_t most_bytes(TextUse use) noexcept {
  return kArenaBytes / 32 * kShareOf[static_cast<std::size_t>(use)];
}

constinit std::atomic<RangeText*> g_texts[kTextSlots] = {};
alignas(8) constinit char g_arena[kArenaBytes] = {};
constinit std::atomic<std::size_t> g_arena_used{0};
constinit std::atomic<std::uint32_t> g_text_count{0};
constinit RangeText g_other_text{0xffff, 0, {0}, 7, "(other)"};

std::uint32_t hash_of(const char* text, std::size_t bytes) noexcept {
  std::uint64_t h = bytes * 0x9e3779b97f4a7c15ull;
  for (; bytes >= 8; bytes -= 8, text += 8) {
    std::uint64_t word;
    memcpy(&word, text, 8);
    h = (h ^ word) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  for (; bytes > 0; --bytes, ++text) h = (h ^ static_cast<unsigned char>(*text)) * 0x100000001b3ull;
  h *= 0x9e3779b97f4a7c15ull;
  return static_cast<std::uint32_t>(h >> 32);
}

RangeText* make_text(std::uint32_t hash, const char* text, std::size_t bytes,
                     TextUse use) noexcept {
  if (g_text_count.load(std::memory_order_relaxed) >= most_texts(use)) return nullptr;
  const std::size_t size = (offsetof(RangeText, text) + bytes + 1 + 7) & ~std::size_t{7};
  std::size_t at = g_arena_used.load(std::memory_order_relaxed);
  do {
    if (at + size > most_bytes(use)) return nullptr;
  } while (!g_arena_used.compare_exchange_weak(at, at + size, std::memory_order_relaxed));
  auto* made = reinterpret_cast<RangeText*>(g_arena + at);
  made->id = g_text_count.fetch_add(1, std::memory_order_relaxed) + 1;
  made->hash = hash;
  made->defined.store(0, std::memory_order_relaxed);
  made->bytes = static_cast<std::uint32_t>(bytes);
  memcpy(made->text, text, bytes);
  made->text[bytes] = '\0';
  return made;
}

// nullptr: no room.
RangeText* intern(const char* text, std::size_t bytes, TextUse use) noexcept {
  const std::uint32_t hash = hash_of(text, bytes);
  RangeText* made = nullptr;
  for (std::size_t i = hash, probes = 0; probes < 64; ++i, ++probes) {
    std::atomic<RangeText*>& slot = g_texts[i & (kTextSlots - 1)];
    RangeText* known = slot.load(std::memory_order_acquire);
    if (known == nullptr) {
      if (made == nullptr) made = make_text(hash, text, bytes, use);
      if (made == nullptr) return nullptr;
      // Another thread may have been first; then what it put there is looked at.
      if (slot.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
    }
    if (known->hash == hash && known->bytes == bytes && memcmp(known->text, text, bytes) == 0) {
      return known;
    }
  }
  return nullptr;
}

// Its id in the recording, defined there at its first use. 0: it could not be written.
std::uint32_t text_id(RangeText* text) noexcept {
  if (text == nullptr) return 0;
  const std::uint32_t generation = file_generation() + 1;
  if (text->defined.load(std::memory_order_acquire) == generation) return text->id;
  recording::RangeTextRecord r{};
  r.header.type = recording::RecordType::kRangeText;
  r.header.value = text->id;
  r.text_bytes = text->bytes;
  const Part part{text->text, text->bytes};
  // Two threads may both write it: the same text under the same id.
  if (!definitions().define(&r.header, sizeof r, &part, 1)) return 0;
  text->defined.store(generation, std::memory_order_release);
  return text->id;
}

// ---- domains, categories, names of threads

constinit RangeDomain g_domains[kRangeDomains] = {};

struct Named {
  std::atomic<std::uint64_t> key{0};  // + 1; 0: free
  std::atomic<RangeText*> name{nullptr};
};
template <std::size_t N>
class NameTable {
 public:
  // False: no room.
  bool set(std::uint64_t key, RangeText* name) noexcept {
    for (std::size_t i = start(key), probes = 0; probes < N; ++i, ++probes) {
      Named& e = entries_[i % N];
      std::uint64_t known = 0;
      if (e.key.compare_exchange_strong(known, key + 1, std::memory_order_acq_rel) ||
          known == key + 1) {
        e.name.store(name, std::memory_order_release);
        return true;
      }
    }
    return false;
  }
  void forget(std::uint64_t key) noexcept {
    for (std::size_t i = start(key), probes = 0; probes < N; ++i, ++probes) {
      Named& e = entries_[i % N];
      const std::uint64_t known = e.key.load(std::memory_order_acquire);
      if (known == key + 1) e.name.store(nullptr, std::memory_order_release);
      if (known == key + 1 || known == 0) return;
    }
  }
  RangeText* find(std::uint64_t key) const noexcept {
    for (std::size_t i = start(key), probes = 0; probes < N; ++i, ++probes) {
      const Named& e = entries_[i % N];
      const std::uint64_t known = e.key.load(std::memory_order_acquire);
      if (known == key + 1) return e.name.load(std::memory_order_acquire);
      if (known == 0) return nullptr;
    }
    return nullptr;
  }

 private:
  static std::size_t start(std::uint64_t key) noexcept {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ull) >> 40);
  }
  Named entries_[N] = {};
};
constinit NameTable<1024> g_categories;
constinit NameTable<1024> g_threads;

std::uint64_t category_key(std::uint32_t domain, std::uint32_t category) noexcept {
  return std::uint64_t{domain} << 32 | category;
}

const char* domain_name(std::uint32_t domain) noexcept {
  const RangeText* name = g_domains[domain].name.load(std::memory_order_acquire);
  return name == nullptr ? "" : name->text;
}

// ---- one range

constexpr std::uint8_t kEndsStep = 1;  // matches GPUBUSY_STEP=nvtx:…
constexpr std::uint8_t kCaptures = 2;  // matches GPUBUSY_CAPTURE_RANGE=nvtx:…
constexpr std::uint8_t kHidden = 4;    // a library marks its own call, which we have already

constinit std::atomic<RangeStack*> g_stacks{nullptr};
constinit std::atomic<std::uint32_t> g_next_id{1};
constinit std::atomic<std::uint32_t> g_captures{0};  // matching ranges that are open

RangeStack* make_stack() noexcept {
  const KeepErrno keep;
  const NoCancel no_cancel;
  RangeStack* stack = nullptr;
  for (RangeStack* s = g_stacks.load(std::memory_order_acquire); s != nullptr; s = s->next) {
    bool taken = false;
    if (s->taken.compare_exchange_strong(taken, true, std::memory_order_acq_rel)) {
      stack = s;
      stack->depth = 0;
      memset(stack->levels, 0, sizeof stack->levels);
      memset(stack->beyond, 0, sizeof stack->beyond);
      break;
    }
  }
  if (stack == nullptr) {
    void* p = mmap(nullptr, sizeof(RangeStack), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    stack = static_cast<RangeStack*>(p);  // zeros are its initial state
    stack->taken.store(true, std::memory_order_relaxed);
    RangeStack* head = g_stacks.load(std::memory_order_relaxed);
    do {
      stack->next = head;
    } while (!g_stacks.compare_exchange_weak(head, stack, std::memory_order_release));
  }
  t_local.ranges = stack;
  install_thread_exit();
  watch_thread_exit();
  return stack;
}

RangeStack* own_stack() noexcept {
  if (t_local.ranges != nullptr) [[likely]]
    return t_local.ranges;
  return make_stack();
}

// A signal handler may have interrupted our own code, whose data may be half changed.
bool is_in_own_code() noexcept {
  const std::uintptr_t busy = t_local.busy;
  return busy != 0 && (busy & kInRealCall) == 0 && stack_address() < busy;
}

// CUDA calls of a signal handler that interrupts us go straight through; a longjmp out of it leaves
// an address behind that says nothing later (is_nested()).
class OwnCode {
 public:
  [[gnu::always_inline]] OwnCode() noexcept : before_(t_local.busy) {
    t_local.busy = stack_address();
  }
  [[gnu::always_inline]] ~OwnCode() { t_local.busy = before_; }
  OwnCode(const OwnCode&) = delete;
  OwnCode& operator=(const OwnCode&) = delete;

 private:
  const std::uintptr_t before_;
};

bool glob_matches(const char* pattern, std::uint32_t domain, const char* text) noexcept {
  if (config::glob_match(pattern, text)) return true;
  if (domain == kDefaultDomain) return false;
  char whole[1024];
  const int n = snprintf(whole, sizeof whole, "%s:%s", domain_name(domain), text);
  return n > 0 && config::glob_match(pattern, whole);
}

std::uint8_t marks_of(std::uint32_t domain, const RangeAttributes& a) noexcept {
  std::uint8_t marks = 0;
  const config::Config& c = configuration();
  const bool step = c.step_kind == config::StepKind::kNvtx;
  const bool capture = c.capture_kind == config::CaptureKind::kNvtx;
  if (step || capture) [[unlikely]] {
    const KeepErrno keep;
    char copy[kRangeTextMax + 1];
    const char* text = "";
    if (a.registered != nullptr) {
      text = a.registered->text;
    } else if (a.text != nullptr) {
      const std::size_t n = a.text_bytes < kRangeTextMax ? a.text_bytes : kRangeTextMax;
      memcpy(copy, a.text, n);
      copy[n] = '\0';
      text = copy;
    }
    if (step && glob_matches(c.step_pattern, domain, text)) marks |= kEndsStep;
    if (capture && glob_matches(c.capture_pattern, domain, text)) marks |= kCaptures;
  }
  if (t_local.library != 0 && stack_address() < (t_local.library & ~std::uintptr_t{3})) {
    const auto library = static_cast<RangeLibrary>(t_local.library & 3);
    const char* own = library == RangeLibrary::kNccl ? "NCCL" : "cuDNN";
    if (strcasecmp(domain_name(domain), own) == 0) marks |= kHidden;
  }
  return marks;
}

void begins(std::uint8_t marks, std::uint64_t start_ns) noexcept {
  if ((marks & kCaptures) == 0) return;
  if (is_unnoticed_child()) {
    became_child();
    return;
  }
  if (g_captures.fetch_add(1, std::memory_order_acq_rel) == 0) {
    capture_range_changed(start_ns);
  }
}

// What is known of a range when it is written.
struct Ended {
  std::uint64_t start_ns, end_ns, payload;
  RangeText* registered;
  const char* text;
  std::size_t text_bytes;
  std::uint32_t domain, category, colour, thread_id, id;
  recording::RangeKind kind;
  recording::RangePayload payload_type;
  std::uint16_t flags;
};

void write(const Ended& e) noexcept {
  const KeepErrno keep;
  if (is_unnoticed_child()) {
    became_child();
    return;
  }
  ThreadState* thread = thread_state();
  if (thread == nullptr) {
    recording_file().count_lost(1);
    return;
  }
  RangeText* text = e.registered;
  if (text == nullptr && e.text_bytes != 0) text = intern(e.text, e.text_bytes, TextUse::kMessage);
  recording::RangeRecord r{};
  r.header.type = recording::RecordType::kRange;
  r.header.value = text_id(text);
  r.start_ns = e.start_ns;
  r.end_ns = e.end_ns;
  r.payload = e.payload;
  r.domain = text_id(g_domains[e.domain].name.load(std::memory_order_acquire));
  r.category = e.category;
  if (e.category != 0)
    r.category_name = text_id(g_categories.find(category_key(e.domain, e.category)));
  r.colour = e.colour;
  r.thread_id = e.thread_id != 0 ? e.thread_id : thread->thread_id;
  r.id = e.id;
  r.kind = e.kind;
  r.payload_type = e.payload_type;
  r.flags = e.flags;
  const bool beside = r.header.value == 0 && e.registered == nullptr;
  r.text_bytes = static_cast<std::uint16_t>(beside ? e.text_bytes : 0);
  const std::size_t size = (sizeof r + r.text_bytes + 7) & ~std::size_t{7};
  r.header.size = static_cast<std::uint16_t>(size);
  char* out = static_cast<char*>(reserve_record(*thread, size, e.end_ns));
  if (out == nullptr) return;
  memcpy(out, &r, sizeof r);
  if (beside) {
    memcpy(out + sizeof r, e.text, r.text_bytes);
    memset(out + sizeof r + r.text_bytes, 0, size - sizeof r - r.text_bytes);
  }
  commit_record(*thread, size);
}

// Not where the recorder itself asks for the writing: it holds its lock.
void has_written() noexcept {
  if (prelude_is_full()) [[unlikely]]
    end_prelude_for_size();
}

// Between windows, what had begun before the last one ended is still wanted.
bool is_wanted(std::uint64_t start_ns, std::uint8_t marks) noexcept {
  if ((marks & kHidden) != 0) return false;
  const Mode m = mode();
  return m == Mode::kRecording || (m == Mode::kTracking && start_ns < recorded_until());
}

void ended(std::uint8_t marks, std::uint64_t end_ns) noexcept {
  if ((marks & (kEndsStep | kCaptures)) == 0) [[likely]]
    return;
  const KeepErrno keep;
  if (is_unnoticed_child()) {
    became_child();
    return;
  }
  const Mode m = mode();
  if ((marks & kEndsStep) != 0 && (m == Mode::kTracking || m == Mode::kRecording)) {
    step_edge(end_ns, recording::StepSource::kNvtx, Teller::kElsewhere);
  }
  if ((marks & kCaptures) != 0) {
    // A child may end what its parent began.
    std::uint32_t open = g_captures.load(std::memory_order_relaxed);
    while (open != 0 && !g_captures.compare_exchange_weak(open, open - 1)) {
    }
    if (open == 1) capture_range_changed(end_ns);
  }
}

Ended ended_of(const OpenRange& r, const char* texts, std::uint64_t end_ns) noexcept {
  return {r.start_ns,
          end_ns,
          r.payload,
          r.registered,
          texts + r.text_begin,
          r.text_bytes,
          r.domain,
          r.category,
          r.colour,
          0,
          r.id,
          recording::RangeKind::kPushPop,
          r.payload_type,
          r.flags};
}

// ---- start/end ranges

struct OpenStart {
  std::atomic<std::uint64_t> id;  // 0: free, kTaken: being changed
  std::uint64_t start_ns;
  std::uint64_t payload;
  RangeText* registered;
  std::uint32_t category, colour, thread_id, text_bytes;
  std::uint16_t flags;
  recording::RangePayload payload_type;
  std::uint8_t marks, domain;
  char text[kOpenTextMax];
};
constinit OpenStart g_open[kOpenPerProcess] = {};
constexpr std::uint64_t kTaken = ~std::uint64_t{0};
// An id is a number and the slot; a range without a slot has this one.
constexpr std::uint64_t kSlotBits = 13, kNoSlot = (1u << kSlotBits) - 1;
static_assert(kOpenPerProcess < kNoSlot);
constinit std::atomic<std::uint64_t> g_next_start{1};
constinit std::atomic<std::uint32_t> g_first_free{0};  // a guess

// Of the records of a start/end range; those of push/pop ranges have the other half.
std::uint32_t record_id(std::uint64_t id) noexcept {
  return 0x80000000u | static_cast<std::uint32_t>(id >> kSlotBits & 0x7fffffffu);
}

OpenStart* take_slot() noexcept {
  const std::uint32_t first = g_first_free.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < kOpenPerProcess; ++i) {
    const std::uint32_t at = (first + i) % kOpenPerProcess;
    std::uint64_t free = 0;
    if (g_open[at].id.load(std::memory_order_relaxed) == 0 &&
        g_open[at].id.compare_exchange_strong(free, kTaken, std::memory_order_acq_rel)) {
      g_first_free.store((at + 1) % kOpenPerProcess, std::memory_order_relaxed);
      return &g_open[at];
    }
  }
  return nullptr;
}

std::uint32_t own_thread_id() noexcept {
  // Only where there is a state already: a thread that never records anything needs none.
  return t_local.state != nullptr ? t_local.state->thread_id
                                  : static_cast<std::uint32_t>(syscall(SYS_gettid));
}

}  // namespace

// ---- names

namespace {

RangeText* keep_text(const char* text, std::size_t bytes, TextUse use) noexcept {
  if (bytes > kRangeTextMax) {
    bytes = kRangeTextMax;
    count(g_limits.cut);
  }
  RangeText* known = intern(text, bytes, use);
  if (known != nullptr) return known;
  count(g_limits.texts);
  return &g_other_text;
}

}  // namespace

RangeText* register_range_text(const char* text, std::size_t bytes) noexcept {
  return keep_text(text, bytes, TextUse::kRegistered);
}

RangeText* range_text_of(const void* handle) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(handle);
  const auto arena = reinterpret_cast<std::uintptr_t>(g_arena);
  const bool ours = at >= arena && at < arena + g_arena_used.load(std::memory_order_acquire) &&
                    at % alignof(RangeText) == 0;
  if (!ours && handle != &g_other_text) return nullptr;
  return static_cast<RangeText*>(const_cast<void*>(handle));
}

RangeDomain* range_domain(const char* name, std::size_t bytes) noexcept {
  RangeText* text = keep_text(name, bytes, TextUse::kDomain);
  for (std::uint32_t i = 1; i < kOtherDomains; ++i) {
    RangeText* known = g_domains[i].name.load(std::memory_order_acquire);
    if (known == nullptr &&
        g_domains[i].name.compare_exchange_strong(known, text, std::memory_order_acq_rel)) {
      return &g_domains[i];
    }
    // Domains of one name are one, also when it was destroyed in between: some programs make and
    // destroy theirs for each range.
    if (known == text) return &g_domains[i];
  }
  count(g_limits.domains);
  g_domains[kOtherDomains].name.store(&g_other_text, std::memory_order_release);
  return &g_domains[kOtherDomains];
}

std::uint32_t domain_index(const void* handle) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(handle);
  const auto first = reinterpret_cast<std::uintptr_t>(g_domains);
  if (at < first || at >= first + sizeof g_domains) return kDefaultDomain;
  return static_cast<std::uint32_t>((at - first) / sizeof(RangeDomain));
}

void name_range_category(std::uint32_t domain, std::uint32_t category, RangeText* name) noexcept {
  if (!g_categories.set(category_key(domain, category), name)) count(g_limits.categories);
}

void name_thread(std::uint32_t thread_id, const char* name, std::size_t bytes) noexcept {
  if (thread_id == 0 || is_in_own_code()) return;
  const OwnCode own;
  const KeepErrno keep;
  RangeText* text = keep_text(name, bytes < 256 ? bytes : 256, TextUse::kRegistered);
  if (!g_threads.set(thread_id, text)) count(g_limits.categories);
  const Mode m = mode();
  if (m != Mode::kTracking && m != Mode::kRecording) return;  // then when the thread is defined
  if (is_unnoticed_child()) {
    became_child();
    return;
  }
  recording::ThreadRecord record{};
  record.header.type = recording::RecordType::kThread;
  record.header.value = thread_id;
  record.first_ns = now_ns();
  record.name_bytes = text->bytes;
  record.flags = 1;
  const Part part{text->text, text->bytes};
  definitions().define(&record.header, sizeof record, &part, 1);
}

void forget_thread_name(std::uint32_t thread_id) noexcept { g_threads.forget(thread_id); }

const char* program_name_of_thread(std::uint32_t thread_id) noexcept {
  const RangeText* name = g_threads.find(thread_id);
  return name == nullptr ? nullptr : name->text;
}

// ---- ranges

int push_range(std::uint32_t domain, const RangeAttributes& a) noexcept {
  if (is_in_own_code()) return -1;
  const OwnCode own;
  RangeStack* stack = own_stack();
  if (stack == nullptr) return -1;
  const std::uint32_t level = stack->levels[domain]++;
  if (stack->depth == kOpenPerThread || stack->beyond[domain] != 0) [[unlikely]] {
    ++stack->beyond[domain];
    count(g_limits.deep);
    return static_cast<int>(level);
  }
  OpenRange& r = stack->open[stack->depth];
  std::uint32_t text_begin = 0;
  if (stack->depth != 0) {
    const OpenRange& outer = stack->open[stack->depth - 1];
    text_begin = outer.text_begin + outer.text_bytes;
  }
  std::size_t bytes = a.registered != nullptr ? 0 : a.text_bytes;
  std::uint16_t flags = a.flags;
  const std::size_t room = sizeof stack->text - text_begin;
  const std::size_t most = room < kRangeTextMax ? room : kRangeTextMax;
  if (bytes > most) {
    bytes = most;
    flags |= recording::kRangeCut;
    count(g_limits.cut);
  }
  memcpy(stack->text + text_begin, a.text, bytes);
  r.payload = a.payload;
  r.registered = a.registered;
  r.text_begin = text_begin;
  r.text_bytes = static_cast<std::uint32_t>(bytes);
  r.category = a.category;
  r.colour = a.colour;
  r.id = 0;
  r.flags = flags;
  r.payload_type = a.payload_type;
  r.domain = static_cast<std::uint8_t>(domain);
  r.marks = marks_of(domain, a);
  r.start_ns = now_ns();
  ++stack->depth;
  begins(r.marks, r.start_ns);
  return static_cast<int>(level);
}

int pop_range(std::uint32_t domain) noexcept {
  if (is_in_own_code()) return -1;
  const OwnCode own;
  RangeStack* stack = t_local.ranges;
  if (stack == nullptr || stack->levels[domain] == 0) return -1;
  const std::uint32_t level = --stack->levels[domain];
  if (stack->beyond[domain] != 0) [[unlikely]] {
    --stack->beyond[domain];
    return static_cast<int>(level);
  }
  std::uint32_t at = stack->depth;
  while (at > 0 && stack->open[at - 1].domain != domain) --at;
  if (at == 0) return static_cast<int>(level);
  const OpenRange r = stack->open[at - 1];
  // Domains nest each for itself: the one that ends need not be the innermost of all.
  if (at != stack->depth) {
    memmove(&stack->open[at - 1], &stack->open[at], (stack->depth - at) * sizeof(OpenRange));
  }
  --stack->depth;
  // Its text stays where it is until the next push.
  if (is_wanted(r.start_ns, r.marks)) {
    const std::uint64_t end_ns = now_ns();
    write(ended_of(r, stack->text, end_ns));
    has_written();
    ended(r.marks, end_ns);
  } else if (r.marks != 0) {
    ended(r.marks, now_ns());
  }
  return static_cast<int>(level);
}

std::uint64_t start_range(std::uint32_t domain, const RangeAttributes& a) noexcept {
  const std::uint64_t number = g_next_start.fetch_add(1, std::memory_order_relaxed) << kSlotBits;
  if (is_in_own_code()) return number | kNoSlot;
  const OwnCode own;
  OpenStart* s = take_slot();
  if (s == nullptr) {
    count(g_limits.open);
    return number | kNoSlot;
  }
  s->payload = a.payload;
  s->registered = a.registered;
  s->category = a.category;
  s->colour = a.colour;
  s->thread_id = own_thread_id();
  s->flags = a.flags;
  s->payload_type = a.payload_type;
  s->domain = static_cast<std::uint8_t>(domain);
  std::size_t bytes = a.registered != nullptr ? 0 : a.text_bytes;
  if (bytes > kOpenTextMax) {
    // Too long for the slot; cut only where there is no room among the kept texts either.
    const std::size_t kept = bytes < kRangeTextMax ? bytes : kRangeTextMax;
    s->registered = intern(a.text, kept, TextUse::kMessage);
    if (s->registered == nullptr || kept < bytes) {
      s->flags |= recording::kRangeCut;
      count(g_limits.cut);
    }
    bytes = s->registered != nullptr ? 0 : kOpenTextMax;
  }
  memcpy(s->text, a.text, bytes);
  s->text_bytes = static_cast<std::uint32_t>(bytes);
  s->marks = marks_of(domain, a);
  s->start_ns = now_ns();
  const std::uint8_t marks = s->marks;
  const std::uint64_t start_ns = s->start_ns;
  const std::uint64_t id = number | static_cast<std::uint64_t>(s - g_open);
  s->id.store(id, std::memory_order_release);
  begins(marks, start_ns);
  return id;
}

void end_range(std::uint64_t id) noexcept {
  const std::uint64_t slot = id & kNoSlot;
  if (id == 0 || id == kTaken || slot >= kOpenPerProcess || is_in_own_code()) return;
  const OwnCode own;
  OpenStart& s = g_open[slot];
  std::uint64_t expected = id;
  if (!s.id.compare_exchange_strong(expected, kTaken, std::memory_order_acq_rel)) return;
  const std::uint8_t marks = s.marks;
  const std::uint64_t end_ns = now_ns();
  if (is_wanted(s.start_ns, marks)) {
    write({s.start_ns, end_ns, s.payload, s.registered, s.text, s.text_bytes, s.domain, s.category,
           s.colour, s.thread_id, record_id(id), recording::RangeKind::kStartEnd, s.payload_type,
           s.flags});
    has_written();
  }
  s.id.store(0, std::memory_order_release);
  ended(marks, end_ns);
}

void mark_range(std::uint32_t domain, const RangeAttributes& a) noexcept {
  if (mode() != Mode::kRecording || is_in_own_code()) return;
  const OwnCode own;
  if ((marks_of(domain, a) & kHidden) != 0) return;
  const std::uint64_t now = now_ns();
  const bool cut = a.text_bytes > kRangeTextMax;
  if (cut) count(g_limits.cut);
  write({now, now, a.payload, a.registered, a.text, cut ? kRangeTextMax : a.text_bytes, domain,
         a.category, a.colour, 0, 0, recording::RangeKind::kMark, a.payload_type,
         static_cast<std::uint16_t>(a.flags | (cut ? recording::kRangeCut : 0))});
  has_written();
}

// ---- calls of libraries

void LibraryCall::end(bool has_payload, std::uint64_t payload) noexcept {
  t_local.library = outer_;
  if (generation_ != file_generation() || is_in_own_code()) return;  // forked inside the call
  const OwnCode own;
  const KeepErrno keep;
  const RangeDomain* domain =
      library_ == RangeLibrary::kNccl ? range_domain("NCCL", 4) : range_domain("cuDNN", 5);
  write({start_ns_, now_ns(), payload, keep_text(function_, strlen(function_), TextUse::kDomain),
         "", 0, domain_index(domain), 0, 0, 0, 0, recording::RangeKind::kCall,
         has_payload ? recording::RangePayload::kBytes : recording::RangePayload::kNone, 0});
  has_written();
}

// ---- from the recorder

namespace {

void write_open_ranges_of(RangeStack& stack, std::uint64_t time_ns) noexcept {
  for (std::uint32_t i = 0; i < stack.depth; ++i) {
    OpenRange& r = stack.open[i];
    if ((r.marks & kHidden) != 0 || r.start_ns > time_ns) continue;
    if (r.id == 0) r.id = g_next_id.fetch_add(1, std::memory_order_relaxed);
    Ended e = ended_of(r, stack.text, time_ns);
    e.flags |= recording::kRangeOpen;
    write(e);
  }
}

}  // namespace

void write_open_ranges(std::uint64_t time_ns) noexcept {
  if (t_local.ranges != nullptr) write_open_ranges_of(*t_local.ranges, time_ns);
  if (g_next_start.load(std::memory_order_relaxed) == 1) return;
  for (OpenStart& s : g_open) {
    const std::uint64_t id = s.id.load(std::memory_order_acquire);
    if (id == 0 || id == kTaken) continue;
    // Another thread may end it meanwhile and even begin another one there: then the id differs.
    char text[kOpenTextMax];
    Ended e{s.start_ns,     time_ns,
            s.payload,      s.registered,
            text,           s.text_bytes,
            s.domain,       s.category,
            s.colour,       s.thread_id,
            record_id(id),  recording::RangeKind::kStartEnd,
            s.payload_type, static_cast<std::uint16_t>(s.flags | recording::kRangeOpen)};
    memcpy(text, s.text, sizeof text);
    const bool hidden = (s.marks & kHidden) != 0;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (s.id.load(std::memory_order_relaxed) != id || hidden || e.start_ns > time_ns) continue;
    write(e);
  }
}

void range_thread_ended() noexcept {
  RangeStack* stack = t_local.ranges;
  if (stack == nullptr) return;
  for (std::uint32_t i = stack->depth; i > 0; --i) {
    // Nobody can end them any more.
    if ((stack->open[i - 1].marks & kCaptures) != 0) ended(kCaptures, now_ns());
  }
  if (mode() == Mode::kRecording) write_open_ranges_of(*stack, now_ns());
  t_local.ranges = nullptr;
  stack->taken.store(false, std::memory_order_release);
}

bool capture_range_is_open() noexcept { return g_captures.load(std::memory_order_acquire) != 0; }

void notice_range_limits() noexcept {
  const auto say = [](std::atomic<std::uint64_t>& n, const char* what) {
    const std::uint64_t seen = n.load(std::memory_order_relaxed);
    if (seen == 0) return;
    char text[300];
    snprintf(text, sizeof text, "ranges: %llu %s", static_cast<unsigned long long>(seen), what);
    notice(recording::NoticeKind::kBudget, text);
  };
  say(g_limits.deep, "pushed below 1,024 open ones of their thread were not recorded");
  say(g_limits.open, "started while 4,096 were open were not recorded");
  say(g_limits.texts, "names are shown as \"(other)\": the table of texts is full");
  say(g_limits.domains, "times a domain beyond the 126 that fit was made: shown as \"(other)\"");
  say(g_limits.categories, "names of categories or threads found no room");
  say(g_limits.cut, "texts were cut");
}

void forget_ranges_after_fork() noexcept {
  for (RangeStack* s = g_stacks.load(std::memory_order_relaxed); s != nullptr; s = s->next) {
    if (s != t_local.ranges) s->taken.store(false, std::memory_order_relaxed);
  }
  RangeStack* own = t_local.ranges;
  if (own != nullptr) {
    for (std::uint32_t i = 0; i < own->depth; ++i) {
      own->open[i].id = 0;
      own->open[i].marks &= static_cast<std::uint8_t>(~(kCaptures | kEndsStep));
    }
  }
  g_captures.store(0, std::memory_order_relaxed);
  t_local.library = 0;
  for (std::atomic<std::uint64_t>* n : {&g_limits.texts, &g_limits.domains, &g_limits.deep,
                                        &g_limits.open, &g_limits.categories, &g_limits.cut}) {
    n->store(0, std::memory_order_relaxed);
  }
}

}  // namespace gpubusy::runtime
