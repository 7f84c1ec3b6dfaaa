// SPDX-License-Identifier: Apache-2.0
//
// The launcher's side of recording/check_in.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpubusy::launcher {

struct CheckIns {
  std::size_t processes = 0;         // that loaded the library
  bool command_loaded = false;       // the command itself, in any of its images
  std::vector<std::uint32_t> alive;  // of these, still running
};

// Makes the file; empty: could not.
std::string make_check_in_file(const std::string& directory);
CheckIns read_check_ins(const std::string& file, std::uint32_t command_pid);

}  // namespace gpubusy::launcher
