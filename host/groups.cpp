// SPDX-License-Identifier: Apache-2.0
#include "host/groups.hpp"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

namespace gpubusy::host {
namespace {

constexpr const char* kVersion2[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
constexpr const char* kVersion1Cpu[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
constexpr const char* kVersion1Memory[] = {"/sys/fs/cgroup/memory"};

// Version 1 has a huge number, rounded to pages, for none.
constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 60;

bool reads(const Path& folder, const char* file, char* text, std::size_t size) noexcept {
  Path path = folder;
  path.add(file);
  return read_text(path, text, size) > 0;
}

bool starts_with_max(const char* text) noexcept {
  return strncmp(text, "max", 3) == 0 && (text[3] == '\0' || text[3] == ' ' || text[3] == '\n');
}

bool tighter(std::uint64_t quota, std::uint64_t period, const Groups& than) noexcept {
  if (quota == 0 || period == 0) return false;
  return than.cpu_quota_us == 0 ||
         static_cast<double>(quota) / static_cast<double>(period) < than.quota_processors();
}

void take_cpu(const Group& group, Groups& out) noexcept {
  char text[128];
  std::uint64_t quota = 0, period = 0;
  if (group.version == 2) {
    if (!reads(group.folder, "/cpu.max", text, sizeof text) ||
        !parse_cpu_max(text, quota, period)) {
      return;
    }
  } else {
    if (!reads(group.folder, "/cpu.cfs_quota_us", text, sizeof text)) return;
    const char* at = text;
    const bool none = *at == '-';  // -1
    if (!none && !take_number(at, quota)) return;
    if (!reads(group.folder, "/cpu.cfs_period_us", text, sizeof text)) return;
    at = text;
    if (!take_number(at, period)) return;
  }
  const bool first = !out.tells_cpu;
  out.tells_cpu = true;
  if (tighter(quota, period, out)) {
    out.cpu_quota_us = quota;
    out.cpu_period_us = period;
    out.cpu = group;
  } else if (first) {
    out.cpu = group;
  }
}

void take_memory(const Group& group, Groups& out) noexcept {
  char text[128];
  std::uint64_t bytes = 0;
  const char* file = group.version == 2 ? "/memory.max" : "/memory.limit_in_bytes";
  if (!reads(group.folder, file, text, sizeof text) || !parse_memory_limit(text, bytes)) return;
  const bool first = !out.tells_memory;
  out.tells_memory = true;
  if (bytes != 0 && (out.memory_bytes == 0 || bytes < out.memory_bytes)) {
    out.memory_bytes = bytes;
    out.memory = group;
  } else if (first) {
    out.memory = group;
  }
}

// The folders from the group up to the mount: every one may have a limit. In a container only that
// of the mount may be there.
template <typename Take>
void walk_up(const char* root, const char* mount, int version, const char* group, std::size_t size,
             Take take) noexcept {
  Group g;
  g.version = version;
  g.folder.add(root).add(mount);
  const std::size_t shortest = g.folder.size();
  // Groups above the root of a namespace are shown as "/..".
  const bool usable = size > 1 && strncmp(group, "/..", 3) != 0;
  if (usable) g.folder.add(group, size);
  if (!g.folder.is_whole()) g.folder.cut_to(shortest);
  while (true) {
    take(static_cast<const Group&>(g));
    std::size_t at = g.folder.size();
    while (at > shortest && g.folder.text()[at - 1] != '/') --at;
    if (at <= shortest) break;
    g.folder.cut_to(at - 1);
  }
}

// Version 2 alone, and mounted: where there is no file for a limit there is no limit.
bool is_version2(const char* root) noexcept {
  Path path;
  const int file = open_text(path.add(root).add(kVersion2[0]).add("/cgroup.controllers"));
  if (file < 0) return false;
  syscall(SYS_close, file);
  return true;
}

bool tells_pressure(const Path& folder) noexcept {
  char text[16];
  return reads(folder, "/cpu.pressure", text, sizeof text);
}

}  // namespace

const char* group_of(const char* text, const char* controller, std::size_t& size) noexcept {
  const std::size_t length = strlen(controller);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    const char* const end = strchr(line, '\n');
    const char* const names = strchr(line, ':');
    const char* const group = names == nullptr ? nullptr : strchr(names + 1, ':');
    if (group != nullptr && (end == nullptr || group < end) && group[1] == '/') {
      bool found = length == 0 && group == names + 1;
      for (const char* name = names + 1; !found && length != 0 && name < group;) {
        const char* comma =
            static_cast<const char*>(memchr(name, ',', static_cast<std::size_t>(group - name)));
        const char* const name_end = comma == nullptr ? group : comma;
        found = static_cast<std::size_t>(name_end - name) == length &&
                strncmp(name, controller, length) == 0;
        name = name_end + 1;
      }
      if (found) {
        size = end == nullptr ? strlen(group + 1) : static_cast<std::size_t>(end - group - 1);
        return group + 1;
      }
    }
    line = end == nullptr ? nullptr : end + 1;
  }
  return nullptr;
}

bool parse_cpu_max(const char* text, std::uint64_t& quota_us, std::uint64_t& period_us) noexcept {
  quota_us = period_us = 0;
  const char* at = text;
  if (starts_with_max(at)) {
    at += 3;
  } else if (!take_number(at, quota_us)) {
    return false;
  }
  if (take_number(at, period_us) && (period_us != 0 || quota_us == 0)) return true;
  quota_us = period_us = 0;
  return false;
}

bool parse_memory_limit(const char* text, std::uint64_t& bytes) noexcept {
  bytes = 0;
  if (starts_with_max(text)) return true;
  const char* at = text;
  if (!take_number(at, bytes)) return false;
  if (bytes >= kNoMemoryLimit) bytes = 0;
  return true;
}

void read_groups(const char* root, Groups& out) noexcept {
  char text[kGroupText];
  read_groups(root, out, text);
}

void read_groups(const char* root, Groups& out, char (&text)[kGroupText]) noexcept {
  new (&out) Groups{};
  {
    Path path;
    read_text(path.add(root).add("/proc/self/cgroup"), text, sizeof text);
  }
  const auto each = [&](const char* const* mounts, std::size_t count, int version,
                        const char* controller, auto take) noexcept {
    std::size_t size = 1;
    const char* group = group_of(text, controller, size);
    if (group == nullptr) group = "/";
    for (std::size_t i = 0; i < count; ++i) walk_up(root, mounts[i], version, group, size, take);
  };
  const auto cpu = [&out](const Group& g) noexcept { take_cpu(g, out); };
  const auto memory = [&out](const Group& g) noexcept { take_memory(g, out); };
  each(kVersion2, 2, 2, "", [&](const Group& g) noexcept {
    cpu(g);
    memory(g);
    if (!out.pressure.found() && tells_pressure(g.folder)) out.pressure = g;
  });
  if (is_version2(root)) out.tells_cpu = out.tells_memory = true;
  each(kVersion1Cpu, 2, 1, "cpu", cpu);
  each(kVersion1Memory, 1, 1, "memory", memory);
}

}  // namespace gpubusy::host
