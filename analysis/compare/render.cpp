// SPDX-License-Identifier: Apache-2.0
//
// A comparison as text, JSON and Markdown.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/compare/comparison.hpp"
#include "analysis/markdown.hpp"
#include "analysis/text_page.hpp"

namespace gpubusy::analysis {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr double kLeastPart = 0.005;  // of the step: a part that is shown
constexpr const char* kNoPair = "Nothing to compare: no process has a partner on the other side.";
constexpr std::size_t kMostDetailed = 4;  // pairs with a table of their own

std::string value_text(const Metric& metric, const std::optional<double>& value) {
  if (!value) return "?";
  switch (metric.kind) {
    case MetricKind::kTime: return number(*value) + " ms";
    case MetricKind::kShare: return percent(*value);
    case MetricKind::kCount: break;
  }
  return count_text(*value);
}

std::string signed_number(double value) {
  return (value < 0 ? "-" : "+") + number(std::abs(value));
}

struct ChangeText {
  std::string change, interval;  // "-90.2 %", "-91.0 to -89.3"
};

ChangeText change_text(const Metric& metric, const MetricChange& change) {
  if (!change.known()) return {};
  const Difference& d = change.difference;
  const bool share = metric.kind == MetricKind::kShare;
  const std::optional<double> relative = change.relative();
  const double scale = share ? 100 : relative ? 100 / *change.before : 1;
  const char* unit = share                              ? " points"
                     : relative                         ? " %"
                     : metric.kind == MetricKind::kTime ? " ms"
                                                        : "";
  ChangeText out{signed_number(d.change * scale) + unit, ""};
  if (!d.has_interval) return out;  // notes_of() says so
  if (d.change == 0 && d.low == 0 && d.high == 0) return {"none", ""};
  out.interval =
      fmt::format("{} to {}", signed_number(d.low * scale), signed_number(d.high * scale));
  if (!d.beyond_noise()) out.change = "within noise";
  return out;
}

bool is_shown(const Pair& pair, const MetricChange& change) {
  const Metric& metric = all_metrics()[change.metric];
  if (metric.shown == Shown::kInConditionsOnly) return false;
  if (!change.before && !change.after) return metric.id == "step_time" || metric.id == "gpu_busy";
  if (metric.shown == Shown::kAlways) return true;
  const auto matters = [](const std::optional<double>& part, const std::optional<double>& step) {
    return part && step && *part >= kLeastPart * *step;
  };
  const MetricChange& step = pair.changes.front();
  return matters(change.before, step.before) || matters(change.after, step.after);
}

std::vector<std::vector<std::string>> rows_of(const Pair& pair) {
  std::vector<std::vector<std::string>> rows;
  for (const MetricChange& change : pair.changes) {
    if (!is_shown(pair, change)) continue;
    const Metric& metric = all_metrics()[change.metric];
    ChangeText text = change_text(metric, change);
    rows.push_back({metric.title, value_text(metric, change.before),
                    value_text(metric, change.after), std::move(text.change),
                    std::move(text.interval)});
  }
  return rows;
}

// The pairs that get a table: all, or the one whose step changed most.
std::vector<const Pair*> detailed(const Comparison& c) {
  std::vector<const Pair*> out;
  for (const Pair& pair : c.pairs) out.push_back(&pair);
  if (out.size() <= kMostDetailed) return out;
  const auto size = [](const Pair* p) {
    return std::abs(p->changes.front().relative().value_or(0));
  };
  return {*std::max_element(out.begin(), out.end(),
                            [&](const Pair* a, const Pair* b) { return size(a) < size(b); })};
}

std::string steps_text(const MeasuredProcess& p) {
  return p.steps.empty() ? "no step"
                         : fmt::format("{} step{}", p.steps.size(), p.steps.size() == 1 ? "" : "s");
}

std::string kind_text(const MeasuredProcess& p) { return p.from_trace ? "trace" : "recording"; }

std::size_t least_steps(const std::vector<MeasuredProcess>& runs) {
  return std::min_element(runs.begin(), runs.end(),
                          [](const MeasuredProcess& a, const MeasuredProcess& b) {
                            return a.steps.size() < b.steps.size();
                          })
      ->steps.size();
}

// "20 steps", "3 runs of 20 steps", "3 runs of 18 steps and more".
std::string side_text(const std::vector<MeasuredProcess>& runs) {
  if (runs.size() == 1) return steps_text(runs.front());
  const auto least = std::min_element(runs.begin(), runs.end(),
                                      [](const MeasuredProcess& a, const MeasuredProcess& b) {
                                        return a.steps.size() < b.steps.size();
                                      });
  const bool even = std::all_of(runs.begin(), runs.end(), [&](const MeasuredProcess& p) {
    return p.steps.size() == least->steps.size();
  });
  return fmt::format("{} runs of {}{}", runs.size(), steps_text(*least), even ? "" : " and more");
}

std::string pair_title(const Pair& pair) {
  const std::string before = process_name(pair.before.front()),
                    after = process_name(pair.after.front());
  return fmt::format("{}: {} before, {} after", before == after ? after : before + " and " + after,
                     side_text(pair.before), side_text(pair.after));
}

// Names of the runs of a side, each once: "A and B".
std::string names_of(const std::vector<MeasuredProcess>& runs,
                     std::string MeasuredProcess::*member) {
  std::vector<std::string> seen;
  for (const MeasuredProcess& run : runs) {
    const std::string& name = run.*member;
    if (!name.empty() && std::find(seen.begin(), seen.end(), name) == seen.end()) {
      seen.push_back(name);
    }
  }
  std::string out;
  for (const std::string& name : seen) out += (out.empty() ? "" : " and ") + name;
  return out;
}

// What makes the numbers less comparable than they look.
std::vector<std::string> notes_of(const Pair& pair) {
  std::vector<std::string> notes;
  const MeasuredProcess &a = pair.before.front(), &b = pair.after.front();
  constexpr std::pair<const char*, std::string MeasuredProcess::*> kSame[] = {
      {"programs", &MeasuredProcess::program},
      {"devices", &MeasuredProcess::device},
      {"hosts", &MeasuredProcess::host}};
  for (const auto& [what, member] : kSame) {
    const std::string before = names_of(pair.before, member), after = names_of(pair.after, member);
    // What a trace does not tell is not different.
    if (before != after && !before.empty() && !after.empty()) {
      notes.push_back(fmt::format("Different {}: {} before, {} after.", what, before, after));
    }
  }
  if (a.from_trace != b.from_trace) {
    notes.push_back(
        fmt::format("Before is a {}, after a {}: in a trace a kernel counts in the step in which "
                    "it begins, in a recording in the step in which it was launched; and a trace "
                    "lacks work that was launched before it began.",
                    kind_text(a), kind_text(b)));
  }
  const std::size_t before = least_steps(pair.before), after = least_steps(pair.after);
  if ((before == 0) != (after == 0)) {
    notes.push_back(fmt::format("{} has no steps, so that nothing can be compared per step.",
                                before == 0 ? "Before" : "After"));
  } else if (before == 0) {
    notes.push_back(
        fmt::format("Neither has steps: the busy share is of the whole time from the first to the "
                    "last activity{}.",
                    pair.has_repeats() ? "" : ", and what is noise is not known"));
  } else if (!pair.has_repeats() && std::min(before, after) < kLeastSteps) {
    notes.push_back(fmt::format(
        "Fewer than {} steps: what is noise is not known. Record more (--active).", kLeastSteps));
  }
  return notes;
}

// "Steps are 10.2 times as fast."; empty where it may be chance.
std::string speed_text(const Pair& pair) {
  const MetricChange& step = pair.changes.front();
  if (!step.known() || *step.after <= 0 || *step.before <= 0) return "";
  const double ratio = *step.before / *step.after;
  if (step.difference.has_interval && !step.difference.beyond_noise()) {
    return "The length of a step is the same, within noise.";
  }
  const std::string text = ratio >= 1
                               ? fmt::format("Steps are {} times as fast", number(ratio))
                               : fmt::format("Steps take {} times as long", number(1 / ratio));
  return text + (step.difference.has_interval ? "." : ", by few steps.");
}

std::string judgement_text(const ConditionResult& r) {
  switch (r.judgement) {
    case Judgement::kNo: return "no";
    case Judgement::kHolds: return "HOLDS";
    case Judgement::kWithinNoise: return "within noise";
    case Judgement::kTooFewSteps: return "too few steps to judge";
    case Judgement::kUnknown: break;
  }
  return "not known";
}

std::string finding_text(const Pair& pair) {
  const auto name = [](const MeasuredProcess& p) {
    return p.first_finding.empty() ? std::string("none") : p.first_finding;
  };
  return fmt::format("First finding: {} before, {} after.", name(pair.before.front()),
                     name(pair.after.front()));
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string runs_code(const std::vector<std::string>& paths) {
  std::string out;
  for (const std::string& path : paths) out += (out.empty() ? "" : ", ") + markdown_code(path);
  return out;
}

Json json(const MeasuredProcess& p) {
  return {{"rank", p.rank < 0 ? Json() : Json(p.rank)},
          {"pid", p.pid},
          {"host", p.host},
          {"command", p.command},
          {"device", p.device.empty() ? Json() : Json(p.device)},
          {"source", kind_text(p)},
          {"steps", p.steps.size()},
          {"first_finding", p.first_finding.empty() ? Json() : Json(p.first_finding)}};
}

// What the intervals of a pair know.
Json noise_source(const Pair& pair) {
  if (pair.has_repeats()) return "runs";
  return pair.changes.front().difference.has_interval ? Json("steps") : Json();
}

constexpr const char* kOneRunEach =
    "Judged by one run each: what runs of the same code differ by is not known. Give several runs "
    "of each side (gpubusy compare A1 A2 A3 -- B1 B2 B3).";

bool has_one_run_each(const Comparison& c) { return c.before.size() == 1 && c.after.size() == 1; }

}  // namespace

std::string render_text(const Comparison& c, const TextOptions& options) {
  Page page(options);
  if (c.pairs.empty()) {
    page.line(kNoPair);
  } else if (c.pairs.size() > 1) {
    Table table({"process", "step before", "after", "busy before", "after", "change of the step"});
    for (const Pair& pair : c.pairs) {
      const auto& metrics = all_metrics();
      const MetricChange &step = pair.changes[0], &busy = pair.changes[2];
      table.add({printable(process_name(pair.after.front())), value_text(metrics[0], step.before),
                 value_text(metrics[0], step.after), value_text(metrics[2], busy.before),
                 value_text(metrics[2], busy.after), change_text(metrics[0], step).change});
    }
    table.print(page, 1);
  }
  for (const Pair* pair : detailed(c)) {
    if (c.pairs.size() > 1 || pair->has_repeats()) page.heading(printable(pair_title(*pair)));
    for (const std::string& note : notes_of(*pair)) page.wrapped("! ", note, Style::kWarn);
    Table table({"", "before", "after", "change", "95 % interval"});
    for (std::vector<std::string>& row : rows_of(*pair)) table.add(std::move(row));
    table.print(page);
    if (!pair->before.front().from_trace && !pair->after.front().from_trace) {
      page.wrapped("  ", printable(finding_text(*pair)));
    }
    if (const std::string speed = speed_text(*pair); !speed.empty()) {
      page.line("  " + page.styled(Style::kBold, speed));
    }
  }
  if (!c.only_before.empty()) {
    page.wrapped("! ", "Only before: " + printable(joined(c.only_before)), Style::kWarn);
  }
  if (!c.only_after.empty()) {
    page.wrapped("! ", "Only after: " + printable(joined(c.only_after)), Style::kWarn);
  }
  if (!c.results.empty()) {
    page.heading("Conditions");
    for (const ConditionResult& r : c.results) {
      const bool bad = r.judgement == Judgement::kHolds;
      page.wrapped("  ",
                   printable(r.condition) +
                       (c.pairs.size() > 1 ? ", " + printable(r.process) : "") + ": " +
                       judgement_text(r),
                   bad                             ? Style::kBad
                   : r.judgement == Judgement::kNo ? Style::kGood
                                                   : Style::kWarn);
    }
    if (has_one_run_each(c)) page.wrapped("  ", kOneRunEach, Style::kDim);
  }
  return page.take();
}

std::string render_json(const Comparison& c) {
  Json out = {{"schema", kSchema},       {"before", c.before.front()}, {"after", c.after.front()},
              {"before_runs", c.before}, {"after_runs", c.after},      {"failed", c.failed}};
  out["pairs"] = Json::array();
  for (const Pair& pair : c.pairs) {
    Json metrics = Json::object();
    for (const MetricChange& change : pair.changes) {
      const auto or_null = [](const std::optional<double>& v) { return v ? Json(*v) : Json(); };
      const Difference& d = change.difference;
      const bool interval = change.known() && d.has_interval;
      metrics[all_metrics()[change.metric].id] = {
          {"before", or_null(change.before)},
          {"after", or_null(change.after)},
          {"change", change.known() ? Json(d.change) : Json()},
          {"relative", or_null(change.relative())},
          {"low", interval ? Json(d.low) : Json()},
          {"high", interval ? Json(d.high) : Json()},
          {"within_noise", interval ? Json(!d.beyond_noise()) : Json()},
          {"before_by_run", change.before_runs},
          {"after_by_run", change.after_runs}};
    }
    out["pairs"].push_back({{"before", json(pair.before.front())},
                            {"after", json(pair.after.front())},
                            {"noise_from", noise_source(pair)},
                            {"notes", notes_of(pair)},
                            {"metrics", std::move(metrics)}});
  }
  out["only_before"] = c.only_before;
  out["only_after"] = c.only_after;
  out["conditions"] = Json::array();
  for (const ConditionResult& r : c.results) {
    out["conditions"].push_back(
        {{"condition", r.condition},
         {"process", r.process},
         {"result", judgement_id(r.judgement)},
         {"change", r.judgement == Judgement::kUnknown ? Json() : Json(r.change)}});
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string render_markdown(const Comparison& c) {
  std::string out = "### gpubusy: " + runs_code(c.before) + " and " + runs_code(c.after) + "\n\n";
  if (c.pairs.empty()) out += std::string(kNoPair) + "\n\n";
  for (const Pair* pair : detailed(c)) {
    out += "**" + markdown_text(pair_title(*pair)) + "**\n\n";
    for (const std::string& note : notes_of(*pair)) out += "> " + markdown_text(note) + "\n\n";
    std::vector<std::vector<std::string>> rows = rows_of(*pair);  // words of ours and numbers
    out += markdown_table({"", "before", "after", "change", "95 % interval"}, rows);
    if (!pair->before.front().from_trace && !pair->after.front().from_trace) {
      out += markdown_text(finding_text(*pair)) + "\n\n";
    }
    if (const std::string speed = speed_text(*pair); !speed.empty()) out += speed + "\n\n";
  }
  if (c.pairs.size() > detailed(c).size()) {
    std::vector<std::vector<std::string>> rows;
    for (const Pair& pair : c.pairs) {
      const MetricChange& step = pair.changes[0];
      rows.push_back({markdown_text(process_name(pair.after.front())),
                      value_text(all_metrics()[0], step.before),
                      value_text(all_metrics()[0], step.after),
                      change_text(all_metrics()[0], step).change});
    }
    out += markdown_table({"process", "step before", "after", "change"}, rows);
  }
  if (!c.only_before.empty())
    out += "Only before: " + markdown_text(joined(c.only_before)) + "\n\n";
  if (!c.only_after.empty()) out += "Only after: " + markdown_text(joined(c.only_after)) + "\n\n";
  if (!c.results.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const ConditionResult& r : c.results) {
      const std::string text = judgement_text(r);
      rows.push_back({markdown_code(r.condition), markdown_text(r.process),
                      r.judgement == Judgement::kHolds ? "**" + text + "**" : text});
    }
    out += markdown_table({"condition", "process", ""}, rows);
    if (has_one_run_each(c)) out += markdown_text(kOneRunEach) + "\n\n";
  }
  return out;
}

}  // namespace gpubusy::analysis
