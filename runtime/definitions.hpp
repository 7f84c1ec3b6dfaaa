// SPDX-License-Identifier: Apache-2.0
//
// Where the runtime's tables (codes, stacks, kernels, …) send a definition when they first meet a
// thing. The recorder implements it; tests implement it with vectors. Called without locks held by
// the table, from the thread that met the thing, never from a signal handler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recording/format.hpp"

namespace gpubusy::runtime {

// Appends one record made of a fixed part and up to three variable parts; pads with zeros. Fills in
// header.size. False: it could not be written (the caller may forget the thing and retry later).
struct Part {
  const void* data;
  std::size_t size;
};
class DefinitionSink {
 public:
  virtual bool define(recording::RecordHeader* record, std::size_t fixed_size, const Part* parts,
                      std::size_t part_count) noexcept = 0;

 protected:
  ~DefinitionSink() = default;
};

}  // namespace gpubusy::runtime
