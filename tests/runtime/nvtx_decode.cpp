// SPDX-License-Identifier: Apache-2.0
//
// What clients of NVTX hand over, decoded; runtime/ranges and the recorder are replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/nvtx.hpp"

namespace gpubusy::runtime {

constinit std::atomic<Mode> g_mode{Mode::kRecording};

namespace {
std::vector<std::string> g_calls;
std::string text_of(const RangeAttributes& a) { return std::string(a.text, a.text_bytes); }
RangeText* text_at(std::uintptr_t n) { return reinterpret_cast<RangeText*>(n); }
}  // namespace

RangeText* register_range_text(const char* text, std::size_t bytes) noexcept {
  g_calls.push_back("register " + std::string(text, bytes));
  return text_at(0x1000);
}
RangeText* range_text_of(const void* handle) noexcept {
  return handle == text_at(0x1000) ? text_at(0x1000) : nullptr;
}
RangeDomain* range_domain(const char* name, std::size_t bytes) noexcept {
  g_calls.push_back("domain " + std::string(name, bytes));
  return reinterpret_cast<RangeDomain*>(0x2000);
}
std::uint32_t domain_index(const void* handle) noexcept {
  return handle == reinterpret_cast<void*>(0x2000) ? 5 : 0;
}
void name_range_category(std::uint32_t domain, std::uint32_t category, RangeText*) noexcept {
  g_calls.push_back("category " + std::to_string(domain) + " " + std::to_string(category));
}
void name_thread(std::uint32_t thread, const char* name, std::size_t bytes) noexcept {
  g_calls.push_back("thread " + std::to_string(thread) + " " + std::string(name, bytes));
}
int push_range(std::uint32_t domain, const RangeAttributes& a) noexcept {
  g_calls.push_back("push " + std::to_string(domain) + " " + text_of(a));
  return 7;
}
int pop_range(std::uint32_t) noexcept { return 6; }
std::uint64_t start_range(std::uint32_t, const RangeAttributes&) noexcept { return 99; }
void end_range(std::uint64_t id) noexcept { g_calls.push_back("end " + std::to_string(id)); }
void mark_range(std::uint32_t, const RangeAttributes& a) noexcept {
  g_calls.push_back("mark " + text_of(a));
}

namespace nvtx {
namespace {

using recording::RangePayload;
using ::testing::ElementsAre;

std::string utf8(const wchar_t* text, std::size_t size = 100) {
  char out[100];
  return std::string(out, to_utf8(text, out, size));
}

TEST(NvtxDecode, WideTexts) {
  EXPECT_EQ(utf8(nullptr), "");
  EXPECT_EQ(utf8(L"plain"), "plain");
  EXPECT_EQ(utf8(L"\x7f\x80\x7ff\x800\xffff\x10000\x10ffff"),
            "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
  const wchar_t bad[] = {static_cast<wchar_t>(0xd800), static_cast<wchar_t>(0x110000),
                         static_cast<wchar_t>(0xffffffff), 0};
  EXPECT_EQ(utf8(bad), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  // Cut between characters, and said.
  char out[4];
  bool cut = false;
  EXPECT_EQ(to_utf8(L"ab\x65e5", out, sizeof out, &cut), 2u);
  EXPECT_TRUE(cut);
}

EventAttributes whole() {
  EventAttributes a{};
  a.version = 3;
  a.size = sizeof a;
  return a;
}

TEST(NvtxDecode, Attributes) {
  char wide[kWideMax];
  EventAttributes a = whole();
  a.category = 4;
  a.colour_type = kArgb;
  a.colour = 0x11223344;
  a.payload_type = 3;
  a.payload = std::bit_cast<std::uint64_t>(1.5);
  a.message_type = kAscii;
  a.message = "text";
  RangeAttributes d = decode(&a, wide);
  EXPECT_EQ(d.category, 4u);
  EXPECT_EQ(d.colour, 0x11223344u);
  EXPECT_EQ(d.flags, recording::kRangeColour);
  EXPECT_EQ(d.payload_type, RangePayload::kDouble);
  EXPECT_EQ(std::bit_cast<double>(d.payload), 1.5);
  EXPECT_EQ(text_of(d), "text");
  EXPECT_EQ(d.registered, nullptr);

  a.message_type = kUnicode;
  a.message = L"w\x00ef\x00f0\x00eb";
  EXPECT_EQ(text_of(decode(&a, wide)), "w\xc3\xaf\xc3\xb0\xc3\xab");
  a.message_type = kRegistered;
  a.message = text_at(0x1000);
  EXPECT_EQ(decode(&a, wide).registered, text_at(0x1000));
  a.message = text_at(0x1004);  // not a handle of ours
  d = decode(&a, wide);
  EXPECT_EQ(d.registered, nullptr);
  EXPECT_EQ(d.text_bytes, 0u);

  // Of the smaller payloads only their own half counts.
  for (const int type : {4, 5, 6}) {
    a = whole();
    a.payload_type = type;
    a.payload = 0xffffffff00000001;
    EXPECT_EQ(decode(&a, wide).payload, 1u);
  }
  a.payload_type = 0x7bd00009;  // an extension's
  EXPECT_EQ(decode(&a, wide).payload_type, RangePayload::kNone);
  a.payload_type = -1;
  EXPECT_EQ(decode(&a, wide).payload_type, RangePayload::kNone);
}

TEST(NvtxDecode, OnlyAsFarAsTheStructReaches) {
  char wide[kWideMax];
  EXPECT_EQ(decode(nullptr, wide).text_bytes, 0u);
  EventAttributes a = whole();
  a.category = 9;
  a.payload_type = 1;
  a.payload = 5;
  a.message_type = kAscii;
  a.message = reinterpret_cast<const char*>(8);  // would crash
  a.size = offsetof(EventAttributes, payload_type);
  RangeAttributes d = decode(&a, wide);
  EXPECT_EQ(d.category, 9u);
  EXPECT_EQ(d.payload_type, RangePayload::kNone);
  EXPECT_EQ(d.text_bytes, 0u);
  a.size = 4;
  EXPECT_EQ(decode(&a, wide).category, 0u);
  a.size = 3;
  EXPECT_EQ(decode(&a, wide).category, 0u);
  a = whole();
  a.size = 0;  // not filled in
  a.message_type = kAscii;
  a.message = "text";
  EXPECT_EQ(text_of(decode(&a, wide)), "text");
  a.size = 200;  // of a later version
  EXPECT_EQ(text_of(decode(&a, wide)), "text");
}

// ---- a client

template <std::size_t N>
struct Table {
  Function functions[N] = {};
  Function* entries[N + 1] = {};
  Table() {
    for (std::size_t i = 1; i < N; ++i) entries[i] = &functions[i];
  }
};
Table<16> g_core, g_core2;
unsigned g_core_size = 16, g_core2_size = 16;

int get_module(std::uint32_t module, Function*** table, unsigned* size) {
  if (module == kCore) {
    *table = g_core.entries;
    *size = g_core_size;
    return 1;
  }
  if (module == kCore2 && g_core2_size != 0) {
    *table = g_core2.entries;
    *size = g_core2_size;
    return 1;
  }
  return 0;
}
Callbacks g_callbacks{sizeof(Callbacks), get_module};
const void* get_table(std::uint32_t id) { return id == kCallbacks ? &g_callbacks : nullptr; }

template <class F>
F* function(Table<16>& table, unsigned id) {
  return reinterpret_cast<F*>(table.functions[id]);
}

class NvtxAttach : public ::testing::Test {
 protected:
  NvtxAttach() {
    g_core = {};
    g_core2 = {};
    for (std::size_t i = 1; i < 16; ++i) {
      g_core.entries[i] = &g_core.functions[i];
      g_core2.entries[i] = &g_core2.functions[i];
    }
    g_core_size = g_core2_size = 16;
    g_callbacks.size = sizeof(Callbacks);
    g_mode = Mode::kRecording;
    g_calls.clear();
  }
};

TEST_F(NvtxAttach, FillsTheTables) {
  ASSERT_TRUE(attach(get_table));
  for (unsigned id = 1; id < 16; ++id) EXPECT_NE(g_core.functions[id], nullptr) << id;
  for (unsigned id = 1; id < kInitialize; ++id) EXPECT_NE(g_core2.functions[id], nullptr) << id;
  EXPECT_EQ(function<int(const char*)>(g_core, kRangePushA)("a"), 7);
  EXPECT_EQ(function<int(const wchar_t*)>(g_core, kRangePushW)(L"\x00e9"), 7);
  EXPECT_EQ(function<int()>(g_core, kRangePop)(), 6);
  EXPECT_EQ(function<std::uint64_t(const char*)>(g_core, kRangeStartA)("s"), 99u);
  function<void(std::uint64_t)>(g_core, kRangeEnd)(99);
  function<void(const char*)>(g_core, kMarkA)("m");
  function<void(std::uint32_t, const char*)>(g_core, kNameOsThreadA)(12, "t");
  auto* domain = function<void*(const wchar_t*)>(g_core2, kDomainCreateW)(L"d");
  EventAttributes a = whole();
  a.message_type = kAscii;
  a.message = "in it";
  EXPECT_EQ(function<int(void*, EventAttributes*)>(g_core2, kDomainRangePushEx)(domain, &a), 7);
  function<void(void*, std::uint32_t, const char*)>(g_core2, kDomainNameCategoryA)(domain, 3, "c");
  EXPECT_NE(function<void*(void*, void*)>(g_core2, kDomainResourceCreate)(nullptr, nullptr),
            nullptr);
  EXPECT_THAT(g_calls,
              ElementsAre("push 0 a", "push 0 \xc3\xa9", "end 99", "mark m", "thread 12 t",
                          "domain d", "push 5 in it", "register c", "category 5 3", "register "));
}

TEST_F(NvtxAttach, MarksCostNothingOutsideOfWindows) {
  ASSERT_TRUE(attach(get_table));
  g_mode = Mode::kTracking;
  function<void(const char*)>(g_core, kMarkA)("m");
  EXPECT_TRUE(g_calls.empty());
}

TEST_F(NvtxAttach, OldClients) {
  g_core_size = kRangePop;  // a shorter table
  g_core2_size = 0;         // and no domains
  ASSERT_TRUE(attach(get_table));
  EXPECT_NE(g_core.functions[kRangePushW], nullptr);
  EXPECT_EQ(g_core.functions[kRangePop], nullptr);
  EXPECT_EQ(g_core2.functions[kDomainMarkEx], nullptr);
}

TEST_F(NvtxAttach, NoToolWhereNothingIsRecordedOrKnown) {
  g_mode = Mode::kOff;
  EXPECT_FALSE(attach(get_table));
  g_mode = Mode::kIdle;
  EXPECT_FALSE(attach(nullptr));
  EXPECT_FALSE(attach([](std::uint32_t) -> const void* { return nullptr; }));
  g_callbacks.size = 8;
  EXPECT_FALSE(attach(get_table));
  EXPECT_EQ(g_core.functions[kRangePop], nullptr);
}

}  // namespace
}  // namespace nvtx
}  // namespace gpubusy::runtime
