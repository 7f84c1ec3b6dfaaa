// SPDX-License-Identifier: Apache-2.0
//
// The one simulated CUPTI of this process, and when the core reports to it.
#pragma once

#include "simulator/faces/cupti_activity.hpp"
#include "simulator/faces/cupti_subscribers.hpp"

namespace gpubusy::sim::cupti {

Activity& activity() noexcept;
Subscribers& subscribers() noexcept;

// After anything was enabled or disabled: the core is observed as long as somebody wants it.
void update_observer() noexcept;

}  // namespace gpubusy::sim::cupti
