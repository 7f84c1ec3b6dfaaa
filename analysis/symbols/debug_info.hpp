// SPDX-License-Identifier: Apache-2.0
//
// Source lines and inlined functions, from a file's DWARF by libdw. The library is opened when it
// is first needed: a machine without it has no lines, all else works. Thread-safety: one thread per
// object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpubusy::analysis {

class DebugInfo {
 public:
  struct Place {
    std::string function;  // demangled; empty: not known
    std::string file;      // empty: not known
    int line = 0;          // 0: not known
  };

  static bool library_is_there();
  // `path` has been found to be an ELF object with debug information. nullptr: libdw cannot read
  // it.
  static std::unique_ptr<DebugInfo> open(const std::string& path);
  ~DebugInfo();
  DebugInfo(const DebugInfo&) = delete;
  DebugInfo& operator=(const DebugInfo&) = delete;

  // The function at an address of the file, before it those that were inlined there, innermost
  // first. Empty: nothing is known of the address.
  std::vector<Place> at(std::uint64_t address);

 private:
  DebugInfo();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpubusy::analysis
