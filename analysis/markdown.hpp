// SPDX-License-Identifier: Apache-2.0
//
// Pieces of GitHub's Markdown. Names come from the program: whatever they hold stays text, and no
// one is mentioned by it. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpubusy::analysis {

// Text as it is: no markup, no HTML, no mention, one line.
std::string markdown_text(std::string_view text);
// A name in code style, also within a table; long ones are cut.
std::string markdown_code(std::string_view name);
// The cells are Markdown already. The first column is to the left, the others to the right.
std::string markdown_table(const std::vector<std::string>& head,
                           const std::vector<std::vector<std::string>>& rows);

}  // namespace gpubusy::analysis
