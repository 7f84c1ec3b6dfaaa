// SPDX-License-Identifier: Apache-2.0
//
// Where a run's recordings go, checked before the program starts.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "config/config.hpp"

namespace gpubusy::launcher {

struct OutputDirectory {
  std::string path;  // absolute
  bool made = false;
  bool named_by_us = false;  // no --output: removed again if nothing was recorded
};

// Makes the directory where it is missing (its parent must exist) and tries it out. The error is
// one line.
tl::expected<OutputDirectory, std::string> prepare_output(const config::Config& config,
                                                          bool has_output);

// GPUBUSY_OUTPUT's value for exactly this directory: a pattern without sequences.
std::string as_pattern(const std::string& path);

// A folder in which `library` can be named in LD_PRELOAD; empty: could not be made.
std::string make_private_link(const std::string& library);
void remove_private_link(const std::string& link);

}  // namespace gpubusy::launcher
