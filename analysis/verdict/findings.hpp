// SPDX-License-Identifier: Apache-2.0
//
// The findings, each an independent function: it looks at the report so far and says something or
// nothing. verdict.cpp has the table of them, and the ids. Private to analysis/verdict.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "analysis/report.hpp"

namespace gpubusy::analysis::verdict {

using Found = std::optional<Finding>;

// input.cpp: input that is late
Found worker_restart(const ProcessReport& report);
Found data_starvation(const ProcessReport& report);

// host.cpp: the host: launching, waiting, elsewhere
Found host_elsewhere(const ProcessReport& report);
Found synchronisation(const ProcessReport& report);
Found launch_bound(const ProcessReport& report);
Found blocked_calls(const ProcessReport& report);
Found unknown_time(const ProcessReport& report);
Found host_outside(const ProcessReport& report);

// memory.cpp: memory that comes and goes
Found memory_full(const ProcessReport& report);
Found allocation_churn(const ProcessReport& report);
Found pinning_churn(const ProcessReport& report);

// copies.cpp: copies
Found pageable_copies(const ProcessReport& report);
Found small_copies(const ProcessReport& report);
Found device_copies(const ProcessReport& report);
Found offloading(const ProcessReport& report);
Found copy_bound(const ProcessReport& report);
Found copies_not_overlapped(const ProcessReport& report);

// device.cpp: the device
Found serial_streams(const ProcessReport& report);
Found gpu_busy(const ProcessReport& report);
Found single_precision(const ProcessReport& report);

// causes.cpp: what looks, stacks and copies tell of the host while the device idles, one for each
// cause; with their ids.
std::vector<Finding> cause_findings(const ProcessReport& report);

}  // namespace gpubusy::analysis::verdict
