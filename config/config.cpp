// SPDX-License-Identifier: Apache-2.0
#include "config/config.hpp"

#include <cerrno>
#include <concepts>
#include <cstdlib>
#include <cstring>

#include <sys/utsname.h>
#include <unistd.h>

namespace gpubusy::config {
namespace {

constexpr const char* text_of(const char* text) { return text; }
template <std::integral T>
constexpr const char* text_of(T) {
  return nullptr;
}
constexpr std::uint64_t number_of(const char*) { return 0; }
template <std::integral T>
constexpr std::uint64_t number_of(T number) {
  return number;
}

}  // namespace

constinit const OptionInfo kOptions[] = {
#define OPTION(member, variable, flag, kind, default_value, minimum, maximum, help)       \
  {#member, variable, flag, Kind::kind, text_of(default_value), number_of(default_value), \
   minimum, maximum,  help},
#include "config/options.def"
#undef OPTION
};
const std::size_t kOptionCount = sizeof(kOptions) / sizeof(kOptions[0]);

namespace {

// Where the value of kOptions[i] goes: one of the two is set.
struct Slot {
  char (Config::*text)[kTextMax];
  std::uint64_t Config::*number;
};
constexpr Slot slot_of(char (Config::*member)[kTextMax]) { return {member, nullptr}; }
constexpr Slot slot_of(std::uint64_t Config::*member) { return {nullptr, member}; }

constexpr Slot kSlots[] = {
#define OPTION(member, ...) slot_of(&Config::member),
#include "config/options.def"
#undef OPTION
};

constexpr const char* kPrefix = "GPUBUSY_";
// Variables of other parts of the project: not ours to judge.
constexpr const char* kForeignPrefixes[] = {"GPUBUSY_SIM_", "GPUBUSY_TEST_", "GPUBUSY_INTERNAL_",
                                            "GPUBUSY_VENV="};

constexpr std::size_t kShownValue = 160;  // bytes of a bad value that a message repeats

class KeepErrno {
 public:
  KeepErrno() noexcept : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

// Appends to a fixed buffer, always terminated. Not snprintf: that may take the locale's lock.
class Writer {
 public:
  Writer(char* out, std::size_t size) noexcept : out_(out), size_(size) {
    if (size_ > 0) out_[0] = '\0';
  }
  Writer& put(char c) noexcept {
    if (length_ + 1 < size_) {
      out_[length_++] = c;
      out_[length_] = '\0';
    } else {
      fits_ = false;
    }
    return *this;
  }
  Writer& put(const char* text) noexcept {
    for (; *text != '\0'; ++text) put(*text);
    return *this;
  }
  Writer& put(std::uint64_t number) noexcept {
    char digits[20];
    int n = 0;
    do {
      digits[n++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    while (n > 0) put(digits[--n]);
    return *this;
  }
  // A value as it may stand in a one-line message: quoted, cut, no control characters.
  Writer& put_value(const char* value) noexcept {
    constexpr const char* kHex = "0123456789abcdef";
    put('\'');
    std::size_t shown = 0;
    for (; *value != '\0' && shown < kShownValue; ++value, ++shown) {
      const auto c = static_cast<unsigned char>(*value);
      if (c < 0x20 || c == 0x7f) {
        put("\\x").put(kHex[c >> 4]).put(kHex[c & 15]);
      } else {
        put(*value);
      }
    }
    if (*value != '\0') put("...");
    return put('\'');
  }
  bool fits() const noexcept { return fits_; }

 private:
  char* out_;
  std::size_t size_;
  std::size_t length_ = 0;
  bool fits_ = true;
};

bool starts_with(const char* text, const char* prefix) noexcept {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

// tolower() would ask the locale.
char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool equals_ignoring_case(const char* a, const char* b) noexcept {
  for (; *a != '\0' && *b != '\0'; ++a, ++b) {
    if (lower(*a) != lower(*b)) return false;
  }
  return *a == *b;
}

// Digits only: no sign, no space, no base prefix. `end` is behind the last digit.
bool parse_digits(const char* text, std::uint64_t& number, const char*& end) noexcept {
  if (*text < '0' || *text > '9') return false;
  std::uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    if (__builtin_mul_overflow(value, std::uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<std::uint64_t>(*text - '0'), &value)) {
      return false;
    }
  }
  number = value;
  end = text;
  return true;
}

bool parse_count(const char* text, std::uint64_t& number) noexcept {
  const char* end = nullptr;
  return parse_digits(text, number, end) && *end == '\0';
}

bool parse_size(const char* text, std::uint64_t& number) noexcept {
  const char* end = nullptr;
  if (!parse_digits(text, number, end)) return false;
  if (*end == '\0') return true;
  unsigned shift = 0;
  switch (lower(*end)) {
    case 'k': shift = 10; break;
    case 'm': shift = 20; break;
    case 'g': shift = 30; break;
    default: return false;
  }
  if (end[1] != '\0' || number > (~std::uint64_t{0} >> shift)) return false;
  number <<= shift;
  return true;
}

bool parse_switch(const char* text, std::uint64_t& number) noexcept {
  static constexpr const char* kOff[] = {"0", "off", "false", "no"};
  static constexpr const char* kOn[] = {"1", "on", "true", "yes"};
  for (const char* word : kOff) {
    if (equals_ignoring_case(text, word)) {
      number = 0;
      return true;
    }
  }
  for (const char* word : kOn) {
    if (equals_ignoring_case(text, word)) {
      number = 1;
      return true;
    }
  }
  return false;
}

void put_allowed(Writer& out, const OptionInfo& option) noexcept {
  switch (option.kind) {
    case Kind::Count:
      out.put("a whole number from ").put(option.minimum).put(" to ").put(option.maximum);
      break;
    case Kind::Size:
      out.put("bytes from ").put(option.minimum).put(" to ").put(option.maximum);
      out.put(", with K, M or G behind the number for 1024, 1024^2 or 1024^3");
      break;
    case Kind::Switch: out.put("0, 1, off, on, false, true, no or yes"); break;
    case Kind::Text: out.put("at most ").put(std::uint64_t{kTextMax - 1}).put(" bytes"); break;
  }
}

const OptionInfo* option_by_member(const char* member) noexcept {
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    if (strcmp(kOptions[i].member, member) == 0) return &kOptions[i];
  }
  return nullptr;
}

// Edit distance of two short names; used only where a name is wrong already.
std::size_t distance(const char* a, std::size_t a_size, const char* b) noexcept {
  constexpr std::size_t kMax = 48;
  const std::size_t b_size = strlen(b);
  if (a_size >= kMax || b_size >= kMax) return kMax;
  std::size_t row[kMax + 1];
  for (std::size_t j = 0; j <= b_size; ++j) row[j] = j;
  for (std::size_t i = 1; i <= a_size; ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b_size; ++j) {
      const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      std::size_t best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
      if (replace < best) best = replace;
      row[j] = best;
    }
  }
  return row[b_size];
}

void describe_unknown(const char* entry, std::size_t name_size, Problem& problem) noexcept {
  Writer out(problem.text, sizeof problem.text);
  char name[64];
  Writer cut(name, sizeof name);
  for (std::size_t i = 0; i < name_size; ++i) cut.put(entry[i]);
  out.put("unknown variable ").put(name).put(cut.fits() ? "" : "...").put('=');
  out.put_value(entry + name_size + 1);
  const OptionInfo* nearest = nullptr;
  std::size_t least = 4;  // further away it is no typing error
  for (const OptionInfo& option : kOptions) {
    const std::size_t d = distance(entry, name_size, option.variable);
    if (d < least) {
      least = d;
      nearest = &option;
    }
  }
  if (nearest != nullptr) out.put(": did you mean ").put(nearest->variable).put("?");
  out.put(" (allowed: ");
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    if (i > 0) out.put(", ");
    out.put(kOptions[i].variable);
  }
  out.put(')');
}

}  // namespace

void set_defaults(Config& config) noexcept {
  memset(&config, 0, sizeof config);
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    if (kSlots[i].text != nullptr) {
      Writer(config.*kSlots[i].text, kTextMax).put(kOptions[i].text_default);
    } else {
      config.*kSlots[i].number = kOptions[i].number_default;
    }
  }
  Problem unused;
  finish(config, unused);
}

