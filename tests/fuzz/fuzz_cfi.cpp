// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as an object's unwind tables. The first byte chooses: the whole of .eh_frame_hdr and
// .eh_frame, or only the instructions of one function between sound tables.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/native/cfi.hpp"

namespace {

using namespace gpubusy::runtime::native;

void put32(std::vector<unsigned char>& out, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<unsigned char>(value >> 8 * i));
}

void look_up(const std::vector<unsigned char>& bytes, std::uintptr_t pc_offset) {
  const auto base = reinterpret_cast<std::uintptr_t>(bytes.data());
  Image image;
  image.header = base;
  image.ranges[0] = {base, base + bytes.size()};
  image.range_count = 1;
  find_rule(image, base + pc_offset);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::uintptr_t pc = data[1] | data[2] << 8;
  if (data[0] % 2 == 0) {
    std::vector<unsigned char> bytes(data + 3, data + size);
    bytes.shrink_to_fit();
    look_up(bytes, pc);
    return 0;
  }
  // One function of 64 KiB at the header's own address.
  const std::size_t first = std::min<std::size_t>(data[3], size - 4);
  std::vector<unsigned char> out = {1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0};
  put32(out, 1);
  put32(out, 0);
  const std::size_t link = out.size();
  put32(out, 0);
  const std::size_t cie = out.size();
  std::vector<unsigned char> body = {1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b};
  body.insert(body.end(), data + 4, data + 4 + first);
  put32(out, static_cast<std::uint32_t>(body.size() + 4));
  put32(out, 0);
  out.insert(out.end(), body.begin(), body.end());
  const auto fde = static_cast<std::uint32_t>(out.size());
  std::memcpy(out.data() + link, &fde, 4);
  put32(out, static_cast<std::uint32_t>(13 + (size - 4 - first)));
  put32(out, static_cast<std::uint32_t>(out.size() - cie));
  put32(out, static_cast<std::uint32_t>(-static_cast<std::int64_t>(out.size())));
  put32(out, 65536);
  out.push_back(0);
  out.insert(out.end(), data + 4 + first, data + size);
  out.shrink_to_fit();
  look_up(out, pc);
  return 0;
}
