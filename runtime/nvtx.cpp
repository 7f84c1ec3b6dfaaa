// SPDX-License-Identifier: Apache-2.0
#include "runtime/nvtx.hpp"

#include <string.h>
#include <wchar.h>

#include "runtime/recorder.hpp"

namespace gpubusy::runtime::nvtx {
namespace {

using recording::RangePayload;

// A message without an end would be read for ever; what is behind is not shown anyway.
std::size_t length_of(const char* text) noexcept {
  return text == nullptr ? 0 : strnlen(text, kRangeTextMax + 1);
}

RangeAttributes ascii(const char* text) noexcept {
  RangeAttributes a;
  a.text = text == nullptr ? "" : text;
  a.text_bytes = length_of(text);
  return a;
}

struct Wide {
  char bytes[kWideMax];
  bool cut = false;  // before `size`, which sets it
  std::size_t size;
  explicit Wide(const wchar_t* text) noexcept : size(to_utf8(text, bytes, sizeof bytes, &cut)) {}
  RangeAttributes attributes() const noexcept {
    RangeAttributes a;
    a.text = bytes;
    a.text_bytes = size;
    if (cut) a.flags |= recording::kRangeCut;
    return a;
  }
};

// ---- the functions that clients call

void mark_ex(const EventAttributes* given) {
  if (mode() != Mode::kRecording) return;
  char wide[kWideMax];
  mark_range(0, decode(given, wide));
}
void mark_a(const char* text) {
  if (mode() == Mode::kRecording) mark_range(0, ascii(text));
}
void mark_w(const wchar_t* text) {
  if (mode() == Mode::kRecording) mark_range(0, Wide(text).attributes());
}
std::uint64_t start_ex(const EventAttributes* given) {
  char wide[kWideMax];
  return start_range(0, decode(given, wide));
}
std::uint64_t start_a(const char* text) { return start_range(0, ascii(text)); }
std::uint64_t start_w(const wchar_t* text) { return start_range(0, Wide(text).attributes()); }
void end(std::uint64_t id) { end_range(id); }
int push_ex(const EventAttributes* given) {
  char wide[kWideMax];
  return push_range(0, decode(given, wide));
}
int push_a(const char* text) { return push_range(0, ascii(text)); }
int push_w(const wchar_t* text) { return push_range(0, Wide(text).attributes()); }
int pop() { return pop_range(0); }
void category_a(std::uint32_t category, const char* name) {
  name_range_category(0, category, register_range_text(ascii(name).text, length_of(name)));
}
void category_w(std::uint32_t category, const wchar_t* name) {
  const Wide wide(name);
  name_range_category(0, category, register_range_text(wide.bytes, wide.size));
}
void thread_a(std::uint32_t thread, const char* name) {
  name_thread(thread, ascii(name).text, length_of(name));
}
void thread_w(std::uint32_t thread, const wchar_t* name) {
  const Wide wide(name);
  name_thread(thread, wide.bytes, wide.size);
}

void domain_mark(const void* domain, const EventAttributes* given) {
  if (mode() != Mode::kRecording) return;
  char wide[kWideMax];
  mark_range(domain_index(domain), decode(given, wide));
}
std::uint64_t domain_start(const void* domain, const EventAttributes* given) {
  char wide[kWideMax];
  return start_range(domain_index(domain), decode(given, wide));
}
void domain_end(const void*, std::uint64_t id) { end_range(id); }
int domain_push(const void* domain, const EventAttributes* given) {
  char wide[kWideMax];
  return push_range(domain_index(domain), decode(given, wide));
}
int domain_pop(const void* domain) { return pop_range(domain_index(domain)); }
void domain_category_a(const void* domain, std::uint32_t category, const char* name) {
  name_range_category(domain_index(domain), category,
                      register_range_text(ascii(name).text, length_of(name)));
}
void domain_category_w(const void* domain, std::uint32_t category, const wchar_t* name) {
  const Wide wide(name);
  name_range_category(domain_index(domain), category, register_range_text(wide.bytes, wide.size));
}
const void* register_a(const void*, const char* text) {
  return register_range_text(ascii(text).text, length_of(text));
}
const void* register_w(const void*, const wchar_t* text) {
  const Wide wide(text);
  return register_range_text(wide.bytes, wide.size);
}
const void* domain_create_a(const char* name) {
  return range_domain(ascii(name).text, length_of(name));
}
const void* domain_create_w(const wchar_t* name) {
  const Wide wide(name);
  return range_domain(wide.bytes, wide.size);
}
// Texts and domains are kept: what the program still has of them stays good.
void domain_destroy(const void*) {}
// Resources have names of mutexes and the like, which nothing here shows.
const void* resource_create(const void* domain, void*) {
  return domain == nullptr ? register_range_text("", 0) : domain;
}
void resource_destroy(const void*) {}

struct Row {
  unsigned id;
  Function function;
};
template <class F>
Function as_function(F* f) noexcept {
  return reinterpret_cast<Function>(f);
}

bool fill(const Callbacks& callbacks, std::uint32_t module, const Row* rows,
          std::size_t count) noexcept {
  Function** table = nullptr;
  unsigned size = 0;
  if (callbacks.get_module(module, &table, &size) == 0 || table == nullptr) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (rows[i].id < size && table[rows[i].id] != nullptr) *table[rows[i].id] = rows[i].function;
  }
  return true;
}

}  // namespace

