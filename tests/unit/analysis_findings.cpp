// SPDX-License-Identifier: Apache-2.0
//
// What findings advise, and findings of memory, locks and precision: each beside a control in which
// it is not made, and a decoy that looks alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "analysis/matrix_kernels.hpp"
#include "analysis/report.hpp"
#include "tests/support/reports.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::MemoryKind;
using recording::StepSource;
using recording::WindowEvent;
using testing::at;
using testing::CallOptions;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::finding;
using testing::GapOptions;
using ::testing::HasSubstr;
using testing::ids;
using testing::kMs;
using testing::kScript;
using testing::kUs;
using ::testing::Not;
using testing::RecordingBuilder;
using testing::work;

// A loop of `steps` steps; `body(t)` writes one and returns its length.
template <typename Body>
ProcessReport loop(RecordingBuilder& b, std::uint32_t steps, Body body,
                   StepSource source = StepSource::kOptimizer) {
  std::uint64_t t = RecordingBuilder::kStart;
  b.device(0, "A GPU of 132 multiprocessors");
  b.window(WindowEvent::kBegin, t, 0, 0, steps);
  for (std::uint32_t i = 0; i < steps; ++i) {
    t += body(t);
    b.step_edge(t, i, source);
  }
  b.window(WindowEvent::kEnd, t, 0, 0, steps);
  return report_of(b.read());
}

// ---- evaluation ---------------------------------------------------------------------------------

// Per step 10 ms of kernels and 6 ms in which the host is away, in evaluate() if asked.
ProcessReport evaluates(StepSource source, bool backward) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t main = b.frame(0, kScript, "main", 40);
  const CallOptions inside = at(b.frame(main, kScript, "evaluate", 5));
  const CallOptions other =
      backward ? at(b.frame(main, "/v/site-packages/torch/_tensor.py", "Tensor.backward", 9))
               : at(main);
  return loop(
      b, 10,
      [&](std::uint64_t t) {
        work(b, t, t + 10 * kUs, t + 10 * kMs, k, inside);
        work(b, t + 16 * kMs, t + 16 * kMs + 10 * kUs, t + 18 * kMs, k, inside);
        work(b, t + 17 * kMs, t + 18 * kMs, t + 20 * kMs, k, other);
        return 20 * kMs;
      },
      source);
}

TEST(AnalysisFindings, EvaluatingIsACauseBesideTrainingOnly) {
  EXPECT_THAT(ids(evaluates(StepSource::kOptimizer, false)), Contains("evaluation"));
  EXPECT_THAT(ids(evaluates(StepSource::kCall, true)), Contains("evaluation"));
  const ProcessReport alone = evaluates(StepSource::kCall, false);
  EXPECT_THAT(ids(alone), Not(Contains("evaluation")));
  EXPECT_THAT(ids(alone), Contains("host_elsewhere"));
}

// ---- input --------------------------------------------------------------------------------------

// Per step: 10 ms in which a batch is made, below `library` if given; a copy up; 10 ms of kernels.
ProcessReport late_input(const char* library, const char* function) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t main = b.frame(0, kScript, "main", 10);
  const std::uint32_t inner = library == nullptr ? main : b.frame(main, library, function, 3);
  b.use_thread(4242);
  return loop(b, 10, [&](std::uint64_t t) {
    for (std::uint64_t ms = 0; ms < 10; ++ms) {
      GapOptions o;
      o.python_stack = inner;
      o.run_ns = 900 * kUs;
      b.gap_sample(t + (ms + 1) * kMs, t + ms * kMs, o);
    }
    b.device_time(b.copy(t + 10 * kMs, t + 10 * kMs + 5 * kUs, 4096, CopyDirection::kHostToDevice,
                         MemoryKind::kPinned, true, at(main)),
                  t + 10 * kMs + 5 * kUs, t + 10 * kMs + 10 * kUs, at(main));
    work(b, t + 10 * kMs + 6 * kUs, t + 10 * kMs + 10 * kUs, t + 20 * kMs, k, at(main));
    b.sync(t + 10 * kMs + 20 * kUs, t + 20 * kMs, at(main));
    return 20 * kMs;
  });
}

