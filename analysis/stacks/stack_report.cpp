// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/stack_report.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/chrome_trace/chrome_trace.hpp"
#include "analysis/names.hpp"
#include "analysis/stacks/folded.hpp"
#include "analysis/stacks/operators.hpp"
#include "analysis/stacks/pprof.hpp"
#include "analysis/text_page.hpp"
#include "analysis/trace_file.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Recording;
using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr std::size_t kMinWidth = 60;
constexpr std::size_t kLeastName = 24;
constexpr std::size_t kShownFrames = 16;  // of a stack, in text

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// Everything that a process's tables and exports are made of.
struct Process {
  Process(const Recording& r, const SymbolOptions& symbols)
      : recording(r),
        names(open_native_names(r, symbols)),
        stacks(r, names.get()),
        operators(stacks),
        judged(judge(r)) {}
  const Recording& recording;
  std::unique_ptr<NativeNames> names;
  Stacks stacks;
  Operators operators;
  Judged judged;
};

const char* by_name(GroupBy by) {
  switch (by) {
    case GroupBy::kFunction: return "function";
    case GroupBy::kOperator: return "operator";
    case GroupBy::kStack: return "stack";
    case GroupBy::kPhase: return "phase";
    case GroupBy::kLine: break;
  }
  return "line";
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string milliseconds(std::uint64_t ns) {
  const double value = ms(ns);
  return fmt::format("{:.{}f}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}};
  const auto value = static_cast<double>(bytes);
  for (const auto& [unit, name] : kUnits) {
    if (value >= unit) return fmt::format("{:.3g} {}", value / unit, name);
  }
  return fmt::format("{} B", bytes);
}

// ---- text ----

using Cells = std::vector<std::string>;

Cells cells_of(const CostRow& row, GroupBy by) {
  const Sums& s = row.sums;
  Cells out;
  if (by == GroupBy::kPhase) out.push_back(milliseconds(row.wall_ns));
  for (const std::uint64_t count : {s.launches, s.copies, s.syncs, s.allocations}) {
    out.push_back(std::to_string(count));
  }
  out.push_back(bytes_text(s.allocated_bytes));
  for (const std::uint64_t ns : {s.host_ns, s.device_ns, s.idle_ns}) {
    out.push_back(milliseconds(ns));
  }
  return out;
}

class TablePage {
 public:
  TablePage(const TextOptions& options, GroupBy by)
      : options_(options),
        width_(std::max<std::size_t>(static_cast<std::size_t>(std::max(options.width, 0)),
                                     kMinWidth)) {
    Cells head;
    if (by == GroupBy::kPhase) head.push_back("host ms");
    for (const char* name : {"launches", "copies", "syncs", "allocs", "bytes"})
      head.push_back(name);
    head.push_back(by == GroupBy::kPhase ? "in calls" : "host ms");
    head.push_back("device ms");
    head.push_back("idle ms");
    add(std::move(head), by_name(by), {});
  }

  void add(Cells cells, std::string name, Cells below) {
    rows_.push_back({std::move(cells), std::move(name), std::move(below)});
  }

  std::string text() const {
    const std::size_t all = rows_.front().cells.size();
    std::vector<std::size_t> widths(all);
    for (std::size_t c = 0; c < all; ++c) {
      // What no row has is no column.
      const bool empty = std::all_of(rows_.begin() + 1, rows_.end(), [&](const Row& row) {
        return row.cells[c] == "0" || row.cells[c] == "0 B";
      });
      if (empty) continue;
      for (const Row& row : rows_) widths[c] = std::max(widths[c], row.cells[c].size());
    }
    std::size_t used = 0;
    for (const std::size_t width : widths) used += width == 0 ? 0 : width + 2;
    // Where even a short name has no room, the columns that matter least go.
    for (const char* name : {"allocs", "bytes", "syncs", "copies"}) {
      for (std::size_t c = 0; c < all && used + kLeastName > width_; ++c) {
        if (widths[c] == 0 || rows_.front().cells[c] != name) continue;
        used -= widths[c] + 2;
        widths[c] = 0;
      }
    }
    const std::size_t room = std::max<std::size_t>(width_ > used ? width_ - used : 0, kLeastName);
    std::string out;
    for (const Row& row : rows_) {
      for (std::size_t c = 0; c < all; ++c) {
        if (widths[c] > 0) out += fmt::format("{:>{}}  ", row.cells[c], widths[c]);
      }
      out += shorten(printable(row.name), room, options_.ascii) + '\n';
      for (const std::string& line : row.below) {
        out += shorten("    " + printable(line), width_, options_.ascii) + '\n';
      }
    }
    return out;
  }

 private:
  struct Row {
    Cells cells;
    std::string name;
    Cells below;
  };
  TextOptions options_;
  std::size_t width_;
  std::vector<Row> rows_;
};

void add_row(TablePage& page, const CostRow& row, GroupBy by) {
  if (row.frames.empty()) {
    page.add(cells_of(row, by), (row.guessed && by == GroupBy::kOperator ? "? " : "") + row.name,
             {});
    return;
  }
  Cells below;  // innermost first
  for (auto frame = row.frames.rbegin() + 1; frame != row.frames.rend(); ++frame) {
    if (below.size() == kShownFrames) {
      below.push_back(fmt::format("and {} more", row.frames.rend() - frame));
      break;
    }
    below.push_back("in " + *frame);
  }
  page.add(cells_of(row, by), row.frames.back(), std::move(below));
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

void add_text(std::string& out, Process& process, const CostTableOptions& options,
              const TextOptions& text) {
  const Recording& r = process.recording;
  const CostTable table =
      make_table(r, process.judged, process.stacks, process.operators, options.by, options.top);
  if (!out.empty()) out += '\n';
  const std::string title =
      fmt::format("gpubusy {} {}", text.ascii ? "|" : "·", printable(joined(r.command_line)));
  out += shorten(title, Page(text).width(), text.ascii) + '\n';
  const std::size_t steps = process.judged.selection.steps.size();
  std::string second = r.rank >= 0 ? fmt::format("rank {}, ", r.rank) : "";
  second += fmt::format("pid {} on {}: {} of {} ms", r.pid, printable(r.host),
                        process.judged.selection.mode != StepMode::kWholeSpan
                            ? fmt::format("{} steps", steps)
                            : std::string("no steps, the whole time"),
                        milliseconds(table.wall_ns));
  if (process.judged.device >= 0) {
    second += fmt::format(", of them {} ms GPU {} idle", milliseconds(table.total.idle_ns),
                          process.judged.device);
  }
  Page head(text);
  head.wrapped("", second);
  head.blank();
  out += head.take();
  TablePage page(text, options.by);
  bool guessed = false;
  for (const CostRow& row : table.rows) {
    add_row(page, row, options.by);
    guessed |= row.guessed;
  }
  if (table.others > 0) {
    page.add(cells_of(table.other, options.by), fmt::format("({} others)", table.others), {});
  }
  CostRow total;
  total.sums = table.total;
  total.wall_ns = table.wall_ns;
  page.add(cells_of(total, options.by), "total", {});
  out += page.text();
  const auto note = [&](const std::string& words) {
    Page wrapped(text);
    wrapped.blank();
    wrapped.wrapped("", words);
    out += wrapped.take();
  };
  const Coverage& coverage = process.judged.timeline.coverage;
  if (coverage.timed < coverage.expected) {
    note(
        fmt::format("{} of {} pieces of device work in the recording have no time. Where these are "
                    "of the judged "
                    "steps, device times are too low and idle times too high; the verdict tells.",
                    coverage.untimed(), coverage.expected));
  }
  if (guessed && options.by == GroupBy::kOperator) {
    note(
        "?: a guess, the function of torch in whose Python frame the call was made: of these calls "
        "no "
        "native stack was recorded, or it has no names.");
  }
  if (guessed && options.by == GroupBy::kPhase) {
    note("Evaluation is a guess: a forward pass inside of a function named so.");
  }
  for (const NameProblem& problem : process.names->problems()) {
    if (problem.curable) note("Names: " + printable(to_text(problem)));
  }
}

// ---- JSON ----

Json json(const Sums& s) {
  return {{"calls", s.calls},
          {"launches", s.launches},
          {"copies", s.copies},
          {"syncs", s.syncs},
          {"allocations", s.allocations},
          {"allocated_bytes", s.allocated_bytes},
          {"host_ms", ms(s.host_ns)},
          {"device_ms", ms(s.device_ns)},
          {"idle_ms", ms(s.idle_ns)}};
}

Json json(const CostRow& row, GroupBy by) {
  Json out = {{"name", row.name}, {"known", row.known}};
  if (by == GroupBy::kOperator || by == GroupBy::kPhase) out["guess"] = row.guessed;
  if (by == GroupBy::kLine || by == GroupBy::kFunction) {
    out["file"] = row.file;
    out["function"] = row.function;
  }
  if (by == GroupBy::kLine) out["line"] = row.line;
  if (by == GroupBy::kStack) out["frames"] = row.frames;
  if (by == GroupBy::kPhase) out["wall_ms"] = ms(row.wall_ns);
  out.update(json(row.sums));
  return out;
}

Json json(Process& process, const CostTableOptions& options) {
  const Recording& r = process.recording;
  const CostTable table =
      make_table(r, process.judged, process.stacks, process.operators, options.by, options.top);
  Json out = {{"pid", r.pid},
              {"rank", r.rank},
              {"host", r.host},
              {"command", joined(r.command_line)},
              {"steps", process.judged.selection.mode != StepMode::kWholeSpan
                            ? process.judged.selection.steps.size()
                            : 0},
              {"wall_ms", ms(table.wall_ns)},
              {"device", process.judged.device},
              {"device_work_without_time", process.judged.timeline.coverage.untimed()},
              {"total", json(table.total)},
              {"rows", Json::array()}};
  for (const CostRow& row : table.rows) out["rows"].push_back(json(row, options.by));
  out["others"] = json(table.other.sums);
  out["others"]["rows"] = table.others;
  out["name_problems"] = Json::array();
  for (const NameProblem& problem : process.names->problems()) {
    out["name_problems"].push_back(to_text(problem));
  }
  return out;
}

}  // namespace

std::string render_tables(const recording::Session& session, const CostTableOptions& table,
                          const TextOptions& text) {
  std::string out;
  for (const Recording& recording : session.processes) {
    if (recording.calls.empty()) continue;
    Process process(recording, table.symbols);
    add_text(out, process, table, text);
  }
  return out.empty() ? "no CUDA call was recorded\n" : out;
}

std::string render_tables_json(const recording::Session& session, const CostTableOptions& table) {
  Json out = {{"schema", kSchema}, {"by", by_name(table.by)}, {"processes", Json::array()}};
  for (const Recording& recording : session.processes) {
    if (recording.calls.empty()) continue;
    Process process(recording, table.symbols);
    out["processes"].push_back(json(process, table));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

StackExportResult export_stacks(const recording::Session& session,
                                const StackExportOptions& options) {
  StackExportResult result;
  const auto directory = directory_for(session, options.directory);
  if (!directory) {
    result.problems.push_back(directory.error());
    return result;
  }
  for (const Recording& recording : session.processes) {
    if (recording.calls.empty()) continue;
    Process process(recording, options.symbols);
    const std::vector<Step>& steps = process.judged.selection.steps;
    if (steps.empty()) continue;
    const StackWeights weights = weigh(recording, process.judged, process.stacks);
    const bool pprof = options.format == StackFormat::kPprof;
    TraceFile file(*directory, pprof);
    file.write(pprof ? pprof_profile(recording, process.judged, process.stacks, weights)
                     : folded_text(process.stacks, weights, options.weight));
    const std::uint64_t stamp = unix_time(recording, steps.back().end_ns);
    const auto path = file.finish([&](unsigned attempt) {
      return fmt::format(
          "{}.{}.{}", worker_name(recording), stamp + attempt,
          pprof ? "pprof.pb.gz" : fmt::format("{}.folded", weight_name(options.weight)));
    });
    if (path) {
      result.written.push_back(*path);
    } else {
      result.problems.push_back(path.error());
    }
  }
  return result;
}

}  // namespace gpubusy::analysis
