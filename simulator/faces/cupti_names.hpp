// SPDX-License-Identifier: Apache-2.0
//
// CUPTI's numbers for API functions (callback ids) and results, and their names.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpubusy::sim::cupti {

inline constexpr std::uint32_t kMaxCallbackId = 1023;

// As CUPTI spells it: the runtime's with the version ("cudaLaunchKernel_v7000"). nullptr: no such.
const char* callback_name(bool runtime, std::uint32_t id) noexcept;
// Of an exported symbol; where there were several versions, today's. 0: CUPTI does not trace it.
std::uint32_t callback_id(bool runtime, std::string_view symbol) noexcept;
const char* result_name(int result) noexcept;  // nullptr: no such

}  // namespace gpubusy::sim::cupti
