// SPDX-License-Identifier: Apache-2.0
//
// From an instruction's offset to a source line, with the line table that CPython keeps in a code
// object. Pure and thread-safe. Any bytes are accepted.
#pragma once

#include <cstdint>
#include <string>

namespace gpubusy::analysis {

// `line_table`: co_lnotab for python_minor <= 9, co_linetable for 10 (PEP 626) and for 11 and later
// (the location table); `instruction_offset` in bytes from the code's start. Returns first_line
// where the table is damaged, does not reach the offset, or gives the instruction no line.
int line_of(const std::string& line_table, int first_line, int python_minor,
            std::uint32_t instruction_offset);

}  // namespace gpubusy::analysis
