// SPDX-License-Identifier: Apache-2.0
//
// Disk, limits, processors, kernel.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "host/groups.hpp"
#include "launcher/doctor/checks.hpp"
#include "recording/disk_reserve.hpp"

namespace gpubusy::launcher::doctor {
namespace {

constexpr std::uint64_t kMi = 1u << 20;

struct FileSystemKind {
  long magic;
  const char* name;
  const char* trouble;  // nullptr: none
};
constexpr const char* kShared =
    "Writing is as fast as the network, and a server that hangs can hold up the program.";
constexpr FileSystemKind kKinds[] = {
    {0x01021994, "tmpfs", "Recordings take memory there, and go at the next boot."},
    {0x6969, "NFS", kShared},
    {0xFF534D42, "CIFS", kShared},
    {0xFE534D42, "SMB", kShared},
    {0x0BD00BD0, "Lustre", nullptr},
    {0x47504653, "GPFS", nullptr},
    {0x65735546, "FUSE", "Some of these refuse mapped or sparse files, or write slowly."},
    {0x01021997, "9p", "Writing goes through another machine."},
    {0x794C7630, "overlay", nullptr},
    {0xEF53, "ext4", nullptr},
    {0x58465342, "XFS", nullptr},
    {0x9123683E, "btrfs", nullptr},
    {0x2FC12FC1, "ZFS", nullptr},
};

const FileSystemKind* kind_of(long magic) {
  for (const FileSystemKind& kind : kKinds) {
    if (kind.magic == (magic & 0xFFFFFFFF)) return &kind;
  }
  return nullptr;
}

host::Groups groups_of(const Machine& m) {
  host::Groups groups;
  host::read_groups(m.root.c_str(), groups);
  return groups;
}

}  // namespace

std::optional<Outcome> check_output(const Machine& m) {
  if (!m.measured.output_problem.empty()) {
    return Outcome{Status::kFailure, m.measured.output_problem,
                   "The launcher refuses to start the program then.",
                   "Choose a directory that can be written, with -o DIR."};
  }
  if (!m.measured.output_system) {
    return Outcome{Status::kUnknown, "the file system does not say what is free", "", ""};
  }
  const FileSystem& system = *m.measured.output_system;
  const FileSystemKind* kind = kind_of(system.kind);
  const std::uint64_t reserve = recording::disk_reserve(system.total_bytes);
  const std::uint64_t room = system.free_bytes > reserve ? system.free_bytes - reserve : 0;
  const std::string found =
      fmt::format("{}{}: {} free, {} of them left to the program", m.measured.output,
                  kind != nullptr ? fmt::format(" ({})", kind->name) : "",
                  size_text(system.free_bytes), size_text(std::min(reserve, system.free_bytes)));
  if (room < kMi) {
    return Outcome{Status::kFailure, found, "There is no room for a recording.",
                   "Make room, or choose another directory with -o DIR."};
  }
  if (room < m.config.max_size) {
    return Outcome{
        Status::kWarning, found,
        fmt::format(
            "A process may record {} (--max-size); at the reserve it stops early and says so.",
            size_text(m.config.max_size)),
        "Make room, lower --active, or choose another directory with -o DIR."};
  }
  if (kind != nullptr && kind->trouble != nullptr) {
    return Outcome{Status::kWarning, found, kind->trouble, "Choose a local disk with -o DIR."};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_limits(const Machine& m) {
  constexpr std::uint64_t kFewFiles = 64;
  const Measured& d = m.measured;
  const std::string found = fmt::format(
      "file size {}, open files {}",
      d.file_size_limit == kNoLimit ? "unlimited" : size_text(d.file_size_limit),
      d.open_files_limit == kNoLimit ? "unlimited" : std::to_string(d.open_files_limit));
  if (d.file_size_limit < kMi) {
    return Outcome{Status::kFailure, found, "A recording does not fit into a file of this size.",
                   "ulimit -f unlimited"};
  }
  if (d.file_size_limit < m.config.max_size) {
    return Outcome{
        Status::kWarning, found,
        fmt::format(
            "A process may record {} (--max-size); at the limit it stops early and says so.",
            size_text(m.config.max_size)),
        "ulimit -f unlimited"};
  }
  if (d.open_files_limit < kFewFiles) {
    return Outcome{Status::kWarning, found, "The recording takes one descriptor of the program's.",
                   "ulimit -n 1024"};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_memory(const Machine& m) {
  const std::uint64_t limit = groups_of(m).memory_bytes;
  if (limit == 0) return std::nullopt;
  const std::string found = size_text(limit) + " for this control group";
  if (limit < 512 * kMi) {
    return Outcome{Status::kWarning, found,
                   "CUPTI's buffers take up to 32 MiB in a window, and what is written counts "
                   "until the disk has it.",
                   "Raise the limit, or use --device-time events and a low --active."};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_processors(const Machine& m) {
  const double quota = groups_of(m).quota_processors();
  const unsigned usable = m.measured.usable_processors, online = m.measured.online_processors;
  if (usable == 0) return Outcome{Status::kUnknown, "not known", "", ""};
  std::string found = fmt::format("{} of {} usable", usable, std::max(online, usable));
  if (quota > 0) found += fmt::format(", a quota of {:.1f}", quota);
  if (quota > 0 && quota < usable) {
    return Outcome{Status::kWarning, found,
                   "Programs see the number of processors, not the quota: they start too many "
                   "threads and workers, and stand still when the quota is used up.",
                   fmt::format("OMP_NUM_THREADS={0} and DataLoader(num_workers={0}) at most.",
                               std::max(1, static_cast<int>(quota)))};
  }
  if (usable < online) {
    return Outcome{
        Status::kWarning, found,
        "os.cpu_count() says more than may be used; a DataLoader with so many workers starves the "
        "GPU.",
        fmt::format("OMP_NUM_THREADS={0} and DataLoader(num_workers={0}) at most.", usable)};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_shared_memory(const Machine& m) {
  if (!m.measured.shared_memory || m.measured.shared_memory->total_bytes == 0) {
    return Outcome{Status::kWarning, "not there", "DataLoader's workers hand over batches in it.",
                   "Mount a tmpfs at /dev/shm."};
  }
  const FileSystem& system = *m.measured.shared_memory;
  const std::string found = fmt::format("{}, {} of them free", size_text(system.total_bytes),
                                        size_text(system.free_bytes));
  if (system.free_bytes < 512 * kMi) {
    return Outcome{Status::kWarning, found,
                   "DataLoader's workers hand over batches in it and die with a bus error where it "
                   "is full, with or without gpubusy.",
                   "docker run --ipc=host or --shm-size=8g; in a pod an emptyDir of medium Memory "
                   "at /dev/shm."};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_own_memory(const Machine& m) {
  if (m.measured.reads_own_memory) return Outcome{Status::kOk, "allowed", "", ""};
  return Outcome{Status::kWarning, "process_vm_readv is refused",
                 "Stacks are read by it; a pipe does the same, with more system calls in a window.",
                 "Allow process_vm_readv in the container's seccomp profile."};
}

std::optional<Outcome> check_proc(const Machine& m) {
  if (!m.exists("/proc/self/stat")) {
    return Outcome{Status::kWarning, "not mounted",
                   "Names, modules and whether the program is Python are read there; gpubusy "
                   "cannot tell which processes loaded it.",
                   "Mount /proc."};
  }
  const std::string mounts = m.read("/proc/self/mounts").value_or("");
  std::string options;
  for (std::size_t at = 0; at < mounts.size();) {
    const std::size_t end = std::min(mounts.find('\n', at), mounts.size());
    const std::string line = mounts.substr(at, end - at);
    at = end + 1;
    const std::size_t place = line.find(" /proc proc ");
    const std::size_t hidden = line.find("hidepid=");
    if (place != line.npos && hidden != line.npos) {
      options = line.substr(hidden, line.find_first_of(", ", hidden) - hidden);
    }
  }
  const std::string found =
      fmt::format("mounted{}{}", options.empty() ? "" : ", " + options,
                  m.measured.reads_own_syscall ? "" : "; the system call of a thread is not shown");
  return Outcome{Status::kOk, found,
                 options.empty() && m.measured.reads_own_syscall
                     ? ""
                     : "A process sees itself there in any case; more is not needed.",
                 ""};
}

std::optional<Outcome> check_clock(const Machine& m) {
  constexpr double kSlowNs = 200;
  std::string source =
      m.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").value_or("");
  while (!source.empty() && source.back() == '\n') source.pop_back();
  const std::string found = fmt::format("{}{:.0f} ns a reading",
                                        source.empty() ? "" : source + ", ", m.measured.clock_ns);
  if (m.measured.clock_ns > kSlowNs) {
    return Outcome{Status::kWarning, found,
                   "The clock is read twice for each recorded call; a slow one makes up most of "
                   "the cost in a window.",
                   "Let the kernel use the time stamp counter (clocksource=tsc), or a virtual "
                   "machine's own clock (kvm-clock, hyperv_clocksource_tsc_page)."};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_host_name(const Machine& m) {
  const std::string& host = m.measured.host;
  if (std::all_of(host.begin(), host.end(),
                  [](char c) { return static_cast<unsigned char>(c) - 0x21u < 0x5e; })) {
    return std::nullopt;
  }
  return Outcome{Status::kOk, host,
                 "It is written as it is: into %h of a directory's name, and as UTF-8 into "
                 "recordings and traces (bytes that are none become U+FFFD).",
                 ""};
}

}  // namespace gpubusy::launcher::doctor
