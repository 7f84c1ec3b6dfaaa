// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/stacks.hpp"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "analysis/names.hpp"

namespace gpubusy::analysis {
namespace {

using recording::FrameKind;
using recording::Recording;

constexpr std::size_t kMaxDepth = 1024;  // a damaged recording may hold a cycle

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> starts) {
  return std::any_of(starts.begin(), starts.end(),
                     [&](std::string_view start) { return text.starts_with(start); });
}

bool is_interpreter(std::string_view module) {
  return starts_with_any(file_name(module), {"python", "libpython"});
}

// The program's own code: not where packages and systems keep theirs.
bool is_user_module(std::string_view module) {
  if (module.empty() || module.front() == '[' || is_interpreter(module)) return false;
  if (module.find("/site-packages/") != std::string_view::npos ||
      module.find("/dist-packages/") != std::string_view::npos ||
      starts_with_any(module, {"/usr/", "/lib/", "/lib64/", "/opt/"})) {
    return false;
  }
  return !starts_with_any(
      file_name(module), {"libcu", "libnv", "libnccl", "libtorch", "libc10", "libstdc++", "libc.so",
                          "libc-", "libm.so", "libgcc_s", "ld-", "libpthread", "libgpubusy"});
}

// CPython's own functions, also where it is linked into another program.
bool is_interpreter_frame(std::string_view function, std::string_view module) {
  if (is_interpreter(module)) return true;
  if (function.starts_with('_')) function.remove_prefix(1);
  return function.starts_with("Py") && function.size() > 2 &&
         function.find("::") == std::string_view::npos &&
         (function[2] == '_' || std::isupper(static_cast<unsigned char>(function[2])));
}

// How threads and programs begin, how interpreters and PyTorch's dispatcher call what matters.
bool is_plumbing(std::string_view function, std::string_view module) {
  if (is_interpreter_frame(function, module)) return true;
  if (function.empty()) return file_name(module).starts_with("libc.so");
  return starts_with_any(short_function(function),
                         {"method_vectorcall", "cfunction_", "slot_tp_", "vectorcall_", "_start",
                          "__libc_start", "start_thread", "clone3", "__clone", "__GI___clone",
                          "pybind11::cpp_function::dispatcher", "c10::impl::wrap_kernel_functor",
                          "c10::Dispatcher::", "c10::impl::make_boxed_from_unboxed_functor"});
}

}  // namespace

const recording::Module* module_at(const Recording& recording, std::uint64_t address) {
  for (auto it = recording.modules.rbegin(); it != recording.modules.rend(); ++it) {
    if (it->begin <= address && address < it->end) return &*it;
  }
  return nullptr;
}

std::string short_function(std::string_view name) {
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const std::string_view rest = name.substr(i);
    if (depth == 0 && rest.starts_with("operator")) {
      // operator(), operator<, operator-> and the like hold characters that mean something else.
      std::size_t end = i + 8;
      while (end < name.size() &&
             std::string_view("<>=!-+*&|^~%/,[]").find(name[end]) != std::string_view::npos) {
        ++end;
      }
      if (name.substr(i).starts_with("operator()")) end = i + 10;
      out += name.substr(i, end - i);
      i = end - 1;
      if (end < name.size() && name[end] == ' ') {  // operator new, a conversion
        const std::size_t stop = std::min(name.find('(', end), name.size());
        out += name.substr(end, stop - end);
        i = stop - 1;
      }
      continue;
    }
    if (depth == 0 && rest.starts_with("(anonymous namespace)")) {
      out += "(anonymous)";
      i += 20;
      continue;
    }
    const char c = name[i];
    if (c == '<' || c == '{') {
      if (depth++ == 0) out += c == '<' ? "<...>" : "{...}";
      continue;
    }
    if (c == '>' || c == '}') {
      depth = std::max(0, depth - 1);
      continue;
    }
    if (depth > 0) continue;
    if (c == '(') {
      // A function inside a function: "f(int)::{lambda()#1}::operator()() const".
      int nested = 0;
      std::size_t end = i;
      for (; end < name.size(); ++end) {
        nested += name[end] == '(' ? 1 : name[end] == ')' ? -1 : 0;
        if (nested == 0) break;
      }
      const std::string_view behind = name.substr(std::min(end + 1, name.size()));
      const std::size_t next = behind.starts_with(" const::") ? 6 : 0;
      if (behind.starts_with(' ') && behind.find('(') != std::string_view::npos) {
        out.clear();  // decltype(…), a return type
        i = end;
        continue;
      }
      if (!behind.substr(next).starts_with("::")) break;
      i = end + next;
      continue;
    }
    if (c == ' ') {  // what came before was the return type
      out.clear();
      continue;
    }
    out += c;
  }
  return out.empty() ? std::string(name) : out;
}

