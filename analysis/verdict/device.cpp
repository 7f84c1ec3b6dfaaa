// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "analysis/matrix_kernels.hpp"
#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/verdict/evidence.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis::verdict {

Found serial_streams(const ProcessReport& report) {
  if (!is_timed(report)) return std::nullopt;
  const Concurrency& c = report.summary.concurrency;
  const std::uint64_t second = c.small_kernel_ns[1];
  Finding finding;
  finding.total_ns = second - std::min(second, c.small_overlap_ns);
  finding.share = report.share(finding.total_ns);
  if (finding.share < kSerialStreamShare ||
      static_cast<double>(c.small_overlap_ns) >= kSerialOverlap * static_cast<double>(second)) {
    return std::nullopt;
  }
  const Per per(report);
  finding.title = "Two streams of small kernels take turns";
  set_line(finding, c.stream_line);
  finding.evidence = fmt::format(
      "Kernels that leave half of the GPU empty or more run on two streams, {:.2f} ms and {:.2f} "
      "ms{}, and for {:.2f} ms at once. Side by side they would save up to {:.1f} %.",
      per.ms_of(c.small_kernel_ns[0]), per.ms_of(second), per.word, per.ms_of(c.small_overlap_ns),
      percent(finding.share));
  finding.cure =
      "If neither needs the other's result, remove the wait between them (wait_stream, wait_event, "
      "synchronize, work on the default stream); else use one stream.";
  return finding;
}

Found gpu_busy(const ProcessReport& report) {
  if (report.share(report.busy_ns) < kBusyShare || copies_fill_busy_time(report)) {
    return std::nullopt;
  }
  Finding finding;
  finding.problem = false;
  finding.title = "GPU-bound: the GPU is busy";
  finding.total_ns = report.busy_ns;
  finding.share = report.share(report.busy_ns);
  const Summary& s = report.summary;
  const Per per(report);
  finding.evidence = fmt::format("Busy {:.1f} %", percent(finding.share));
  if (!s.kernels.empty()) {
    finding.evidence +=
        fmt::format(", {:.0f} % of kernel time in {}", percent(s.kernels.front().share),
                    shorten(s.kernels.front().name, 60, true));
  }
  finding.evidence += ".";
  if (!s.waits.empty() && s.waits.front().device_busy_ns * 2 > s.waits.front().host_ns &&
      report.share(s.waits.front().host_ns) >= kSyncShare) {
    const WaitRow& wait = s.waits.front();
    set_line(finding, wait.line);
    finding.evidence += fmt::format(
        " The host waits for it in {} for {:.2f} ms{} ({:.2f} ms of that for work already queued): "
        "that wait is not the cause.",
        wait.call, per.ms_of(wait.host_ns), per.word, per.ms_of(wait.device_busy_ns));
  }
  finding.cure =
      "Make kernels faster: mixed precision, channels_last, torch.compile; or use a larger GPU.";
  return finding;
}

// Where the GPU is what takes the time, and most of it could be taken by its tensor cores.
Found single_precision(const ProcessReport& report) {
  const Summary& s = report.summary;
  if (!gpu_busy(report) || !has_tensor_cores(report.compute_major, report.device_name)) {
    return std::nullopt;
  }
  Finding finding;
  finding.total_ns = s.single_precision_ns;
  finding.share = share_of_work(report, s.single_precision_ns);
  if (finding.share < kSinglePrecisionShare) return std::nullopt;
  const Per per(report);
  finding.problem = false;
  finding.title = "Products in single precision leave the tensor cores idle";
  set_line(finding, s.single_precision_line);
  finding.evidence = fmt::format("Kernels of this kind take {:.2f} ms{} ({:.1f} %), most of it {}.",
                                 per.ms_of(s.single_precision_ns), per.word, percent(finding.share),
                                 shorten(s.single_precision_kernel, 60, true));
  finding.cure =
      report.compute_major >= 8
          ? "If the model bears it: torch.autocast(\"cuda\", dtype=torch.bfloat16), or TF32 "
            "(torch.set_float32_matmul_precision(\"high\"), torch.backends.cudnn.allow_tf32)."
          : "If the model bears it: torch.autocast(\"cuda\", dtype=torch.float16) with a "
            "torch.amp.GradScaler.";
  return finding;
}

}  // namespace gpubusy::analysis::verdict
