// SPDX-License-Identifier: Apache-2.0
//
// The verdict as text for a terminal.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "analysis/api.hpp"
#include "analysis/names.hpp"
#include "analysis/report.hpp"
#include "analysis/text_page.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kTopKernels = 5;
constexpr std::size_t kTopCalls = 5;
constexpr std::size_t kTopCopies = 6;
constexpr std::size_t kTopRanges = 8;
constexpr std::size_t kTopGaps = 6;
constexpr std::size_t kTopNotices = 6;

std::string who(const ProcessReport& p) {
  std::string out;
  if (p.rank >= 0) {
    out += fmt::format("rank {}", p.rank);
    if (p.world_size > 0) out += fmt::format(" of {}", p.world_size);
    out += ", ";
  }
  return out + fmt::format("pid {} on {}", p.pid, p.host.empty() ? "?" : printable(p.host));
}

// "20 steps (7-26)", "20 steps (7-16, 57-66)", "200 steps in 10 windows".
std::string steps_text(const ProcessReport& p, const Page& page) {
  constexpr std::uint32_t kMaxRanges = 3;
  const std::size_t n = p.steps.size();
  if (n == 1) return fmt::format("step {}", p.steps.front().number);
  if (p.windows > kMaxRanges) return fmt::format("{} steps in {} windows", n, p.windows);
  std::string ranges;
  for (std::size_t i = 0; i < n;) {
    std::size_t last = i;
    while (last + 1 < n && p.steps[last + 1].window == p.steps[i].window) ++last;
    ranges += fmt::format("{}{}{}{}", ranges.empty() ? "" : ", ", p.steps[i].number, page.dash(),
                          p.steps[last].number);
    i = last + 1;
  }
  return fmt::format("{} steps ({})", n, ranges);
}

std::string step_length(const ProcessReport& p, const Page& page) {
  if (!p.has_steps()) return {};
  std::string text = fmt::format("; step {} ms", number(p.mean_step_ms()));
  if (p.steps.size() > 1) {
    text +=
        fmt::format(" ({}{}{})", number(p.step_ms.minimum), page.dash(), number(p.step_ms.maximum));
  }
  return text;
}

void headline(Page& page, const ProcessReport& p) {
  if (p.wall_ns == 0) return;
  const std::string span =
      p.has_steps()
          ? steps_text(p, page)
          : fmt::format("{} ms from the first to the last device work", number(ms(p.wall_ns)));
  if (!p.has_device_times()) {
    page.line(page.styled(Style::kBold, "GPU busy: not known") + " in " + span +
              step_length(p, page));
    return;
  }
  const double share = p.share(p.busy_ns);
  const Style style = share >= 0.85 ? Style::kGood : share >= 0.5 ? Style::kWarn : Style::kBad;
  page.line(page.styled(style, "GPU busy " + percent(share)) + " of " + span +
            step_length(p, page));
  const std::size_t cells = std::min<std::size_t>(page.width(), 72);
  page.line(page.styled(style, page.bar(share, cells)));
}

// Without device times: what the host did.
void host_table(Page& page, const ProcessReport& p) {
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  page.heading(fmt::format("{} the host's time goes{}", p.has_steps() ? "Per step: where" : "Where",
                           p.has_steps() ? " (mean)" : ""));
  Table table({"", "ms", "share"});
  const auto row = [&](const char* name, HostState state) {
    const std::uint64_t ns = p.host_time(state);
    table.add({name, number(ms(ns) / steps), percent(p.share(ns))});
  };
  row("outside CUDA", HostState::kOutside);
  row("launching", HostState::kLaunching);
  row("waiting for the GPU", HostState::kWaiting);
  row("in other CUDA calls", HostState::kOtherCall);
  table.print(page);
}

