// SPDX-License-Identifier: Apache-2.0
#include "analysis/names.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace gpubusy::analysis {
namespace {

// A hostile name can make the demangler's output exponential in its input.
constexpr std::size_t kMaxMangled = 16384;

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string demangle(const std::string& name) {
  if (!name.starts_with("_Z") || name.size() > kMaxMangled) return name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : name;
}

std::string_view file_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string_view source_name(std::string_view path) {
  const std::string_view name = file_name(path);
  if (name != "__init__.py" && name != "__main__.py") return name;
  const std::string_view folder = path.substr(0, path.size() - name.size());
  if (folder.size() < 2) return name;
  return path.substr(folder.size() - 1 - file_name(folder.substr(0, folder.size() - 1)).size());
}

std::string_view api_base_name(std::string_view name) {
  name = without_suffix(without_suffix(name, "_ptsz"), "_ptds");
  const std::size_t at = name.rfind("_v");
  if (at == std::string_view::npos || at + 2 == name.size() || at == 0) return name;
  for (const char c : name.substr(at + 2)) {
    if (c < '0' || c > '9') return name;
  }
  return name.substr(0, at);
}

std::string_view memory_kind_name(recording::MemoryKind kind) {
  using enum recording::MemoryKind;
  switch (kind) {
    case kPageable: return "Pageable";
    case kPinned: return "Pinned";
    case kDevice: return "Device";
    case kArray: return "Array";
    case kManaged: return "Managed";
    case kUnknown: break;
  }
  return "Unknown";
}

std::string_view direction_name(recording::CopyDirection direction) {
  using enum recording::CopyDirection;
  switch (direction) {
    case kHostToDevice: return "HtoD";
    case kDeviceToHost: return "DtoH";
    case kDeviceToDevice: return "DtoD";
    case kHostToHost: return "HtoH";
    case kPeerToPeer: return "PtoP";
    case kUnknown: break;
  }
  return "Unknown";
}

std::string_view time_source_name(recording::TimeSource source) {
  using enum recording::TimeSource;
  switch (source) {
    case kEvents: return "cuda events";
    case kCupti: return "cupti";
    case kNone: break;
  }
  return "none";
}

std::string_view step_source_name(recording::StepSource source) {
  using enum recording::StepSource;
  switch (source) {
    case kOptimizer: return "optimizer step";
    case kKernel: return "kernel pattern";
    case kCall: return "call";
    case kNvtx: return "NVTX range";
    case kNone: break;
  }
  return "none";
}

std::string_view file_state_name(recording::FileState state) {
  using enum recording::FileState;
  switch (state) {
    case kFinished: return "finished";
    case kExecuted: return "replaced by exec";
    case kDiskFull: return "disk full";
    case kBudgetSpent: return "budget spent";
    case kDescriptorLost: return "descriptor lost";
    case kWriteFailed: return "write failed";
    case kFileLimit: return "file size limit";
    case kOpen: break;
  }
  return "open";
}

std::size_t length_of(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += !continues_character(c);
  return count;
}

std::string first_characters(const std::string& text, std::size_t count) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool starts = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
    if (starts && count-- == 0) break;
  }
  return text.substr(0, at);
}

std::string shorten(const std::string& text, std::size_t characters, bool ascii) {
  if (length_of(text) <= characters) return text;
  const std::string_view mark = ascii ? "..." : "…";
  const std::size_t mark_length = ascii ? 3 : 1;
  std::size_t keep = characters > mark_length ? characters - mark_length : 0;
  std::size_t at = 0;
  while (at < text.size() && keep > 0) {
    ++at;
    while (at < text.size() && continues_character(text[at])) ++at;
    --keep;
  }
  return text.substr(0, at) + std::string(mark);
}

}  // namespace gpubusy::analysis
