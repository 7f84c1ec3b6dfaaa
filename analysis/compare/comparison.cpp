// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "analysis/report.hpp"

namespace gpubusy::analysis {
namespace {

using Values = std::vector<double>;

Values each(const MeasuredProcess& p, double (*value)(const MeasuredStep&)) {
  Values out;
  for (const MeasuredStep& step : p.steps) out.push_back(value(step));
  return out;
}

Values wall(const MeasuredProcess& p, std::size_t) {
  return each(p, [](const MeasuredStep& s) { return s.wall; });
}
Values busy(const MeasuredProcess& p, std::size_t) {
  return p.has_times ? each(p, [](const MeasuredStep& s) { return s.busy; }) : Values{};
}
Values idle(const MeasuredProcess& p, std::size_t) {
  return p.has_times ? each(p, [](const MeasuredStep& s) { return s.wall - s.busy; }) : Values{};
}
Values kernels(const MeasuredProcess& p, std::size_t) {
  return each(p, [](const MeasuredStep& s) { return s.kernels; });
}
// Such that their mean is busy time over wall time, and their spread that of this ratio.
Values busy_share(const MeasuredProcess& p, std::size_t) {
  if (!p.has_times) return {};
  double all_wall = 0, all_busy = 0;
  for (const MeasuredStep& s : p.steps) {
    all_wall += s.wall;
    all_busy += s.busy;
  }
  if (all_wall <= 0) return {};
  const double ratio = all_busy / all_wall;
  const double mean_wall = all_wall / static_cast<double>(p.steps.size());
  Values out;
  for (const MeasuredStep& s : p.steps) {
    out.push_back(ratio + (s.busy - ratio * s.wall) / mean_wall);
  }
  return out;
}
Values idle_class(const MeasuredProcess& p, std::size_t index) {
  Values out;
  if (!p.has_classes) return out;
  for (const MeasuredStep& s : p.steps) out.push_back(s.idle[index]);
  return out;
}

Values part(const MeasuredProcess& p, std::size_t index) {
  Values out;
  if (!p.has_classes) return out;
  for (const MeasuredStep& s : p.steps) out.push_back(s.parts[index]);
  return out;
}

bool would_do(const Condition& c, double change) {
  return c.above ? change > c.threshold : change < c.threshold;
}

ConditionResult judge(const Condition& c, const Pair& pair) {
  ConditionResult out;
  out.condition = c.text;
  out.process = process_name(pair.after.front());
  const MetricChange& m = pair.changes[c.metric];
  if (!m.known() || (c.relative && !m.relative())) {
    out.judgement = Judgement::kUnknown;
    return out;
  }
  out.change = c.relative ? *m.relative() : m.difference.change;
  if (!would_do(c, out.change)) {
    out.judgement = Judgement::kNo;
  } else if (!m.difference.has_interval) {
    out.judgement = Judgement::kTooFewSteps;
  } else {
    out.judgement = m.difference.beyond_noise() ? Judgement::kHolds : Judgement::kWithinNoise;
  }
  return out;
}

std::optional<double> mean_of(const Values& values) {
  if (values.empty()) return std::nullopt;
  return value_of(values, Statistic::kMean);
}

bool have_no_steps(const std::vector<MeasuredProcess>& runs) {
  return std::all_of(runs.begin(), runs.end(),
                     [](const MeasuredProcess& p) { return p.steps.empty(); });
}

std::vector<MetricChange> changes_of(const Pair& pair) {
  std::vector<MetricChange> out;
  const auto& metrics = all_metrics();
  const bool of_whole = have_no_steps(pair.before) && have_no_steps(pair.after);
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const Metric& metric = metrics[i];
    MetricChange change;
    change.metric = i;
    const auto by_run = [&](const std::vector<MeasuredProcess>& runs, Values& values) {
      Values series;
      for (const MeasuredProcess& p : runs) {
        series = metric.values(p, metric.argument);
        if (!series.empty()) {
          values.push_back(value_of(series, metric.statistic));
        } else if (of_whole && metric.kind == MetricKind::kShare && p.has_times) {
          values.push_back(p.whole_busy_share);
        }
      }
      return series;  // of the only run, where there is one
    };
    const Values a = by_run(pair.before, change.before_runs);
    const Values b = by_run(pair.after, change.after_runs);
    change.before = mean_of(change.before_runs);
    change.after = mean_of(change.after_runs);
    if (change.known()) {
      change.difference = pair.has_repeats() || of_whole
                              ? difference_of_runs(change.before_runs, change.after_runs)
                              : difference(a, b, metric.statistic);
      // Nothing becomes less than 0.
      change.difference.low = std::max(change.difference.low, -*change.before);
    }
    out.push_back(std::move(change));
  }
  return out;
}

// By rank; then by the same command, in order; then in order. For each of `before` the index of its
// partner, or the number of `after`.
std::vector<std::size_t> partners(const std::vector<MeasuredProcess>& before,
                                  const std::vector<MeasuredProcess>& after) {
  std::vector<bool> used(after.size());
  std::vector<std::size_t> partner(before.size(), after.size());
  const auto match = [&](auto&& fits) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      for (std::size_t j = 0; j < used.size() && partner[i] == used.size(); ++j) {
        if (used[j] || !fits(before[i], after[j])) continue;
        partner[i] = j;
        used[j] = true;
      }
    }
  };
  using Process = MeasuredProcess;
  match([](const Process& a, const Process& b) { return a.rank >= 0 && a.rank == b.rank; });
  const auto no_ranks = [](const Process& a, const Process& b) { return a.rank < 0 || b.rank < 0; };
  match(
      [&](const Process& a, const Process& b) { return no_ranks(a, b) && a.command == b.command; });
  match(no_ranks);
  return partner;
}

