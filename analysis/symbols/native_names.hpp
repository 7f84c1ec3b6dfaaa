// SPDX-License-Identifier: Apache-2.0
//
// Names for native addresses of a recording. Whoever shows stacks asks here and does not care where
// the names come from (files of this machine, copies of them, what an earlier export kept, or
// nothing). docs/symbols.md. Thread-safety: one thread per object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

// One function at one address. A function that the compiler inlined is a frame of its own.
struct NativeFrame {
  std::string function;  // demangled; empty: not known
  std::string linkage;   // as the symbol table has it; empty: not known, or an inlined function
  std::string module;    // path of the object; empty: the address lies in none that was seen (JIT)
  std::string file;      // of the source; empty: not known
  std::uint64_t offset =
      0;         // of the address, from the module's load bias; the address itself without one
  int line = 0;  // 0: not known
  bool inlined = false;   // into the frame behind it
  bool doubtful = false;  // another object may have lain there, or the file may be another one
};

// Why addresses of a module have no names, no lines, or doubtful names.
struct NameProblem {
  std::string module;           // as in NativeFrame; empty: of all
  std::string why;              // a clause: "it has changed since the recording"
  std::uint64_t addresses = 0;  // concerned, of those asked for so far
  bool curable = false;         // with other files, or another library
};
// One line.
std::string to_text(const NameProblem& problem);

class NativeNames {
 public:
  virtual ~NativeNames() = default;

  // What runs at the return address `location` of a native stack node (the call lies before it),
  // innermost first, never empty. The reference is good as long as the object.
  virtual const std::vector<NativeFrame>& at(std::uint64_t location) = 0;

  // Of what was asked for so far, most addresses first.
  virtual std::vector<NameProblem> problems() const { return {}; }
};

struct SymbolOptions {
  std::vector<std::string> directories;  // with copies of the modules or their debug files
};

// Names for `recording`, which must outlive it. Files are opened when the first of their addresses
// is asked for.
std::unique_ptr<NativeNames> open_native_names(const recording::Recording& recording,
                                               const SymbolOptions& options = {});

// "at::native::add(…) (Add.cpp:12)", "libfoo.so+0x1234", "0x7f…": for one line of a text.
std::string to_text(const NativeFrame& frame);

}  // namespace gpubusy::analysis
