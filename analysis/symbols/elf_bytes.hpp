// SPDX-License-Identifier: Apache-2.0
//
// Reading structures of an ELF file from any bytes. Thread-safe.
#pragma once

#include <elf.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "recording/byte_source.hpp"

namespace gpubusy::analysis {

static_assert(std::endian::native == std::endian::little, "fields are read as little endian");

template <class T>
bool read_one(const recording::ByteSource& source, std::uint64_t offset, T& out) {
  return source.read(offset, &out, sizeof out) == sizeof out;
}

// False: not all of it is there.
template <class T>
bool read_some(const recording::ByteSource& source, std::uint64_t offset, std::uint64_t count,
               std::vector<T>& out) {
  if (offset > source.size() || count > (source.size() - offset) / sizeof(T)) return false;
  out.resize(count);
  return count == 0 || source.read(offset, out.data(), count * sizeof(T)) == count * sizeof(T);
}

// False: not an ELF file of 64 bits, little endian.
bool read_elf_header(const recording::ByteSource& source, Elf64_Ehdr& header);

// Of a section or segment of notes; hex. Empty: there is none, or it is too large to be one.
std::string build_id_in(const recording::ByteSource& source, std::uint64_t offset,
                        std::uint64_t size, std::uint64_t alignment);

}  // namespace gpubusy::analysis
