// SPDX-License-Identifier: Apache-2.0
//
// One piece of work for a device: what it is, how long it takes, and what it does to memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::sim {

class Kernel;

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const noexcept { return std::uint64_t{x} * y * z; }
};

enum class OpKind : std::uint8_t { kEmpty, kKernel, kCopy, kMemset, kHostFunction };
enum class MemoryKind : std::uint8_t { kNone, kPageable, kPinned, kDevice, kManaged };
enum class Engine : std::uint8_t { kNone, kSm, kHostToDevice, kDeviceToHost, kDeviceToDevice };
inline constexpr int kEngines = 5;

// What really happens in host memory, which stands for the device's.
struct Effect {
  enum class Type : std::uint8_t { kNone, kCopy, kFill, kCall };
  Type type = Type::kNone;
  std::uint8_t element = 1;  // of a fill: bytes
  bool frees_source = false;
  bool gives_back = false;  // of a fill: the pages are ours to drop
  bool reads_zero = false;  // see memory.hpp: a scalar that a kernel would have computed
  std::uint32_t value = 0;
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::size_t width = 0, height = 1, depth = 1;  // bytes, rows, slices
  std::size_t destination_pitch = 0, source_pitch = 0;
  std::size_t destination_slice = 0, source_slice = 0;
  void (*function)(void*) = nullptr;
  void* argument = nullptr;

  std::size_t bytes() const noexcept { return width * height * depth; }
  void run() const;
};

struct Operation {
  OpKind kind = OpKind::kEmpty;
  Engine engine = Engine::kNone;
  MemoryKind source_memory = MemoryKind::kNone, destination_memory = MemoryKind::kNone;
  std::int16_t source_device = -1, destination_device = -1;
  std::int16_t device = 0;
  float share = 1;  // of its engine that it fills
  std::uint32_t stream_id = 0;
  std::uint32_t correlation = 0;
  std::uint32_t shared_bytes = 0;
  Dim3 grid, block;
  std::uint64_t duration_ns = 0;
  std::uint64_t bytes = 0;
  std::uint64_t graph_id = 0, node_id = 0;
  Kernel* kernel = nullptr;
  Effect effect;

  // Set by the scheduler.
  std::uint64_t start_ns = 0, end_ns = 0;
};

}  // namespace gpubusy::sim