bool set_option(Config& config, const OptionInfo& option, const char* text, const char* origin,
                Problem& problem) noexcept {
  const auto index = static_cast<std::size_t>(&option - kOptions);
  bool good = false;
  std::uint64_t number = 0;
  switch (option.kind) {
    case Kind::Count: good = parse_count(text, number); break;
    case Kind::Size: good = parse_size(text, number); break;
    case Kind::Switch: good = parse_switch(text, number); break;
    case Kind::Text: good = strnlen(text, kTextMax) < kTextMax; break;
  }
  if (option.kind == Kind::Count || option.kind == Kind::Size) {
    good = good && number >= option.minimum && number <= option.maximum;
  }
  if (!good) {
    Writer out(problem.text, sizeof problem.text);
    out.put(origin).put('=').put_value(text).put(": allowed is ");
    put_allowed(out, option);
    return false;
  }
  if (kSlots[index].text != nullptr) {
    Writer(config.*kSlots[index].text, kTextMax).put(text);
  } else {
    config.*kSlots[index].number = number;
  }
  return true;
}

bool load(Config& config, const char* const* environment, Problem& problem) noexcept {
  KeepErrno keep;
  std::uint64_t seen = 0;  // as getenv: the first of two entries counts
  static_assert(sizeof(kOptions) / sizeof(kOptions[0]) <= 64);
  for (const char* const* e = environment; e != nullptr && *e != nullptr; ++e) {
    const char* entry = *e;
    if (!starts_with(entry, kPrefix)) continue;
    const char* equals = strchr(entry, '=');
    if (equals == nullptr) continue;
    bool foreign = false;
    for (const char* prefix : kForeignPrefixes) foreign = foreign || starts_with(entry, prefix);
    if (foreign) continue;
    const auto name_size = static_cast<std::size_t>(equals - entry);
    std::size_t i = 0;
    while (i < kOptionCount && (strncmp(kOptions[i].variable, entry, name_size) != 0 ||
                                kOptions[i].variable[name_size] != '\0')) {
      ++i;
    }
    if (i == kOptionCount) {
      describe_unknown(entry, name_size, problem);
      return false;
    }
    if ((seen >> i & 1) != 0) continue;
    seen |= std::uint64_t{1} << i;
    if (!set_option(config, kOptions[i], equals + 1, kOptions[i].variable, problem)) return false;
  }
  return finish(config, problem);
}

