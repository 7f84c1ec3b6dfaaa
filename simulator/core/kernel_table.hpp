// SPDX-License-Identifier: Apache-2.0
//
// The file of kernel times: lines of PATTERN BASE_US WAVE_US, the first that fits counts.
#pragma once

#include <string>
#include <vector>

namespace gpubusy::sim {

struct KernelTime {
  std::string pattern;  // glob on the kernel's name as it was registered (mangled)
  double base_ns, wave_ns;
};
std::vector<KernelTime> read_kernel_table(const std::string& path,
                                          std::vector<std::string>& problems);

}  // namespace gpubusy::sim
