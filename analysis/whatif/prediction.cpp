// SPDX-License-Identifier: Apache-2.0
#include "analysis/whatif/prediction.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "analysis/whatif/replay.hpp"

namespace gpubusy::analysis::whatif {
namespace {

// Enough for 2.5 and 97.5 % of the means; more changes nothing that is printed.
constexpr int kResamples = 400;

// How far the mean of so many steps may be off, as shares of it: by drawing the steps anew. The
// seed is fixed: the same recording gives the same numbers.
struct Spreading {
  double low = 1, high = 1;
};
Spreading spreading_of(const std::vector<std::uint64_t>& steps) {
  double mean = 0;
  for (const std::uint64_t ns : steps) mean += static_cast<double>(ns);
  if (steps.size() < 2 || mean == 0) return {};
  mean /= static_cast<double>(steps.size());
  std::mt19937 random(1);
  std::vector<double> means(kResamples);
  for (double& m : means) {
    double sum = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      sum += static_cast<double>(steps[random() % steps.size()]);
    }
    m = sum / static_cast<double>(steps.size());
  }
  std::sort(means.begin(), means.end());
  return {means[kResamples / 40] / mean, means[kResamples - 1 - kResamples / 40] / mean};
}

}  // namespace

bool Prediction::is_gain(double now_ms) const {
  constexpr double kLeast = 0.99;
  return std::any_of(touched.begin(), touched.end(), [](std::uint64_t n) { return n > 0; }) &&
         step_ms < kLeast * now_ms;
}

unsigned processors_here() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(CPU_COUNT(&set), 1));
}

Predictor::Predictor(const recording::Recording& recording, const Timeline& timeline,
                     const Model& model, const Surroundings& surroundings)
    : recording_(recording),
      timeline_(timeline),
      model_(model),
      surroundings_(surroundings),
      lines_(recording),
      unchanged_ns_(replay(model).mean_ns()) {}

Prediction Predictor::predict(const std::vector<Change>& changes) {
  Prediction out;
  for (const Change& change : changes) out.changes.push_back(change.text);
  const Outcome likely = run(changes, Assumption::kLikely, &out);
  const Outcome best = run(changes, Assumption::kBest, nullptr);
  const Outcome worst = run(changes, Assumption::kWorst, nullptr);
  // The model's own error is in each prediction, too.
  const double off = observed() == 0 ? 0 : std::abs(unchanged_ns_ / observed() - 1);
  const Spreading spread = spreading_of(likely.steps);
  out.step_ms = likely.ns / 1e6;
  out.low_ms = std::min({best.ns, worst.ns, likely.ns * spread.low}) * (1 - off) / 1e6;
  out.high_ms = std::max({best.ns, worst.ns, likely.ns * spread.high}) * (1 + off) / 1e6;
  out.gpu_busy = likely.busy;
  return out;
}

Predictor::Outcome Predictor::run(const std::vector<Change>& changes, Assumption assumption,
                                  Prediction* notes) {
  Model changed = model_;
  for (const Change& change : changes) {
    const Applied applied =
        apply(changed, change, assumption, recording_, timeline_, lines_, surroundings_);
    if (notes == nullptr) continue;
    notes->touched.push_back(applied.touched);
    notes->host_ms += static_cast<double>(applied.host_ns) / 1e6 / std::max(changed.steps, 1u);
    if (!applied.assumed.empty()) notes->assumed.push_back(applied.assumed);
  }
  Replay replayed = replay(changed);
  Outcome out;
  // By the ratio, so that what the model leaves out is left out on both sides.
  out.ns = unchanged_ns_ == 0 ? 0 : observed() * replayed.mean_ns() / unchanged_ns_;
  const double total = replayed.mean_ns() * static_cast<double>(replayed.step_ns.size());
  out.busy = total == 0 ? 0 : std::min(1.0, static_cast<double>(replayed.busy_ns) / total);
  out.steps = std::move(replayed.step_ns);
  return out;
}

}  // namespace gpubusy::analysis::whatif
