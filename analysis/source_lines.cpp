// SPDX-License-Identifier: Apache-2.0
#include "analysis/source_lines.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/python_lines.hpp"

namespace gpubusy::analysis {
namespace {

// A damaged recording may hold a cycle of frames.
constexpr std::size_t kMaxDepth = 1024;

bool is_generated(std::string_view file) {
  if (!file.starts_with('<')) return false;
  return !file.starts_with("<stdin>") && !file.starts_with("<ipython-input");
}

bool below_python_library(std::string_view file) {
  constexpr std::string_view kMark = "/python3.";
  for (std::size_t at = file.find(kMark); at != std::string_view::npos;
       at = file.find(kMark, at + 1)) {
    const std::string_view before = file.substr(0, at);
    if (!before.ends_with("lib") && !before.ends_with("lib64")) continue;
    std::size_t end = at + kMark.size();
    while (end < file.size() && file[end] >= '0' && file[end] <= '9') ++end;
    if (end < file.size() && (file[end] == '/' || file[end] == 't')) return true;
  }
  return false;
}

}  // namespace

bool is_user_file(std::string_view file) {
  return !file.empty() && !is_generated(file) &&
         file.find("/site-packages/") == std::string_view::npos &&
         file.find("/dist-packages/") == std::string_view::npos && !below_python_library(file);
}

std::string to_text(const SourceLine& line) {
  if (!line.known()) return {};
  std::string text(source_name(line.file));
  if (line.line > 0) text += fmt::format(":{}", line.line);
  if (!line.function.empty()) text += fmt::format(" ({})", line.function);
  return text;
}

std::string to_text(const Region& region) {
  const SourceLine &after = region.after, &before = region.before;
  if (!region.known()) return {};
  if (!before.known()) return "after " + to_text(after);
  if (!after.known()) return "before " + to_text(before);
  const bool one_function = after.file == before.file && after.function == before.function;
  if (!one_function || after.line <= 0 || before.line <= 0) {
    return fmt::format("after {}, before {}", to_text(after), to_text(before));
  }
  const auto [low, high] = std::minmax(after.line, before.line);
  if (low == high) return to_text(after);
  return fmt::format("{}:{}-{}{} (after line {}, before line {})", source_name(after.file), low,
                     high, after.function.empty() ? "" : " in " + after.function, after.line,
                     before.line);
}

SourceLine SourceLines::of_location(std::uint64_t location) {
  const auto [it, fresh] = by_location_.try_emplace(location);
  if (!fresh) return it->second;
  const auto code = recording_.codes.find(static_cast<std::uint32_t>(location >> 32));
  if (code == recording_.codes.end()) return it->second;
  const recording::Code& c = code->second;
  SourceLine& line = it->second;
  line.file = c.file;
  line.function = c.name;
  line.user = is_user_file(c.file);
  // A table that was cut may still hold the line; 0 is what line_of gives where it does not.
  const int found =
      line_of(c.line_table, c.first_line, c.python_minor, static_cast<std::uint32_t>(location));
  line.line = std::max(found, 0);
  return line;
}

std::vector<SourceLine> SourceLines::frames(std::uint32_t python_stack, std::size_t limit) {
  std::vector<SourceLine> out;
  std::uint32_t id = python_stack;
  for (std::size_t depth = 0; id != 0 && depth < kMaxDepth && out.size() < limit; ++depth) {
    const auto node = recording_.stack_nodes.find(id);
    if (node == recording_.stack_nodes.end()) break;
    SourceLine line = of_frame(node->second);
    if (line.known()) out.push_back(std::move(line));
    id = node->second.parent;
  }
  return out;
}

SourceLine SourceLines::of_frame(const recording::StackNode& node) {
  return node.kind == recording::FrameKind::kPython ? of_location(node.location) : SourceLine{};
}

std::uint32_t SourceLines::id_of(std::uint32_t python_stack) {
  const auto [it, fresh] = by_stack_.try_emplace(python_stack, 0);
  if (!fresh || python_stack == 0) return it->second;
  const std::vector<SourceLine> all = frames(python_stack, kMaxDepth);
  if (all.empty()) return 0;
  const auto user =
      std::find_if(all.begin(), all.end(), [](const SourceLine& l) { return l.user; });
  const SourceLine& chosen = user != all.end() ? *user : all.front();
  const auto [id, is_new] = ids_.try_emplace({chosen.file, chosen.function, chosen.line},
                                             static_cast<std::uint32_t>(lines_.size()));
  if (is_new) lines_.push_back(chosen);
  return it->second = id->second;
}

}  // namespace gpubusy::analysis
