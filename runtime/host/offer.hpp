// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "runtime/definitions.hpp"

namespace gpubusy::runtime::host_facts {

// Writes what the host offers this process, once per file. Reads some files: where the recording is
// opened, never later. errno may change.
void write_offer(DefinitionSink& sink, std::uint64_t now_ns) noexcept;

}  // namespace gpubusy::runtime::host_facts
