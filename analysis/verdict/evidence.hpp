// SPDX-License-Identifier: Apache-2.0
//
// What the findings are made of: idle rows and looks summed up, and the sentences that tell of
// them. Private to analysis/verdict. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/report.hpp"

namespace gpubusy::analysis::verdict {

inline double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }
inline double percent(double share) { return share * 100; }

// "per step" where there are steps; whole spans have totals only.
struct Per {
  explicit Per(const ProcessReport& report)
      : steps(report.has_steps() ? static_cast<double>(report.steps.size()) : 1),
        word(report.has_steps() ? " per step" : "") {}
  double ms_of(std::uint64_t ns) const { return ms(ns) / steps; }
  double count_of(std::uint64_t n) const { return static_cast<double>(n) / steps; }
  double steps;
  const char* word;
};

std::string count_text(double count);

constexpr std::size_t kMaxDoings = 3;  // named in a finding
constexpr double kLeastDoing = 0.05;   // … besides the first

// Sums idle rows by step and fills in the numbers of a finding.
void add_numbers(Finding& finding, const ProcessReport& report,
                 const std::vector<const IdleRow*>& rows);

// How many steps lie between these, if that is always the same; 0: it is not, or they are too few
// to tell.
std::uint32_t even_distance(const std::vector<std::uint32_t>& steps);

std::vector<const IdleRow*> rows_where(const ProcessReport& report,
                                       const std::function<bool(const IdleRow&)>& wanted);

// One line, as text and as data.
void set_line(Finding& finding, const SourceLine& line);

// The first row that knows its place names the finding's; rows are longest first.
void set_region(Finding& finding, const std::vector<const IdleRow*>& rows);

// What the host did in the gaps of a finding, if enough of the time was looked at; a place that it
// was at for long leads.
void add_doing(Finding& finding, const ProcessReport& report,
               const std::function<bool(const GapRow&)>& wanted);

// Which threads held the GIL meanwhile, and where. The line of one that did for most of it leads,
// and is what the cure is about.
void add_holders(Finding& finding, const ProcessReport& report);

// "31.2 ms of each step (75.9 %; 70.1 to 80.2 %)" or, without steps, "312 ms (75.9 %)".
std::string cost_text(const Finding& finding, const ProcessReport& report);

// Of the gaps that were looked into.
double gap_share(const ProcessReport& report, GapKind kind);

// Of the gaps that were looked into, in a function of a library below the program's own line.
double library_share(const ProcessReport& report, std::string_view file);

// Of work that the steps launched, wherever it ran. A host that runs ahead launches more in a
// step's time than the device does in it.
double share_of_work(const ProcessReport& report, std::uint64_t ns);

// What the quota of processor time is, and what the kernel counted of it.
void add_quota(Finding& finding, const ProcessReport& report);
inline constexpr const char* kQuotaCure =
    "Ask for more processors (a pod's limits.cpu, docker --cpus, the job's CPUs), or run fewer "
    "busy threads: OMP_NUM_THREADS and DataLoader(num_workers=…) from the quota, not from "
    "os.cpu_count().";

// What ran beside what is known only where nearly all of it was timed.
bool is_timed(const ProcessReport& report);

// Busy, but not with kernels. Work from before the recording is of unknown kind and taken for
// kernels here: only what was seen is blamed.
bool copies_fill_busy_time(const ProcessReport& report);

}  // namespace gpubusy::analysis::verdict
