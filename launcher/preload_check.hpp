// SPDX-License-Identifier: Apache-2.0
//
// Whether a preload can reach a program, judged from its files before it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpubusy::launcher {

enum class PreloadVerdict : std::uint8_t {
  kPossible,
  kIgnored,  // ld.so would not load the library, and not disturb the program either
  kHarmful   // the library must not be named: the program would not start, or complain
};

struct PreloadCheck {
  PreloadVerdict verdict = PreloadVerdict::kPossible;
  std::string reason;   // of kIgnored and kHarmful: one clause, e.g. "x is statically linked"
  std::string program;  // the file that was judged: at the end of #! lines
};

// `command` as the user typed it. Looks it up as execvp does.
PreloadCheck check_preload(const std::vector<std::string>& command, const std::string& library);

// The file that execvp would run; empty: not found.
std::string find_program(const std::string& name);

// A reason that lies in the command's words, e.g. `env -i`; empty: none known.
std::string reason_in_words(const std::vector<std::string>& command);

}  // namespace gpubusy::launcher
