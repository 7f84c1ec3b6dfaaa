// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/xz.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>

namespace gpubusy::analysis {
namespace {

// lzma_stream_buffer_decode of liblzma 5.
using Decode = int (*)(std::uint64_t* memory_limit, std::uint32_t flags, const void* allocator,
                       const std::uint8_t* in, std::size_t* in_position, std::size_t in_size,
                       std::uint8_t* out, std::size_t* out_position, std::size_t out_size);
constexpr int kOk = 0;       // LZMA_OK
constexpr int kNoRoom = 10;  // LZMA_BUF_ERROR: the output is larger
constexpr std::uint64_t kMemory = std::uint64_t{256} << 20;

Decode decoder() {
  static const Decode function = [] {
    void* library = dlopen("liblzma.so.5", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Decode>(dlsym(library, "lzma_stream_buffer_decode"));
  }();
  return function;
}

}  // namespace

std::vector<std::byte> unpack_xz(std::span<const std::byte> packed, std::size_t limit) {
  const Decode decode = decoder();
  if (decode == nullptr || packed.empty()) return {};
  std::vector<std::byte> out;
  for (std::size_t room = std::min(limit, std::max<std::size_t>(packed.size() * 8, 4096));;
       room = std::min(limit, room * 4)) {
    out.resize(room);
    std::uint64_t memory = kMemory;
    std::size_t taken = 0, given = 0;
    const int result =
        decode(&memory, 0, nullptr, reinterpret_cast<const std::uint8_t*>(packed.data()), &taken,
               packed.size(), reinterpret_cast<std::uint8_t*>(out.data()), &given, out.size());
    if (result == kOk) {
      out.resize(given);
      return out;
    }
    if (result != kNoRoom || room == limit) return {};
  }
}

}  // namespace gpubusy::analysis
