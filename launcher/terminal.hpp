// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "analysis/api.hpp"

namespace gpubusy::launcher {

// Width, colours (a terminal, and NO_COLOR not set) and character set for text on `fd`.
analysis::TextOptions text_options_for(int fd);

// Writes all of it; false: could not. Never raises SIGPIPE where that is ignored.
bool write_all(int fd, const std::string& text);

// One line on standard error, behind "gpubusy: ".
void say(const std::string& text);

}  // namespace gpubusy::launcher
