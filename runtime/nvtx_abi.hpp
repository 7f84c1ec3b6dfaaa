// SPDX-License-Identifier: Apache-2.0
//
// What NVTX's header-only clients and their tool agree on: ids, tables and one struct, which have
// been the same since NVTX 2. Declared here, so that the library builds without NVTX's headers; a
// test compares them with the headers where there are some.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime::nvtx {

// The client's side: InitializeInjectionNvtx2(GetExportTable*) is called once per client, that is
// per library that uses NVTX.
using GetExportTable = const void*(std::uint32_t id);
inline constexpr std::uint32_t kCallbacks = 1;  // export table id

using Function = void (*)();
struct Callbacks {
  std::size_t size;
  // Gives the module's table: pointers to the places of its function pointers, by callback id;
  // `count` of them, the first is null. What a tool leaves alone does nothing afterwards.
  int (*get_module)(std::uint32_t module, Function*** table, unsigned* count);
};

enum Module : std::uint32_t { kCore = 1, kCore2 = 5 };

enum Core : unsigned {
  kMarkEx = 1,
  kMarkA,
  kMarkW,
  kRangeStartEx,
  kRangeStartA,
  kRangeStartW,
  kRangeEnd,
  kRangePushEx,
  kRangePushA,
  kRangePushW,
  kRangePop,
  kNameCategoryA,
  kNameCategoryW,
  kNameOsThreadA,
  kNameOsThreadW,
};
enum Core2 : unsigned {
  kDomainMarkEx = 1,
  kDomainRangeStartEx,
  kDomainRangeEnd,
  kDomainRangePushEx,
  kDomainRangePop,
  kDomainResourceCreate,
  kDomainResourceDestroy,
  kDomainNameCategoryA,
  kDomainNameCategoryW,
  kDomainRegisterStringA,
  kDomainRegisterStringW,
  kDomainCreateA,
  kDomainCreateW,
  kDomainDestroy,
  kInitialize,
};

enum MessageType : std::int32_t { kAscii = 1, kUnicode = 2, kRegistered = 3 };
enum ColourType : std::int32_t { kArgb = 1 };

// Clients of other versions may have a shorter or longer one: `size` says what is there.
struct EventAttributes {
  std::uint16_t version;
  std::uint16_t size;
  std::uint32_t category;
  std::int32_t colour_type;
  std::uint32_t colour;
  std::int32_t payload_type;
  std::int32_t reserved;
  std::uint64_t payload;  // a union; its smaller members lie at the beginning
  std::int32_t message_type;
  const void* message;  // char, wchar_t or the handle of a registered string
};

}  // namespace gpubusy::runtime::nvtx