TEST(AnalysisFindings, ALoaderIsAdvisedWhereOneIsSeen) {
  const ProcessReport with =
      late_input("/v/site-packages/torch/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch");
  EXPECT_THAT(finding(with, "data_starvation").cure, HasSubstr("DataLoader workers (num_workers="));
  EXPECT_THAT(finding(with, "data_starvation").gain.change, HasSubstr("workers="));

  const ProcessReport without = late_input(nullptr, nullptr);
  EXPECT_THAT(finding(without, "data_starvation").cure, Not(HasSubstr("num_workers")));
  EXPECT_THAT(finding(without, "data_starvation").gain.change, Not(HasSubstr("workers=")));
  // Importing the package is no use of it.
  const ProcessReport imported =
      late_input("/v/site-packages/torch/utils/data/__init__.py", "<module>");
  EXPECT_THAT(finding(imported, "data_starvation").cure, Not(HasSubstr("num_workers")));
}

// 16 steps of 10 ms of kernels; in some, at odd distances, input is late by `late_ms`, and looks
// find the host in this function of the loader.
ProcessReport stalls(std::vector<std::uint64_t> late_ms, const char* file) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t main = b.frame(0, kScript, "main", 10);
  const std::uint32_t inner = b.frame(main, file, "_BaseDataLoaderIter.__next__", 3);
  b.use_thread(4242);
  std::size_t step = 0;
  return loop(b, 16, [&](std::uint64_t t) {
    const std::uint64_t late = late_ms[step++];
    for (std::uint64_t ms = 0; ms < late; ++ms) {
      GapOptions o;
      o.python_stack = inner;
      o.state = 'S';
      o.flags = recording::kGapInSystemCall;
      o.system_call = 7;
      b.gap_sample(t + (ms + 1) * kMs, t + ms * kMs, o);
    }
    work(b, t + late * kMs, t + late * kMs + 10 * kUs, t + (late + 10) * kMs, k, at(main));
    b.sync(t + (late + 10) * kMs - 100 * kUs, t + (late + 10) * kMs, at(main));
    return (late + 10) * kMs;
  });
}

TEST(AnalysisFindings, SomeLateBatchesOfALoaderAreStarvation) {
  const char* loader = "/v/site-packages/torch/utils/data/dataloader.py";
  const std::vector<std::uint64_t> some = {0, 60, 0, 0, 9, 0, 0, 0, 0, 12, 0, 0, 0, 15, 0, 0};
  const ProcessReport r = stalls(some, loader);
  ASSERT_THAT(ids(r), Contains("data_starvation"));
  EXPECT_THAT(finding(r, "data_starvation").evidence, HasSubstr("in 4 of 16 steps"));
  // One slow batch; the same elsewhere than in a loader.
  EXPECT_THAT(ids(stalls({0, 90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, loader)),
              Not(Contains("data_starvation")));
  EXPECT_THAT(ids(stalls(some, kScript)), Not(Contains("data_starvation")));
}

TEST(AnalysisFindings, AQueueIsFilledTooSlowly) {
  EXPECT_THAT(
      finding(late_input("/usr/lib/python3.11/queue.py", "Queue.get"), "data_starvation").cure,
      HasSubstr("What fills the queue"));
}

// ---- pageable copies ----------------------------------------------------------------------------

// Per step 10 ms of kernels, then a copy of 4 ms from or to pageable memory.
ProcessReport pageable(CopyDirection direction, const char* file = kScript) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const CallOptions o = at(b.frame(b.frame(0, kScript, "main", 10), file, "_save", 12));
  return loop(b, 10, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 10 * kMs, k, at(b.frame(0, kScript, "main", 10)));
    b.device_time(
        b.copy(t + 10 * kMs, t + 14 * kMs, 8 << 20, direction, MemoryKind::kPageable, true, o),
        t + 10 * kMs + 10 * kUs, t + 14 * kMs, o);
    return 14 * kMs;
  });
}

