// SPDX-License-Identifier: Apache-2.0
//
// gpubusy_compare_noise [TRIALS]: the table of docs/compare.md: of how many trials in a hundred
// `--fail-if 'step_time>5%'` holds where nothing changed, and where steps take 10 % or 20 % longer.
#include <cstdio>
#include <cstdlib>

#include "tests/support/compare_noise.hpp"

int main(int count, char** arguments) {
  const int repeats = count > 1 ? std::atoi(arguments[1]) : 1000;
  struct Column {
    std::size_t steps, runs;
  };
  constexpr Column kColumns[] = {{5, 1}, {20, 1}, {50, 1}, {20, 3}};
  std::printf(
      "| step times | 5 steps | 20 steps | 50 steps | 3 runs of 20 |\n|---|---|---|---|---|\n");
  for (const auto& series : gpubusy::testing::step_series()) {
    std::printf("| %s |", series.name.c_str());
    for (const Column& column : kColumns) {
      for (const double slower : {1.0, 1.1, 1.2}) {
        const double rate = gpubusy::testing::alarm_rate(
            series,
            {.steps = column.steps, .runs = column.runs, .slower = slower, .repeats = repeats});
        std::printf(slower == 1.0  ? " **%.1f** /"
                    : slower < 1.2 ? " %.0f /"
                                   : " %.0f |",
                    100 * rate);
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
