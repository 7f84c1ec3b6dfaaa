// SPDX-License-Identifier: Apache-2.0
//
// What a step would take with something changed: predictions from a recording, each with an
// interval and with what was assumed. docs/whatif.md. Pure but for reading the number of
// processors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/api.hpp"
#include "analysis/whatif/prediction.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {
struct ProcessReport;
}

namespace gpubusy::analysis::whatif {

struct Predictions {
  std::uint32_t pid = 0;
  int rank = -1;
  std::uint32_t steps = 0;  // that the model holds
  double step_ms = 0;       // as observed
  double model_ms = 0;  // as the unchanged model says: how far it is off, all predictions may be
  std::vector<Prediction> rows;
  std::string error;  // why there are none; else empty
};

struct Options {
  std::vector<std::string>
      changes;              // empty: those that the findings call for, each and all together
  bool together = false;    // all of `changes` at once, else each by itself
  unsigned processors = 0;  // 0: those of this machine
};

// For each process with CUDA calls. An error: a change that cannot be understood.
tl::expected<std::vector<Predictions>, std::string> predict(const recording::Session& session,
                                                            const Options& options);

// For one process and changes that are understood already.
Predictions predict(const recording::Recording& recording, const Options& options,
                    const std::vector<Change>& changes);

// One process whose steps can be run again with something changed: its model is built once for all
// that is asked. The recording and the timeline must outlive it. One thread per object.
class Study {
 public:
  Study(const recording::Recording& recording, const Timeline& timeline, StepMode mode,
        const std::vector<Step>& steps, unsigned processors);
  Study(const Study&) = delete;
  Study& operator=(const Study&) = delete;

  bool possible() const { return predictor_.has_value(); }
  double step_ms() const { return head_.step_ms; }
  unsigned processors() const { return processors_; }
  const Prediction& predict(const Change& change);  // remembered; only where it is possible()
  // What the report's findings call for, where it helps: each by itself, and all together.
  Predictions of_findings(const ProcessReport& report);
  // These, whether they help or not.
  Predictions of(const std::vector<Change>& changes, bool together);

 private:
  unsigned processors_;
  Predictions head_;  // without rows
  std::optional<Model> model_;
  std::optional<Predictor> predictor_;
  std::map<std::string, Prediction> known_;  // by the change as written
};

std::string render_text(const std::vector<Predictions>& predictions, const TextOptions& options);
std::string render_json(const std::vector<Predictions>& predictions);

}  // namespace gpubusy::analysis::whatif
