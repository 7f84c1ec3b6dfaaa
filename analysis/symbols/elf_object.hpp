// SPDX-License-Identifier: Apache-2.0
//
// What an ELF file (64 bits, little endian) says of itself, and the names of its functions. Takes
// any bytes: everything is checked against the file's size and limits. Addresses are the file's
// own, before the load bias. Thread-safety: const functions may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recording/byte_source.hpp"

namespace gpubusy::analysis {

struct ElfSection {
  std::string name;
  std::uint32_t type = 0, link = 0;
  std::uint64_t flags = 0, address = 0, offset = 0, size = 0;
};

// .gnu_debuglink: a separate file with the debug information.
struct DebugLink {
  std::string file_name;
  std::uint32_t crc;  // of the whole file
};

class ElfObject {
 public:
  // nullptr: not such a file.
  static std::unique_ptr<ElfObject> read(std::unique_ptr<const recording::ByteSource> source);

  const recording::ByteSource& source() const { return *source_; }
  const std::vector<ElfSection>& sections() const { return sections_; }
  const std::string& build_id() const { return build_id_; }  // hex; empty: none
  std::optional<DebugLink> debug_link() const;
  bool has_debug_info() const;  // DWARF with lines, whole
  // A section's bytes; empty: there is none of that name, or it is larger than `limit`.
  std::vector<std::byte> contents(std::string_view section, std::uint64_t limit) const;

 private:
  explicit ElfObject(std::unique_ptr<const recording::ByteSource> source)
      : source_(std::move(source)) {}
  bool parse();
  const ElfSection* find(std::string_view section) const;

  std::unique_ptr<const recording::ByteSource> source_;
  std::vector<ElfSection> sections_;
  std::string build_id_;
};

// Functions by address, of one symbol table.
class SymbolTable {
 public:
  // kAll: .symtab. kExported: .dynsym, in which most functions are missing, so that a name holds as
  // far as its size only. The object must outlive the table.
  enum class Kind : std::uint8_t { kAll, kExported };
  SymbolTable(const ElfObject& object, Kind kind);

  bool empty() const { return symbols_.empty(); }
  // The symbol as it is written, without version; empty: none is known to hold the address. Of
  // several at one place always the same: global before weak before local, then the plainest.
  std::string at(std::uint64_t address) const;

 private:
  struct Symbol {
    std::uint64_t begin, end;
    std::uint32_t name;  // offset in the string table
    std::uint32_t rank;  // less is better
  };
  // From `begin` on the symbols that begin at `owner` hold, up to the next of these.
  struct Segment {
    std::uint64_t begin;
    std::uint32_t owner;
  };
  void load(const ElfSection& section, Kind kind);
  void bound_those_without_size();
  void make_segments();
  std::string name_of(const Symbol& symbol) const;

  const ElfObject* object_;
  std::uint64_t strings_ = 0, strings_size_ = 0;
  std::vector<Symbol> symbols_;  // by begin, then rank
  std::vector<Segment> segments_;
};

// The function that a symbol is a part or a copy of: without .cold, .part.0, .constprop.1, ….
std::string_view whole_function(std::string_view linkage);

}  // namespace gpubusy::analysis