std::string label(const Frame& frame) {
  if (frame.kind == FrameKind::kPython) {
    std::string text = fmt::format("{} ({}", frame.function, source_name(frame.file));
    if (frame.line > 0) text += fmt::format(":{}", frame.line);
    return text + ')';
  }
  if (!frame.function.empty()) {
    std::string text = short_function(frame.function);
    if (frame.user && frame.line > 0) {
      text += fmt::format(" ({}:{})", source_name(frame.file), frame.line);
    }
    return text;
  }
  if (!frame.module.empty()) return fmt::format("[{}]", file_name(frame.module));
  return fmt::format("{:#x}", frame.location);
}

std::vector<NamedFrame> named_frames(Stacks& stacks, StackId stack) {
  std::vector<NamedFrame> out;
  const std::vector<Stacks::Place> places = stacks.places(stack);
  if (places.empty()) return {{"unknown", nullptr}};
  if (stacks.is_cut(stack)) out.push_back({"...", nullptr});
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    const Frame& frame = stacks.frame(place->frame);
    std::string name = label(frame);
    const bool unnamed = frame.kind == FrameKind::kNative && frame.function.empty();
    if (unnamed && !out.empty() && out.back().name == name) continue;
    out.push_back({std::move(name), &frame});
  }
  return out;
}

Stacks::Stacks(const Recording& recording, NativeNames* names)
    : recording_(recording), names_(names), lines_(recording) {
  stacks_.push_back({0, 0});
}

StackId Stacks::id_of(const recording::Call& call) {
  if (call.native_stack == 0 && call.python_stack == 0) return 0;
  const std::uint64_t key = std::uint64_t{call.native_stack} << 32 | call.python_stack;
  const auto [it, fresh] = ids_.try_emplace(key, static_cast<StackId>(stacks_.size()));
  if (fresh) stacks_.push_back({call.native_stack, call.python_stack});
  return it->second;
}

FrameId Stacks::intern(Frame frame) {
  // Frames without a name are told apart by their object, without one by address.
  const std::uint64_t identity = frame.kind == FrameKind::kPython                 ? frame.code
                                 : frame.function.empty() && frame.module.empty() ? frame.location
                                                                                  : 0;
  const auto [it, fresh] =
      frame_ids_.try_emplace(Key{frame.kind, frame.function, frame.file, frame.module, frame.line,
                                 frame.inlined, identity},
                             static_cast<FrameId>(frames_.size()));
  if (fresh) frames_.push_back(std::move(frame));
  return it->second;
}

FrameId Stacks::python_frame(std::uint64_t location) {
  Frame frame;
  frame.kind = FrameKind::kPython;
  frame.code = static_cast<std::uint32_t>(location >> 32);
  const SourceLine line = lines_.of_frame({0, FrameKind::kPython, 0, location});
  frame.function = line.function.empty() ? "unknown Python function" : line.function;
  frame.file = line.file;
  frame.line = line.line;
  frame.user = line.user;
  const auto code = recording_.codes.find(frame.code);
  if (code != recording_.codes.end()) frame.first_line = code->second.first_line;
  return intern(std::move(frame));
}

