// SPDX-License-Identifier: Apache-2.0
#include "analysis/verdict/evidence.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"

namespace gpubusy::analysis::verdict {
namespace {

// Where looks found the host in the gaps of a finding.
class Places {
 public:
  void add(const GapRow& row) { add(row.line, row.ns); }
  void add(const SourceLine& line, std::uint64_t ns) {
    seen_ += ns;
    if (line.known()) add_known(line, ns);
  }
  std::uint64_t seen() const { return seen_; }

  // The line that it was at for most of the time, else the function's lines; empty: it was all
  // over.
  std::string most() const {
    for (const auto& [line, ns] : lines_) {
      if (is_most(ns)) return to_text(line);
    }
    for (const auto& [line, ns] : lines_) {
      std::uint64_t sum = 0;
      int low = line.line, high = line.line;
      for (const auto& [other, other_ns] : lines_) {
        if (other.file != line.file || other.function != line.function) continue;
        sum += other_ns;
        if (other.line <= 0 || !is_worth_naming(other_ns)) continue;
        low = std::min(low, other.line);
        high = std::max(high, other.line);
      }
      if (!is_most(sum) || low <= 0) continue;
      return low == high
                 ? to_text(line)
                 : fmt::format("{}:{}-{} ({})", file_name(line.file), low, high, line.function);
    }
    return {};
  }

