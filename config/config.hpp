// SPDX-License-Identifier: Apache-2.0
//
// The settings of the injected library: GPUBUSY_* variables, the same for the launcher's options.
// Needs libc only: it runs inside the target. No allocation, no locale, no exceptions, errno kept.
// Thread-safety: none needed (called once, before recording starts; the launcher is one thread).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::config {

enum class Kind : std::uint8_t { Count, Size, Switch, Text };

struct OptionInfo {
  const char* member;
  const char* variable;
  const char* flag;
  Kind kind;
  const char* text_default;
  std::uint64_t number_default, minimum, maximum;
  const char* help;
};

// All rows of options.def, in order.
extern const OptionInfo kOptions[];
extern const std::size_t kOptionCount;

inline constexpr std::size_t kTextMax = 4096;

enum class StepKind : std::uint8_t { kNone, kOptimizer, kKernel, kCall, kNvtx };
enum class CaptureKind : std::uint8_t { kNone, kProfilerApi, kNvtx };
enum class DeviceTimeKind : std::uint8_t { kAuto, kCupti, kEvents, kOff };
enum class ProcessKind : std::uint8_t { kAll, kCommand, kName };

struct Config {
  char output[kTextMax];  // pattern, see expand_output()
  char step[kTextMax];
  char capture_range[kTextMax];
  char device_time[kTextMax];
  char cupti[kTextMax];
  char processes[kTextMax];
  std::uint64_t skip_first, skip_first_wait, wait, warmup, active, repeat;
  std::uint64_t python_stacks, native_stacks, max_size, prelude_size, export_traces;
  std::uint64_t gap_sampling, gap_threshold, host_counters;
  // derived
  StepKind step_kind;
  const char* step_pattern;  // into `step`, behind the colon
  CaptureKind capture_kind;
  const char* capture_pattern;  // into `capture_range`, likewise
  DeviceTimeKind device_time_kind;
  ProcessKind process_kind;
  const char* process_pattern;  // into `processes`, behind the colon
};

// One message for one bad value: names the value, what is allowed, and where it came from.
struct Problem {
  char text[1024];
};

void set_defaults(Config& config) noexcept;

// Sets one option from text. `origin` is put into the message, e.g. "GPUBUSY_WAIT" or "--wait".
bool set_option(Config& config, const OptionInfo& option, const char* text, const char* origin,
                Problem& problem) noexcept;

// Reads the GPUBUSY_* entries of `environment` (environ's form). Unknown GPUBUSY_ names are an
// error, except those of other parts (kForeignPrefixes: GPUBUSY_SIM_, GPUBUSY_TEST_,
// GPUBUSY_INTERNAL_, and GPUBUSY_VENV of ./dev). Ends with finish(). False: the first problem is in
// `problem`, nothing should be recorded.
bool load(Config& config, const char* const* environment, Problem& problem) noexcept;

// Checks what only the whole shows (step, capture_range, device_time and processes texts) and fills
// in the derived members.
bool finish(Config& config, Problem& problem) noexcept;

// Expands %h %p %n %q{NAME} %% into `out`. False: unknown %-sequence, NAME not set, or too long.
// A rank that is not known becomes "norank".
bool expand_output(const char* pattern, char* out, std::size_t size, Problem& problem) noexcept;

// Rank and sizes from the environment (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, …); -1: not known.
struct Ranks {
  int rank, world_size, local_rank;
};
Ranks ranks_from_environment() noexcept;

// Case-sensitive glob with * and ?, both matching any byte. At most pattern x text steps.
bool glob_match(const char* pattern, const char* text) noexcept;

}  // namespace gpubusy::config
