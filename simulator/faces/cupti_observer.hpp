// SPDX-License-Identifier: Apache-2.0
//
// The one simulated CUPTI of this process, and when the core reports to it.
#pragma once

#include "simulator/faces/cupti_activity.hpp"
#include "simulator/faces/cupti_subscribers.hpp"

namespace gpubusy::sim::cupti {

Common& common() noexcept;
// Of the client that has no subscriber of its own: the functions without _v2.
Activity& activity() noexcept;
Subscribers& subscribers() noexcept;

// After anything was enabled or disabled: the core is observed as long as somebody wants it.
void update_observer() noexcept;

// CUPTI 13.5 or so: each subscriber may have activities of its own.
bool has_v2() noexcept;

// For every client.
void flush_all(bool forced);
void set_flush_period(std::uint32_t ms);

}  // namespace gpubusy::sim::cupti