void time_table(Page& page, const ProcessReport& p) {
  if (p.wall_ns == 0) return;
  if (!p.has_device_times()) return host_table(page, p);
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  page.heading(fmt::format("{} the time goes{}", p.has_steps() ? "Per step: where" : "Where",
                           p.has_steps() ? " (mean)" : ""));
  Table table({"", "ms", "share", "most at"});
  const auto row = [&](const std::string& name, std::uint64_t ns, const SourceLine& line) {
    table.add({name, number(ms(ns) / steps), percent(p.share(ns)),
               shorten(printable(to_text(line)), 44, page.ascii())});
  };
  bool busy = false, idle = false;
  for (const PartRow& part : rows_to_show(p.division)) {
    bool& begun = part.busy ? busy : idle;
    if (!begun) row(part.busy ? "busy" : "idle", part.busy ? p.busy_ns : p.wall_ns - p.busy_ns, {});
    begun = true;
    // Where even all small ones together are nothing to look at.
    if (p.share(part.ns) < kLeastPartShare / 2 && part.is_rest) continue;
    row("  " + part.title, part.ns, part.line);
  }
  table.print(page, 1);
  std::string hidden;
  for (const auto& [part, ns] : hidden_parts(p.division)) {
    if (p.share(ns) < kLeastPartShare) continue;
    hidden += fmt::format("{}{} {} ms", hidden.empty() ? "" : ", ", part_title(part),
                          number(ms(ns) / steps));
  }
  if (!hidden.empty()) {
    page.wrapped("  ", fmt::format("Beside that, hidden under other work: {}.", hidden));
  }
}

void findings_text(Page& page, const ProcessReport& p) {
  if (p.wall_ns == 0) return;
  if (p.findings.empty() && !p.has_device_times()) return;
  page.heading("Findings");
  if (p.findings.empty()) {
    page.wrapped("  ", "Nothing stands out: no single cause costs enough to name it.");
    return;
  }
  int index = 0;
  for (const Finding& f : p.findings) {
    const std::string first = fmt::format("  {}. ", ++index);
    page.wrapped(first, printable(f.title) + fmt::format("  [{}]", percent(f.share)),
                 f.problem ? Style::kBad : Style::kGood);
    const std::string indent(first.size(), ' ');
    if (!f.where.empty()) page.wrapped(indent + "where  ", printable(f.where), Style::kBold);
    page.wrapped(indent + "seen   ", printable(f.evidence));
    if (!f.cure.empty()) page.wrapped(indent + "cure   ", f.cure);
    if (f.gain.known()) page.wrapped(indent + "gain   ", gain_text(f.gain));
  }
}

std::string copy_kind(const CopyRow& c) {
  const bool host = c.direction == recording::CopyDirection::kHostToDevice ||
                    c.direction == recording::CopyDirection::kDeviceToHost;
  std::string text(direction_name(c.direction));
  if (host) {
    text += fmt::format(" {}", memory_kind_name(c.host_kind));
    for (char& ch : text)
      ch = ch == 'P' || ch == 'M' || ch == 'U' ? static_cast<char>(ch + 32) : ch;
  }
  return text + (c.asynchronous ? " async" : " sync");
}

void gaps_table(Page& page, const ProcessReport& p) {
  const Gaps& g = p.gaps;
  if (g.looks == 0 || g.ns == 0) return;
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  page.heading(fmt::format("What the host did {}{}",
                           p.has_device_times() ? "in the gaps" : "outside CUDA",
                           p.has_steps() ? ", per step" : ""));
  Table table({"", "ms", "share", "looks"});
  const auto share = [&](std::uint64_t ns) {
    return percent(static_cast<double>(ns) / static_cast<double>(g.ns));
  };
  // Rows of the same doing at the same place in several classes of idle time are one here.
  struct Sum {
    std::string what;
    std::uint64_t ns, looks;
  };
  std::vector<Sum> sums;
  for (const GapRow& r : g.rows) {
    const std::string where = to_text(r);
    const std::string what = where.empty() ? doing_text(r) : where + ": " + doing_text(r);
    const auto same =
        std::find_if(sums.begin(), sums.end(), [&](const Sum& s) { return s.what == what; });
    if (same == sums.end()) {
      sums.push_back({what, r.ns, r.looks});
    } else {
      same->ns += r.ns;
      same->looks += r.looks;
    }
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const Sum& a, const Sum& b) { return a.ns > b.ns; });
  std::uint64_t shown = 0;
  for (std::size_t i = 0; i < std::min(kTopGaps, sums.size()); ++i) {
    const Sum& s = sums[i];
    table.add(
        {printable(s.what), number(ms(s.ns) / steps), share(s.ns), fmt::format("{}", s.looks)});
    shown += s.ns;
  }
  if (g.seen_ns > shown) {
    table.add({fmt::format("{} more", sums.size() - kTopGaps),
               number(ms(g.seen_ns - shown) / steps), share(g.seen_ns - shown), ""});
  }
  if (g.ns > g.seen_ns) {
    table.add({gap_title(GapKind::kNotSeen), number(ms(g.ns - g.seen_ns) / steps),
               share(g.ns - g.seen_ns), ""});
  }
  table.print(page);
}

