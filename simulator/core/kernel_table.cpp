// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/kernel_table.hpp"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace gpubusy::sim {

std::vector<KernelTime> read_kernel_table(const std::string& path,
                                          std::vector<std::string>& problems) {
  std::vector<KernelTime> rows;
  if (path.empty()) return rows;
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) {
    problems.push_back("GPUBUSY_SIM_KERNEL_TABLE: '" + path +
                       "' is not allowed: a file that can be read");
    return rows;
  }
  char* buffer = nullptr;
  std::size_t capacity = 0;
  for (int number = 1; getline(&buffer, &capacity, file) >= 0; ++number) {
    buffer[strcspn(buffer, "#\n")] = '\0';
    char pattern[1024];
    double base_us = 0, wave_us = 0;
    const int fields = sscanf(buffer, "%1023s %lf %lf", pattern, &base_us, &wave_us);
    if (fields <= 0) continue;
    if (fields < 3 || !(base_us >= 0) || !(wave_us >= 0)) {
      problems.push_back(path + ":" + std::to_string(number) + ": '" + buffer +
                         "' is not allowed: PATTERN BASE_US WAVE_US");
      continue;
    }
    rows.push_back({pattern, base_us * 1000, wave_us * 1000});
  }
  free(buffer);
  fclose(file);
  return rows;
}

}  // namespace gpubusy::sim
