// SPDX-License-Identifier: Apache-2.0
#include "analysis/whatif/whatif.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "analysis/names.hpp"
#include "analysis/report.hpp"
#include "analysis/text_page.hpp"
#include "analysis/whatif/gains.hpp"
#include "analysis/whatif/model.hpp"

namespace gpubusy::analysis::whatif {
namespace {

using recording::Recording;
using recording::Session;

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

}  // namespace

Study::Study(const Recording& recording, const Timeline& timeline, StepMode mode,
             const std::vector<Step>& steps, unsigned processors)
    : processors_(processors) {
  head_.pid = recording.pid;
  head_.rank = recording.rank;
  if (mode == StepMode::kWholeSpan) {
    head_.error = "no steps were seen: nothing to predict from";
    return;
  }
  auto model = build_model(recording, timeline, steps);
  if (!model) {
    head_.error = model.error();
    return;
  }
  model_ = std::move(*model);
  Surroundings surroundings;
  surroundings.processors = processors;
  predictor_.emplace(recording, timeline, *model_, surroundings);
  head_.steps = model_->steps;
  head_.step_ms = static_cast<double>(model_->observed_mean_ns) / 1e6;
  head_.model_ms = predictor_->unchanged_ns() / 1e6;
}

const Prediction& Study::predict(const Change& change) {
  const auto [it, fresh] = known_.try_emplace(change.text);
  if (fresh) it->second = predictor_->predict({change});
  return it->second;
}

Predictions Study::of_findings(const ProcessReport& report) {
  Predictions out = head_;
  if (!possible()) return out;
  std::vector<Change> helping;
  for (const Change& change : standard_changes(report, processors_)) {
    const Prediction& row = predict(change);
    if (!row.is_gain(head_.step_ms)) continue;
    out.rows.push_back(row);
    helping.push_back(change);
  }
  if (helping.size() > 1) out.rows.push_back(predictor_->predict(helping));
  return out;
}

Predictions Study::of(const std::vector<Change>& changes, bool together) {
  Predictions out = head_;
  if (!possible()) return out;
  if (together) {
    out.rows.push_back(predictor_->predict(changes));
  } else {
    for (const Change& change : changes) out.rows.push_back(predict(change));
  }
  return out;
}

Predictions predict(const Recording& recording, const Options& options,
                    const std::vector<Change>& given) {
  const Timeline timeline = build_timeline(recording);
  const StepSelection selection = select_steps(recording, timeline);
  Study study(recording, timeline, selection.mode, selection.steps,
              options.processors != 0 ? options.processors : processors_here());
  if (!given.empty() || !study.possible()) return study.of(given, options.together);
  const ProcessReport report = verdict_of(recording, timeline);
  return options.together ? study.of(standard_changes(report, study.processors()), true)
                          : study.of_findings(report);
}

tl::expected<std::vector<Predictions>, std::string> predict(const Session& session,
                                                            const Options& options) {
  std::vector<Change> changes;
  for (const std::string& text : options.changes) {
    auto change = parse_change(text);
    if (!change) return tl::unexpected(change.error());
    changes.push_back(std::move(*change));
  }
  std::vector<Predictions> out;
  for (const Recording& recording : session.processes) {
    if (!recording.calls.empty()) out.push_back(predict(recording, options, changes));
  }
  return out;
}

std::string render_text(const std::vector<Predictions>& predictions, const TextOptions& options) {
  if (predictions.empty()) return "Nothing to predict from: no CUDA call was recorded.\n";
  const bool any = std::any_of(predictions.begin(), predictions.end(),
                               [](const Predictions& p) { return p.error.empty(); });
  std::size_t without =
      0;  // helpers beside a training; told one by one where there is nothing else
  Page page(options);
  bool first = true;
  for (const Predictions& p : predictions) {
    if (any && !p.error.empty()) {
      ++without;
      continue;
    }
    if (!first) page.blank();
    first = false;
    const std::string who =
        p.rank >= 0 ? fmt::format("rank {}, pid {}", p.rank, p.pid) : fmt::format("pid {}", p.pid);
    if (!p.error.empty()) {
      page.wrapped(who + ": ", printable(p.error));
      continue;
    }
    page.wrapped(
        "",
        fmt::format(
            "{}: a step takes {:.2f} ms (mean of {}); the model, with nothing changed: {:.2f} ms",
            who, p.step_ms, p.steps - 1, p.model_ms));
    if (p.rows.empty()) {
      page.line("  No finding calls for a change that can be predicted. Try --change.");
      continue;
    }
    constexpr std::size_t kNumbers = 53;  // columns of them
    std::size_t width = 6;
    for (const Prediction& row : p.rows) {
      width = std::max(width, length_of(printable(joined(row.changes, " + "))));
    }
    width = std::min(width, page.width() - kNumbers);
    page.line(fmt::format("  {:<{}}  {:>9}  {:>19}  {:>7}  {:>8}", "change", width, "step ms",
                          "at least - at most", "faster", "GPU busy"));
    for (const Prediction& row : p.rows) {
      const std::string name = printable(joined(row.changes, " + "));
      std::string start = name + std::string(width - std::min(width, length_of(name)), ' ');
      if (length_of(name) > width) {
        page.wrapped("  ", name);
        start = std::string(width, ' ');
      }
      page.line(fmt::format("  {}  {:>9.2f}  {:>19}  {:>7}  {:>7.1f}%", start, row.step_ms,
                            fmt::format("{:.2f} - {:.2f}", row.low_ms, row.high_ms),
                            row.step_ms > 0 ? fmt::format("{:.2f}x", p.step_ms / row.step_ms) : "?",
                            row.gpu_busy * 100));
      for (std::size_t i = 0; i < row.touched.size(); ++i) {
        if (row.touched[i] == 0) {
          page.wrapped("    ", fmt::format("nothing in the recording is what {} changes",
                                           printable(row.changes[i])));
        }
      }
      for (const std::string& text : row.assumed) {
        page.wrapped("    assumed: ", printable(text));
      }
    }
  }
  if (without > 0) {
    page.blank();
    page.line(fmt::format("{} more {} no steps to predict from.", without,
                          without == 1 ? "process has" : "processes have"));
  }
  return page.take();
}

std::string render_json(const std::vector<Predictions>& predictions) {
  using Json = nlohmann::ordered_json;
  Json out = {{"schema", 1}, {"processes", Json::array()}};
  for (const Predictions& p : predictions) {
    Json process = {{"pid", p.pid},
                    {"rank", p.rank},
                    {"steps", p.steps},
                    {"step_ms", p.step_ms},
                    {"model_ms", p.model_ms},
                    {"error", p.error.empty() ? Json() : Json(p.error)},
                    {"predictions", Json::array()}};
    for (const Prediction& row : p.rows) {
      process["predictions"].push_back({{"changes", row.changes},
                                        {"step_ms", row.step_ms},
                                        {"low_ms", row.low_ms},
                                        {"high_ms", row.high_ms},
                                        {"gpu_busy", row.gpu_busy},
                                        {"touched", row.touched},
                                        {"assumed", row.assumed}});
    }
    out["processes"].push_back(std::move(process));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gpubusy::analysis::whatif