void workers_table(Page& page, const Workers& w) {
  if (w.looks == 0) return;
  page.heading(
      fmt::format("What the {} worker process{} did meanwhile", w.count, w.count == 1 ? "" : "es"));
  Table table({"", "share", "looks"});
  const auto share = [&](std::uint64_t looks) {
    return percent(static_cast<double>(looks) / static_cast<double>(w.looks));
  };
  std::uint64_t shown = 0;
  for (std::size_t i = 0; i < std::min(kTopGaps, w.lines.size()); ++i) {
    const WorkerLine& l = w.lines[i];
    table.add({printable(to_text(l.line) + ": " + loading_shares_text(l.doing)), share(l.looks),
               fmt::format("{}", l.looks)});
    shown += l.looks;
  }
  std::uint64_t in_lines = 0;
  for (const WorkerLine& l : w.lines) in_lines += l.looks;
  if (in_lines > shown) {
    table.add({fmt::format("{} more", w.lines.size() - kTopGaps), share(in_lines - shown),
               fmt::format("{}", in_lines - shown)});
  }
  if (w.without_line > 0) {
    table.add(
        {"in lines that are not known", share(w.without_line), fmt::format("{}", w.without_line)});
  }
  if (const std::uint64_t idle = w.looks - in_lines - w.without_line; idle > 0) {
    table.add({loading_text(Loading::kIdle), share(idle), fmt::format("{}", idle)});
  }
  table.print(page);
}

void tables(Page& page, const ProcessReport& p) {
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  const std::string per = p.has_steps() ? ", per step" : "";
  const Summary& s = p.summary;
  if (!s.copies.empty()) {
    page.heading("Copies" + per);
    Table table({"", "count", "bytes", "GB/s", "device ms", "host ms", "at"});
    for (std::size_t i = 0; i < std::min(kTopCopies, s.copies.size()); ++i) {
      const CopyRow& c = s.copies[i];
      table.add({copy_kind(c), count_text(static_cast<double>(c.count) / steps),
                 bytes_text(static_cast<double>(c.bytes) / steps),
                 c.device_ns ? number(c.gigabytes_per_second()) : "?",
                 c.timed ? number(ms(c.device_ns) / steps) : "?", number(ms(c.host_ns) / steps),
                 shorten(printable(to_text(c.line)), 32, page.ascii())});
    }
    table.print(page, 1);
  }
  if (!s.kernels.empty()) {
    page.heading(fmt::format("Kernels (top {} of {}){}", std::min(kTopKernels, s.kernels.size()),
                             s.kernels.size(), per));
    Table table({"", "count", "ms", "mean us", "share"});
    for (std::size_t i = 0; i < std::min(kTopKernels, s.kernels.size()); ++i) {
      const KernelRow& k = s.kernels[i];
      table.add({printable(k.name), count_text(static_cast<double>(k.count) / steps),
                 number(ms(k.total_ns) / steps),
                 number(static_cast<double>(k.total_ns) / 1e3 / static_cast<double>(k.count)),
                 percent(k.share)});
    }
    table.print(page);
  }
  if (!p.ranges.empty()) {
    page.heading(fmt::format("Ranges by time (top {} of {}){}",
                             std::min(kTopRanges, p.ranges.size()), p.ranges.size(), per));
    Table table({"", "count", "ms", "share", "GPU idle ms"});
    for (std::size_t i = 0; i < std::min(kTopRanges, p.ranges.size()); ++i) {
      const RangeRow& r = p.ranges[i];
      table.add({printable(r.domain.empty() ? r.name : r.domain + ":" + r.name),
                 count_text(static_cast<double>(r.count) / steps), number(ms(r.total_ns) / steps),
                 percent(r.share), p.has_device_times() ? number(ms(r.gpu_idle_ns) / steps) : "?"});
    }
    table.print(page);
  }
  if (!s.by_call.empty()) {
    page.heading(fmt::format("CUDA calls by host time (top {} of {}){}",
                             std::min(kTopCalls, s.by_call.size()), s.by_call.size(), per));
    Table table({"", "count", "ms", "mean us", "longest us"});
    for (std::size_t i = 0; i < std::min(kTopCalls, s.by_call.size()); ++i) {
      const CallRow& c = s.by_call[i];
      table.add({printable(c.name), count_text(static_cast<double>(c.count) / steps),
                 number(ms(c.total_ns) / steps),
                 number(static_cast<double>(c.total_ns) / 1e3 / static_cast<double>(c.count)),
                 number(static_cast<double>(c.longest_ns) / 1e3)});
    }
    table.print(page);
  }
}

