// SPDX-License-Identifier: Apache-2.0
//
// The buffers that CUPTI writes activity records into. CUPTI asks for them and gives them back on
// whatever thread it likes, also inside calls of the program and from signal handlers: both take a
// few atomic operations and no lock. The records are read later, by the harvest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime::cupti {

inline constexpr std::size_t kBufferBytes = 512 * 1024;  // 1,500 launches
inline constexpr std::size_t kBuffers = 64;

struct FullBuffer {
  std::uint8_t* data = nullptr;
  std::size_t valid = 0;    // bytes
  std::uint32_t epoch = 0;  // of its request
  std::size_t index = 0;
};

// False without memory. Buffers given out from now on bear this epoch.
bool prepare_buffers(std::uint32_t epoch) noexcept;
// nullptr: none is free.
std::uint8_t* take_buffer() noexcept;
bool is_our_buffer(const std::uint8_t* buffer) noexcept;
void give_back_full(std::uint8_t* buffer, std::size_t valid) noexcept;
bool any_full_buffer() noexcept;
// The one that was given back first. One reader at a time; ends with release_buffer().
bool next_full_buffer(FullBuffer& out) noexcept;
void release_buffer(const FullBuffer& buffer) noexcept;
// Pages of free buffers go back to the system.
void trim_buffers() noexcept;
// CUPTI has forgotten what it had (cuptiFinalize): those not given back are free.
void reclaim_buffers() noexcept;

}  // namespace gpubusy::runtime::cupti
