// SPDX-License-Identifier: Apache-2.0
//
// The truth log's file format, described in docs/truth-log.md and read by simulator/truth.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::sim::truth {

inline constexpr char kMagic[8] = {'G', 'B', 'S', 'I', 'M', 'T', 'R', '1'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kRecordSize = 128;
inline constexpr std::size_t kStringPart = 112;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t record_size;
  std::uint32_t pid;
  std::uint32_t parent_pid;
  std::uint64_t start_ns;           // CLOCK_MONOTONIC
  std::uint64_t start_realtime_ns;  // CLOCK_REALTIME at the same moment
  std::uint32_t devices;
  char command[84];
};
static_assert(sizeof(Header) == kRecordSize);

enum class Kind : std::uint32_t {
  kNone = 0,  // not written, or its writer died while writing
  kString = 1,
  kCall = 2,
  kOperation = 3,
  kStall = 4,
  kUnimplemented = 5,
  kStream = 6,
};

struct String {
  Kind kind;
  std::uint32_t id;
  std::uint32_t length;  // of the whole string
  std::uint32_t part;    // this record holds text[part * kStringPart ...]
  char text[kStringPart];
};

struct Call {
  Kind kind;
  std::uint32_t layer;  // sim::Layer
  std::uint32_t name;
  std::uint32_t thread;
  std::uint64_t start_ns, end_ns;
  std::int32_t result;
  std::uint32_t correlation;
};

struct Operation {
  Kind kind;
  std::uint8_t operation;            // sim::OpKind
  std::uint8_t source, destination;  // sim::MemoryKind, of copies; destination of memsets
  std::uint8_t reserved;
  std::int32_t device;
  std::uint32_t stream;
  std::uint64_t start_ns, end_ns, bytes;
  std::uint32_t name;
  std::uint32_t correlation;
  std::uint32_t grid[3], block[3];
  std::uint32_t shared_bytes;
  std::uint32_t value;                             // of memsets
  std::uint64_t graph, node;                       // 0: not from a graph
  std::int32_t source_device, destination_device;  // of copies; -1: host
};

struct Stall {
  Kind kind;
  std::uint32_t reason;
  std::uint32_t thread;
  std::uint32_t correlation;
  std::uint64_t start_ns, end_ns;
};

struct Unimplemented {
  Kind kind;
  std::uint32_t library;
  std::uint32_t name;
  std::uint32_t thread;
  std::uint64_t time_ns;
};

struct Stream {
  Kind kind;
  std::int32_t device;
  std::uint32_t stream;
  std::uint32_t flags;
  std::int32_t priority;
  std::uint32_t reserved;
  std::uint64_t handle;
  std::uint64_t time_ns;
};

}  // namespace gpubusy::sim::truth