// Only where the process has less than the machine.
std::string offer_text(const recording::HostOffer& h) {
  const bool pinned = h.usable_processors > 0 && h.usable_processors < h.online_processors;
  if (!pinned && !h.is_capped()) return {};
  std::string text =
      fmt::format("{} of {} processors may be used",
                  h.usable_processors == 0 ? "?" : std::to_string(h.usable_processors),
                  h.online_processors == 0 ? "?" : std::to_string(h.online_processors));
  if (h.is_capped()) {
    text += fmt::format(", but the quota is {} ({} ms in each {} ms)", number(h.quota_processors()),
                        number(static_cast<double>(h.cpu_quota_us) / 1e3),
                        number(static_cast<double>(h.cpu_period_us) / 1e3));
  }
  return text + '.';
}

// Only what costs time, or may.
std::string counters_text(const ProcessReport& p) {
  const HostReport& h = p.host_counters;
  const HostBeside& b = h.beside;
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  const double steps = p.has_steps() ? static_cast<double>(p.steps.size()) : 1;
  const char* per = p.has_steps() ? " per step" : "";
  if (b.throttled_periods.value_or(0) > 0 && b.quota_periods) {
    add(fmt::format("throttled in {} of {} periods of the quota", *b.throttled_periods,
                    *b.quota_periods));
  }
  const HostUse& use = h.process.known() ? h.process : b.process;
  const double counted = h.process.known() ? static_cast<double>(h.counted_steps) : steps;
  if (const double faults = static_cast<double>(use.major_faults.value_or(0)) / counted;
      faults >= 1) {
    add(fmt::format("{} major page faults{}", count_text(faults), per));
  }
  if (b.memory_max.value_or(0) > 0) {
    add(fmt::format("the limit on memory was met {} times", *b.memory_max));
  }
  if (b.memory_oom_kills.value_or(0) > 0) {
    add(fmt::format("{} processes were killed for want of memory", *b.memory_oom_kills));
  }
  if (b.swap_in_pages.value_or(0) > 0) {
    add(fmt::format("{} pages were swapped in on this machine", *b.swap_in_pages));
  }
  return text.empty() ? text : "Counted in these steps: " + text + ".";
}

void coverage(Page& page, const ProcessReport& p) {
  page.heading("What this rests on");
  std::string text = fmt::format("{} calls recorded", p.calls);
  if (p.summary.calls != p.calls) text += fmt::format(", {} of them judged", p.summary.calls);
  if (p.coverage.expected > 0) {
    text += fmt::format(", {} of {} pieces of device work timed", p.coverage.timed,
                        p.coverage.expected);
  }
  if (p.has_device_times()) {
    if (p.times_by_source.size() > 1) {
      const char* before = " (";
      for (const auto& [source, count] : p.times_by_source) {
        text += fmt::format("{}{} by {}", before, count, time_source_name(source));
        before = ", ";
      }
      text += ')';
    } else {
      text += fmt::format(" by {}", time_source_name(p.time_source));
    }
    if (p.coverage.max_uncertainty_ns > 0) {
      text += fmt::format(" ({}{} us)", page.ascii() ? "+-" : "±",
                          number(static_cast<double>(p.coverage.max_uncertainty_ns) / 1e3));
    }
  }
  if (p.clock_correction_ns > 0) {
    text += fmt::format(", device clock moved by {} us",
                        number(static_cast<double>(p.clock_correction_ns) / 1e3));
  }
  if (p.coverage.captured > 0) {
    text += fmt::format(", {} calls captured into graphs", p.coverage.captured);
  }
  text += fmt::format("; {} lost.", p.lost_records);
  page.wrapped("  ", text);
  if (p.has_steps()) {
    page.wrapped(
        "  ", fmt::format("{} steps seen in all; steps end with: {}.{}", p.steps_seen,
                          p.mode == StepMode::kPasses ? "a turn of the program's loop"
                                                      : step_source_name(p.step_source),
                          p.outlier_steps
                              ? fmt::format(" {} took twice the median or more.", p.outlier_steps)
                              : ""));
  }
  if (p.has_steps() && p.other_steps > 1) {
    page.wrapped(
        "  ", fmt::format("Median step in the windows {} ms, of the {} outside {} ms: what "
                          "recording costs, warm-up, and how far the host ran ahead.",
                          number(p.step_ms.median), p.other_steps, number(p.other_step_ms.median)));
  }
  if (p.times_by_source.contains(recording::TimeSource::kEvents)) {
    page.wrapped(
        "  ",
        "CUDA events lie round each piece of work: on an idle GPU they take in the few us "
        "between event and launch, and the loading of a kernel's code at its first launch, "
        "so busy is an upper bound.");
  }
  if (p.cupti_ns > 0) {
    page.wrapped("  ", fmt::format("CUPTI itself took {} ms of these steps.",
                                   number(static_cast<double>(p.cupti_ns) / 1e6)));
  }
  if (p.coverage.unhooked > 0) {
    page.wrapped("  ", fmt::format("{} calls were seen by CUPTI only, past the hooks: they have no "
                                   "stack.",
                                   p.coverage.unhooked));
  }
  if (p.coverage.dropped > 0 || p.coverage.orphan_times > 0) {
    page.wrapped("  ",
                 fmt::format("CUPTI dropped {} records; {} pieces of device work belong to no "
                             "call that was seen.",
                             p.coverage.dropped, p.coverage.orphan_times));
  }
  if (p.coverage.failed_calls > 0) {
    page.wrapped("  ", fmt::format("{} calls returned an error.", p.coverage.failed_calls));
  }
  const std::string offer = offer_text(p.host_offer);
  if (!offer.empty()) page.wrapped("  ", "Host: " + offer);
  const std::string counters = counters_text(p);
  if (!counters.empty()) page.wrapped("  ", counters);
  for (const OtherDevice& d : p.other_devices) {
    page.wrapped("  ",
                 fmt::format("GPU {} ({}) busy {}.", d.device,
                             d.name.empty() ? "?" : printable(d.name), percent(d.busy_share)));
  }
  for (std::size_t i = 0; i < std::min(kTopNotices, p.notices.size()); ++i) {
    page.wrapped(fmt::format("  {} ", page.dot()), printable(p.notices[i]));
  }
  if (p.notices.size() > kTopNotices) {
    page.wrapped("  ", fmt::format("... and {} more notices.", p.notices.size() - kTopNotices));
  }
}