TEST(AnalysisFindings, PageableCopiesAreCuredByDirection) {
  const Finding up = finding(pageable(CopyDirection::kHostToDevice), "pageable_copies");
  EXPECT_THAT(up.cure, HasSubstr(".to(device, non_blocking=True)"));
  EXPECT_THAT(up.cure, Not(HasSubstr("DataLoader")));  // none is seen
  const Finding down = finding(pageable(CopyDirection::kDeviceToHost), "pageable_copies");
  EXPECT_THAT(down.cure, HasSubstr("reduce on the GPU first"));
  EXPECT_THAT(down.cure, Not(HasSubstr(".to(device")));
  EXPECT_EQ(down.total_ns, 10 * 4 * kMs);
}

TEST(AnalysisFindings, AReadBehindQueuedCopiesIsNotWhatTakesTheTime) {
  // 10 pinned copies of 1 ms are queued; a result of 128 KiB is read behind them.
  RecordingBuilder b;
  const CallOptions o = at(b.frame(0, kScript, "main", 10));
  const ProcessReport r = loop(b, 10, [&](std::uint64_t t) {
    for (std::uint64_t i = 0; i < 10; ++i) {
      b.device_time(b.copy(t + i * 10 * kUs, t + i * 10 * kUs + 5 * kUs, 8 << 20,
                           CopyDirection::kHostToDevice, MemoryKind::kPinned, true, o),
                    t + i * kMs + 8 * kUs, t + (i + 1) * kMs + 8 * kUs, o);
    }
    b.device_time(b.copy(t + 200 * kUs, t + 10 * kMs + 50 * kUs, 128 << 10,
                         CopyDirection::kDeviceToHost, MemoryKind::kPageable, true, o),
                  t + 10 * kMs + 10 * kUs, t + 10 * kMs + 40 * kUs, o);
    return 10 * kMs + 100 * kUs;
  });
  EXPECT_THAT(ids(r), Not(Contains("pageable_copies")));
}

TEST(AnalysisFindings, ACheckpointsOwnCopiesAreTheCheckpoints) {
  const ProcessReport r =
      pageable(CopyDirection::kDeviceToHost, "/v/site-packages/torch/serialization.py");
  EXPECT_THAT(ids(r), Not(Contains("pageable_copies")));
}

// ---- runs without steps -------------------------------------------------------------------------

TEST(AnalysisFindings, WithoutStepsAStartIsNoTrouble) {
  // Weights are copied and memory pinned and allocated once; then 400 ms of kernels, and a copy up
  // of 16 KiB for each batch. No Python frames: no loop is known.
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint16_t pin = b.api("cudaHostAlloc", recording::Category::kHostAlloc);
  const recording::AllocPayload p = {0x7000, 8 << 20};
  std::uint64_t t = RecordingBuilder::kStart;
  const auto up = [&](std::uint64_t bytes) {
    b.device_time(
        b.copy(t, t + 10 * kUs, bytes, CopyDirection::kHostToDevice, MemoryKind::kPageable, true),
        t + 5 * kUs, t + 9 * kUs);
    t += 20 * kUs;
  };
  for (int i = 0; i < 10; ++i) up(1 << 20);
  for (int i = 0; i < 30; ++i, t += 500 * kUs) b.call(t, t + 400 * kUs, pin, &p, sizeof p);
  for (int i = 0; i < 30; ++i, t += 500 * kUs) b.alloc(t, t + 400 * kUs, 1 << 20);
  for (int i = 0; i < 40; ++i) {
    up(16 << 10);
    work(b, t, t + 10 * kUs, t + 10 * kMs, k);
    t += 10 * kMs;
  }
  const ProcessReport r = report_of(b.read());
  EXPECT_EQ(r.mode, StepMode::kWholeSpan);
  for (const char* id : {"pageable_copies", "pinning_churn", "allocation_churn", "small_copies"}) {
    EXPECT_THAT(ids(r), Not(Contains(id)));
  }
  for (const Finding& f : r.findings) {
    EXPECT_TRUE(!f.problem || f.share >= 0.001) << f.id;
  }
}

