// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpubusy::launcher {

// Set for the child by which `gpubusy doctor` sees whether the library can be loaded: the launcher
// ends at once then.
inline constexpr const char* kSelfTestVariable = "GPUBUSY_INTERNAL_SELF_TEST";

}  // namespace gpubusy::launcher
