// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as an ELF object, and as the names kept beside a recording. A valid header is put in
// front of half of the inputs, so that what lies behind it is reached.
#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/symbols/elf_object.hpp"
#include "analysis/symbols/memory_source.hpp"
#include "analysis/symbols/name_file.hpp"

namespace {

using namespace gpubusy::analysis;

void read_object(std::vector<std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  const auto object = ElfObject::read(std::make_unique<MemorySource>(std::move(bytes)));
  if (object == nullptr) return;
  object->debug_link();
  object->has_debug_info();
  object->contents(".gnu_debugdata", 1 << 20);
  for (const auto kind : {SymbolTable::Kind::kAll, SymbolTable::Kind::kExported}) {
    const SymbolTable table(*object, kind);
    for (std::uint64_t address = 0; address < size; address += 1 + size / 64) table.at(address);
    table.at(~std::uint64_t{0});
  }
}

void read_names(std::string_view text) {
  const gpubusy::recording::Recording recording;
  NameFile file(recording);
  if (!file.parse(text)) return;
  // What was read can be written and read again, without a bad line.
  NameFile again(recording);
  const std::string written = file.text();
  if (!again.parse(written) || again.bad_lines() != 0 || again.text() != written) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto* text = reinterpret_cast<const char*>(data + 1);
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  switch (data[0] % 4) {
    case 0: read_object(std::move(bytes)); break;
    case 1: {  // sections at the very place behind the header
      Elf64_Ehdr header{};
      std::memcpy(header.e_ident, ELFMAG, SELFMAG);
      header.e_ident[EI_CLASS] = ELFCLASS64;
      header.e_ident[EI_DATA] = ELFDATA2LSB;
      header.e_shoff = sizeof header;
      header.e_shentsize = sizeof(Elf64_Shdr);
      header.e_shnum = static_cast<std::uint16_t>(data[0] / 4 % 8 + 1);
      std::vector<std::byte> whole(sizeof header + bytes.size());
      std::memcpy(whole.data(), &header, sizeof header);
      if (!bytes.empty()) std::memcpy(whole.data() + sizeof header, bytes.data(), bytes.size());
      read_object(std::move(whole));
      break;
    }
    case 2: read_names({text, size - 1}); break;
    default: {
      std::string lines = "gpubusy symbols 1\nrecording 0 0\nmodule 00 /a\n";
      lines.append(text, size - 1);
      read_names(lines);
    }
  }
  return 0;
}
