// SPDX-License-Identifier: Apache-2.0
#include "analysis/coverage.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "recording/format.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::string_view kMarker = "/cudart.shm.";
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kMaxHeaders = 4096;
constexpr std::size_t kMaxNotes = std::size_t{64} << 10;

class File {
 public:
  explicit File(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
    struct stat info {};
    if (fd_ < 0 || fstat(fd_, &info) != 0) {
      error_ = errno;
    } else if (!S_ISREG(info.st_mode)) {
      error_ = EINVAL;
    } else {
      size_ = static_cast<std::uint64_t>(info.st_size);
    }
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int error() const { return error_; }
  std::uint64_t size() const { return size_; }
  bool read(std::uint64_t at, void* out, std::size_t bytes) const {
    if (at > size_ || bytes > size_ - at) return false;
    char* p = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t n = pread(fd_, p, bytes, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      p += n;
      at += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::size_t>(n);
    }
    return true;
  }
  template <class T>
  bool read(std::uint64_t at, std::vector<T>& out, std::size_t count) const {
    out.resize(count);
    return read(at, out.data(), count * sizeof(T));
  }
  // Whether the text lies in these bytes of the file. False too where they cannot be read.
  bool holds(std::uint64_t at, std::uint64_t bytes, std::string_view text) const {
    if (at > size_) return false;
    bytes = std::min(bytes, size_ - at);
    std::string chunk;
    std::size_t kept = 0;
    while (bytes > 0) {
      const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kChunk));
      chunk.resize(kept + n);
      if (!read(at, chunk.data() + kept, n)) return false;
      if (memmem(chunk.data(), chunk.size(), text.data(), text.size()) != nullptr) return true;
      kept = std::min(text.size() - 1, chunk.size());
      chunk.erase(0, chunk.size() - kept);
      at += n;
      bytes -= n;
    }
    return false;
  }

 private:
  int fd_;
  int error_ = 0;
  std::uint64_t size_ = 0;
};

std::string hex(const unsigned char* bytes, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

std::string build_id_in(const File& file, const Elf64_Phdr& p) {
  std::vector<unsigned char> notes;
  const std::uint64_t align = p.p_align == 8 ? 8 : 4;
  const auto round = [&](std::uint64_t n) { return (n + align - 1) & ~(align - 1); };
  if (p.p_filesz > kMaxNotes || !file.read(p.p_offset, notes, p.p_filesz)) return {};
  for (std::uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data() + at, sizeof note);
    const std::uint64_t name = at + sizeof note;
    const std::uint64_t text = name + round(note.n_namesz);
    if (text + note.n_descsz > notes.size()) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes.data() + name, "GNU", 4) == 0) {
      return hex(notes.data() + text, note.n_descsz);
    }
    at = text + round(note.n_descsz);
  }
  return {};
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
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
  if (base_name(path).starts_with("libcudart.")) return EmbeddedRuntime::kNo;
  const File file(path);
  if (file.error() != 0) return unreadable(std::generic_category().message(file.error()));
  Elf64_Ehdr header;
  if (!file.read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return unreadable("not a 64-bit ELF file");
  }
  std::vector<Elf64_Phdr> segments;
  if (header.e_phentsize == sizeof(Elf64_Phdr)) {
    if (!file.read(header.e_phoff, segments, std::min<std::size_t>(header.e_phnum, kMaxHeaders))) {
      return unreadable("its program headers are damaged");
    }
  }
  for (const Elf64_Phdr& p : segments) {
    if (p.p_type != PT_NOTE || build_id.empty()) continue;
    const std::string id = build_id_in(file, p);
    if (id.empty()) continue;
    if (id.starts_with(build_id) || build_id.starts_with(id)) break;
    why = "it is another file now";
    return EmbeddedRuntime::kOtherFile;
  }
  std::vector<Elf64_Shdr> sections;
  std::vector<char> names;
  if (header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shnum > 0 &&
      header.e_shnum <= kMaxHeaders && header.e_shstrndx < header.e_shnum) {
    if (!file.read(header.e_shoff, sections, header.e_shnum) ||
        sections[header.e_shstrndx].sh_size > file.size() ||
        !file.read(sections[header.e_shstrndx].sh_offset, names,
                   sections[header.e_shstrndx].sh_size)) {
      sections.clear();
    }
  }
  if (!names.empty()) names.back() = '\0';
  std::vector<Range> constants;
  for (const Elf64_Shdr& s : sections) {
    const std::string_view name = s.sh_name < names.size() ? names.data() + s.sh_name : "";
    if (name == ".dynstr" && !file.holds(s.sh_offset, s.sh_size, {"\0dlsym\0", 7})) {
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
    if (file.holds(range.at, range.bytes, kMarker)) return EmbeddedRuntime::kYes;
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
