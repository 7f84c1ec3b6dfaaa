// SPDX-License-Identifier: Apache-2.0
//
// Where a run's recordings go, checked before the program starts.
#pragma once

#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "config/config.hpp"

namespace gpubusy::launcher {

struct OutputDirectory {
  std::string path;               // absolute
  std::vector<std::string> made;  // the directories that were missing, absolute, outermost first
  bool named_by_us = false;       // no --output: removed again if nothing was recorded
};

// Makes the directory where it is missing, its parents too (as the library does without the
// launcher), and tries it out. Where that fails, what was made is removed again. The error is one
// line.
tl::expected<OutputDirectory, std::string> prepare_output(const config::Config& config,
                                                          bool has_output);

// Takes the directories that were made away again, as far as they are empty.
void remove_made(const OutputDirectory& output);

// GPUBUSY_OUTPUT's value for exactly this directory: a pattern without sequences.
std::string as_pattern(const std::string& path);

// A folder in which `library` can be named in LD_PRELOAD; empty: could not be made.
std::string make_private_link(const std::string& library);
void remove_private_link(const std::string& link);

}  // namespace gpubusy::launcher
