// SPDX-License-Identifier: Apache-2.0
//
// The names of the hook table (preload/hooks/*.def), for the launcher's own checks.
#pragma once

#include <span>
#include <string>

namespace gpubusy::launcher {

struct HookName {
  const char* name;
  bool ends_steps;  // its calls are recorded, so that --step call:NAME can name it
};
std::span<const HookName> hook_names();

bool can_end_steps(const std::string& name);
// The name whose calls are recorded that differs least; empty: none is near.
std::string nearest_step_call(const std::string& name);

}  // namespace gpubusy::launcher
