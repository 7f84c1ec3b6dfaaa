// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/elf_bytes.hpp"

#include <cstring>

#include <fmt/format.h>

namespace gpubusy::analysis {

using recording::ByteSource;

namespace {

constexpr std::uint64_t kMaxNotes = 1 << 20;

std::string hex(const unsigned char* bytes, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

}  // namespace

bool read_elf_header(const ByteSource& source, Elf64_Ehdr& header) {
  return read_one(source, 0, header) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB;
}

std::string build_id_in(const ByteSource& source, std::uint64_t offset, std::uint64_t size,
                        std::uint64_t alignment) {
  std::vector<unsigned char> notes;
  if (size > kMaxNotes || !read_some(source, offset, size, notes)) return {};
  const std::uint64_t align = alignment == 8 ? 8 : 4;
  const auto round = [&](std::uint64_t n) { return (n + align - 1) & ~(align - 1); };
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

}  // namespace gpubusy::analysis
