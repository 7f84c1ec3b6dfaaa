// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gpubusy::analysis {

// What an .xz stream holds, by liblzma, which is opened when it is first needed. Empty: the library
// is not there, the stream is damaged, or it holds more than `limit` bytes.
std::vector<std::byte> unpack_xz(std::span<const std::byte> packed, std::size_t limit);

}  // namespace gpubusy::analysis