std::string plural(std::uint64_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

std::string layer_text(const LayerReach& l, bool known) {
  std::string text = plural(l.calls, "call", "calls");
  if (!known) return text;
  std::string ways;
  const auto add = [&](const std::string& way) { ways += (ways.empty() ? "" : ", ") + way; };
  if (l.linked_calls > 0) add("linked");
  const auto handed = [&](std::uint32_t n, const char* by) {
    if (n > 0) add(plural(n, "function", "functions") + " by " + by);
  };
  handed(l.by_dlsym, "dlsym");
  handed(l.by_dlvsym, "dlvsym");
  handed(l.by_proc_address, "cuGetProcAddress");
  return ways.empty() ? text : text + fmt::format(" ({})", ways);
}

void reach(Page& page, const ProcessReport& p) {
  const Reach& r = p.reach;
  if (p.calls == 0 && !r.known) return;
  page.heading("Coverage");
  std::string text = "Runtime API: " + layer_text(r.runtime(), r.known) +
                     "; driver API: " + layer_text(r.driver(), r.known) + ".";
  if (r.runtime().calls > 0) {
    text += " What the runtime asks of the driver for a call is the same event.";
  }
  if (p.times_by_source.size() > 1) {
    text += " Device times:";
    for (const auto& [source, count] : p.times_by_source) {
      text += fmt::format(" {} by {}{}", count, time_source_name(source),
                          source == p.times_by_source.rbegin()->first ? "." : ",");
    }
  }
  page.wrapped("  ", text);
  static constexpr std::size_t kNames = 4;
  const auto names = [&](const auto& list, auto&& path_of) {
    std::string out;
    for (std::size_t i = 0; i < std::min(kNames, list.size()); ++i) {
      const std::string& path = path_of(list[i]);
      out += (out.empty() ? "" : ", ") + printable(path.substr(path.rfind('/') + 1));
    }
    if (list.size() > kNames) out += fmt::format(" and {} more", list.size() - kNames);
    return out;
  };
  if (!r.embedded.empty()) {
    page.wrapped(
        "  ",
        fmt::format("With a CUDA runtime of their own: {}. {}",
                    names(
                        r.embedded, [](const auto& s) -> auto& { return s; }),
                    r.misses_embedded() ? "None was given a function of the driver by a way that "
                                          "the hooks see: if they did work, it is not in here."
                                        : "Their calls show in the driver API."),
        r.misses_embedded() ? Style::kWarn : Style::kPlain);
  }
  if (!r.unread.empty()) {
    page.wrapped("  ", fmt::format("Not looked into, {} of {} loaded files ({}): {}.",
                                   r.unread.size(), r.modules, r.unread.front().why,
                                   names(
                                       r.unread, [](const auto& u) -> auto& { return u.path; })));
  }
  if (r.modules_left_out > 0) {
    page.wrapped("  ",
                 fmt::format("{} more loaded files are not in the recording.", r.modules_left_out));
  }
}

void process(Page& page, const ProcessReport& p) {
  std::string title = "gpubusy " + std::string(page.dot()) + " ";
  title += p.command.empty() ? printable(p.executable) : printable(p.command);
  page.line(page.styled(Style::kBold, shorten(title, page.width(), page.ascii())));
  std::string second = who(p);
  if (p.device >= 0) {
    second += fmt::format(", GPU {}", p.device);
    if (!p.device_name.empty()) second += " (" + printable(p.device_name) + ")";
  }
  page.line(page.styled(Style::kDim, shorten(second, page.width(), page.ascii())));
  for (const std::string& warning : p.warnings) page.wrapped("! ", warning, Style::kWarn);
  page.blank();
  headline(page, p);
  findings_text(page, p);
  time_table(page, p);
  gaps_table(page, p);
  workers_table(page, p.workers);
  tables(page, p);
  coverage(page, p);
  reach(page, p);
}

// First line of a session without a call, and what may be behind it.
void nothing_seen(Page& page, const SessionReport& report) {
  if (report.driver_without_calls.empty()) {
    page.wrapped(
        "",
        "No CUDA call was intercepted in any process, or none in a window: there is nothing "
        "to judge.",
        Style::kBad);
    return;
  }
  constexpr std::size_t kNamed = 3;
  std::string who;
  const auto& all = report.driver_without_calls;
  for (std::size_t i = 0; i < std::min(kNamed, all.size()); ++i) {
    who += fmt::format("{}pid {} ({})", who.empty() ? "" : ", ", all[i].pid,
                       shorten(printable(all[i].command), 60, true));
  }
  if (all.size() > kNamed) who += fmt::format(" and {} more", all.size() - kNamed);
  page.wrapped("", "No CUDA call was intercepted, although libcuda.so.1 was loaded by " + who + ".",
               Style::kBad);
  page.wrapped("  ",
               "Either it asked the GPU for nothing, or its calls go round the hooks: a library "
               "opened with RTLD_DEEPBIND, one that reads the driver's symbol table "
               "itself, or another preload in front. Ways out: open the library without that "
               "flag, link the program to the shared runtime (nvcc -cudart shared), put "
               "libgpubusy.so first in LD_PRELOAD.");
}

void ranks(Page& page, const SessionReport& report) {
  page.line(
      page.styled(Style::kBold, fmt::format("{} processes used CUDA", report.processes.size())));
  Table table({"process", "GPU busy", "step ms", "steps", "first finding"});
  for (const ProcessReport& p : report.processes) {
    table.add({who(p), p.has_device_times() && p.wall_ns ? percent(p.share(p.busy_ns)) : "?",
               p.has_steps() ? number(p.mean_step_ms()) : "?",
               p.has_steps() ? std::to_string(p.steps.size()) : "0",
               p.findings.empty() ? "" : p.findings.front().id});
  }
  table.print(page, 1);
  page.blank();
}

}  // namespace

std::string render_text(const SessionReport& report, const TextOptions& options) {
  Page page(options);
  for (const std::string& skipped : report.skipped) {
    page.wrapped("! ", "Not read: " + printable(skipped), Style::kWarn);
  }
  if (report.processes.empty()) {
    nothing_seen(page, report);
    for (const ProcessReport& p : report.silent) {
      page.blank();
      process(page, p);
    }
    return page.take();
  }
  if (report.processes.size() > 1) ranks(page, report);
  for (std::size_t i = 0; i < report.processes.size(); ++i) {
    if (i > 0) page.blank();
    process(page, report.processes[i]);
  }
  if (report.helpers > 0) {
    page.blank();
    page.line(page.styled(Style::kDim,
                          fmt::format("{} more process{} made no CUDA call{}.", report.helpers,
                                      report.helpers == 1 ? "" : "es",
                                      report.driver_without_calls.empty()
                                          ? ""
                                          : fmt::format(" ({} of them with libcuda.so.1 loaded)",
                                                        report.driver_without_calls.size()))));
  }
  return page.take();
}

}  // namespace gpubusy::analysis
