// SPDX-License-Identifier: Apache-2.0
//
// The tool's side of NVTX.
#pragma once

#include "runtime/nvtx_abi.hpp"
#include "runtime/ranges.hpp"

namespace gpubusy::runtime::nvtx {

// Puts our functions into the client's tables. False: nothing is to be recorded in this process
// (the client then works as without a tool), or the client is of a kind that is not known.
bool attach(GetExportTable* get_table) noexcept;

inline constexpr std::size_t kWideMax = 1024;  // bytes of UTF-8 that a wide text is turned into

// wchar_t (UTF-32) to UTF-8, cut at a character; not terminated. What is no character becomes
// U+FFFD.
std::size_t to_utf8(const wchar_t* text, char* out, std::size_t size, bool* cut = nullptr) noexcept;

// What the program gave, as far as its struct reaches. `wide` takes a wide message.
RangeAttributes decode(const EventAttributes* given, char (&wide)[kWideMax]) noexcept;

}  // namespace gpubusy::runtime::nvtx
