// SPDX-License-Identifier: Apache-2.0
#include "analysis/json_text.hpp"

#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace gpubusy::analysis {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

void append_microseconds(std::string& out, std::uint64_t ns) {
  fmt::format_to(std::back_inserter(out), "{}.{:03}", ns / 1000, ns % 1000);
}

void append_number(std::string& out, double value) {
  if (!std::isfinite(value)) value = 0;
  fmt::format_to(std::back_inserter(out), "{:.6g}", value);
}

}  // namespace gpubusy::analysis
