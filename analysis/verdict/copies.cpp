// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/thresholds.hpp"
#include "analysis/verdict/evidence.hpp"
#include "analysis/verdict/findings.hpp"

namespace gpubusy::analysis::verdict {
namespace {

// Modules of torch that copy because of the layout in which they are given their data.
bool is_layout_module(const SourceLine& frame) {
  for (const std::string_view file : {"/torch/nn/modules/conv.py", "/torch/nn/modules/batchnorm.py",
                                      "/torch/nn/modules/pooling.py"}) {
    if (frame.file.ends_with(file)) return true;
  }
  return frame.file.find("/torch/nn/") == std::string::npos;
}

}  // namespace

Found pageable_copies(const ProcessReport& report) {
  Finding finding;
  const Per per(report);
  std::uint64_t bytes = 0, count = 0, dearest = 0;
  std::string directions;
  bool to_host = false;  // most of the cost
  for (const CopyRow& row : report.summary.copies) {
    if (row.host_kind != recording::MemoryKind::kPageable || row.large_count == 0) continue;
    bytes += row.large_bytes;
    count += row.large_count;
    finding.total_ns += row.large_idle_ns;
    if (finding.before.file.empty() || row.large_idle_ns > dearest) {
      dearest = row.large_idle_ns;
      finding.before = row.line;
      to_host = row.direction == recording::CopyDirection::kDeviceToHost;
    }
    const std::string direction(direction_name(row.direction));
    if (directions.find(direction) == std::string::npos) {
      directions += (directions.empty() ? "" : " and ") + direction;
    }
  }
  finding.share = report.share(finding.total_ns);
  const bool many_bytes =
      report.has_steps() && per.count_of(bytes) >= static_cast<double>(kPageableBytes);
  if (count == 0 || (finding.share < kPageableShare && !many_bytes)) return std::nullopt;
  finding.title = "Copies from or to pageable memory block the host";
  finding.where = to_text(finding.before);
  finding.evidence = fmt::format(
      "{} {} copies{}, {:.1f} MB, from or to pageable memory hold the host for {:.2f} ms ({:.1f} "
      "%) while no kernel runs; \"async\" does not help with pageable memory.",
      count_text(per.count_of(count)), directions, per.word, per.count_of(bytes) / 1e6,
      per.ms_of(finding.total_ns), percent(finding.share));
  finding.cure =
      to_host
          ? "Read less, and less often: reduce on the GPU first (mean, argmax, .half()). What must "
            "be read goes into a pinned buffer (torch.empty(..., pin_memory=True).copy_(x, "
            "non_blocking=True)), with an event to wait for before it is used."
      : report.has_loader
          ? "Use pinned memory: DataLoader(pin_memory=True), then .to(device, non_blocking=True)."
          : "Use pinned memory: tensor.pin_memory(), best into one buffer that is used again, then "
            ".to(device, non_blocking=True).";
  return finding;
}

Found small_copies(const ProcessReport& report) {
  const SmallCopies& c = report.summary.small_copies;
  const Per per(report);
  // Without steps, one copy for each batch is many in all: those that follow each other could be
  // one.
  const double many = report.has_steps() ? per.count_of(c.count) : static_cast<double>(c.in_series);
  if (many < kSmallCopiesPerStep || report.share(c.idle_ns) < kSmallCopiesShare) {
    return std::nullopt;
  }
  Finding finding;
  finding.title = "Many small copies to the GPU, where one would do";
  finding.total_ns = c.idle_ns;
  finding.share = report.share(c.idle_ns);
  set_line(finding, c.line);
  finding.evidence = fmt::format(
      "{} copies{} of {:.1f} kB on average take the host {:.2f} ms ({:.1f} %) while no kernel "
      "runs: {:.1f} us each, with what the framework does for it.",
      count_text(per.count_of(c.count)), per.word,
      static_cast<double>(c.bytes) / static_cast<double>(c.count) / 1e3, per.ms_of(c.idle_ns),
      percent(finding.share), static_cast<double>(c.idle_ns) / static_cast<double>(c.count) / 1e3);
  finding.cure =
      "Put them into one tensor on the host (torch.cat, torch.stack, a collate function), copy "
      "that, and split it on the GPU.";
  return finding;
}

Found device_copies(const ProcessReport& report) {
  const Concurrency& c = report.summary.concurrency;
  Finding finding;
  finding.total_ns = c.device_copy_ns;
  finding.share = share_of_work(report, c.device_copy_ns);
  if (finding.share < kDeviceCopyShare) return std::nullopt;
  const Per per(report);
  finding.title = "The GPU copies its own memory: clones, or layouts that change";
  set_line(finding, c.device_copy_line);
  finding.evidence = fmt::format(
      "{} copies within the device{} take {:.2f} ms of it ({:.1f} %), layout changes "
      "(.contiguous()) among them.",
      count_text(per.count_of(c.device_copies)), per.word, per.ms_of(c.device_copy_ns),
      percent(finding.share));
  finding.cure =
      "No .clone() of what is not changed; one memory layout throughout (channels_last for "
      "convolutions), so that no .contiguous() copies.";
  if (c.device_copy_inside.known()) {
    finding.evidence += fmt::format(" Most are made inside {}, called from that line.",
                                    to_text(c.device_copy_inside));
    if (!is_layout_module(c.device_copy_inside)) {
      finding.problem = false;
      finding.cure =
          "These copies are the library's own: only another implementation of that module (or "
          "torch.compile) has fewer.";
    }
  }
  return finding;
}

Found offloading(const ProcessReport& report) {
  const Offloads& o = report.summary.offloads;
  const Per per(report);
  Finding finding;
  finding.total_ns = o.alone_ns;
  finding.share = share_of_work(report, o.alone_ns);
  if (!report.has_steps() || per.count_of(o.count) < kOffloadsPerStep ||
      finding.share < kOffloadShare) {
    return std::nullopt;
  }
  finding.title = "Tensors go to the host and back within a step";
  set_line(finding, o.line);
  finding.evidence = fmt::format(
      "{} per step, {:.1f} MB, go to memory of the host and are copied back from there. While no "
      "kernel runs the GPU copies them for {:.2f} ms ({:.1f} %).",
      count_text(per.count_of(o.count)), per.count_of(o.bytes) / 1e6, per.ms_of(o.alone_ns),
      percent(finding.share));
  finding.cure =
      "Keep on the GPU what fits; compute again what does not (torch.utils.checkpoint); else copy "
      "on a stream of its own from and to pinned memory while kernels run.";
  return finding;
}

Found copy_bound(const ProcessReport& report) {
  if (report.share(report.busy_ns) < kBusyShare || !copies_fill_busy_time(report)) {
    return std::nullopt;
  }
  // Those that come back have been told.
  if (report.summary.offloads.alone_ns * 2 > report.busy_ns - report.kernel_busy_ns &&
      offloading(report)) {
    return std::nullopt;
  }
  const CopyRow* most = nullptr;
  for (const CopyRow& row : report.summary.copies) {
    if (most == nullptr || row.device_ns > most->device_ns) most = &row;
  }
  if (most == nullptr) return std::nullopt;
  Finding finding;
  finding.title = "The GPU is busy with copies, not with kernels";
  finding.total_ns = report.busy_ns - report.kernel_busy_ns;
  finding.share = report.share(finding.total_ns);
  set_line(finding, most->line);
  const Per per(report);
  finding.evidence = fmt::format(
      "Busy {:.1f} %, but only {:.1f} % with kernels. Most is {} {} copies, {:.2f} ms{} at {:.1f} "
      "GB/s.",
      percent(report.share(report.busy_ns)), percent(report.share(report.kernel_busy_ns)),
      most->count, direction_name(most->direction), per.ms_of(most->device_ns), per.word,
      most->gigabytes_per_second());
  finding.cure =
      most->direction == recording::CopyDirection::kDeviceToDevice
          ? "Copy less within the GPU: no .clone() of what is not changed, write results where "
            "they "
            "belong (out=, in-place), one memory layout throughout."
      : most->direction == recording::CopyDirection::kDeviceToHost
          ? "Read less: reduce on the GPU first, or send smaller types; then overlap the rest with "
            "kernels (a pinned buffer, non_blocking=True, a stream of its own)."
          : "Move less: convert and augment on the GPU, send smaller types (uint8 instead of "
            "float32), keep on the GPU what does not change; then overlap the rest with kernels "
            "(pin_memory, non_blocking=True, a prefetching stream).";
  return finding;
}

Found copies_not_overlapped(const ProcessReport& report) {
  if (!is_timed(report)) return std::nullopt;
  const Concurrency& c = report.summary.concurrency;
  Finding finding;
  finding.total_ns = c.copy_alone_ns;
  finding.share = share_of_work(report, c.copy_alone_ns);
  // Where copies take most of the time, moving less comes first.
  if (finding.share < kCopyAloneShare || report.kernel_busy_ns == 0 || copy_bound(report)) {
    return std::nullopt;
  }
  // Those that come back have been told.
  if (report.summary.offloads.alone_ns > c.copy_alone_ns && offloading(report)) return std::nullopt;
  const Per per(report);
  finding.title = "Asynchronous copies do not overlap with kernels";
  set_line(finding, c.copy_line);
  finding.evidence = fmt::format(
      "Copies from pinned memory take {:.2f} ms of the GPU{}; for {:.2f} ms of that ({:.1f} %) no "
      "kernel runs, so kernels wait for them.",
      per.ms_of(c.pinned_copy_ns), per.word, per.ms_of(c.copy_alone_ns), percent(finding.share));
  finding.cure =
      "Copy the next batch on a stream of its own while this one is computed (torch.cuda.Stream, "
      "wait_stream, record_stream), or send smaller types.";
  return finding;
}

}  // namespace gpubusy::analysis::verdict
