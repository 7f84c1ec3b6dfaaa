// SPDX-License-Identifier: Apache-2.0
//
// A trace of torch.profiler as a recording, so that it gets the same verdict: calls, device work
// and steps (ProfilerStep#N) are what Kineto writes; what a trace cannot tell is left out and said
// in the recording's notices. docs/trace.md. Thread-safe for different files.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

// ".json", ".json.gz".
bool is_trace_name(const std::string& path);

// An error where the file is no trace, or has neither calls nor device work.
tl::expected<recording::Recording, recording::Error> import_trace(const std::string& path);

// What kind of call a function of CUDA is, as the hook table has it, with or without suffix of
// version or stream; kOther: not in the table.
recording::Category category_of_api(const std::string& name);

}  // namespace gpubusy::analysis