TEST(AnalysisFindings, WithoutStepsChurnIsStillOne) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  std::uint64_t t = RecordingBuilder::kStart;
  for (int i = 0; i < 30; ++i) {
    b.alloc(t, t + kMs, 1 << 20);
    work(b, t + kMs, t + kMs + 10 * kUs, t + 3 * kMs, k);
    b.free(t + 3 * kMs, t + 4 * kMs);
    t += 4 * kMs;
  }
  const ProcessReport r = report_of(b.read());
  EXPECT_EQ(r.mode, StepMode::kWholeSpan);
  EXPECT_THAT(ids(r), Contains("allocation_churn"));
}

// ---- memory -------------------------------------------------------------------------------------

enum class Refused { kRetried, kRetriedAtOnce, kGivenUp, kNever };

// Per step 8 ms of kernels, and an allocation of 2 ms, which is refused first.
ProcessReport allocations(Refused refused) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const CallOptions o = at(b.frame(0, kScript, "forward", 30));
  CallOptions fails = o;
  fails.result = 2;  // cudaErrorMemoryAllocation
  return loop(b, 10, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 8 * kMs, k, o);
    std::uint64_t c = t + 8 * kMs;
    if (refused != Refused::kNever) b.alloc(c, c + 200 * kUs, 1 << 30, fails);
    if (refused == Refused::kRetried || refused == Refused::kGivenUp) {
      for (std::uint64_t i = 0; i < 3; ++i) {
        b.free(c + (i + 1) * 400 * kUs, c + (i + 1) * 400 * kUs + 300 * kUs, o);
      }
    }
    // Given up: the program goes on with less.
    if (refused == Refused::kGivenUp) work(b, c + 1650 * kUs, c + 1660 * kUs, c + 1680 * kUs, k, o);
    b.alloc(c + 1700 * kUs, c + 2 * kMs, 1 << 30, o);
    return 10 * kMs;
  });
}

TEST(AnalysisFindings, MemoryIsFull) {
  const ProcessReport r = allocations(Refused::kRetried);
  const Finding f = finding(r, "memory_full");
  EXPECT_EQ(f.total_ns, 10 * (200 + 3 * 300 + 300) * kUs);  // in the calls
  EXPECT_EQ(f.where, "train.py:30 (forward)");
  EXPECT_THAT(f.evidence, HasSubstr("1 allocations per step fail"));
  EXPECT_THAT(f.evidence, HasSubstr("3 blocks were given back"));
  EXPECT_THAT(f.evidence, HasSubstr("1 are allocated anew"));
  EXPECT_THAT(ids(r), Not(Contains("allocation_churn")));
}

TEST(AnalysisFindings, OtherAllocationsAreNotMemoryThatIsFull) {
  EXPECT_THAT(ids(allocations(Refused::kRetriedAtOnce)), Not(Contains("memory_full")));
  EXPECT_THAT(ids(allocations(Refused::kGivenUp)), Not(Contains("memory_full")));
  EXPECT_THAT(ids(allocations(Refused::kNever)), Not(Contains("memory_full")));
}

// ---- locks --------------------------------------------------------------------------------------