// The processes of the first run, each with its counterparts in the others.
using Repeats = std::vector<std::vector<MeasuredProcess>>;

Repeats repeats_of(const std::vector<MeasuredRun>& runs, std::vector<std::string>& without) {
  Repeats out;
  const std::vector<MeasuredProcess>& first = runs.front().processes;
  for (const MeasuredProcess& process : first) out.push_back({process});
  for (std::size_t run = 1; run < runs.size(); ++run) {
    const std::vector<MeasuredProcess>& processes = runs[run].processes;
    std::vector<bool> used(processes.size());
    const std::vector<std::size_t> partner = partners(first, processes);
    for (std::size_t i = 0; i < partner.size(); ++i) {
      if (partner[i] == processes.size()) continue;
      out[i].push_back(processes[partner[i]]);
      used[partner[i]] = true;
    }
    for (std::size_t j = 0; j < used.size(); ++j) {
      if (!used[j]) without.push_back(process_name(processes[j]));
    }
  }
  return out;
}

}  // namespace

const std::vector<Metric>& all_metrics() {
  static const std::vector<Metric> kMetrics = [] {
    std::vector<Metric> out = {
        {"step_time", "step (mean)", MetricKind::kTime, Statistic::kMean, Shown::kAlways, wall, 0},
        {"step_median", "step (median)", MetricKind::kTime, Statistic::kMedian, Shown::kAlways,
         wall, 0},
        {"gpu_busy", "GPU busy", MetricKind::kShare, Statistic::kMean, Shown::kAlways, busy_share,
         0},
        {"busy", "busy", MetricKind::kTime, Statistic::kMean, Shown::kAlways, busy, 0},
        {"idle", "idle", MetricKind::kTime, Statistic::kMean, Shown::kAlways, idle, 0},
    };
    for (const IdleClass c : kAllIdleClasses) {
      out.push_back({std::string("idle_") + idle_id(c), std::string("idle: ") + idle_title(c),
                     MetricKind::kTime, Statistic::kMean, Shown::kInConditionsOnly, idle_class,
                     static_cast<std::size_t>(c)});
    }
    for (std::size_t i = 0; i < kParts; ++i) {
      const auto p = static_cast<Part>(i);
      out.push_back({std::string("part_") + part_id(p),
                     std::string(is_busy(p) ? "busy: " : "idle: ") + part_title(p),
                     MetricKind::kTime, Statistic::kMean, Shown::kWhereItMatters, part, i});
    }
    out.push_back(
        {"kernels", "kernels", MetricKind::kCount, Statistic::kMean, Shown::kAlways, kernels, 0});
    return out;
  }();
  return kMetrics;
}

