// SPDX-License-Identifier: Apache-2.0
#include "analysis/markdown.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "analysis/names.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kLongestName = 100;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

void add_row(std::string& out, const std::vector<std::string>& cells) {
  out += '|';
  for (const std::string& cell : cells) out += " " + cell + " |";
  out += '\n';
}

}  // namespace

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kMarkup = "\\`*_{}[]()<>&|#~@!+-=:$^";
  std::string out;
  for (const char c : text) {
    if (is_control(c)) {
      out += ' ';
    } else if (kMarkup.find(c) == kMarkup.npos) {
      out += c;
    } else if (c == '-' || c == '+' || c == '=' || c == ':' || c == '(' || c == ')' || c == '!') {
      // Markup only at the start of a line, or after a bracket that is taken care of.
      if (out.empty() && c != '(' && c != ')') out += '\\';
      out += c;
    } else {
      // A number always works, where a backslash would not stop a mention or an HTML tag.
      out += fmt::format("&#{};", static_cast<int>(c));
    }
  }
  return out;
}

std::string markdown_code(std::string_view name) {
  std::string text;
  std::size_t run = 0, longest = 0;
  for (const char c : shorten(std::string(name), kLongestName, false)) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
    if (c == '|') text += '\\';  // also within code, in a table
    text += is_control(c) ? '?' : c;
  }
  if (text.empty()) return "";
  const std::string fence(longest + 1, '`');
  const std::string_view pad = longest > 0 ? " " : "";
  return fmt::format("{0}{1}{2}{1}{0}", fence, pad, text);
}

std::string markdown_table(const std::vector<std::string>& head,
                           const std::vector<std::vector<std::string>>& rows) {
  std::string out;
  add_row(out, head);
  out += "|---|";
  for (std::size_t i = 1; i < head.size(); ++i) out += "---:|";
  out += '\n';
  for (const auto& row : rows) add_row(out, row);
  return out + '\n';
}

}  // namespace gpubusy::analysis
