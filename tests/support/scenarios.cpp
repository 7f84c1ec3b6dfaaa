// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scenarios.hpp"

#include <algorithm>
#include <string>

namespace gpubusy::testing {
namespace {

constexpr std::uint64_t kUs = 1'000;
constexpr std::uint64_t kMs = 1'000'000;
constexpr const char* kScript = "/home/user/job/train.py";

using rec::CopyDirection;
using rec::MemoryKind;
using rec::WindowEvent;

}  // namespace

RecordingBuilder starved_loop(const StarvedOptions& options) {
  RecordingBuilder b(options.pid);
  b.setting("GPUBUSY_WAIT=5");
  b.device(0, "NVIDIA H200");
  b.thread(options.pid, "python");
  b.stream(7, 0);
  const std::uint32_t gemm = b.kernel("_ZN7cutlass6KernelI4gemmEEvT_");
  const std::uint32_t relu = b.kernel("relu_kernel");
  const std::uint32_t module = b.frame(0, kScript, "<module>", 70);
  const std::uint32_t copy = b.frame(module, kScript, "main", 58);
  const std::uint32_t forward = b.frame(module, kScript, "main", 60);
  const std::uint32_t step =
      b.frame(b.frame(module, kScript, "main", 63),
              "/opt/venv/lib/python3.11/site-packages/torch/optim/sgd.py", "SGD.step", 80);
  // Batches come from a loader: some call was made in it.
  b.frame(module, "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py",
          "_BaseDataLoaderIter.__next__", 733);
  std::uint64_t t = RecordingBuilder::kStart + 100 * kMs;
  b.window(WindowEvent::kBegin, t, 0, 7, static_cast<std::uint32_t>(options.steps));
  for (int i = 0; i < options.steps; ++i) {
    CallOptions o;
    o.python_stack = copy;
    const std::uint32_t c =
        b.copy(t + 30 * kMs, t + 32 * kMs, 8'000'000, CopyDirection::kHostToDevice,
               options.pinned ? MemoryKind::kPinned : MemoryKind::kPageable, true, o);
    b.device_time(c, t + 30 * kMs + 100 * kUs, t + 32 * kMs, o, 500, options.source);
    for (std::uint64_t k = 0; k < 16; ++k) {
      o.python_stack = k < 12 ? forward : step;
      const std::uint64_t at = t + 32 * kMs + k * 50 * kUs;
      const std::uint32_t l = b.launch(at, at + 5 * kUs, k % 4 ? gemm : relu, o);
      const std::uint64_t begin = t + 32 * kMs + 100 * kUs + k * 500 * kUs;
      b.device_time(l, begin, begin + 500 * kUs, o, 500, options.source);
    }
    t += 33 * kMs;
    b.step_edge(t, static_cast<std::uint32_t>(7 + i));
  }
  b.window(WindowEvent::kEnd, t, 0, 7, static_cast<std::uint32_t>(options.steps));
  return b;
}

RecordingBuilder launch_bound_loop(int steps, int launches, std::uint64_t gap_us,
                                   std::uint64_t kernel_us) {
  RecordingBuilder b;
  b.device(0, "NVIDIA H200");
  const std::uint32_t kernel = b.kernel("small_kernel");
  CallOptions o;
  o.python_stack = b.frame(0, kScript, "predict", 12);
  std::uint64_t t = RecordingBuilder::kStart;
  b.window(WindowEvent::kBegin, t, 0, 0, static_cast<std::uint32_t>(steps));
  for (int i = 0; i < steps; ++i) {
    for (int k = 0; k < launches; ++k) {
      const std::uint32_t l = b.launch(t, t + 6 * kUs, kernel, o);
      b.device_time(l, t + 4 * kUs, t + (4 + kernel_us) * kUs, o);
      t += gap_us * kUs;
    }
    b.step_edge(t, static_cast<std::uint32_t>(i));
  }
  b.window(WindowEvent::kEnd, t, 0, 0, static_cast<std::uint32_t>(steps));
  return b;
}

RecordingBuilder everything(std::uint32_t pid) {
  RecordingBuilder b(pid);
  b.rank(1, 2, 1).host(
      "n\xc3\xb8"
      "de-\xe6\x97\xa5");
  b.device(0, "NVIDIA H200");
  b.device(1, "NVIDIA H200");
  b.thread(pid, "python");
  b.thread(pid + 1, "bad\x01name");
  b.notice(RecordingBuilder::kStart, rec::NoticeKind::kDeviceTime, "times from CUDA events");
  rec::HostRecord offer{};
  offer.header.value = rec::kHostTellsQuota | rec::kHostTellsMemory;
  offer.memory_bytes = std::uint64_t{64} << 30;
  offer.cpu_quota_us = 150'000;
  offer.cpu_period_us = 100'000;
  offer.online_processors = 16;
  offer.usable_processors = 8;
  b.host_offer(offer);
  const std::uint32_t quotes =
      b.kernel("quote\" back\\slash \n\t\x01 \xff \xe6\x97\xa5 \xed\xa0\x80");
  const std::uint32_t huge = b.kernel("long<" + std::string(10'000, 'x') + ">");
  const std::uint32_t plain = b.kernel("_Z6kernelPfi");
  const std::uint32_t graph = b.graph(12, 1, 0);
  const std::uint32_t stack = b.frame(b.frame(0, "/home/\xe6\x97\xa5/\"train\".py", "<module>", 7),
                                      "/home/x/model.py", "f", 21);
  std::uint64_t t = RecordingBuilder::kStart + 10 * kMs;
  b.window(WindowEvent::kBegin, t, 0, 3, 4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    CallOptions o;
    o.python_stack = stack;
    CallOptions s13 = o;
    s13.stream = 13;
    CallOptions d1 = o;
    d1.device = 1;
    CallOptions other = o;
    other.thread = pid + 1;
    const auto timed = [&](std::uint32_t c, std::uint64_t from, std::uint64_t to, CallOptions at) {
      b.device_time(c, t + from * kUs, t + to * kUs, at);
    };
    timed(b.copy(t + 100 * kUs, t + 200 * kUs, 1 << 20, CopyDirection::kHostToDevice,
                 MemoryKind::kPageable, true, o),
          110, 190, o);
    timed(b.copy(t + 210 * kUs, t + 215 * kUs, 1 << 20, CopyDirection::kHostToDevice,
                 MemoryKind::kPinned, true, s13),
          220, 250, s13);
    timed(b.memset(t + 220 * kUs, t + 224 * kUs, 4096, o), 226, 228, o);
    timed(b.launch(t + 230 * kUs, t + 235 * kUs, quotes, o), 300, 677, o);
    timed(b.launch(t + 240 * kUs, t + 245 * kUs, huge, o), 500, 700, o);  // overlaps on its stream
    timed(b.launch(t + 250 * kUs, t + 255 * kUs, plain, s13), 260, 900, s13);
    timed(b.launch(t + 251 * kUs, t + 258 * kUs, plain, other), 700, 701, other);
    timed(b.launch(t + 260 * kUs, t + 265 * kUs, plain, d1), 270, 400, d1);
    const std::uint32_t g = b.graph_launch(t + 300 * kUs, t + 320 * kUs, graph, o);
    for (std::uint32_t n = 0; n < 3; ++n) {
      b.device_time(g, t + (710 + 20 * n) * kUs, t + (725 + 20 * n) * kUs, o, 500,
                    rec::TimeSource::kEvents, n + 1);
    }
    b.launch(t + 330 * kUs, t + 333 * kUs, plain, o);  // no device time
    // And what CUPTI tells: a graph's nodes, and a call that no hook saw.
    const std::uint32_t seen = 1'000 + 10 * i;
    RecordingBuilder::ActivityOptions node;
    node.graph = 5;
    node.stream = 20;
    const std::uint32_t replay = b.graph_launch(t + 334 * kUs, t + 336 * kUs, graph, o);
    b.correlation(replay, seen, t + 334 * kUs, t + 336 * kUs);
    for (node.graph_node = 1; node.graph_node < 3; ++node.graph_node) {
      b.kernel_activity(seen, t + (800 + 20 * node.graph_node) * kUs,
                        t + (810 + 20 * node.graph_node) * kUs, huge, node);
    }
    node.graph_node = 3;
    b.copy_activity(seen, t + 870 * kUs, t + 880 * kUs, 4096, CopyDirection::kDeviceToHost, node);
    b.api_activity(seen + 1, t + 337 * kUs, t + 338 * kUs, pid + 1,
                   b.api("cudaLaunchNew", rec::Category::kOther));
    b.kernel_activity(seen + 1, t + 890 * kUs, t + 895 * kUs, plain, {});
    b.overhead(rec::OverheadKind::kBufferFlush, t + 900 * kUs, t + 901 * kUs, pid);
    b.dropped(t + 902 * kUs, 2);
    CallOptions failed = o;
    failed.result = 2;
    b.alloc(t + 340 * kUs, t + 350 * kUs, 1 << 30, failed);
    b.free(t + 350 * kUs, t + 400 * kUs, o);
    CallOptions captured = o;
    captured.flags = rec::kCallCaptured;
    b.launch(t + 410 * kUs, t + 412 * kUs, plain, captured);
    timed(b.copy(t + 800 * kUs, t + 960 * kUs, 4, CopyDirection::kDeviceToHost,
                 MemoryKind::kPageable, false, o),
          940, 950, o);
    b.sync(t + 970 * kUs, t + 975 * kUs, o);
    const rec::SyncPayload event = {0x77, 0};
    b.call(t + 976 * kUs, t + 977 * kUs,
           b.api("cuEventRecord_ptsz", rec::Category::kEvent, rec::Layer::kDriver), &event,
           sizeof event, o);
    t += kMs;
    b.step_edge(t, 3 + i);
    b.host_edge(t, 3 + i,
                {{rec::HostCounter::kUserNs, i * kMs}, {rec::HostCounter::kMajorFaults, i * 2}});
    b.host_counts(t + 10 * kUs,
                  {{rec::HostCounter::kUserNs, i * kMs},
                   {rec::HostCounter::kSystemNs, i * 500 * kUs},
                   {rec::HostCounter::kMajorFaults, i * 2},
                   {rec::HostCounter::kThrottledNs, i * 250 * kUs},
                   {rec::HostCounter::kCpuSomeNs, i * 100 * kUs}},
                  {rec::HostSource::kGroup, rec::HostSource::kNoFile, rec::HostSource::kMachine,
                   rec::HostSource::kNotNeeded});
  }
  b.window(WindowEvent::kEnd, t, 0, 3, 4);
  return b;
}

RecordingBuilder ranges(std::uint32_t pid) {
  RecordingBuilder b(pid);
  b.device(0, "NVIDIA H200");
  b.thread(pid, "python");
  b.thread(pid + 1, "loader \xe6\x97\xa5", true);
  b.thread(pid + 1, "python");  // a later name of the system does not replace the program's
  const std::uint32_t kernel = b.kernel("_Z6kernelPfi");
  const std::uint32_t epoch = b.range_text("epoch");
  const std::uint32_t forward = b.range_text("forward");
  const std::uint32_t late = b.range_text("late");
  const std::uint32_t domain = b.range_text("my \"domain\"");
  const std::uint32_t cudnn = b.range_text("cuDNN");
  const std::uint32_t execute = b.range_text("cudnnBackendExecute");
  const std::uint32_t category = b.range_text("io");
  std::uint64_t t = kRangesBegin;
  b.window(WindowEvent::kBegin, t, 0, 3, 4);
  // Written while it was open, and again when it ended behind the window.
  b.range(t - kMs, t + 4 * kMs, epoch, {.id = 1, .flags = rec::kRangeOpen});
  for (std::uint32_t i = 0; i < 4; ++i) {
    b.device_time(b.launch(t + 300 * kUs, t + 310 * kUs, kernel), t + 320 * kUs, t + 720 * kUs);
    b.range(t + 290 * kUs, t + 320 * kUs, execute,
            {.domain = cudnn, .kind = rec::RangeKind::kCall});
    b.range(t + 200 * kUs, t + 800 * kUs, forward,
            {.domain = domain,
             .category = 7,
             .category_name = category,
             .colour = 0xff00ff00,
             .payload_type = rec::RangePayload::kInt64,
             .payload = static_cast<std::uint64_t>(-3),
             .flags = rec::kRangeColour});
    b.range(t + 900 * kUs, t + 1100 * kUs, late);  // crosses the edge
    b.range(t + 950 * kUs, t + 980 * kUs, "step " + std::to_string(i) + " \"\\\n\x01 \xff");
    // Two that overlap, begun by one thread and ended by the other.
    b.range(t + 100 * kUs, t + 500 * kUs, "first",
            {.thread = pid + 1, .id = 0x80000001 + 2 * i, .kind = rec::RangeKind::kStartEnd});
    b.range(t + 400 * kUs, t + 600 * kUs, "second",
            {.id = 0x80000002 + 2 * i, .kind = rec::RangeKind::kStartEnd});
    b.range(t + 650 * kUs, t + 650 * kUs, "mark",
            {.category = 9,
             .kind = rec::RangeKind::kMark,
             .payload_type = rec::RangePayload::kDouble,
             .payload = 0x7ff8000000000000});
    b.range(t + 660 * kUs, t + 670 * kUs, 0u);  // no name
    t += kMs;
    b.step_edge(t, 3 + i, rec::StepSource::kNvtx);
  }
  b.window(WindowEvent::kEnd, t, 0, 3, 4);
  b.range(kRangesBegin - kMs, t + 5 * kMs, epoch, {.id = 1});
  b.range(t + kMs, t + 2 * kMs, "behind the window");
  return b;
}

RecordingBuilder golden() {
  RecordingBuilder b(4242, 2048);
  b.rank(3, 8, 1).lost(5).command({"python", "-u", "train.py", ""});
  b.setting("GPUBUSY_ACTIVE=2");
  b.notice(RecordingBuilder::kStart + 5, rec::NoticeKind::kPython, "Python 3.99 is not known");
  b.device(0, "NVIDIA H200");
  b.thread(4242, "python");
  b.stream(7, 0);
  const std::uint32_t kernel = b.kernel("_Z6kernelPfi");
  const std::uint32_t graph = b.graph(3, 2, 1);
  CallOptions o;
  o.python_stack = b.frame(b.frame(0, kScript, "<module>", 70), kScript, "main", 58);
  std::uint64_t t = RecordingBuilder::kStart + kMs;
  b.window(WindowEvent::kBegin, t, 0, 4, 2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    b.device_time(b.copy(t + 10 * kUs, t + 20 * kUs, 4096, CopyDirection::kHostToDevice,
                         MemoryKind::kPinned, true, o),
                  t + 15 * kUs, t + 25 * kUs, o);
    b.device_time(b.launch(t + 30 * kUs, t + 35 * kUs, kernel, o), t + 40 * kUs, t + 90 * kUs, o);
    CallOptions other = o;
    other.thread = 4243;
    b.device_time(b.graph_launch(t + 40 * kUs, t + 45 * kUs, graph, other), t + 95 * kUs,
                  t + 120 * kUs, other);
    b.memset(t + 130 * kUs, t + 135 * kUs, 64, other);
    b.alloc(t + 140 * kUs, t + 150 * kUs, 1 << 20, o);
    b.free(t + 150 * kUs, t + 160 * kUs, o);
    b.sync(t + 200 * kUs, t + 300 * kUs, o);
    t += kMs;
    b.step_edge(t, 4 + i);
  }
  b.lost_record(t, 5);
  b.window(WindowEvent::kEnd, t, 0, 4, 2);
  return b;
}

RecordingBuilder many_calls(std::uint64_t calls, bool looks) {
  RecordingBuilder b;
  b.device(0, "NVIDIA H200");
  std::uint32_t kernels[64];
  for (std::uint32_t& k : kernels) k = b.kernel("kernel_" + std::to_string(&k - kernels));
  std::uint32_t stacks[256];
  const std::uint32_t root = b.frame(0, kScript, "<module>", 1);
  for (std::uint32_t& s : stacks) {
    s = b.frame(root, kScript, "main", 10 + static_cast<int>(&s - stacks));
  }
  constexpr std::uint64_t kPerStep = 2000;
  const std::uint64_t steps = calls / kPerStep;
  std::uint64_t t = RecordingBuilder::kStart;
  b.window(WindowEvent::kBegin, t, 0, 0, static_cast<std::uint32_t>(steps));
  for (std::uint64_t i = 0; i < steps; ++i) {
    const std::uint64_t begin = t;
    if (looks) t += 5 * kMs;
    for (std::uint64_t at = begin; at < t; at += kMs) {
      GapOptions look;
      look.python_stack = stacks[i % 256];
      look.run_ns = kMs;
      b.gap_sample(at + kMs, at, look);
    }
    for (std::uint64_t k = 0; k < kPerStep; ++k) {
      CallOptions o;
      o.python_stack = stacks[k % 256];
      if (k % 100 == 99) {
        b.sync(t, t + 3 * kUs, o);
      } else {
        const std::uint32_t l = b.launch(t, t + 4 * kUs, kernels[k % 64], o);
        b.device_time(l, t + 3 * kUs, t + (3 + k % 9) * kUs, o);
      }
      t += 10 * kUs;
    }
    b.step_edge(t, static_cast<std::uint32_t>(i));
  }
  b.window(WindowEvent::kEnd, t, 0, 0, static_cast<std::uint32_t>(steps));
  return b;
}

RecordingBuilder uneven_calls(std::uint64_t calls) {
  RecordingBuilder b;
  b.device(0, "NVIDIA H200");
  std::uint64_t state = 88172645463325252ull;
  const auto random = [&](std::uint64_t below) {  // xorshift: the same everywhere
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
  };
  std::uint32_t kernels[200];
  for (std::uint32_t& k : kernels) {
    k = b.kernel("void kernel_" + std::to_string(&k - kernels) + "<float, 4>(float*)");
  }
  const std::uint32_t root = b.frame(0, kScript, "<module>", 1);
  std::uint32_t stacks[64];
  for (std::uint32_t& s : stacks)
    s = b.frame(root, kScript, "main", 10 + static_cast<int>(&s - stacks));
  const std::uint32_t layer = b.range_text("layer"), forward = b.range_text("forward");
  constexpr std::uint64_t kPerStep = 5000;
  std::uint64_t t = RecordingBuilder::kStart;
  std::uint64_t free_at[3] = {t, t, t};
  const std::uint64_t steps = calls / kPerStep;
  b.window(WindowEvent::kBegin, t, 0, 0, static_cast<std::uint32_t>(steps));
  for (std::uint64_t i = 0; i < steps; ++i) {
    t += 2 * kMs + random(3 * kMs);
    const std::uint64_t begin = t;
    std::uint64_t layer_begin = t;
    for (std::uint64_t k = 0; k < kPerStep; ++k) {
      CallOptions o;
      const std::uint64_t lane = random(8) < 6 ? 0 : 1 + random(2);
      o.stream = static_cast<std::uint32_t>(7 + 6 * lane);
      o.python_stack = stacks[random(64)];
      const std::uint64_t host = 3'000 + random(4'000);
      const std::uint64_t device = 1'000 + random(random(20) == 0 ? 60'000 : 9'000);
      const std::uint32_t c =
          k % 50 == 0 ? b.copy(t, t + host, 1'000 + random(1'000'000), CopyDirection::kHostToDevice,
                               MemoryKind::kPinned, true, o)
                      : b.launch(t, t + host, kernels[random(200)], o);
      const std::uint64_t from = std::max(free_at[lane], t + 2'000 + random(2'000));
      free_at[lane] = from + device;
      b.device_time(c, from, from + device, o, 20, rec::TimeSource::kCupti);
      t += host + random(3'000);
      if (k % 250 == 249) {
        b.range(layer_begin, t, layer);
        layer_begin = t;
      }
    }
    b.range(begin, t, forward);
    b.step_edge(t, static_cast<std::uint32_t>(i));
  }
  b.window(WindowEvent::kEnd, t, 0, 0, static_cast<std::uint32_t>(steps));
  return b;
}

RecordingBuilder two_windows() {
  RecordingBuilder b;
  b.device(0, "NVIDIA H200");
  const std::uint32_t kernel = b.kernel("_Z6kernelPfi");
  std::uint64_t t = RecordingBuilder::kStart;
  for (std::uint32_t window = 0; window < 2; ++window) {
    b.recording_edge(t, true);
    b.window(WindowEvent::kBegin, t, window, 10 * window, 2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      b.device_time(b.launch(t + kMs, t + kMs + 5 * kUs, kernel), t + 2 * kMs, t + 8 * kMs);
      t += 10 * kMs;
      b.step_edge(t, 10 * window + i);
    }
    b.window(WindowEvent::kEnd, t, window, 10 * window, 2);
    b.recording_edge(t, false);
    t += 1000 * kMs;
  }
  return b;
}

RecordingBuilder markup() {
  const std::string evil =
      "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>";
  RecordingBuilder b(7171);
  b.command({"python", evil, "{{report}}", "a&b\"'`\xe2\x80\xa8"}).host("<b>host</b>");
  b.device(0, "<i>H200</i>");
  b.thread(7171, "<u>main</u>");
  b.notice(RecordingBuilder::kStart, rec::NoticeKind::kDeviceTime, evil);
  b.setting("GPUBUSY_STEP=<!-- <script>");
  const std::uint32_t kernel = b.kernel(evil);
  const std::uint32_t separators =
      b.kernel("line\xe2\x80\xa8paragraph\xe2\x80\xa9 bad\xff utf8 <!--<script>");
  CallOptions o;
  o.python_stack = b.frame(0, "/home/user/<script>alert(2)</script>.py", evil, 7);
  std::uint64_t t = RecordingBuilder::kStart;
  b.window(WindowEvent::kBegin, t, 0, 0, 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    b.device_time(b.launch(t + 100 * kUs, t + 110 * kUs, kernel, o), t + 120 * kUs, t + 400 * kUs,
                  o);
    b.device_time(b.launch(t + 410 * kUs, t + 420 * kUs, separators, o), t + 430 * kUs,
                  t + 600 * kUs, o);
    b.range(t + 90 * kUs, t + 700 * kUs, evil + std::to_string(i),
            {.domain = b.range_text("<h1>")});
    t += kMs;
    b.step_edge(t, i);
  }
  b.window(WindowEvent::kEnd, t, 0, 0, 3);
  return b;
}

}  // namespace gpubusy::testing
