// SPDX-License-Identifier: Apache-2.0
//
// Runs side by side, process by process, and whether conditions on the change hold. Each side may
// have several runs: then a value is the mean over its runs, and noise what runs of a side differ
// by. Every value is per step; where a run has no steps, only the busy share of the whole is
// compared, with that of a run that has none either. Times in ms. Thread-safe: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/api.hpp"
#include "analysis/compare/measured.hpp"
#include "analysis/compare/noise.hpp"

namespace gpubusy::analysis {

enum class MetricKind { kTime, kShare, kCount };
enum class Shown {
  kAlways,
  kWhereItMatters,   // a part of the step
  kInConditionsOnly  // … that is divided more finely elsewhere
};

struct Metric {
  std::string id;     // "step_time"; what a condition names
  std::string title;  // "step (mean)"
  MetricKind kind = MetricKind::kTime;
  Statistic statistic = Statistic::kMean;
  Shown shown = Shown::kAlways;
  // Of each step; empty: not known for this process.
  std::vector<double> (*values)(const MeasuredProcess&, std::size_t argument) = nullptr;
  std::size_t argument = 0;
};
const std::vector<Metric>& all_metrics();

// METRIC > or < THRESHOLD, of the change: docs/compare.md.
struct Condition {
  std::string text;
  std::size_t metric = 0;  // index into all_metrics()
  bool above = true;
  double threshold = 0;   // ms, share (0.05 for 5 points), or a number; relative: 0.05 for 5 %
  bool relative = false;  // to the value before
};
tl::expected<Condition, std::string> parse_condition(const std::string& text);

struct MetricChange {
  std::size_t metric = 0;
  std::optional<double> before, after;
  std::vector<double> before_runs, after_runs;  // of each run in which it is known
  Difference difference;                        // where both are there
  bool known() const { return before && after; }
  // Of the value before; nothing where that is 0.
  std::optional<double> relative() const;
};

struct Pair {
  std::vector<MeasuredProcess> before, after;  // of each run; at least one
  bool has_repeats() const { return before.size() + after.size() > 2; }
  std::vector<MetricChange> changes;  // by metric
};

enum class Judgement {
  kNo,
  kHolds,        // beyond noise
  kWithinNoise,  // the change would do, and may be chance
  kTooFewSteps,  // the change would do, and nothing tells whether it is chance
  kUnknown       // not measured in both
};

struct ConditionResult {
  std::string condition, process;
  Judgement judgement = Judgement::kNo;
  double change = 0;  // in the unit of the threshold
};

struct Comparison {
  std::vector<std::string> before, after;  // paths of the runs
  std::vector<Pair> pairs;
  std::vector<std::string> only_before, only_after;  // processes without a partner
  std::vector<ConditionResult> results;
  bool failed = false;  // a condition holds; strict: or cannot be decided
};

// strict: a condition that would hold but for too few steps, or whose metric is not known, fails.
// Neither side may be empty.
Comparison compare(const std::vector<MeasuredRun>& before, const std::vector<MeasuredRun>& after,
                   const std::vector<Condition>& conditions, bool strict);

std::string process_name(const MeasuredProcess& p);  // "rank 3", "pid 42 on node1", a file's name
const char* judgement_id(Judgement judgement);

std::string render_text(const Comparison& comparison, const TextOptions& options);
std::string render_json(const Comparison& comparison);      // schema: docs/compare.md
std::string render_markdown(const Comparison& comparison);  // for an issue or a pull request

}  // namespace gpubusy::analysis