bool finish(Config& config, Problem& problem) noexcept {
  config.step_pattern = nullptr;
  bool good = true;
  if (strcmp(config.step, "optimizer") == 0) {
    config.step_kind = StepKind::kOptimizer;
  } else if (strcmp(config.step, "none") == 0) {
    config.step_kind = StepKind::kNone;
  } else if (starts_with(config.step, "kernel:") && config.step[7] != '\0') {
    config.step_kind = StepKind::kKernel;
    config.step_pattern = config.step + 7;
  } else if (starts_with(config.step, "call:") && config.step[5] != '\0') {
    config.step_kind = StepKind::kCall;
    config.step_pattern = config.step + 5;
  } else if (starts_with(config.step, "nvtx:") && config.step[5] != '\0') {
    config.step_kind = StepKind::kNvtx;
    config.step_pattern = config.step + 5;
  } else {
    good = false;
  }
  if (!good) {
    Writer(problem.text, sizeof problem.text)
        .put(option_by_member("step")->variable)
        .put('=')
        .put_value(config.step)
        .put(": allowed is optimizer, kernel:GLOB, call:NAME, nvtx:GLOB or none");
    return false;
  }

  config.capture_pattern = nullptr;
  if (strcmp(config.capture_range, "none") == 0) {
    config.capture_kind = CaptureKind::kNone;
  } else if (strcmp(config.capture_range, "cudaProfilerApi") == 0) {
    config.capture_kind = CaptureKind::kProfilerApi;
  } else if (starts_with(config.capture_range, "nvtx:") && config.capture_range[5] != '\0') {
    config.capture_kind = CaptureKind::kNvtx;
    config.capture_pattern = config.capture_range + 5;
  } else {
    Writer(problem.text, sizeof problem.text)
        .put(option_by_member("capture_range")->variable)
        .put('=')
        .put_value(config.capture_range)
        .put(": allowed is cudaProfilerApi, nvtx:GLOB or none");
    return false;
  }

  if (strcmp(config.device_time, "auto") == 0) {
    config.device_time_kind = DeviceTimeKind::kAuto;
  } else if (strcmp(config.device_time, "cupti") == 0) {
    config.device_time_kind = DeviceTimeKind::kCupti;
  } else if (strcmp(config.device_time, "events") == 0) {
    config.device_time_kind = DeviceTimeKind::kEvents;
  } else if (strcmp(config.device_time, "off") == 0) {
    config.device_time_kind = DeviceTimeKind::kOff;
  } else {
    Writer(problem.text, sizeof problem.text)
        .put(option_by_member("device_time")->variable)
        .put('=')
        .put_value(config.device_time)
        .put(": allowed is auto, cupti, events or off");
    return false;
  }
  config.process_pattern = nullptr;
  if (strcmp(config.processes, "all") == 0) {
    config.process_kind = ProcessKind::kAll;
  } else if (strcmp(config.processes, "command") == 0) {
    config.process_kind = ProcessKind::kCommand;
  } else if (starts_with(config.processes, "name:") && config.processes[5] != '\0') {
    config.process_kind = ProcessKind::kName;
    config.process_pattern = config.processes + 5;
  } else {
    Writer(problem.text, sizeof problem.text)
        .put(option_by_member("processes")->variable)
        .put('=')
        .put_value(config.processes)
        .put(": allowed is all, command or name:GLOB");
    return false;
  }
  char unused[kTextMax];
  return expand_output(config.output, unused, sizeof unused, problem);
}

