// SPDX-License-Identifier: Apache-2.0
//
// The verdict as Markdown, for an issue or a pull request.
#include <algorithm>

#include <fmt/format.h>

#include "analysis/api.hpp"
#include "analysis/markdown.hpp"
#include "analysis/names.hpp"
#include "analysis/report.hpp"
#include "analysis/text_page.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kTop = 8;

std::string headline(const ProcessReport& p) {
  std::string text = p.has_device_times() && p.wall_ns > 0
                         ? fmt::format("**GPU busy {}**", percent(p.share(p.busy_ns)))
                         : std::string("**GPU busy: not known**");
  if (p.has_steps()) {
    text += fmt::format(" of {} step{}; step {} ms ({} to {})", p.steps.size(),
                        p.steps.size() == 1 ? "" : "s", number(p.mean_step_ms()),
                        number(p.step_ms.minimum), number(p.step_ms.maximum));
  } else if (p.wall_ns > 0) {
    text += fmt::format(" of {} ms from the first to the last device work; no step was seen",
                        number(ms(p.wall_ns)));
  }
  return text + ".\n\n";
}

std::string findings(const ProcessReport& p) {
  std::string out;
  int index = 0;
  for (const Finding& f : p.findings) {
    out += fmt::format("{}. **{}** ({})\n", ++index, markdown_text(f.title), percent(f.share));
    if (!f.where.empty()) out += "   - where: " + markdown_code(f.where) + "\n";
    out += "   - seen: " + markdown_text(f.evidence) + "\n";
    if (!f.cure.empty()) out += "   - cure: " + markdown_text(f.cure) + "\n";
    if (f.gain.known()) out += "   - gain: " + markdown_text(gain_text(f.gain)) + "\n";
  }
  return out.empty() ? out : out + "\n";
}

std::string times(const ProcessReport& p) {
  if (!p.has_device_times() || p.wall_ns == 0) return {};
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& name, std::uint64_t ns, const SourceLine& at) {
    const std::string line = to_text(at);
    rows.push_back({name, number(ms(ns) / steps), percent(p.share(ns)),
                    line.empty() ? line : markdown_code(line)});
  };
  row("busy", p.busy_ns, {});
  for (const PartRow& part : rows_to_show(p.division)) {
    row((part.busy ? "busy: " : "idle: ") + part.title, part.ns, part.line);
  }
  return markdown_table({p.has_steps() ? "where the time goes, per step" : "where the time goes",
                         "ms", "share", "most at"},
                        rows);
}

std::string kernels(const ProcessReport& p) {
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  const auto& all = p.summary.kernels;
  if (all.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(kTop, all.size()); ++i) {
    rows.push_back({markdown_code(all[i].name),
                    count_text(static_cast<double>(all[i].count) / steps),
                    number(ms(all[i].total_ns) / steps), percent(all[i].share)});
  }
  return markdown_table({fmt::format("kernels (top {} of {}){}", rows.size(), all.size(),
                                     p.has_steps() ? ", per step" : ""),
                         "count", "ms", "share"},
                        rows);
}

std::string copies(const ProcessReport& p) {
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  const auto& all = p.summary.copies;
  if (all.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(kTop, all.size()); ++i) {
    const CopyRow& c = all[i];
    rows.push_back({fmt::format("{} {} {}", direction_name(c.direction),
                                memory_kind_name(c.host_kind), c.asynchronous ? "async" : "sync"),
                    count_text(static_cast<double>(c.count) / steps),
                    bytes_text(static_cast<double>(c.bytes) / steps),
                    c.timed ? number(ms(c.device_ns) / steps) : "?", number(ms(c.host_ns) / steps),
                    markdown_code(to_text(c.line))});
  }
  return markdown_table({std::string("copies") + (p.has_steps() ? ", per step" : ""), "count",
                         "bytes", "device ms", "host ms", "at"},
                        rows);
}

}  // namespace

std::string render_markdown(const SessionReport& report) {
  std::string out;
  for (const std::string& skipped : report.skipped) {
    out += "> Not read: " + markdown_text(skipped) + "\n\n";
  }
  if (report.processes.empty()) return out + "No CUDA call was intercepted.\n";
  for (const ProcessReport& p : report.processes) {
    out += "### gpubusy: " + markdown_code(p.command.empty() ? p.executable : p.command) + "\n\n";
    out += fmt::format(
        "{}pid {} on {}{}; gpubusy {}\n\n", p.rank >= 0 ? fmt::format("Rank {}, ", p.rank) : "",
        p.pid, markdown_code(p.host),
        p.device < 0 ? std::string()
                     : fmt::format(", GPU {} ({})", p.device, markdown_text(p.device_name)),
        markdown_text(p.library_version));
    for (const std::string& warning : p.warnings) out += "> " + markdown_text(warning) + "\n\n";
    out += headline(p) + findings(p) + times(p) + copies(p) + kernels(p);
    out += fmt::format("{} calls recorded, {} of {} pieces of device work timed, {} lost.\n\n",
                       p.calls, p.coverage.timed, p.coverage.expected, p.lost_records);
  }
  return out;
}

}  // namespace gpubusy::analysis
