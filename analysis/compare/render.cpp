// SPDX-License-Identifier: Apache-2.0
//
// A comparison as text, JSON and Markdown.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/compare/comparison.hpp"
#include "analysis/markdown.hpp"
#include "analysis/text_page.hpp"

namespace gpubusy::analysis {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr double kLeastPart = 0.005;      // of the step: a part that is shown
constexpr std::size_t kMostDetailed = 4;  // pairs with a table of their own

std::string value_text(const Metric& metric, const std::optional<double>& value) {
  if (!value) return "?";
  switch (metric.kind) {
    case MetricKind::kTime:
      return number(*value) + " ms";
    case MetricKind::kShare:
      return percent(*value);
    case MetricKind::kCount:
      break;
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

std::string pair_title(const Pair& pair) {
  const std::string before = process_name(pair.before), after = process_name(pair.after);
  return fmt::format("{}: {} before, {} after", before == after ? after : before + " and " + after,
                     steps_text(pair.before), steps_text(pair.after));
}

// What makes the numbers less comparable than they look.
std::vector<std::string> notes_of(const Pair& pair) {
  std::vector<std::string> notes;
  const MeasuredProcess &a = pair.before, &b = pair.after;
  if (a.from_trace != b.from_trace) {
    notes.push_back(fmt::format(
        "Before is a {}, after a {}: in a trace a kernel counts in the step in which it begins, in "
        "a recording in the step in which it was launched; and a trace lacks work that was "
        "launched "
        "before it began.",
        kind_text(a), kind_text(b)));
  }
  if (a.steps.empty() != b.steps.empty()) {
    notes.push_back(fmt::format("{} has no steps, so that nothing can be compared per step.",
                                a.steps.empty() ? "Before" : "After"));
  } else if (a.steps.empty()) {
    notes.push_back(
        "Neither has steps: the busy share is of the whole time from the first to the "
        "last activity, and what is noise is not known.");
  } else if (std::min(a.steps.size(), b.steps.size()) < kLeastSteps) {
    notes.push_back(
        fmt::format("Fewer than {} steps: what is noise is not known. Record more "
                    "(--active).",
                    kLeastSteps));
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
    case Judgement::kNo:
      return "no";
    case Judgement::kHolds:
      return "HOLDS";
    case Judgement::kWithinNoise:
      return "within noise";
    case Judgement::kTooFewSteps:
      return "too few steps to judge";
    case Judgement::kUnknown:
      break;
  }
  return "not known";
}

std::string finding_text(const Pair& pair) {
  const auto name = [](const MeasuredProcess& p) {
    return p.first_finding.empty() ? std::string("none") : p.first_finding;
  };
  return fmt::format("First finding: {} before, {} after.", name(pair.before), name(pair.after));
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

Json json(const MeasuredProcess& p) {
  return {{"rank", p.rank < 0 ? Json() : Json(p.rank)},
          {"pid", p.pid},
          {"host", p.host},
          {"command", p.command},
          {"source", kind_text(p)},
          {"steps", p.steps.size()},
          {"first_finding", p.first_finding.empty() ? Json() : Json(p.first_finding)}};
}

}  // namespace

std::string render_text(const Comparison& c, const TextOptions& options) {
  Page page(options);
  if (c.pairs.empty()) {
    page.line("Nothing to compare: a session without CUDA calls.");
  } else if (c.pairs.size() > 1) {
    Table table({"process", "step before", "after", "busy before", "after", "change of the step"});
    for (const Pair& pair : c.pairs) {
      const auto& metrics = all_metrics();
      const MetricChange &step = pair.changes[0], &busy = pair.changes[2];
      table.add({printable(process_name(pair.after)), value_text(metrics[0], step.before),
                 value_text(metrics[0], step.after), value_text(metrics[2], busy.before),
                 value_text(metrics[2], busy.after), change_text(metrics[0], step).change});
    }
    table.print(page, 1);
  }
  for (const Pair* pair : detailed(c)) {
    if (c.pairs.size() > 1) page.heading(printable(pair_title(*pair)));
    for (const std::string& note : notes_of(*pair)) page.wrapped("! ", note, Style::kWarn);
    Table table({"", "before", "after", "change", "95 % interval"});
    for (std::vector<std::string>& row : rows_of(*pair)) table.add(std::move(row));
    table.print(page);
    if (!pair->before.from_trace && !pair->after.from_trace) {
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
  }
  return page.take();
}

std::string render_json(const Comparison& c) {
  Json out = {{"schema", kSchema}, {"before", c.before}, {"after", c.after}, {"failed", c.failed}};
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
          {"within_noise", interval ? Json(!d.beyond_noise()) : Json()}};
    }
    out["pairs"].push_back({{"before", json(pair.before)},
                            {"after", json(pair.after)},
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
  std::string out =
      "### gpubusy: " + markdown_code(c.before) + " and " + markdown_code(c.after) + "\n\n";
  if (c.pairs.empty()) out += "Nothing to compare: a session without CUDA calls.\n\n";
  for (const Pair* pair : detailed(c)) {
    out += "**" + markdown_text(pair_title(*pair)) + "**\n\n";
    for (const std::string& note : notes_of(*pair)) out += "> " + markdown_text(note) + "\n\n";
    std::vector<std::vector<std::string>> rows = rows_of(*pair);  // words of ours and numbers
    out += markdown_table({"", "before", "after", "change", "95 % interval"}, rows);
    if (!pair->before.from_trace && !pair->after.from_trace) {
      out += markdown_text(finding_text(*pair)) + "\n\n";
    }
    if (const std::string speed = speed_text(*pair); !speed.empty()) out += speed + "\n\n";
  }
  if (c.pairs.size() > detailed(c).size()) {
    std::vector<std::vector<std::string>> rows;
    for (const Pair& pair : c.pairs) {
      const MetricChange& step = pair.changes[0];
      rows.push_back(
          {markdown_text(process_name(pair.after)), value_text(all_metrics()[0], step.before),
           value_text(all_metrics()[0], step.after), change_text(all_metrics()[0], step).change});
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
  }
  return out;
}

}  // namespace gpubusy::analysis