bool expand_output(const char* pattern, char* out, std::size_t size, Problem& problem) noexcept {
  KeepErrno keep;
  Writer to(out, size);
  Writer why(problem.text, sizeof problem.text);
  why.put("GPUBUSY_OUTPUT=").put_value(pattern);
  for (const char* p = pattern; *p != '\0'; ++p) {
    if (*p != '%') {
      to.put(*p);
      continue;
    }
    ++p;
    switch (*p) {
      case '%': to.put('%'); break;
      case 'p': to.put(static_cast<std::uint64_t>(getpid())); break;
      case 'h': {
        utsname name;
        to.put(uname(&name) == 0 ? name.nodename : "unknown");
        break;
      }
      case 'n': {
        const int rank = ranks_from_environment().rank;
        if (rank < 0) {
          to.put("norank");
        } else {
          to.put(static_cast<std::uint64_t>(rank));
        }
        break;
      }
      case 'q': {
        const char* close = p[1] == '{' ? strchr(p, '}') : nullptr;
        char name[256];
        Writer name_out(name, sizeof name);
        for (const char* c = p + 2; close != nullptr && c < close; ++c) name_out.put(*c);
        if (close == nullptr || name[0] == '\0' || !name_out.fits()) {
          why.put(": %q needs the name of a variable in braces, e.g. %q{SLURM_JOB_ID}");
          return false;
        }
        const char* value = getenv(name);
        if (value == nullptr) {
          why.put(": variable ").put(name).put(" of %q{} is not set");
          return false;
        }
        to.put(value);
        p = close;
        break;
      }
      default:
        why.put(
            ": allowed behind % is h (host), p (process id), n (rank), q{NAME} (variable) or "
            "%");
        return false;
    }
  }
  if (!to.fits()) {
    why.put(": longer than ").put(static_cast<std::uint64_t>(size - 1)).put(" bytes");
    return false;
  }
  problem.text[0] = '\0';
  return true;
}

Ranks ranks_from_environment() noexcept {
  // One family of names per starter; the first whose rank can be read gives all three, so that the
  // numbers of an outer starter never mix with an inner one's.
  struct Family {
    const char* rank;
    const char* world_size;
    const char* local_rank;
  };
  static constexpr Family kFamilies[] = {
      {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
      {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
      {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
  };
  const auto read = [](const char* name) {
    const char* text = getenv(name);
    std::uint64_t number = 0;
    if (text == nullptr || !parse_count(text, number) || number > 0x7fffffff) return -1;
    return static_cast<int>(number);
  };
  for (const Family& family : kFamilies) {
    const int rank = read(family.rank);
    if (rank >= 0) return {rank, read(family.world_size), read(family.local_rank)};
  }
  return {-1, -1, -1};
}

bool glob_match(const char* pattern, const char* text) noexcept {
  // Going back to the last star is enough: an earlier one could not do better.
  const char* star = nullptr;
  const char* retry = nullptr;
  while (*text != '\0') {
    if (*pattern == '*') {
      star = pattern++;
      retry = text;
    } else if (*pattern == '?' || *pattern == *text) {
      if (*pattern == '\0') return false;
      ++pattern;
      ++text;
    } else if (star != nullptr) {
      pattern = star + 1;
      text = ++retry;
    } else {
      return false;
    }
  }
  while (*pattern == '*') ++pattern;
  return *pattern == '\0';
}

}  // namespace gpubusy::config
