// SPDX-License-Identifier: Apache-2.0
//
// Reads "skip_first skip_first_wait wait warmup active repeat steps" per line, prints one letter
// per step: N(one), W(armup), R(ecord), S(ave). Compared with torch.profiler.schedule by a test.
#include <cstdint>
#include <iostream>

#include "config/schedule.hpp"

int main() {
  gpubusy::config::Schedule s;
  std::uint64_t steps = 0;
  while (std::cin >> s.skip_first >> s.skip_first_wait >> s.wait >> s.warmup >> s.active >>
         s.repeat >> steps) {
    for (std::uint64_t i = 0; i < steps; ++i) {
      std::cout << "NWRS"[static_cast<int>(gpubusy::config::action_at(s, i))];
    }
    std::cout << '\n';
  }
}
