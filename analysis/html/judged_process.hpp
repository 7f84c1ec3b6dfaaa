// SPDX-License-Identifier: Apache-2.0
//
// What the verdict of a process rests on, worked out once for all parts of its page. Thread-safe;
// the recording must outlive it.
#pragma once

#include "analysis/stacks/weights.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct JudgedProcess : Judged {
  const recording::Recording& recording;

  explicit JudgedProcess(const recording::Recording& of) : Judged(judge(of)), recording(of) {}
};

}  // namespace gpubusy::analysis
