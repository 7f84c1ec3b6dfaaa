// SPDX-License-Identifier: Apache-2.0
//
// The results of `gpubusy doctor` as text and as JSON (docs/doctor.md has the schema).
#pragma once

#include <string>
#include <vector>

#include "analysis/api.hpp"
#include "launcher/doctor/check.hpp"

namespace gpubusy::launcher::doctor {

std::string render_text(const std::vector<Result>& results, const analysis::TextOptions& options);
std::string render_json(const std::vector<Result>& results, const std::string& launcher_version);

}  // namespace gpubusy::launcher::doctor
