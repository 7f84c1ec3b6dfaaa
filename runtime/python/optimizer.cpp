// SPDX-License-Identifier: Apache-2.0
#include "runtime/python/optimizer.hpp"

#include <cstring>

#include "runtime/python/frames.hpp"
#include "runtime/python/layout.hpp"

namespace gpubusy::runtime::python {
namespace {

// Characters of a str object: 1, 2 or 4 bytes each; data is nullptr for a legacy string (before
// 3.12, subclasses only), which never names code.
struct Text {
  const char* data;
  std::int64_t length;
  unsigned kind;  // bytes per character
};

Text text_of(const Layout& l, const char* s) noexcept {
  std::uint32_t state = load<std::uint32_t>(s, kStringState);
  if ((state >> 2 & 7) == 0) state >>= 14;  // 3.14
  const unsigned kind = state >> 2 & 7;
  if ((state >> 5 & 1) == 0) return {nullptr, 0, 0};
  const int header = (state >> 6 & 1) != 0 ? l.ascii_header : l.compact_header;
  return {s + header, load<std::int64_t>(s, kStringLength), kind};
}

bool equals_at(const Text& text, std::int64_t from, const char* wanted, std::int64_t n) noexcept {
  if (text.data == nullptr || from < 0 || from + n > text.length) return false;
  if (text.kind == 1) {
    return std::memcmp(text.data + from, wanted, static_cast<std::size_t>(n)) == 0;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t c = 0;
    std::memcpy(&c, text.data + (from + i) * text.kind, text.kind);
    if (c != static_cast<unsigned char>(wanted[i])) return false;
  }
  return true;
}

constexpr char kName[] = "wrapper";
// Dynamo splits a function that it cannot trace as a whole; the rest goes by this name.
constexpr char kResumed[] = "torch_dynamo_resume_in_wrapper_at_";
constexpr char kFile[] = "torch/optim/optimizer.py";
constexpr std::int64_t kNameLength = sizeof kName - 1;
constexpr std::int64_t kResumedLength = sizeof kResumed - 1;
constexpr std::int64_t kFileLength = sizeof kFile - 1;

[[gnu::noinline]] bool comes_from_torch(const Layout& l, const char* code) noexcept {
  const Text file = text_of(l, load<const char*>(code, l.file));
  const std::int64_t from = file.length - kFileLength;
  return equals_at(file, from, kFile, kFileLength) &&
         (from == 0 || equals_at(file, from - 1, "/", 1));
}

[[gnu::always_inline]] inline bool is_wrapper(const Layout& l, const char* code) noexcept {
  const auto* name = load<const char*>(code, l.name);
  const auto length = load<std::int64_t>(name, kStringLength);
  if (length != kNameLength && length <= kResumedLength) [[likely]]
    return false;
  const Text text = text_of(l, name);
  if (text.kind != 1) return false;
  const bool named = length == kNameLength ? equals_at(text, 0, kName, kNameLength)
                                           : equals_at(text, 0, kResumed, kResumedLength);
  return named && comes_from_torch(l, code);
}

// def wrapper(*args, **kwargs): the first local is the tuple args, whose first item is the object.
const void* self_of(const Interpreter& python, const char* frame) noexcept {
  const Layout& l = python.layout;
  const char* args = load_reference(frame, l.locals);
  if (args == nullptr || load<const void*>(args, kObjectType) != python.tuple_type ||
      load<std::int64_t>(args, kObjectSize) < 1) {
    return nullptr;
  }
  return load<const void*>(args, l.tuple_items);
}

struct Finder {
  const Layout& layout;
  int left = kDeepestOptimizerFrame;
  const char* found = nullptr;

  [[gnu::always_inline]] Visit frame(const char* f, const char* code, std::int32_t) noexcept {
    if (is_wrapper(layout, code)) [[unlikely]]
      found = f;
    return --left > 0 ? Visit::kContinue : Visit::kStop;
  }
  void entry(std::uintptr_t) noexcept {}
};

}  // namespace

OptimizerCall current_optimizer_call() noexcept {
  const Interpreter* python = ready_interpreter_or_probe();
  if (python == nullptr) return {};
  const char* thread_state = current_thread_state(*python);
  if (thread_state == nullptr) return {};
  Finder finder{python->layout};
  visit_frames(python->layout, thread_state, finder);
  if (finder.found == nullptr) return {};
  return {self_of(*python, finder.found), finder.found};
}

OptimizerCall optimizer_call_of_frame(const void* frame) noexcept {
  const Interpreter* python = ready_interpreter();
  if (python == nullptr) return {};
  return {self_of(*python, static_cast<const char*>(frame)), frame};
}

bool is_optimizer_wrapper(const void* code) noexcept {
  const Interpreter* python = ready_interpreter();
  return python != nullptr && is_wrapper(python->layout, static_cast<const char*>(code));
}

}  // namespace gpubusy::runtime::python