// Per step 10 ms of kernels, and 8 ms before them in a futex, in the innermost frame given.
ProcessReport waits(const char* file, const char* function, int line) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t main = b.frame(0, kScript, "main", 10);
  const std::uint32_t inner = b.frame(main, file, function, line);
  b.use_thread(4242);
  return loop(b, 10, [&](std::uint64_t t) {
    for (std::uint64_t ms = 0; ms < 8; ++ms) {
      GapOptions o;
      o.python_stack = inner;
      o.state = 'S';
      o.system_call = 202;
      o.flags = recording::kGapInSystemCall;
      b.gap_sample(t + (ms + 1) * kMs, t + ms * kMs, o);
    }
    work(b, t + 8 * kMs, t + 8 * kMs + 10 * kUs, t + 18 * kMs, k, at(main));
    b.sync(t + 17900 * kUs, t + 18 * kMs, at(main));  // the host was busy until then
    return 18 * kMs;
  });
}

class Locks : public ::testing::Test {
 protected:
  Locks() : file_(::testing::TempDir() + "gpubusy_board.py") {
    std::ofstream(file_) << "class Board:\n"
                            "    def add(self, value):\n"
                            "        with self.lock:\n"
                            "            self.values.append(value)\n"
                            "    def put(self, value):\n"
                            "        self.lock.acquire(timeout=1)\n"
                            "    def product(self):\n"
                            "        return self.a @ self.b\n";
  }
  ~Locks() override { std::remove(file_.c_str()); }
  std::string file_;
};

TEST_F(Locks, AreNamedByTheLineThatTakesThem) {
  const ProcessReport r = waits(file_.c_str(), "Board.add", 3);
  ASSERT_THAT(ids(r), Contains("lock_wait"));
  EXPECT_EQ(r.findings[0].id, "lock_wait");
  EXPECT_NEAR(static_cast<double>(r.findings[0].total_ns), 10 * 8.0 * kMs, 10 * 0.1 * kMs);
  EXPECT_THAT(r.findings[0].where, HasSubstr("gpubusy_board.py:3 (Board.add)"));
  EXPECT_THAT(r.findings[0].cure, HasSubstr("hold it for less"));
  EXPECT_THAT(ids(r), Not(Contains("data_starvation")));
  EXPECT_THAT(ids(waits(file_.c_str(), "Board.put", 6)), Contains("lock_wait"));
}

TEST_F(Locks, OtherWaitsForThreadsAreNone) {
  // The threads of a product on the CPU; a queue; a file that is not there to be read.
  EXPECT_THAT(ids(waits(file_.c_str(), "Board.product", 8)), Not(Contains("lock_wait")));
  EXPECT_THAT(ids(waits("/usr/lib/python3.11/threading.py", "Condition.wait", 3)),
              Not(Contains("lock_wait")));
  EXPECT_THAT(ids(waits("/home/u/gone.py", "add", 3)), Not(Contains("lock_wait")));
}

// ---- gloo ---------------------------------------------------------------------------------------

// Per step: 4 ms of kernels, gradients down, 6 ms, and up again from a thread of this name.
ProcessReport gradients(const std::string& thread) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const CallOptions o = at(b.frame(0, kScript, "main", 30));
  CallOptions other;
  other.thread = 77;
  b.thread(77, thread);
  return loop(b, 10, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 4 * kMs, k, o);
    b.device_time(b.copy(t + 20 * kUs, t + 30 * kUs, 1 << 20, CopyDirection::kDeviceToHost,
                         MemoryKind::kPinned, true, o),
                  t + 4 * kMs, t + 4 * kMs + 50 * kUs, o);
    b.device_time(b.copy(t + 10 * kMs, t + 10 * kMs + 10 * kUs, 1 << 20,
                         CopyDirection::kHostToDevice, MemoryKind::kPinned, true, other),
                  t + 10 * kMs + 5 * kUs, t + 10 * kMs + 60 * kUs, other);
    work(b, t + 10 * kMs + 100 * kUs, t + 10 * kMs + 110 * kUs, t + 11 * kMs, k, o);
    return 11 * kMs;
  });
}

