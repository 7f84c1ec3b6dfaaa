// SPDX-License-Identifier: Apache-2.0
//
// Made-up step times as CI machines have them, in ms, about 100 each; the same on every machine.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpubusy::testing {

// splitmix64: the standard's distributions differ by library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  double uniform() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  bool chance(double p) { return uniform() < p; }
  double normal() {
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
  }

 private:
  std::uint64_t state_;
};

struct StepSeries {
  std::string name;
  std::vector<double> (*make)(Dice& dice, std::size_t steps);
  bool between_runs = false;  // most of the noise is between runs: one run cannot know it
};

inline std::vector<StepSeries> step_series() {
  using Series = std::vector<double>;
  const auto alike = [](Dice& dice, std::size_t steps, double r) {
    Series out;
    double x = dice.normal();
    for (std::size_t i = 0; i < steps; ++i) {
      out.push_back(100 * (1 + 0.1 * x));
      x = r * x + std::sqrt(1 - r * r) * dice.normal();
    }
    return out;
  };
  static const auto kAlike = alike;
  return {
      {"normal, 3 %",
       [](Dice& dice, std::size_t steps) {
         Series out;
         for (std::size_t i = 0; i < steps; ++i) out.push_back(100 + 3 * dice.normal());
         return out;
       }},
      {"normal, 10 %",
       [](Dice& dice, std::size_t steps) {
         Series out;
         for (std::size_t i = 0; i < steps; ++i) out.push_back(100 + 10 * dice.normal());
         return out;
       }},
      {"bimodal, 85 or 115",
       [](Dice& dice, std::size_t steps) {
         Series out;
         for (std::size_t i = 0; i < steps; ++i) {
           out.push_back((dice.chance(0.5) ? 85 : 115) + dice.normal());
         }
         return out;
       }},
      {"bimodal, for 5 steps each",
       [](Dice& dice, std::size_t steps) {
         Series out;
         bool slow = dice.chance(0.5);
         for (std::size_t i = 0; i < steps; ++i) {
           out.push_back((slow ? 115 : 85) + dice.normal());
           if (dice.chance(0.2)) slow = !slow;
         }
         return out;
       }},
      {"outliers: 1 of 20 takes 5 times as long",
       [](Dice& dice, std::size_t steps) {
         Series out;
         for (std::size_t i = 0; i < steps; ++i) {
           out.push_back((100 + 2 * dice.normal()) * (dice.chance(0.05) ? 5 : 1));
         }
         return out;
       }},
      {"skewed: log-normal, 50 %",
       [](Dice& dice, std::size_t steps) {
         Series out;
         for (std::size_t i = 0; i < steps; ++i) out.push_back(100 * std::exp(0.5 * dice.normal()));
         return out;
       }},
      {"neighbours alike, r = 0.5, 10 %",
       [](Dice& dice, std::size_t steps) { return kAlike(dice, steps, 0.5); }},
      {"neighbours alike, r = 0.8, 10 %",
       [](Dice& dice, std::size_t steps) { return kAlike(dice, steps, 0.8); }},
      {"drift of 10 %, the same in each run",
       [](Dice& dice, std::size_t steps) {
         Series out;
         for (std::size_t i = 0; i < steps; ++i) {
           out.push_back(95 + 10.0 * static_cast<double>(i) / static_cast<double>(steps) +
                         2 * dice.normal());
         }
         return out;
       }},
      {"a walk, 2 % from step to step",
       [](Dice& dice, std::size_t steps) {
         Series out;
         double x = 0;
         for (std::size_t i = 0; i < steps; ++i) {
           out.push_back(100 + x + dice.normal());
           x += 2 * dice.normal();
         }
         return out;
       },
       true},
      {"runs differ by 4 %, steps by 3 %",
       [](Dice& dice, std::size_t steps) {
         Series out;
         const double run = 1 + 0.04 * dice.normal();
         for (std::size_t i = 0; i < steps; ++i) out.push_back(run * (100 + 3 * dice.normal()));
         return out;
       },
       true},
      {"runs are fast or slow, by 15 %",
       [](Dice& dice, std::size_t steps) {
         Series out;
         const double run = dice.chance(0.5) ? 0.925 : 1.075;
         for (std::size_t i = 0; i < steps; ++i) out.push_back(run * (100 + 3 * dice.normal()));
         return out;
       },
       true},
  };
}

}  // namespace gpubusy::testing
