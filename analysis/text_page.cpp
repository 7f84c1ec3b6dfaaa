// SPDX-License-Identifier: Apache-2.0
#include "analysis/text_page.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/names.hpp"

namespace gpubusy::analysis {
namespace {

constexpr int kMinWidth = 60;
constexpr std::size_t kLeastName = 24;  // of a table's first column, if its cells are that long

}  // namespace

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string number(double value) {
  if (value >= 999.5) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}
std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }
std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return number(bytes / 1e9) + " GB";
  if (bytes >= 1e6) return number(bytes / 1e6) + " MB";
  if (bytes >= 1e3) return number(bytes / 1e3) + " kB";
  return fmt::format("{:.0f} B", bytes);
}
std::string count_text(double count) {
  const bool whole = std::abs(count - std::round(count)) < 0.005;
  return whole ? fmt::format("{:.0f}", count) : number(count);
}

std::string printable(const std::string& text) {
  std::string out = text;
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

Page::Page(const TextOptions& options)
    : width_(static_cast<std::size_t>(std::max(options.width, kMinWidth))), options_(options) {}

std::string Page::styled(Style style, const std::string& text) const {
  if (!options_.colour || style == Style::kPlain || text.empty()) return text;
  const char* code = style == Style::kBold   ? "1"
                     : style == Style::kDim  ? "2"
                     : style == Style::kGood ? "1;32"
                     : style == Style::kBad  ? "1;31"
                                             : "33";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

void Page::heading(const std::string& text) {
  blank();
  line(styled(Style::kBold, text));
}

void Page::wrapped(const std::string& first, const std::string& text, Style style) {
  const std::size_t indent = length_of(first);
  std::string prefix = first, current;
  std::size_t used = 0;
  const auto flush = [&] {
    line(prefix + styled(style, current));
    prefix.assign(indent, ' ');
    current.clear();
    used = 0;
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    std::string word = text.substr(at, end - at);
    at = end + 1;
    std::size_t length = length_of(word);
    if (const std::size_t room = width_ - indent; length > room) {  // a path, a name
      const std::string head = first_characters(word, room);
      at = end - (word.size() - head.size());
      word = head;
      length = room;
    }
    if (used > 0 && indent + used + 1 + length > width_) flush();
    if (used > 0) {
      current += ' ';
      ++used;
    }
    current += word;
    used += length;
  }
  if (used > 0) flush();
}

std::string Page::bar(double share, std::size_t cells) const {
  const auto full = static_cast<std::size_t>(
      std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(cells)));
  std::string out;
  for (std::size_t i = 0; i < cells; ++i) {
    out += options_.ascii ? (i < full ? "#" : ".") : (i < full ? "█" : "░");
  }
  return out;
}

void Table::print(Page& page, std::size_t last_left) const {
  const std::size_t all = rows_.front().size();
  std::vector<std::size_t> widths(all);
  std::size_t rest = 2;
  for (std::size_t c = 0; c < all; ++c) {
    for (const auto& row : rows_) widths[c] = std::max(widths[c], length_of(row[c]));
    if (c > 0) rest += widths[c] + 2;
  }
  std::size_t columns = all;
  const std::size_t least = std::min(widths[0], kLeastName);
  for (; columns > 1 && rest + least > page.width(); --columns) rest -= widths[columns - 1] + 2;
  widths[0] = std::min(widths[0], page.width() - rest);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string text = "  ";
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string cell = c == 0 ? shorten(rows_[r][c], widths[0], page.ascii()) : rows_[r][c];
      const std::string fill(widths[c] - length_of(cell), ' ');
      const bool left = c == 0 || c + last_left >= all;
      if (c > 0) text += "  ";
      text += left ? cell + fill : fill + cell;
    }
    while (text.ends_with(' ')) text.pop_back();
    page.line(r == 0 ? page.styled(Style::kDim, text) : text);
  }
}

}  // namespace gpubusy::analysis
