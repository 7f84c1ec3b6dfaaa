// SPDX-License-Identifier: Apache-2.0
//
// Errors in words. Driver and runtime use the same numbers for the same things.
#pragma once

namespace gpubusy::sim {

const char* error_name(int code, bool of_driver) noexcept;  // nullptr: no such error
const char* error_text(int code) noexcept;

}  // namespace gpubusy::sim
