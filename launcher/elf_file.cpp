// SPDX-License-Identifier: Apache-2.0
#include "launcher/elf_file.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

namespace gpubusy::launcher {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are read as little endian");

constexpr std::size_t kMaxEntries = 4096;  // of any table: real ones have far fewer
constexpr std::size_t kMaxString = 4096;

class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  std::optional<T> at(std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  // A terminated string; empty where it is not one.
  std::string string_at(std::uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    const char* text = reinterpret_cast<const char*>(bytes_.data()) + offset;
    const std::size_t room = std::min<std::uint64_t>(bytes_.size() - offset, kMaxString);
    const std::size_t length = strnlen(text, room);
    return length == room ? std::string() : std::string(text, length);
  }

 private:
  std::span<const std::byte> bytes_;
};

std::optional<GlibcVersion> glibc_version(std::string_view name) {
  constexpr std::string_view kPrefix = "GLIBC_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  GlibcVersion version;
  unsigned* part = &version.major;
  bool digits = false;
  for (const char c : name) {
    if (c == '.' && part == &version.major && digits) {
      part = &version.minor;
    } else if (c == '.') {
      break;  // GLIBC_2.2.5
    } else if (c >= '0' && c <= '9' && *part < 100000) {
      *part = *part * 10 + static_cast<unsigned>(c - '0');
      digits = true;
    } else {
      return std::nullopt;  // GLIBC_PRIVATE
    }
  }
  return digits ? std::optional(version) : std::nullopt;
}

struct Elf32 {
  using Ehdr = Elf32_Ehdr;
  using Phdr = Elf32_Phdr;
  using Dyn = Elf32_Dyn;
};
struct Elf64 {
  using Ehdr = Elf64_Ehdr;
  using Phdr = Elf64_Phdr;
  using Dyn = Elf64_Dyn;
};

template <typename Class>
void parse_body(const Bytes& bytes, ElfFile& file) {
  const auto header = bytes.at<typename Class::Ehdr>(0);
  if (!header) return;
  file.type = header->e_type;
  file.machine = header->e_machine;
  if (header->e_phentsize != sizeof(typename Class::Phdr)) return;

  struct Load {
    std::uint64_t address, offset, size;
  };
  std::vector<Load> loads;
  std::uint64_t dynamic_offset = 0, dynamic_size = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(header->e_phnum, kMaxEntries); ++i) {
    const auto segment = bytes.at<typename Class::Phdr>(std::uint64_t{header->e_phoff} +
                                                        i * sizeof(typename Class::Phdr));
    if (!segment) break;
    if (segment->p_type == PT_INTERP) {
      file.interpreter = bytes.string_at(segment->p_offset);
    } else if (segment->p_type == PT_LOAD) {
      loads.push_back({segment->p_vaddr, segment->p_offset, segment->p_filesz});
    } else if (segment->p_type == PT_DYNAMIC) {
      dynamic_offset = segment->p_offset;
      dynamic_size = segment->p_filesz;
    }
  }
  const auto offset_of = [&](std::uint64_t address) -> std::optional<std::uint64_t> {
    for (const Load& load : loads) {
      if (address >= load.address && address - load.address < load.size) {
        return load.offset + (address - load.address);
      }
    }
    return std::nullopt;
  };

  std::vector<std::uint64_t> needed;
  std::optional<std::uint64_t> strings, version_needs, version_definitions;
  const std::size_t entries =
      std::min<std::uint64_t>(dynamic_size / sizeof(typename Class::Dyn), kMaxEntries);
  for (std::size_t i = 0; i < entries; ++i) {
    const auto entry =
        bytes.at<typename Class::Dyn>(dynamic_offset + i * sizeof(typename Class::Dyn));
    if (!entry || entry->d_tag == DT_NULL) break;
    switch (entry->d_tag) {
      case DT_NEEDED: needed.push_back(entry->d_un.d_val); break;
      case DT_STRTAB: strings = offset_of(entry->d_un.d_ptr); break;
      case DT_VERNEED: version_needs = offset_of(entry->d_un.d_ptr); break;
      case DT_VERDEF: version_definitions = offset_of(entry->d_un.d_ptr); break;
      default: break;
    }
  }
  if (!strings) return;
  for (const std::uint64_t name : needed) file.needed.push_back(bytes.string_at(*strings + name));

