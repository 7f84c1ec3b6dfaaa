// SPDX-License-Identifier: Apache-2.0
//
// What decides whether ld.so can preload a library into a program, read from the files' bytes.
// Takes any bytes: everything is bounds-checked. No tool is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpubusy::launcher {

struct GlibcVersion {
  unsigned major = 0, minor = 0;
  auto operator<=>(const GlibcVersion&) const = default;
};

struct ElfFile {
  int bits = 0;  // 32 or 64
  bool little_endian = true;
  std::uint16_t type = 0;     // ET_EXEC, ET_DYN
  std::uint16_t machine = 0;  // EM_…
  std::string interpreter;    // PT_INTERP; empty: static
  std::vector<std::string> needed;
  GlibcVersion needs_glibc;     // highest GLIBC_x.y asked for; 0.0: none
  GlibcVersion provides_glibc;  // highest GLIBC_x.y defined (a libc)
};

// Nothing: not an ELF file. Parts that are damaged or beyond the limits are left empty.
std::optional<ElfFile> parse_elf(std::span<const std::byte> bytes);
std::optional<ElfFile> read_elf(const std::string& path);

// The names that a 64-bit library defines for others; empty: not an ELF file, or none.
std::vector<std::string> exported_names(const std::string& path);

// "x86-64", "aarch64", …, or "machine 123".
std::string machine_name(std::uint16_t machine);

// The interpreter of a script's first line and its one argument, as the kernel reads it.
struct Shebang {
  std::string interpreter, argument;
};
std::optional<Shebang> read_shebang(const std::string& path);

}  // namespace gpubusy::launcher
