// SPDX-License-Identifier: Apache-2.0
//
// Names for native addresses of a recording. Whoever shows stacks asks here and does not care where
// the names come from (files of this machine, copies of them, or nothing).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpubusy::analysis {

// One function at one address. A function that the compiler inlined is a frame of its own.
struct NativeFrame {
  std::string function;  // demangled; empty: not known
  std::string linkage;   // as the symbol table has it; empty: not known, or an inlined function
  std::string module;    // path of the object; empty: the address lies in none that was seen (JIT)
  std::string file;      // of the source; empty: not known
  std::uint64_t offset = 0;  // of the address, from the module's load bias; the address itself without one
  int line = 0;              // 0: not known
  bool inlined = false;      // into the frame behind it
};

class NativeNames {
 public:
  virtual ~NativeNames() = default;

  // What runs at the return address `location` of a native stack node (the call lies before it),
  // innermost first, never empty. The reference is good as long as the object.
  virtual const std::vector<NativeFrame>& at(std::uint64_t location) = 0;
};

}  // namespace gpubusy::analysis
