// SPDX-License-Identifier: Apache-2.0
//
// Strict JSON, piece by piece, for documents too large to hold. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpubusy::analysis {

// Appends "text" with its quotes: control characters, quotes and backslashes escaped. The text must
// be valid UTF-8, as everything from the reader is.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

// Appends ns as microseconds with exactly three decimals: 1234567 -> 1234.567.
void append_microseconds(std::string& out, std::uint64_t ns);

// A finite number with up to six significant digits; anything else becomes 0.
void append_number(std::string& out, double value);

}  // namespace gpubusy::analysis
