// SPDX-License-Identifier: Apache-2.0
//
// What a step would take with something changed, with an interval and with what was assumed.
// Thread-safety: one thread per object; the recording, timeline and model must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/whatif/changes.hpp"
#include "analysis/whatif/model.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis::whatif {

struct Prediction {
  std::vector<std::string> changes;  // as written
  double step_ms = 0, low_ms = 0, high_ms = 0;
  double gpu_busy = 0;  // share of the step, from the likely case
  double host_ms = 0;  // of a step outside CUDA that changes of lines take away, in the likely case
  std::vector<std::uint64_t> touched;  // by change: calls or pieces of work it applies to
  std::vector<std::string> assumed;

  // Worth telling: it changes something, and that makes a step shorter than `now_ms`.
  bool is_gain(double now_ms) const;
};

// Processors that this process may use.
unsigned processors_here();

class Predictor {
 public:
  Predictor(const recording::Recording& recording, const Timeline& timeline, const Model& model,
            const Surroundings& surroundings);

  // What the unchanged model says, against Model::observed_mean_ns.
  double unchanged_ns() const { return unchanged_ns_; }

  // All of the changes at once.
  Prediction predict(const std::vector<Change>& changes);

 private:
  struct Outcome {
    double ns = 0, busy = 0;
    std::vector<std::uint64_t> steps;
  };
  double observed() const { return static_cast<double>(model_.observed_mean_ns); }
  Outcome run(const std::vector<Change>& changes, Assumption assumption, Prediction* notes);

  const recording::Recording& recording_;
  const Timeline& timeline_;
  const Model& model_;
  Surroundings surroundings_;
  SourceLines lines_;
  double unchanged_ns_;
};

}  // namespace gpubusy::analysis::whatif
