// SPDX-License-Identifier: Apache-2.0
#include "host/processors.hpp"

#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "host/text_file.hpp"

namespace gpubusy::host {
namespace {

// As many as any kernel is built for; cpu_set_t ends at 1,024.
constexpr std::size_t kMostProcessors = 8192;

}  // namespace

std::uint32_t count_of_list(const char* text) noexcept {
  std::uint32_t count = 0;
  for (const char* at = text;; ++at) {
    std::uint64_t first = 0;
    if (!take_number(at, first)) return 0;
    std::uint64_t last = first;
    if (*at == '-') {
      ++at;
      if (!take_number(at, last)) return 0;
    }
    if (last < first || last >= kMostProcessors) return 0;
    count += static_cast<std::uint32_t>(last - first + 1);
    if (*at == '\0' || *at == '\n') return count <= kMostProcessors ? count : 0;
    if (*at != ',') return 0;
  }
}

Processors processors(const char* root) noexcept {
  Processors out;
  char text[4096];
  Path path;
  path.add(root).add("/sys/devices/system/cpu/online");
  if (read_text(path, text, sizeof text) > 0) out.online = count_of_list(text);
  unsigned long mask[kMostProcessors / (8 * sizeof(unsigned long))] = {};
  const long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
  for (long i = 0; i * static_cast<long>(sizeof mask[0]) < bytes; ++i) {
    out.usable += static_cast<std::uint32_t>(__builtin_popcountl(mask[i]));
  }
  return out;
}

Memory memory() noexcept {
  struct sysinfo info;
  if (syscall(SYS_sysinfo, &info) != 0) return {};
  return {true, std::uint64_t{info.totalram} * info.mem_unit,
          std::uint64_t{info.totalswap} * info.mem_unit};
}

}  // namespace gpubusy::host
