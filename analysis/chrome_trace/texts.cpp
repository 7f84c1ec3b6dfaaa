// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_trace/texts.hpp"

#include <utility>

#include <fmt/format.h>

#include "analysis/json_text.hpp"
#include "analysis/names.hpp"

namespace gpubusy::analysis::chrome_trace {
namespace {

constexpr std::size_t kMaxNativeFrames = 64;
constexpr std::size_t kCutName = 200;

}  // namespace

void append_name(std::string& out, const std::string& name) {
  append_json_string(out, name.size() > kMaxName ? shorten(name, kMaxName, false) : name);
}

const std::string* Texts::name_kernel(std::uint32_t kernel) {
  const auto [name, fresh] = kernel_names_.try_emplace(kernel);
  if (!fresh) return nullptr;
  const auto found = recording_.kernels.find(kernel);
  const std::string full = found == recording_.kernels.end() || found->second.name.empty()
                               ? fmt::format("kernel {} of unknown name", kernel)
                               : demangle(found->second.name);
  if (full.size() <= kMaxName) {
    name->second = json_string(full);
    return nullptr;
  }
  // The hooks and CUPTI may each have told it.
  const auto [number, first_time] = long_names_.try_emplace(full, kernel);
  name->second =
      json_string(shorten(full, kCutName, false) + fmt::format(" (long name {})", number->second));
  return first_time ? &number->first : nullptr;
}

const std::string& Texts::kernel_name(std::uint32_t kernel) const {
  static const std::string kUnknown = "\"work of unknown kind\"";
  const auto name = kernel_names_.find(kernel);
  return name == kernel_names_.end() ? kUnknown : name->second;
}

const std::string& Texts::api_name(std::uint16_t api) {
  const auto [it, fresh] = api_names_.try_emplace(api);
  if (fresh) {
    const bool known = api < recording_.apis.size() && !recording_.apis[api].name.empty();
    it->second = json_string(known ? api_base_name(recording_.apis[api].name) : "unknown call");
  }
  return it->second;
}

const std::string& Texts::python_args(std::uint32_t stack) {
  const auto [it, fresh] = python_args_.try_emplace(stack);
  if (!fresh || stack == 0) return it->second;
  const SourceLine& line = lines_.of_stack(stack);
  if (!line.known()) return it->second;
  std::string text = ", \"Python\": ";
  append_json_string(text, to_text(line));
  std::string frames;  // innermost first, as torch.profiler has them
  for (const SourceLine& frame : lines_.frames(stack, kMaxFrames)) {
    frames += fmt::format("{}{}({}): {}", frames.empty() ? "" : ";", frame.file, frame.line,
                          frame.function);
  }
  text += ", \"Call stack\": ";
  append_json_string(text, frames);
  return it->second = std::move(text);
}

const std::string& Texts::native_args(std::uint32_t stack) {
  const auto [it, fresh] = native_args_.try_emplace(stack);
  if (!fresh || stack == 0) return it->second;
  std::string frames;
  std::size_t count = 0;
  bool cut = false;
  for (std::uint32_t id = stack; id != 0; ++count) {
    const auto node = recording_.stack_nodes.find(id);
    if (node == recording_.stack_nodes.end()) break;
    cut = (node->second.flags & 1) != 0 || count == kMaxNativeFrames;
    if (count == kMaxNativeFrames) break;
    if (!frames.empty()) frames += ';';
    if (node->second.kind == recording::FrameKind::kPython) {
      const SourceLine line = lines_.of_frame(node->second);
      frames += line.known() ? fmt::format("{}({}): {}", line.file, line.line, line.function)
                             : "unknown Python code";
    } else {
      const char* comma = "";
      for (const NativeFrame& frame : names_.at(node->second.location)) {
        frames += comma + to_text(frame);
        comma = ";";
      }
    }
    id = node->second.parent;
  }
  if (frames.empty()) return it->second;
  std::string text = ", \"Native stack\": ";
  append_json_string(text, cut ? frames + ";..." : frames);
  return it->second = std::move(text);
}

}  // namespace gpubusy::analysis::chrome_trace