tl::expected<Condition, std::string> parse_condition(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return tl::unexpected(fmt::format("--fail-if='{}': {}", text, why));
  };
  std::string bare;
  for (const char c : text) {
    if (c != ' ') bare += c;
  }
  Condition condition;
  condition.text = text;
  const std::size_t sign = bare.find_first_of("<>");
  if (sign == bare.npos) {
    return wrong("allowed is METRIC>VALUE or METRIC<VALUE, e.g. step_time>5%");
  }
  const std::string name = bare.substr(0, sign);
  const auto& metrics = all_metrics();
  std::size_t index = 0;
  while (index < metrics.size() && metrics[index].id != name) ++index;
  if (index == metrics.size()) {
    std::string names;
    for (const Metric& metric : metrics) names += (names.empty() ? "" : ", ") + metric.id;
    return wrong(fmt::format("there is no metric '{}' (allowed: {})", name, names));
  }
  condition.metric = index;
  condition.above = bare[sign] == '>';
  const std::string value = bare.substr(sign + 1);
  const char* begin = value.c_str();
  const bool digit = value.find_first_of("0123456789") <= 2 &&
                     value.find_first_not_of("+-.0123456789%msu") == value.npos;
  char* end = nullptr;
  const double number = digit ? std::strtod(begin, &end) : 0;
  if (!digit || end == begin || !std::isfinite(number)) {
    return wrong(fmt::format("'{}' is not a number with a unit", value));
  }
  const std::string_view unit(end);
  const MetricKind kind = metrics[index].kind;
  if (unit == "%" && kind != MetricKind::kShare) {
    condition.relative = true;
    condition.threshold = number / 100;
  } else if (unit == "%") {
    condition.threshold = number / 100;
  } else if (kind == MetricKind::kTime && unit == "ms") {
    condition.threshold = number;
  } else if (kind == MetricKind::kTime && unit == "us") {
    condition.threshold = number / 1000;
  } else if (kind == MetricKind::kTime && unit == "s") {
    condition.threshold = number * 1000;
  } else if (kind == MetricKind::kCount && unit.empty()) {
    condition.threshold = number;
  } else {
    return wrong(fmt::format("the unit of {} is {}", name,
                             kind == MetricKind::kTime    ? "%, ms, us or s"
                             : kind == MetricKind::kShare ? "% (percentage points)"
                                                          : "% or none"));
  }
  return condition;
}

std::optional<double> MetricChange::relative() const {
  if (!known() || *before == 0) return std::nullopt;
  return difference.change / *before;
}

std::string process_name(const MeasuredProcess& p) {
  if (p.rank >= 0) return fmt::format("rank {}", p.rank);
  if (p.from_trace) return p.command;
  return fmt::format("pid {} on {}", p.pid, p.host.empty() ? "?" : p.host);
}

const char* judgement_id(Judgement judgement) {
  switch (judgement) {
    case Judgement::kNo: return "no";
    case Judgement::kHolds: return "holds";
    case Judgement::kWithinNoise: return "within_noise";
    case Judgement::kTooFewSteps: return "too_few_steps";
    case Judgement::kUnknown: break;
  }
  return "not_known";
}

Comparison compare(const std::vector<MeasuredRun>& before, const std::vector<MeasuredRun>& after,
                   const std::vector<Condition>& conditions, bool strict) {
  Comparison out;
  for (const MeasuredRun& run : before) out.before.push_back(run.path);
  for (const MeasuredRun& run : after) out.after.push_back(run.path);
  const Repeats a = repeats_of(before, out.only_before), b = repeats_of(after, out.only_after);
  std::vector<bool> used(b.size());
  const std::vector<std::size_t> partner =
      partners(before.front().processes, after.front().processes);
  for (std::size_t i = 0; i < partner.size(); ++i) {
    if (partner[i] == used.size()) {
      out.only_before.push_back(process_name(a[i].front()));
      continue;
    }
    used[partner[i]] = true;
    Pair pair{a[i], b[partner[i]], {}};
    pair.changes = changes_of(pair);
    out.pairs.push_back(std::move(pair));
  }
  for (std::size_t j = 0; j < used.size(); ++j) {
    if (!used[j]) out.only_after.push_back(process_name(b[j].front()));
  }
  for (const Condition& condition : conditions) {
    for (const Pair& pair : out.pairs) {
      out.results.push_back(judge(condition, pair));
      const Judgement j = out.results.back().judgement;
      out.failed = out.failed || j == Judgement::kHolds ||
                   (strict && (j == Judgement::kTooFewSteps || j == Judgement::kUnknown));
    }
    if (out.pairs.empty()) {
      out.results.push_back({condition.text, "", Judgement::kUnknown, 0});
      out.failed = out.failed || strict;
    }
  }
  return out;
}

}  // namespace gpubusy::analysis