  // Dearest first.
  std::vector<SourceLine> worth_naming() const {
    std::vector<std::pair<SourceLine, std::uint64_t>> order;
    for (const auto& place : lines_) {
      if (place.first.line > 0 && is_worth_naming(place.second)) order.push_back(place);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::vector<SourceLine> out;
    for (auto& [line, ns] : order) out.push_back(std::move(line));
    return out;
  }

 private:
  void add_known(const SourceLine& line, std::uint64_t ns) {
    for (auto& [known, sum] : lines_) {
      if (known != line) continue;
      sum += ns;
      return;
    }
    lines_.emplace_back(line, ns);
  }
  bool is_most(std::uint64_t ns) const {
    return static_cast<double>(ns) >= kGapLineShare * static_cast<double>(seen_);
  }
  bool is_worth_naming(std::uint64_t ns) const {
    return static_cast<double>(ns) >= kLeastDoing * static_cast<double>(seen_);
  }

  std::vector<std::pair<SourceLine, std::uint64_t>> lines_;
  std::uint64_t seen_ = 0;
};

}  // namespace

std::string count_text(double count) {
  return count >= 100 || count == static_cast<double>(static_cast<std::uint64_t>(count))
             ? fmt::format("{:.0f}", count)
             : fmt::format("{:.1f}", count);
}

void add_numbers(Finding& finding, const ProcessReport& report,
                 const std::vector<const IdleRow*>& rows) {
  std::map<std::uint32_t, std::uint64_t> by_step;
  for (const IdleRow* row : rows) {
    finding.total_ns += row->ns;
    for (const auto& [step, ns] : row->by_step) by_step[step] += ns;
  }
  finding.share = report.share(finding.total_ns);
  finding.steps = static_cast<std::uint32_t>(by_step.size());
  std::vector<double> shares, lengths;
  for (std::uint32_t i = 0; i < report.steps.size(); ++i) {
    const auto found = by_step.find(i);
    const std::uint64_t ns = found == by_step.end() ? 0 : found->second;
    lengths.push_back(ms(ns));
    const auto wall = static_cast<double>(report.steps[i].wall_ns());
    shares.push_back(wall > 0 ? static_cast<double>(ns) / wall : 0);
  }
  finding.share_of_step = spread_of(std::move(shares));
  finding.ms_of_step = spread_of(lengths);
  finding.dear_steps =
      static_cast<std::uint32_t>(std::count_if(lengths.begin(), lengths.end(), [&](double length) {
        return length > 0 && length >= kDearOfLongest * finding.ms_of_step.maximum;
      }));
}

std::uint32_t even_distance(const std::vector<std::uint32_t>& steps) {
  if (steps.size() < kFewestStalls) return 0;
  for (std::size_t i = 2; i < steps.size(); ++i) {
    if (steps[i] - steps[i - 1] != steps[1] - steps[0]) return 0;
  }
  return steps[1] - steps[0];
}

std::vector<const IdleRow*> rows_where(const ProcessReport& report,
                                       const std::function<bool(const IdleRow&)>& wanted) {
  std::vector<const IdleRow*> rows;
  for (const IdleRow& row : report.summary.idle) {
    if (wanted(row)) rows.push_back(&row);
  }
  return rows;  // longest first, as in the summary
}

void set_line(Finding& finding, const SourceLine& line) {
  finding.before = line;
  finding.where = to_text(line);
}

void set_region(Finding& finding, const std::vector<const IdleRow*>& rows) {
  for (const IdleRow* row : rows) {
    if (!row->region.known()) continue;
    finding.after = row->region.after;
    finding.before = row->region.before;
    finding.where = row->outside ? to_text(row->region) : to_text(row->region.before);
    return;
  }
}

void add_doing(Finding& finding, const ProcessReport& report,
               const std::function<bool(const GapRow&)>& wanted) {
  std::map<std::pair<std::string, std::string>, std::uint64_t> by_doing;
  Places places, own_work;
  for (const GapRow& row : report.gaps.rows) {
    if (!wanted(row)) continue;
    by_doing[{to_text(row), doing_text(row)}] += row.ns;
    places.add(row);
    if (!row.in_backward) own_work.add(row);
  }
  const std::uint64_t seen = places.seen();
  if (seen == 0 || static_cast<double>(seen) < kLeastSeen * static_cast<double>(finding.total_ns)) {
    return;
  }
  const auto share = [&](std::uint64_t ns) {
    return static_cast<double>(ns) / static_cast<double>(seen);
  };
  std::vector<std::pair<std::uint64_t, std::string>> most;
  for (const auto& [key, ns] : by_doing) {
    most.emplace_back(ns, key.first.empty() ? key.second : key.first + ": " + key.second);
  }
  std::stable_sort(most.begin(), most.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(most.size(), kMaxDoings); ++i) {
    if (i > 0 && share(most[i].first) < kLeastDoing) break;
    text += fmt::format("{}{:.0f} % {}", i > 0 ? "; " : "", percent(share(most[i].first)),
                        most[i].second);
  }
  finding.evidence += fmt::format(
      " The launching thread was looked at for {:.0f} % of it: {}.",
      std::min(100.0, percent(static_cast<double>(seen) / static_cast<double>(finding.total_ns))),
      text);
  const std::string place = places.most();
  if (!place.empty() && place != finding.where) {
    finding.where = place + (finding.where.empty() ? "" : ", " + finding.where);
  }
  // Lines that have little of it say little of the whole.
  if (own_work.seen() * 2 >= seen) finding.lines = own_work.worth_naming();
}

void add_holders(Finding& finding, const ProcessReport& report) {
  struct Holder {
    std::uint32_t thread_id = 0;
    std::string name;
    std::uint64_t looks = 0;
    Places places;
  };
  const GilHolders& gil = report.gaps.gil;
  std::vector<Holder> holders;
  for (const GilHolderRow& row : gil.rows) {
    auto at = std::find_if(holders.begin(), holders.end(),
                           [&](const Holder& h) { return h.thread_id == row.thread_id; });
    if (at == holders.end()) at = holders.insert(at, {row.thread_id, row.thread, 0, {}});
    at->looks += row.looks;
    at->places.add(row.line, row.ns);
  }
  std::stable_sort(holders.begin(), holders.end(),
                   [](const Holder& a, const Holder& b) { return a.looks > b.looks; });
  const auto share = [&](std::uint64_t looks) {
    return static_cast<double>(looks) / static_cast<double>(gil.looks);
  };
  std::string text;
  for (std::size_t i = 0; i < std::min(kMaxDoings, holders.size()); ++i) {
    const Holder& h = holders[i];
    if (i > 0 && share(h.looks) < kLeastDoing) break;
    const std::string place = h.places.most();
    const std::string thread = h.thread_id == report.pid ? "the main thread"
                               : h.name.empty()
                                   ? fmt::format("thread {}", h.thread_id)
                                   : fmt::format("thread {} '{}'", h.thread_id, h.name);
    text += fmt::format("{}{}{} in {} of {} looks", text.empty() ? "" : ", ", thread,
                        place.empty() ? "" : fmt::format(" ({})", place), h.looks, gil.looks);
    if (i > 0 || share(h.looks) < kGapLineShare || place.empty()) continue;
    finding.where = place + (finding.where.empty() ? "" : ", " + finding.where);
    finding.cure = fmt::format(
        "Move what that thread does at {} to another process, or into code that releases the lock "
        "(numpy, native code).",
        place);
  }
  finding.evidence += text.empty() ? " Which thread holds it was not seen."
                                   : fmt::format(" The lock was held by {}.", text);
}

std::string cost_text(const Finding& finding, const ProcessReport& report) {
  if (!report.has_steps()) {
    return fmt::format("{:.1f} ms ({:.1f} %)", ms(finding.total_ns), percent(finding.share));
  }
  // The median says nothing of what most steps do not meet.
  if (finding.dear_steps > 0 && finding.dear_steps * 2 < report.steps.size()) {
    return fmt::format("{:.1f} ms in all ({:.1f} %; in {} of {} steps, up to {:.1f} ms in one)",
                       ms(finding.total_ns), percent(finding.share), finding.dear_steps,
                       report.steps.size(), finding.ms_of_step.maximum);
  }
  return fmt::format("{:.2f} ms in the median step ({:.1f} %; by step {:.1f} to {:.1f} %)",
                     finding.ms_of_step.median, percent(finding.share_of_step.median),
                     percent(finding.share_of_step.minimum),
                     percent(finding.share_of_step.maximum));
}

double gap_share(const ProcessReport& report, GapKind kind) {
  std::uint64_t ns = 0;
  for (const GapRow& row : report.gaps.rows) ns += row.kind == kind ? row.ns : 0;
  return report.gaps.seen_ns == 0
             ? 0
             : static_cast<double>(ns) / static_cast<double>(report.gaps.seen_ns);
}

double library_share(const ProcessReport& report, std::string_view file) {
  std::uint64_t ns = 0;
  for (const GapRow& row : report.gaps.rows) {
    const bool there =
        std::any_of(row.inner.begin(), row.inner.end(),
                    [&](const SourceLine& frame) { return frame.file.ends_with(file); });
    ns += there ? row.ns : 0;
  }
  return report.gaps.seen_ns == 0
             ? 0
             : static_cast<double>(ns) / static_cast<double>(report.gaps.seen_ns);
}

double share_of_work(const ProcessReport& report, std::uint64_t ns) {
  std::uint64_t work = report.summary.kernel_ns;
  for (const CopyRow& row : report.summary.copies) work += row.device_ns;
  const std::uint64_t whole = std::max(report.wall_ns, work);
  return whole == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(whole);
}

bool is_timed(const ProcessReport& report) {
  return report.coverage.untimed() * kMostUntimed <= report.coverage.expected;
}

bool copies_fill_busy_time(const ProcessReport& report) {
  return (report.kernel_busy_ns + report.earlier_busy_ns) * 2 < report.busy_ns;
}

void add_quota(Finding& finding, const ProcessReport& report) {
  const HostBeside& b = report.host_counters.beside;
  const Per per(report);
  if (b.throttled_ns && b.throttled_periods && b.quota_periods) {
    finding.evidence +=
        fmt::format(" Throttled for {:.1f} ms{}, summed over processors, in {} of {} periods.",
                    per.ms_of(*b.throttled_ns), per.word, *b.throttled_periods, *b.quota_periods);
  }
  const double quota = report.host_offer.quota_processors();
  if (quota > 0) {
    finding.evidence +=
        fmt::format(" The quota is {:.1f} ms in each {:.1f} ms: {:.2g} processors.",
                    static_cast<double>(report.host_offer.cpu_quota_us) / 1e3,
                    static_cast<double>(report.host_offer.cpu_period_us) / 1e3, quota);
  }
}

}  // namespace gpubusy::analysis::verdict