void Stacks::add_native(std::uint64_t location, NodeFrames& out) {
  if (names_ == nullptr) {
    Frame frame;
    frame.location = location;
    if (const recording::Module* module = module_at(recording_, location - 1)) {
      frame.module = module->path.empty() ? recording_.executable : module->path;
    }
    frame.user = is_user_module(frame.module);
    frame.plumbing = is_plumbing("", frame.module);
    pool_.push_back(intern(std::move(frame)));
    ++out.count;
    return;
  }
  for (const NativeFrame& native : names_->at(location)) {
    Frame frame;
    frame.location = location;
    frame.function = native.function;
    frame.file = native.file;
    frame.module = native.module;
    frame.line = native.line;
    frame.inlined = native.inlined;
    frame.user = is_user_module(native.module);
    frame.plumbing = is_plumbing(native.function, native.module);
    pool_.push_back(intern(std::move(frame)));
    ++out.count;
  }
}

const Stacks::NodeFrames& Stacks::frames_of(std::uint32_t node, const recording::StackNode& data) {
  const auto [it, fresh] = by_node_.try_emplace(node);
  if (!fresh) return it->second;
  NodeFrames& out = it->second;
  out.first = static_cast<std::uint32_t>(pool_.size());
  if (data.kind == FrameKind::kPython) {
    pool_.push_back(python_frame(data.location));
    out.count = 1;
  } else {
    add_native(data.location, out);
  }
  return out;
}

// Frames of a chain of nodes. False: it has no Python frame.
bool Stacks::append(std::uint32_t node, FrameKind only, bool all_kinds, std::vector<Place>& out) {
  bool python = false;
  for (std::size_t depth = 0; node != 0 && depth < kMaxDepth; ++depth) {
    const auto found = recording_.stack_nodes.find(node);
    if (found == recording_.stack_nodes.end()) break;
    python |= found->second.kind == FrameKind::kPython;
    if (all_kinds || found->second.kind == only) {
      const NodeFrames frames = frames_of(node, found->second);
      for (std::uint32_t i = 0; i < frames.count; ++i) {
        out.push_back({pool_[frames.first + i], std::uint64_t{node} << 16 | i});
      }
    }
    node = found->second.parent;
  }
  return python;
}

std::vector<Stacks::Place> Stacks::places(StackId id, Show show) {
  std::vector<Place> out;
  if (id == 0 || id >= stacks_.size()) return out;
  const Stack stack = stacks_[id];
  if (stack.native == 0) {
    append(stack.python, FrameKind::kPython, false, out);
  } else if (!append(stack.native, FrameKind::kNative, true, out) && stack.python != 0) {
    // Recorded apart: Python's frames take the place of the outer part, from the interpreter on.
    const auto interpreter = std::find_if(out.begin(), out.end(), [&](const Place& place) {
      const Frame& f = frames_[place.frame];
      return is_interpreter_frame(f.function, f.module);
    });
    out.erase(interpreter, out.end());
    append(stack.python, FrameKind::kPython, false, out);
  }
  if (show == Show::kWithoutPlumbing) {
    std::erase_if(out, [&](const Place& place) { return frames_[place.frame].plumbing; });
  }
  return out;
}

bool Stacks::is_cut(StackId id) {
  if (id == 0 || id >= stacks_.size()) return false;
  const Stack stack = stacks_[id];
  std::uint32_t node = stack.native != 0 ? stack.native : stack.python;
  std::uint8_t flags = 0;
  for (std::size_t depth = 0; node != 0 && depth < kMaxDepth; ++depth) {
    const auto found = recording_.stack_nodes.find(node);
    if (found == recording_.stack_nodes.end()) return true;
    flags = found->second.flags;
    node = found->second.parent;
  }
  return (flags & 1) != 0;
}

}  // namespace gpubusy::analysis
