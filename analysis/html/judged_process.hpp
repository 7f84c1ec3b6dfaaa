// SPDX-License-Identifier: Apache-2.0
//
// What the verdict of a process rests on, worked out once for all parts of its page. Thread-safe;
// the recording must outlive it.
#pragma once

#include <cstdint>

#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct JudgedProcess {
  const recording::Recording& recording;
  Timeline timeline;
  StepSelection selection;
  DeviceSteps times;  // of the judged device

  // `device`: ProcessReport::device.
  JudgedProcess(const recording::Recording& of, std::int16_t device)
      : recording(of),
        timeline(build_timeline(of)),
        selection(select_steps(of, timeline)),
        times(split_time(of, timeline, host_segments(of), selection.steps, device)) {}
};

}  // namespace gpubusy::analysis