std::size_t to_utf8(const wchar_t* text, char* out, std::size_t size, bool* cut) noexcept {
  static_assert(sizeof(wchar_t) == 4);
  std::size_t n = 0;
  for (; text != nullptr && *text != L'\0'; ++text) {
    auto c = static_cast<std::uint32_t>(*text);
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    const std::size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n + bytes > size) {
      if (cut != nullptr) *cut = true;
      break;
    }
    if (bytes == 1) {
      out[n++] = static_cast<char>(c);
      continue;
    }
    constexpr unsigned char kFirst[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (std::size_t i = bytes; i-- > 1; c >>= 6) out[n + i] = static_cast<char>(0x80 | (c & 0x3f));
    out[n] = static_cast<char>(kFirst[bytes] | c);
    n += bytes;
  }
  return n;
}

RangeAttributes decode(const EventAttributes* given, char (&wide)[kWideMax]) noexcept {
  RangeAttributes out;
  out.text = "";
  if (given == nullptr) return out;
  EventAttributes a{};
  constexpr std::size_t kHead = offsetof(EventAttributes, category);
  memcpy(&a, given, kHead);
  // Clients before the field was filled in as it should be say 0: they have the struct of NVTX 2.
  std::size_t size = a.size == 0 ? sizeof a : a.size;
  if (size > sizeof a) size = sizeof a;
  if (size > kHead) memcpy(&a, given, size);

  out.category = a.category;
  if (a.colour_type == kArgb) {
    out.colour = a.colour;
    out.flags |= recording::kRangeColour;
  }
  // Types beyond are extensions, whose payload is a pointer.
  if (a.payload_type > 0 && a.payload_type <= static_cast<int>(RangePayload::kFloat)) {
    out.payload_type = static_cast<RangePayload>(a.payload_type);
    out.payload = out.payload_type >= RangePayload::kUint32 ? a.payload & 0xffffffffu : a.payload;
  }
  bool cut = false;
  switch (a.message == nullptr ? 0 : a.message_type) {
    case kAscii:
      out.text = static_cast<const char*>(a.message);
      out.text_bytes = length_of(out.text);
      break;
    case kUnicode:
      out.text = wide;
      out.text_bytes = to_utf8(static_cast<const wchar_t*>(a.message), wide, sizeof wide, &cut);
      if (cut) out.flags |= recording::kRangeCut;
      break;
    case kRegistered: out.registered = range_text_of(a.message); break;
    default: break;
  }
  return out;
}

bool attach(GetExportTable* get_table) noexcept {
  if (mode() == Mode::kOff || get_table == nullptr) return false;
  const auto* callbacks = static_cast<const Callbacks*>(get_table(kCallbacks));
  if (callbacks == nullptr || callbacks->size < sizeof(Callbacks)) return false;
  const Row core[] = {
      {kMarkEx, as_function(mark_ex)},
      {kMarkA, as_function(mark_a)},
      {kMarkW, as_function(mark_w)},
      {kRangeStartEx, as_function(start_ex)},
      {kRangeStartA, as_function(start_a)},
      {kRangeStartW, as_function(start_w)},
      {kRangeEnd, as_function(end)},
      {kRangePushEx, as_function(push_ex)},
      {kRangePushA, as_function(push_a)},
      {kRangePushW, as_function(push_w)},
      {kRangePop, as_function(pop)},
      {kNameCategoryA, as_function(category_a)},
      {kNameCategoryW, as_function(category_w)},
      {kNameOsThreadA, as_function(thread_a)},
      {kNameOsThreadW, as_function(thread_w)},
  };
  const Row core2[] = {
      {kDomainMarkEx, as_function(domain_mark)},
      {kDomainRangeStartEx, as_function(domain_start)},
      {kDomainRangeEnd, as_function(domain_end)},
      {kDomainRangePushEx, as_function(domain_push)},
      {kDomainRangePop, as_function(domain_pop)},
      {kDomainResourceCreate, as_function(resource_create)},
      {kDomainResourceDestroy, as_function(resource_destroy)},
      {kDomainNameCategoryA, as_function(domain_category_a)},
      {kDomainNameCategoryW, as_function(domain_category_w)},
      {kDomainRegisterStringA, as_function(register_a)},
      {kDomainRegisterStringW, as_function(register_w)},
      {kDomainCreateA, as_function(domain_create_a)},
      {kDomainCreateW, as_function(domain_create_w)},
      {kDomainDestroy, as_function(domain_destroy)},
  };
  const bool has_core = fill(*callbacks, kCore, core, sizeof core / sizeof core[0]);
  // Clients of NVTX 1 have no domains.
  fill(*callbacks, kCore2, core2, sizeof core2 / sizeof core2[0]);
  return has_core;
}

}  // namespace gpubusy::runtime::nvtx