TEST(AnalysisFindings, GradientsThroughTheHostAreACollective) {
  const ProcessReport r = gradients("pt_gloo_runloop");
  EXPECT_EQ(r.findings.at(0).id, "collective_wait");
  EXPECT_THAT(r.findings[0].cure, HasSubstr("NCCL"));
  EXPECT_THAT(ids(r), Not(Contains("cpu_part_of_model")));
  EXPECT_EQ(gradients("pt_autograd_0").findings.at(0).id, "cpu_part_of_model");
}

// ---- offloading ---------------------------------------------------------------------------------

// Per step: `tensors` copies of 2 ms down, each behind 1 ms of kernels; then back in reverse order,
// the source given by `back`.
template <typename Back>
ProcessReport offloads(std::uint64_t tensors, Back back,
                       const std::string& thread = "pt_autograd_0") {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint16_t api = b.api("cudaMemcpyAsync", recording::Category::kCopy);
  const CallOptions o = at(b.frame(0, kScript, "forward", 30));
  CallOptions other;
  other.thread = 77;
  b.thread(77, thread);
  return loop(b, 10, [&](std::uint64_t t) {
    std::uint64_t now = t;
    const auto copy = [&](bool up, std::uint64_t host, CallOptions options) {
      recording::CopyPayload p = {};
      p.bytes = 4 << 20;
      (up ? p.source : p.destination) = host;
      p.direction = up ? CopyDirection::kHostToDevice : CopyDirection::kDeviceToHost;
      p.source_kind = up ? MemoryKind::kPinned : MemoryKind::kDevice;
      p.destination_kind = up ? MemoryKind::kDevice : MemoryKind::kPinned;
      p.asynchronous = 1;
      b.device_time(b.call(now, now + 5 * kUs, api, &p, sizeof p, options), now + 10 * kUs,
                    now + 2010 * kUs, options);
      now += 2010 * kUs;
    };
    const auto kernel = [&](CallOptions options) {
      work(b, now, now + 5 * kUs, now + kMs, k, options);
      now += kMs;
    };
    for (std::uint64_t i = 0; i < tensors; ++i) {
      kernel(o);
      copy(false, 0x10000000 + i * 0x1000000, o);
    }
    for (std::uint64_t i = tensors; i-- > 0;) {
      kernel(other);
      copy(true, back(i), other);
    }
    return now - t;
  });
}

TEST(AnalysisFindings, TensorsThatGoToTheHostAndBack) {
  const auto same = [](std::uint64_t i) { return 0x10000000 + i * 0x1000000; };
  const ProcessReport r = offloads(3, same);
  const Finding f = finding(r, "offloading");
  EXPECT_EQ(f.total_ns, 10 * 6 * 2 * kMs);
  EXPECT_EQ(f.where, "train.py:30 (forward)");
  EXPECT_THAT(f.evidence, HasSubstr("3 per step, 12.6 MB"));
  EXPECT_THAT(ids(r), Not(Contains("copies_not_overlapped")));
  // Results down and other data up; one buffer for all that goes either way; gloo's gradients.
  EXPECT_THAT(ids(offloads(3, [](std::uint64_t i) { return 0x90000000 + i * 0x1000000; })),
              Not(Contains("offloading")));
  EXPECT_THAT(ids(offloads(1, same)), Not(Contains("offloading")));
  EXPECT_THAT(ids(offloads(3, same, "pt_gloo_runloop")), Not(Contains("offloading")));
}

// ---- precision ----------------------------------------------------------------------------------

