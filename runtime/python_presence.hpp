// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpubusy::runtime {

// Is it worth to look for Python frames now? Where there is no interpreter a look costs a
// microsecond of symbol look-ups, so it is repeated rarely: an embedded one may start at any time.
// The first look that finds an interpreter that cannot be read leaves a notice in the recording.
bool python_may_be_here() noexcept;

void forget_python_after_fork() noexcept;

}  // namespace gpubusy::runtime
