// SPDX-License-Identifier: Apache-2.0
#include "analysis/python_lines.hpp"

#include <cstddef>
#include <limits>
#include <optional>

namespace gpubusy::analysis {
namespace {

class Bytes {
 public:
  explicit Bytes(const std::string& text) : text_(text) {}
  bool empty() const { return at_ >= text_.size(); }
  std::uint8_t next() { return static_cast<std::uint8_t>(text_[at_++]); }

  // Six bits a byte, bit 6: more follow. Nothing where the table ends inside or the value is
  // absurd.
  std::optional<std::uint32_t> next_varint() {
    std::uint32_t value = 0;
    for (int shift = 0; shift < 30; shift += 6) {
      if (empty()) return std::nullopt;
      const std::uint8_t byte = next();
      value |= static_cast<std::uint32_t>(byte & 63) << shift;
      if ((byte & 64) == 0) return value;
    }
    return std::nullopt;
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

int signed_byte(std::uint8_t byte) { return byte < 128 ? byte : byte - 256; }

int to_line(std::int64_t line, int first_line) {
  return line < 0 || line > std::numeric_limits<int>::max() ? first_line : static_cast<int>(line);
}

// Pairs (bytes, lines) up to 3.9: the line of an instruction is what was added up before it.
int from_lnotab(const std::string& table, int first_line, std::uint32_t offset) {
  Bytes bytes(table);
  std::int64_t line = first_line;
  std::uint64_t address = 0;
  while (!bytes.empty()) {
    address += bytes.next();
    if (address > offset || bytes.empty()) break;
    line += signed_byte(bytes.next());
  }
  return to_line(line, first_line);
}

// Pairs (bytes, lines) of 3.10: a range and its line, -128: no line.
int from_ranges(const std::string& table, int first_line, std::uint32_t offset) {
  Bytes bytes(table);
  std::int64_t line = first_line;
  std::uint64_t end = 0;
  while (!bytes.empty()) {
    end += bytes.next();
    if (bytes.empty()) break;
    const int delta = signed_byte(bytes.next());
    if (delta != -128) line += delta;
    if (offset < end) return delta == -128 ? first_line : to_line(line, first_line);
  }
  return first_line;
}

// Since 3.11, see InternalDocs/code_objects.md (Objects/locations.md until 3.12) in CPython:
// entries that begin with a byte 1 kkkk lll: kind k, l + 1 code units.
int from_locations(const std::string& table, int first_line, std::uint32_t offset) {
  Bytes bytes(table);
  std::int64_t line = first_line;
  std::uint64_t end = 0;
  while (!bytes.empty()) {
    const std::uint8_t head = bytes.next();
    if ((head & 128) == 0) break;
    const int kind = head >> 3 & 15;
    end += 2 * (static_cast<unsigned>(head & 7) + 1);
    int columns = 0;  // bytes of columns that follow
    int column_varints = 0;
    bool has_line = true;
    if (kind == 15) {
      has_line = false;
    } else if (kind >= 13) {  // 13: no columns, 14: all four values
      const std::optional<std::uint32_t> delta = bytes.next_varint();
      if (!delta) break;
      const std::int64_t size = *delta >> 1;
      line += (*delta & 1) != 0 ? -size : size;
      column_varints = kind == 14 ? 3 : 0;
    } else if (kind >= 10) {
      line += kind - 10;
      columns = 2;
    } else {
      columns = 1;
    }
    if (offset < end) return has_line ? to_line(line, first_line) : first_line;
    for (; columns > 0 && !bytes.empty(); --columns) bytes.next();
    for (; column_varints > 0; --column_varints) {
      if (!bytes.next_varint()) return first_line;
    }
  }
  return first_line;
}

}  // namespace

int line_of(const std::string& line_table, int first_line, int python_minor,
            std::uint32_t instruction_offset) {
  if (python_minor <= 9) return from_lnotab(line_table, first_line, instruction_offset);
  if (python_minor == 10) return from_ranges(line_table, first_line, instruction_offset);
  return from_locations(line_table, first_line, instruction_offset);
}

}  // namespace gpubusy::analysis
