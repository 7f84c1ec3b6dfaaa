// SPDX-License-Identifier: Apache-2.0
#include "analysis/coverage.hpp"

#include <elf.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "analysis/names.hpp"
#include "analysis/symbols/elf_bytes.hpp"
#include "recording/file_source.hpp"
#include "recording/format.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::string_view kMarker = "/cudart.shm.";
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kMaxHeaders = 4096;
constexpr std::size_t kMaxNotes = std::size_t{64} << 10;

// Whether the text lies in these bytes of the file. False too where they cannot be read.
bool holds(const recording::ByteSource& file, std::uint64_t at, std::uint64_t bytes,
           std::string_view text) {
  if (at > file.size()) return false;
  bytes = std::min(bytes, file.size() - at);
  std::string chunk;
  std::size_t kept = 0;
  while (bytes > 0) {
    const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kChunk));
    chunk.resize(kept + n);
    if (file.read(at, chunk.data() + kept, n) != n) return false;
    if (memmem(chunk.data(), chunk.size(), text.data(), text.size()) != nullptr) return true;
    kept = std::min(text.size() - 1, chunk.size());
    chunk.erase(0, chunk.size() - kept);
    at += n;
    bytes -= n;
  }
  return false;
}

struct Range {
  std::uint64_t at, bytes;
};

}  // namespace

EmbeddedRuntime find_embedded_runtime(const std::string& path, const std::string& build_id,
                                      std::string& why) {
  const auto unreadable = [&](std::string reason) {
    why = std::move(reason);
    return EmbeddedRuntime::kUnreadable;
  };
  if (file_name(path).starts_with("libcudart.")) return EmbeddedRuntime::kNo;
  const recording::FileSource file(path);
  if (!file.good()) {
    return unreadable(std::generic_category().message(file.error() != 0 ? file.error() : EINVAL));
  }
  Elf64_Ehdr header;
  if (!read_elf_header(file, header)) return unreadable("not a 64-bit ELF file");
  std::vector<Elf64_Phdr> segments;
  if (header.e_phentsize == sizeof(Elf64_Phdr)) {
    if (!read_some(file, header.e_phoff, std::min<std::size_t>(header.e_phnum, kMaxHeaders),
                   segments)) {
      return unreadable("its program headers are damaged");
    }
  }
  for (const Elf64_Phdr& p : segments) {
    if (p.p_type != PT_NOTE || build_id.empty() || p.p_filesz > kMaxNotes) continue;
    const std::string id = build_id_in(file, p.p_offset, p.p_filesz, p.p_align);
    if (id.empty()) continue;
    if (id.starts_with(build_id) || build_id.starts_with(id)) break;
    why = "it is another file now";
    return EmbeddedRuntime::kOtherFile;
  }
  std::vector<Elf64_Shdr> sections;
  std::vector<char> names;
  if (header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shnum > 0 &&
      header.e_shnum <= kMaxHeaders && header.e_shstrndx < header.e_shnum) {
    if (!read_some(file, header.e_shoff, header.e_shnum, sections) ||
        !read_some(file, sections[header.e_shstrndx].sh_offset, sections[header.e_shstrndx].sh_size,
                   names)) {
      sections.clear();
    }
  }
  if (!names.empty()) names.back() = '\0';
  std::vector<Range> constants;
  for (const Elf64_Shdr& s : sections) {
    const std::string_view name = s.sh_name < names.size() ? names.data() + s.sh_name : "";
    if (name == ".dynstr" && !holds(file, s.sh_offset, s.sh_size, {"\0dlsym\0", 7})) {
      return EmbeddedRuntime::kNo;  // libcudart looks everything of the driver up by it
    }
    if (name.starts_with(".rodata") && s.sh_type == SHT_PROGBITS) {
      constants.push_back({s.sh_offset, s.sh_size});
    }
  }
  if (constants.empty()) {  // without section headers: all that is mapped and not written
    for (const Elf64_Phdr& p : segments) {
      if (p.p_type == PT_LOAD && (p.p_flags & PF_W) == 0) {
        constants.push_back({p.p_offset, p.p_filesz});
      }
    }
  }
  for (const Range& range : constants) {
    if (holds(file, range.at, range.bytes, kMarker)) return EmbeddedRuntime::kYes;
  }
  return EmbeddedRuntime::kNo;
}

void ModuleScan::add(const recording::Recording& recording, Reach& reach) {
  constexpr std::size_t kMaxListed = 1000;
  for (const recording::Module& module : recording.modules) {
    const std::string& path = module.path.empty() ? recording.executable : module.path;
    if (path.starts_with("linux-vdso") || path.starts_with("linux-gate")) continue;
    const auto [it, fresh] = found_.try_emplace({path, module.build_id});
    Found& found = it->second;
    if (fresh) {
      if (module.cut || !path.starts_with('/')) {
        found = {EmbeddedRuntime::kUnreadable, "its whole path is not known"};
      } else {
        found.what = find_embedded_runtime(path, module.build_id, found.why);
      }
    }
    const auto known = [&](const auto& list, auto&& text) {
      return std::any_of(list.begin(), list.end(),
                         [&](const auto& entry) { return text(entry) == path; });
    };
    if (found.what == EmbeddedRuntime::kYes) {
      if (!known(reach.embedded, [](const std::string& s) { return s; })) {
        reach.embedded.push_back(path);
      }
    } else if (found.what != EmbeddedRuntime::kNo && reach.unread.size() < kMaxListed) {
      if (!known(reach.unread, [](const UnreadModule& u) { return u.path; })) {
        reach.unread.push_back({path, found.why});
      }
    }
  }
}

Reach reach_of(const recording::Recording& recording) {
  Reach out;
  out.known = recording.has_reach;
  out.driver_loaded = recording.driver_loaded;
  out.modules = recording.modules.size();
  out.modules_left_out = recording.modules_left_out;
  std::vector<std::uint64_t> calls(recording.apis.size());
  for (const recording::Call& call : recording.calls) {
    if (call.api < calls.size()) ++calls[call.api];
  }
  for (std::size_t i = 0; i < recording.apis.size(); ++i) {
    const auto layer = static_cast<std::size_t>(recording.apis[i].layer);
    if (recording.apis[i].name.empty() || layer >= out.layers.size()) continue;
    LayerReach& l = out.layers[layer];
    const std::uint8_t ways = i < recording.reach.size() ? recording.reach[i] : 0;
    l.calls += calls[i];
    l.functions_called += calls[i] > 0;
    if (out.known && ways == 0) l.linked_calls += calls[i];
    l.by_dlsym += (ways & recording::kReachDlsym) != 0;
    l.by_dlvsym += (ways & recording::kReachDlvsym) != 0;
    l.by_proc_address += (ways & recording::kReachProcAddress) != 0;
  }
  return out;
}

}  // namespace gpubusy::analysis
