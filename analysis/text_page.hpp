// SPDX-License-Identifier: Apache-2.0
//
// Text for a terminal: numbers, wrapped lines, tables. Thread-safety: one thread per Page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/api.hpp"

namespace gpubusy::analysis {

enum class Style { kPlain, kBold, kDim, kGood, kBad, kWarn };

double ms(std::uint64_t ns);
// 3 significant digits or so, at most 2 decimals: "0.02", "9.64", "41.2", "1203".
std::string number(double value);
std::string percent(double share);
std::string bytes_text(double bytes);
std::string count_text(double count);
// Names come from the program: no control characters reach the terminal.
std::string printable(const std::string& text);

class Page {
 public:
  explicit Page(const TextOptions& options);

  std::size_t width() const { return width_; }
  bool ascii() const { return options_.ascii; }
  std::string take() { return std::move(out_); }

  std::string styled(Style style, const std::string& text) const;

  void blank() { out_ += '\n'; }
  void line(const std::string& text) { (out_ += text) += '\n'; }
  void heading(const std::string& text);

  // Text wrapped at blanks, with `first` before its first line and as many blanks before the rest.
  void wrapped(const std::string& first, const std::string& text, Style style = Style::kPlain);

  std::string bar(double share, std::size_t cells) const;

  const char* dash() const { return options_.ascii ? "-" : "–"; }
  const char* dot() const { return options_.ascii ? "|" : "·"; }

 private:
  std::size_t width_;
  TextOptions options_;
  std::string out_;
};

// A table with columns as wide as their longest cell; the first column takes what is left, and the
// last ones go where even that is too little.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.size() < 2; }
  void print(Page& page, std::size_t last_left = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gpubusy::analysis
