// SPDX-License-Identifier: Apache-2.0
//
// From operations to the truth log and the observer.
#include "simulator/core/observer.hpp"
#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {
namespace {

std::uint32_t name_of(const Operation& operation, TruthLog& truth) {
  if (operation.kernel == nullptr) return 0;
  return truth.name_id(operation.kernel->logged, operation.kernel->name);
}

}  // namespace

void report_operation(const Operation& o) noexcept {
  // Work that was asked for while nobody watched has no correlation.
  const bool tracing = (g_flags.load(std::memory_order_relaxed) & kTracing) != 0;
  if (o.kind == OpKind::kEmpty || (!tracing && o.correlation == 0)) return;
  TruthLog& truth = simulation().truth;
  if (truth.enabled()) {
    truth.write(truth::Operation{truth::Kind::kOperation,
                                 static_cast<std::uint8_t>(o.kind),
                                 static_cast<std::uint8_t>(o.source_memory),
                                 static_cast<std::uint8_t>(o.destination_memory),
                                 0,
                                 o.device,
                                 o.stream_id,
                                 o.start_ns,
                                 o.end_ns,
                                 o.bytes,
                                 name_of(o, truth),
                                 o.correlation,
                                 {o.grid.x, o.grid.y, o.grid.z},
                                 {o.block.x, o.block.y, o.block.z},
                                 o.shared_bytes,
                                 o.effect.value,
                                 o.graph_id,
                                 o.node_id,
                                 o.source_device,
                                 o.destination_device});
  }
  if (Observer* observer = g_work_observer.load(std::memory_order_acquire)) {
    observer->on_operation(o);
  }
}

}  // namespace gpubusy::sim
