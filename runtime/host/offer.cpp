// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/offer.hpp"

#include <unistd.h>

#include "host/groups.hpp"
#include "host/processors.hpp"
#include "runtime/host/counters.hpp"
#include "runtime/sandbox.hpp"

namespace gpubusy::runtime::host_facts {

void write_offer(DefinitionSink& sink, std::uint64_t now_ns) noexcept {
  // By /proc, since this is also asked where all that counts and looks is turned off.
  if (has_stopped_asking() || sandbox::by_status_of(0) != sandbox::Filters::kAsAtStart) return;
  // Under the recorder's mutex: more than a small stack has.
  static constinit host::Groups groups;
  static constinit char text[host::kGroupText];
  host::read_groups("", groups, text);
  const host::Processors processors = host::processors("");
  const host::Memory memory = host::memory();
  recording::HostRecord r{};
  r.header.type = recording::RecordType::kHost;
  r.header.value = (groups.tells_cpu ? recording::kHostTellsQuota : 0u) |
                   (groups.tells_memory ? recording::kHostTellsMemoryLimit : 0u) |
                   (memory.known ? recording::kHostTellsMemory : 0u);
  r.time_ns = now_ns;
  r.memory_bytes = memory.bytes;
  r.swap_bytes = memory.swap_bytes;
  r.memory_limit_bytes = groups.memory_bytes;
  r.cpu_quota_us = groups.cpu_quota_us;
  r.cpu_period_us = groups.cpu_quota_us == 0 ? 0 : groups.cpu_period_us;
  r.online_processors = processors.online;
  r.usable_processors = processors.usable;
  const long page = sysconf(_SC_PAGESIZE);  // asks no file
  r.page_bytes = page > 0 ? static_cast<std::uint32_t>(page) : 0;
  sink.define(&r.header, sizeof r, nullptr, 0);
}

}  // namespace gpubusy::runtime::host_facts