  // Both tables are chains of relative offsets with chains inside; a total limit ends loops.
  std::size_t left = kMaxEntries;
  const auto note = [&](GlibcVersion& highest, std::uint64_t name) {
    const auto version = glibc_version(bytes.string_at(*strings + name));
    if (version) highest = std::max(highest, *version);
  };
  for (auto at = version_needs; at && left > 0; --left) {
    const auto need = bytes.at<Elf64_Verneed>(*at);
    if (!need) break;
    std::uint64_t aux_at = *at + need->vn_aux;
    for (std::size_t i = 0; i < need->vn_cnt && left > 0; ++i, --left) {
      const auto aux = bytes.at<Elf64_Vernaux>(aux_at);
      if (!aux) break;
      note(file.needs_glibc, aux->vna_name);
      if (aux->vna_next == 0) break;
      aux_at += aux->vna_next;
    }
    if (need->vn_next == 0) break;
    at = *at + need->vn_next;
  }
  for (auto at = version_definitions; at && left > 0; --left) {
    const auto definition = bytes.at<Elf64_Verdef>(*at);
    if (!definition) break;
    const auto aux = bytes.at<Elf64_Verdaux>(*at + definition->vd_aux);
    if (aux) note(file.provides_glibc, aux->vda_name);
    if (definition->vd_next == 0) break;
    at = *at + definition->vd_next;
  }
}

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    // O_NONBLOCK: a named pipe must not hold us up.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;
    struct stat info {};
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      size_ = static_cast<std::size_t>(info.st_size);
      address_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (address_ == MAP_FAILED) address_ = nullptr;
    }
    close(fd);
  }
  ~MappedFile() {
    if (address_ != nullptr) munmap(address_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const {
    if (address_ == nullptr) return {};
    return {static_cast<const std::byte*>(address_), size_};
  }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

std::optional<ElfFile> parse_elf(std::span<const std::byte> span) {
  const Bytes bytes(span);
  const auto ident = bytes.at<std::array<unsigned char, EI_NIDENT>>(0);
  if (!ident || std::memcmp(ident->data(), ELFMAG, SELFMAG) != 0) return std::nullopt;
  ElfFile file;
  file.bits = (*ident)[EI_CLASS] == ELFCLASS32 ? 32 : (*ident)[EI_CLASS] == ELFCLASS64 ? 64 : 0;
  file.little_endian = (*ident)[EI_DATA] == ELFDATA2LSB;
  if (!file.little_endian) return file;  // another architecture: nothing more is needed
  if (file.bits == 64) parse_body<Elf64>(bytes, file);
  if (file.bits == 32) parse_body<Elf32>(bytes, file);
  return file;
}

std::optional<ElfFile> read_elf(const std::string& path) {
  const MappedFile file(path);
  return parse_elf(file.bytes());
}

std::vector<std::string> exported_names(const std::string& path) {
  constexpr std::size_t kMaxSymbols = 1u << 20;
  const MappedFile file(path);
  const Bytes bytes(file.bytes());
  std::vector<std::string> names;
  const auto header = bytes.at<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr)) {
    return names;
  }
  const auto section = [&](std::size_t i) {
    return bytes.at<Elf64_Shdr>(header->e_shoff + i * sizeof(Elf64_Shdr));
  };
  for (std::size_t i = 0; i < std::min<std::size_t>(header->e_shnum, kMaxEntries); ++i) {
    const auto symbols = section(i);
    if (!symbols || symbols->sh_type != SHT_DYNSYM) continue;
    const auto strings = section(symbols->sh_link);
    if (!strings) break;
    const std::size_t count =
        std::min<std::size_t>(symbols->sh_size / sizeof(Elf64_Sym), kMaxSymbols);
    for (std::size_t s = 0; s < count; ++s) {
      const auto symbol = bytes.at<Elf64_Sym>(symbols->sh_offset + s * sizeof(Elf64_Sym));
      if (!symbol) break;
      const unsigned char bind = ELF64_ST_BIND(symbol->st_info);
      if (symbol->st_shndx == SHN_UNDEF || (bind != STB_GLOBAL && bind != STB_WEAK)) continue;
      names.push_back(bytes.string_at(strings->sh_offset + symbol->st_name));
    }
  }
  return names;
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_386: return "x86 (32 bits)";
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "aarch64";
    case EM_ARM: return "arm";
    case EM_PPC64: return "ppc64";
    case EM_RISCV: return "riscv";
    case EM_S390: return "s390";
    default: return fmt::format("machine {}", machine);
  }
}

std::optional<Shebang> read_shebang(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  char text[257] = {};
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size < 3 || text[0] != '#' || text[1] != '!') return std::nullopt;
  std::string_view line(text, static_cast<std::size_t>(size));
  line =
      line.substr(2, line.find('\n') == std::string_view::npos ? line.npos : line.find('\n') - 2);
  constexpr std::string_view kBlank = " \t";
  const auto trim = [&](std::string_view s) {
    const std::size_t first = s.find_first_not_of(kBlank);
    if (first == s.npos) return std::string_view();
    return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
  };
  line = trim(line);
  if (line.empty()) return std::nullopt;
  const std::size_t blank = line.find_first_of(kBlank);
  if (blank == line.npos) return Shebang{std::string(line), {}};
  return Shebang{std::string(line.substr(0, blank)), std::string(trim(line.substr(blank)))};
}

}  // namespace gpubusy::launcher