TEST(AnalysisFindings, KernelsOfSinglePrecision) {
  for (const char* name :
       {"ampere_sgemm_128x64_nn", "volta_sgemm_32x32_sliced1x4_tn",
        "maxwell_scudnn_128x32_relu_small_nn_v0",
        "void "
        "cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm_128x64_"
        "8x5_nn_align1::Params)",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_"
        "alignc4_execute_kernel__5x_cublas",
        "void cudnn::cnn::implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, true>"}) {
    EXPECT_TRUE(is_single_precision_product(name)) << name;
  }
  for (const char* name :
       {"ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_"
        "tensor16x8x8_kernel",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "ampere_dgemm_64x64_nn",
        "void at::native::vectorized_elementwise_kernel<4>", "my_gemm",
        "volta_h884gemm_128x64_ldg8_nn"}) {
    EXPECT_FALSE(is_single_precision_product(name)) << name;
  }
  EXPECT_TRUE(has_tensor_cores(9, "NVIDIA H100"));
  EXPECT_TRUE(has_tensor_cores(7, "Tesla T4"));
  EXPECT_FALSE(has_tensor_cores(7, "NVIDIA GeForce GTX 1660 Ti"));
  EXPECT_FALSE(has_tensor_cores(6, "Tesla P100"));
  EXPECT_FALSE(has_tensor_cores(0, ""));
}

// Per step `busy_ms` of one kernel and 2 ms of another; 10 ms in all.
ProcessReport product(const std::string& name, std::uint64_t busy_ms) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel(name), other = b.kernel("relu");
  const CallOptions o = at(b.frame(0, kScript, "forward", 30));
  return loop(b, 10, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + busy_ms * kMs, k, o);
    work(b, t + 10 * kUs, t + busy_ms * kMs, t + (busy_ms + 2) * kMs, other, o);
    b.sync(t + 20 * kUs, t + 10 * kMs, o);
    return 10 * kMs;
  });
}

TEST(AnalysisFindings, SinglePrecisionIsSaidWhereTheGpuIsBusy) {
  const ProcessReport r = product("ampere_sgemm_128x64_nn", 8);
  EXPECT_THAT(ids(r), ElementsAre("gpu_busy", "amp"));
  const Finding f = finding(r, "amp");
  EXPECT_FALSE(f.problem);
  EXPECT_NEAR(f.share, 0.8, 0.01);
  EXPECT_EQ(f.where, "train.py:30 (forward)");
  EXPECT_THAT(f.cure, HasSubstr("bfloat16"));
  // Unknown names, tensor cores, and a GPU that waits.
  EXPECT_THAT(ids(product("my_gemm", 8)), ElementsAre("gpu_busy"));
  EXPECT_THAT(ids(product("ampere_fp16_s16816gemm_fp16_128x128", 8)), ElementsAre("gpu_busy"));
  EXPECT_THAT(ids(product("ampere_sgemm_128x64_nn", 4)), Not(Contains("amp")));
}

// ---- copies within the device -------------------------------------------------------------------

ProcessReport copies_inside(const char* file) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("gemm"), copy = b.kernel("direct_copy_kernel_cuda");
  const std::uint32_t line = b.frame(0, kScript, "forward", 27);
  const CallOptions o = at(line), inner = at(b.frame(line, file, "forward", 5));
  return loop(b, 10, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 8 * kMs, k, o);
    work(b, t + 10 * kUs, t + 8 * kMs, t + 10 * kMs, copy, inner);
    return 10 * kMs;
  });
}

TEST(AnalysisFindings, CopiesThatAModuleOfTorchMakes) {
  const Finding own =
      finding(copies_inside("/v/site-packages/torch/nn/modules/activation.py"), "device_copies");
  EXPECT_FALSE(own.problem);
  EXPECT_EQ(own.where, "train.py:27 (forward)");  // that calls the module
  EXPECT_THAT(own.evidence, HasSubstr("inside activation.py:5 (forward)"));
  // A convolution copies because of the layout that it is given.
  EXPECT_TRUE(
      finding(copies_inside("/v/site-packages/torch/nn/modules/conv.py"), "device_copies").problem);
  EXPECT_TRUE(finding(copies_inside(kScript), "device_copies").problem);
}

}  // namespace
}  // namespace gpubusy::analysis
