// SPDX-License-Identifier: Apache-2.0
//
// The verdict as data: everything that text_report and json_report show. It refers to nothing
// outside itself. Times in ns unless a name says otherwise; shares are 0 to 1, of wall time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "analysis/coverage.hpp"
#include "analysis/division.hpp"
#include "analysis/gaps.hpp"
#include "analysis/host_counters.hpp"
#include "analysis/ranges.hpp"
#include "analysis/standstill.hpp"
#include "analysis/steps.hpp"
#include "analysis/summary.hpp"
#include "analysis/workers.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

namespace whatif {
struct Predictions;
}

// What a step would take without what a finding is about, as analysis/whatif predicts it.
struct Gain {
  std::string change;  // as `gpubusy whatif --change` takes it; empty: nothing predicted
  double step_ms = 0, low_ms = 0, high_ms = 0;
  double now_ms = 0;  // that the prediction sets out from
  bool known() const { return !change.empty(); }
};

// Something that costs time, or that the GPU is simply busy. Numbers first, then words.
struct Finding {
  std::string id;            // stable: "data_starvation", "synchronisation", …
  std::string title;         // one line
  std::string evidence;      // sentences with numbers
  std::string where;         // a region or line of code; empty: not known
  std::string cure;          // what to do; empty: nothing
  Gain gain;                 // what the cure would bring
  SourceLine after, before;  // `where` as data: the calls round the region, or one line in `before`
  std::vector<SourceLine> lines;  // where its time was seen to go, dearest first; may be empty
  double share = 0;               // of wall time that it costs
  std::uint64_t total_ns = 0;
  Spread share_of_step;  // over the steps
  Spread ms_of_step;
  std::uint32_t steps = 0;       // steps that it was met in
  std::uint32_t dear_steps = 0;  // … of these, those in which it costs more than a trifle
  bool problem = true;           // false: information
};

struct OtherDevice {
  std::int16_t device = 0;
  std::string name;
  double busy_share = 0;
};

struct ProcessReport {
  // who
  std::string path, host, executable, command, library_version;
  std::uint32_t pid = 0, parent_pid = 0;
  int rank = -1, world_size = -1, local_rank = -1;
  std::uint64_t run = 0;  // of the launcher; 0: of none
  recording::FileState state = recording::FileState::kOpen;

  // what was seen, and what was not
  std::uint64_t calls = 0;  // in the recording
  std::uint64_t lost_records = 0, torn_blocks = 0, unknown_records = 0, bad_records = 0,
                bad_bytes = 0;
  Coverage coverage;  // of the judged steps
  Reach reach;
  std::vector<std::string> warnings;  // what makes the numbers less than the whole truth
  std::vector<std::string> notices;   // what the library had to say
  std::vector<std::string> settings;
  recording::TimeSource time_source = recording::TimeSource::kNone;  // of most of the work
  std::map<recording::TimeSource, std::uint64_t>
      times_by_source;  // pieces of work of the judged steps
  std::uint64_t clock_correction_ns = 0;
  // As CUPTI tells, in the judged steps: its own work, launches that waited for room in the
  // device's queue, the driver compiling and loading code.
  std::uint64_t cupti_ns = 0, queue_full_ns = 0, code_loading_ns = 0;

  recording::HostOffer host_offer;

  // steps
  StepMode mode = StepMode::kSteps;
  recording::StepSource step_source = recording::StepSource::kNone;
  SourceLine pass_line;     // of passes: where each begins
  bool has_loader = false;  // a frame of torch's DataLoader at work was seen
  std::uint64_t steps_seen = 0;
  std::uint32_t windows = 0, cut_windows = 0, warmup_left_out = 0;
  std::uint32_t cut_steps = 0, cut_planned_steps = 0;  // of the last window that was cut
  std::vector<Step> steps;                             // those judged
  std::uint32_t outlier_steps = 0;
  std::uint64_t other_steps = 0;  // steps outside windows whose length is known
  Spread other_step_ms;           // … of these; what recording costs shows in the difference

  // the device with most work
  std::int16_t device = -1;
  std::string device_name;
  std::uint32_t compute_major = 0;  // of its compute capability; 0: not known
  std::vector<OtherDevice> other_devices;
  std::vector<StepTimes> times;  // by step
  std::uint64_t wall_ns = 0, busy_ns = 0, kernel_busy_ns = 0, earlier_busy_ns = 0;
  std::array<std::uint64_t, kIdleClasses> idle_ns = {};
  std::array<std::uint64_t, kHostStates> host_ns = {};  // by HostState, within the steps
  Spread step_ms, busy_share_of_step;
  Summary summary;
  Division division;  // known where there are device times
  HostReport host_counters;
  Gaps gaps;                      // what the host did while the device idled
  Standstill standstill;          // where it is, if it asks for nothing and has not ended
  Workers workers;                // what loader workers did meanwhile
  std::vector<RangeRow> ranges;   // longest in total first
  std::vector<Finding> findings;  // dearest first
  std::shared_ptr<const whatif::Predictions> predictions;  // null: not asked for

  bool has_steps() const { return mode != StepMode::kWholeSpan && !steps.empty(); }
  // Steps are told apart by the host. A host that runs ahead pays for many steps in one, so that
  // only the mean says what a step costs.
  double mean_step_ms() const {
    return has_steps() ? static_cast<double>(wall_ns) / 1e6 / static_cast<double>(steps.size()) : 0;
  }
  bool has_device_times() const { return coverage.timed > 0; }
  double share(std::uint64_t ns) const {
    return wall_ns ? static_cast<double>(ns) / static_cast<double>(wall_ns) : 0;
  }
  std::uint64_t idle(IdleClass c) const { return idle_ns[static_cast<std::size_t>(c)]; }
  std::uint64_t host_time(HostState s) const { return host_ns[static_cast<std::size_t>(s)]; }
};

struct SessionReport {
  std::string path;
  std::vector<ProcessReport> processes;  // those with CUDA calls, by rank and start
  std::uint64_t helpers = 0;             // processes without one
  std::vector<ProcessReport> silent;  // of the helpers, those shown because there is nothing else
  std::vector<std::string> skipped;   // files that could not be read, and why
  std::string nothing_recorded;       // why; empty: something was
  // Processes without a call that had loaded the driver.
  struct Unseen {
    std::uint32_t pid;
    std::string command;
  };
  std::vector<Unseen> driver_without_calls;
};

// Without a scan the loaded files are not looked into.
ProcessReport report_of(const recording::Recording& recording, ModuleScan* scan = nullptr,
                        bool predictions = false);

// The same of a timeline that is there already, and without Finding::gain.
ProcessReport verdict_of(const recording::Recording& recording, const Timeline& timeline,
                         ModuleScan* scan = nullptr);

// "step 165.0 -> 81.7 ms (80.7 to 93.9), 2.02 times as fast, if workers=2; predicted".
std::string gain_text(const Gain& gain);

// A short name of a class, for tables; and a stable one for JSON.
const char* idle_title(IdleClass idle);
const char* idle_id(IdleClass idle);

}  // namespace gpubusy::analysis
