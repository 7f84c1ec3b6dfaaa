// SPDX-License-Identifier: Apache-2.0
//
// A step's time divided: without rest and overlap, whatever was recorded, and each row for what it
// says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/division.hpp"
#include "analysis/report.hpp"
#include "tests/support/reports.hpp"

namespace gpubusy::analysis {
namespace {

using recording::CopyDirection;
using recording::GapFile;
using recording::MemoryKind;
using recording::WindowEvent;
using testing::CallOptions;
using testing::GapOptions;
using ::testing::HasSubstr;
using testing::kMs;
using testing::kUs;
using ::testing::Not;
using testing::RecordingBuilder;
using testing::work;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;
constexpr const char* kNccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";

template <typename Values>
std::uint64_t sum(const Values& values, std::size_t from = 0) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(from), values.end(),
                         std::uint64_t{0});
}

// ---- whatever was recorded -------------------------------------------------------------------

// What the parts of busy time ought to be, worked out a microsecond at a time.
class Oracle {
 public:
  Oracle(std::uint64_t begin, std::uint64_t end)
      : begin_(begin), cells_((end - begin) / kUs), active_(kBusyParts) {
    for (auto& part : active_) part.resize(cells_);
  }
  void add(Part part, std::uint64_t start, std::uint64_t end) {
    for (std::uint64_t t = start; t < end; t += kUs) {
      if (t >= begin_ && (t - begin_) / kUs < cells_) {
        active_[static_cast<std::size_t>(part)][(t - begin_) / kUs] = true;
      }
    }
  }
  StepDivision of(std::uint64_t begin, std::uint64_t end) const {
    StepDivision out;
    for (std::uint64_t cell = (begin - begin_) / kUs; cell < (end - begin_) / kUs; ++cell) {
      bool taken = false;
      for (std::size_t p = 0; p < kBusyParts; ++p) {
        if (!active_[p][cell]) continue;
        (taken ? out.hidden[p] : out.ns[p]) += kUs;
        taken = true;
      }
    }
    return out;
  }

 private:
  std::uint64_t begin_, cells_;
  std::vector<std::vector<bool>> active_;
};

class Random : public ::testing::TestWithParam<unsigned> {};

TEST_P(Random, AddsUpToTheWallTime) {
  std::mt19937_64 random(GetParam());
  const auto upto = [&](std::uint64_t most) { return random() % (most + 1); };
  RecordingBuilder b;
  const std::uint32_t gemm = b.kernel("gemm"), nccl = b.kernel(kNccl);
  const std::uint32_t lines[] = {0, b.frame(0, "/home/u/train.py", "main", 4),
                                 b.frame(0, "/home/u/train.py", "evaluate", 9)};
  const bool untimed = GetParam() % 4 == 3;
  constexpr std::uint64_t kSteps = 5;
  b.window(WindowEvent::kBegin, kStart, 0, 0, kSteps);
  Oracle oracle(kStart, kStart + 200 * kMs);
  std::vector<std::uint64_t> edges = {kStart};
  std::uint64_t t = kStart;  // the host
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    for (std::uint64_t n = upto(12); n > 0; --n) {
      const std::uint64_t pause = upto(3) == 0 ? upto(6000) * kUs : upto(100) * kUs;
      CallOptions o;
      o.python_stack = lines[upto(2)];
      o.stream = static_cast<std::uint32_t>(7 + upto(2));
      if (pause > 2 * kMs) {
        GapOptions look;
        look.python_stack = o.python_stack;
        look.flags = upto(2) == 0 ? recording::kGapInSystemCall : 0;
        look.system_call = static_cast<std::uint16_t>(upto(10));
        look.state = upto(1) == 0 ? 'R' : 'S';
        look.file = upto(1) == 0 ? GapFile::kFile : GapFile::kPipe;
        b.gap_sample(t + kMs, t, look);
        if (pause > 3 * kMs) b.gap_sample(t + 2 * kMs, t + kMs, look);
      }
      t += pause;
      const std::uint64_t end = t + (1 + upto(20)) * kUs;
      const std::uint64_t start = end + upto(50) * kUs, done = start + (1 + upto(3000)) * kUs;
      const auto work = [&](Part part, std::uint32_t correlation) {
        if (untimed && upto(5) == 0) return;
        b.device_time(correlation, start, done, o);
        oracle.add(part, start, done);
      };
      switch (upto(8)) {
        case 0: work(Part::kCommunication, b.launch(t, end, nccl, o)); break;
        case 1: {
          const auto kind = static_cast<MemoryKind>(upto(2));
          work(static_cast<Part>(static_cast<int>(Part::kCopyInPageable) +
                                 (kind == MemoryKind::kPageable ? 0
                                  : kind == MemoryKind::kPinned ? 1
                                                                : 2)),
               b.copy(t, end, upto(200'000) + 1, CopyDirection::kHostToDevice, kind, true, o));
          break;
        }
        case 2:
          work(Part::kCopyOutPinned,
               b.copy(t, end, 4096, CopyDirection::kDeviceToHost, MemoryKind::kPinned, true, o));
          break;
        case 3:
          work(Part::kCopyWithin,
               b.copy(t, end, 4096, CopyDirection::kDeviceToDevice, MemoryKind::kDevice, true, o));
          break;
        case 4: work(Part::kMemset, b.memset(t, end, 4096, o)); break;
        case 5: b.sync(t, end + upto(2000) * kUs, o); break;
        case 6: b.alloc(t, end + upto(500) * kUs, 1 << 20, o); break;
        default: work(Part::kCompute, b.launch(t, end, gemm, o)); break;
      }
      t = end + 2001 * kUs;
    }
    t += kUs;
    b.step_edge(t, static_cast<std::uint32_t>(step));
    edges.push_back(t);
  }
  b.window(WindowEvent::kEnd, t, 0, 0, kSteps);
  const ProcessReport r = report_of(b.read());
  if (!r.has_device_times()) {
    EXPECT_FALSE(r.division.known());
    return;
  }
  ASSERT_EQ(r.division.steps.size(), kSteps);
  for (std::size_t i = 0; i < kSteps; ++i) {
    SCOPED_TRACE(i);
    const StepDivision& d = r.division.steps[i];
    const StepTimes& times = r.times[i];
    EXPECT_EQ(sum(d.ns), r.steps[i].wall_ns());
    EXPECT_EQ(sum(d.ns, kBusyParts), r.steps[i].wall_ns() - times.busy_ns);
    EXPECT_EQ(d.at(Part::kQueued), times.idle(IdleClass::kQueued));
    EXPECT_EQ(d.at(Part::kUnknown), times.idle(IdleClass::kUnknown));
    const StepDivision expected = oracle.of(edges[i], edges[i + 1]);
    for (std::size_t p = 0; p < kBusyParts; ++p) {
      EXPECT_EQ(d.ns[p], expected.ns[p]) << part_id(static_cast<Part>(p));
      EXPECT_EQ(d.hidden[p], expected.hidden[p]) << part_id(static_cast<Part>(p));
    }
  }
  EXPECT_EQ(sum(r.division.total.ns), r.wall_ns);
  EXPECT_EQ(sum(r.division.total.ns, kBusyParts), r.wall_ns - r.busy_ns);
  std::uint64_t shown = 0;
  for (const PartRow& row : rows_to_show(r.division)) shown += row.ns;
  EXPECT_EQ(shown, r.wall_ns);
}
INSTANTIATE_TEST_SUITE_P(AnalysisDivision, Random, ::testing::Range(0u, 200u));

// ---- each row for what it says ------------------------------------------------------------------

// Ten steps; `body(t)` writes one that begins at t and returns its length.
template <typename Body>
ProcessReport loop(RecordingBuilder& b, Body body) {
  std::uint64_t t = kStart;
  b.window(WindowEvent::kBegin, t, 0, 0, 10);
  for (std::uint32_t i = 0; i < 10; ++i) {
    t += body(t);
    b.step_edge(t, i);
  }
  b.window(WindowEvent::kEnd, t, 0, 0, 10);
  return report_of(b.read());
}

std::uint64_t part(const ProcessReport& r, Part p) { return r.division.total.at(p) / 10; }

TEST(AnalysisDivision, CommunicationHasItsNames) {
  for (const char* name :
       {"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void two_shot_all_reduce_kernel<float, 16, 8>(float**, long)",
        "void vllm::cross_device_reduce_1stage<float, 2>(RankData*)", "nvshmemi_proxy_kernel"}) {
    EXPECT_TRUE(is_communication(name)) << name;
  }
  for (const char* name :
       {"gemm", "void reduce_kernel<512, 1, ncclDevKernel>(int)", "my_ncclKernel_copy",
        "void at::native::vectorized_elementwise_kernel<4>()"}) {
    EXPECT_FALSE(is_communication(name)) << name;
  }
}

TEST(AnalysisDivision, CommunicationIsTheTimeThatComputeDoesNotCover) {
  RecordingBuilder b;
  const std::uint32_t gemm = b.kernel("gemm"), nccl = b.kernel(kNccl);
  const std::uint32_t backward = b.frame(0, "/home/u/train.py", "backward", 30);
  const ProcessReport r = loop(b, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 6 * kMs, gemm);
    CallOptions o;
    o.stream = 20;
    o.python_stack = backward;
    work(b, t + 10 * kUs, t + 4 * kMs, t + 9 * kMs, nccl, o);
    return 10 * kMs;
  });
  EXPECT_EQ(part(r, Part::kCompute), 6 * kMs - 10 * kUs);
  EXPECT_EQ(part(r, Part::kCommunication), 3 * kMs);
  EXPECT_EQ(r.division.total.hidden[static_cast<std::size_t>(Part::kCommunication)], 20 * kMs);
  EXPECT_EQ(to_text(r.division.lines[static_cast<std::size_t>(Part::kCommunication)]),
            "train.py:30 (backward)");
  SessionReport session;
  session.processes.push_back(r);
  const std::string text = render_text(session, {});
  EXPECT_THAT(text,
              HasSubstr(" communication                3.00  30.0 %  train.py:30 (backward)"));
  EXPECT_THAT(text, HasSubstr("hidden under other work: communication 2.00 ms."));
}

// A pause of 20 ms at the start of each step, with looks at it, and then a copy from the host.
ProcessReport input_seen(GapOptions look, const char* file, const char* function) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const std::uint32_t train = b.frame(0, "/home/u/train.py", "main", 4);
  look.python_stack = b.frame(train, file, function, 7);
  return loop(b, [&](std::uint64_t t) {
    for (std::uint64_t i = 0; i < 9; ++i) {
      b.gap_sample(t + (i + 1) * 2 * kMs, t + i * 2 * kMs, look);
    }
    CallOptions o;
    o.python_stack = train;
    b.device_time(b.copy(t + 20 * kMs, t + 20 * kMs + 5 * kUs, 1 << 20,
                         CopyDirection::kHostToDevice, MemoryKind::kPinned, true, o),
                  t + 20 * kMs + 10 * kUs, t + 21 * kMs, o);
    work(b, t + 20 * kMs + 10 * kUs, t + 21 * kMs, t + 25 * kMs, k, o);
    return 25 * kMs;
  });
}

TEST(AnalysisDivision, InputByWhatTheLooksTell) {
  const char* fetch = "/v/site-packages/torch/utils/data/_utils/fetch.py";
  const char* loader = "/v/site-packages/torch/utils/data/dataloader.py";
  GapOptions runs;
  EXPECT_NEAR(static_cast<double>(part(input_seen(runs, fetch, "fetch"), Part::kLoading)),
              20.0 * kMs, 0.1 * kMs);
  GapOptions reads;
  reads.state = 'D';
  reads.flags = recording::kGapInSystemCall;  // read()
  reads.file = GapFile::kFile;
  const ProcessReport r = input_seen(reads, fetch, "fetch");
  EXPECT_NEAR(static_cast<double>(part(r, Part::kStorage)), 20.0 * kMs, 0.1 * kMs);
  EXPECT_EQ(to_text(r.division.lines[static_cast<std::size_t>(Part::kStorage)]),
            "train.py:4 (main)");
  GapOptions waits;
  waits.state = 'S';
  waits.flags = recording::kGapInSystemCall;
  waits.system_call = 7;  // poll()
  EXPECT_NEAR(
      static_cast<double>(part(input_seen(waits, loader, "_try_get_data"), Part::kLoaderWorkers)),
      20.0 * kMs, 0.1 * kMs);
  GapOptions gil;
  gil.state = 'S';
  gil.flags = recording::kGapInSystemCall | recording::kGapInterpreter;
  gil.system_call = 202;
  EXPECT_NEAR(
      static_cast<double>(part(input_seen(gil, "/home/u/data.py", "load"), Part::kInterpreter)),
      20.0 * kMs, 0.1 * kMs);
}

TEST(AnalysisDivision, InputThatNobodyLookedAtIsSaidToBeSo) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const ProcessReport r = loop(b, [&](std::uint64_t t) {
    b.device_time(b.copy(t + 20 * kMs, t + 20 * kMs + 5 * kUs, 1 << 20,
                         CopyDirection::kHostToDevice, MemoryKind::kPinned, true),
                  t + 20 * kMs + 10 * kUs, t + 21 * kMs);
    work(b, t + 20 * kMs + 10 * kUs, t + 21 * kMs, t + 25 * kMs, k);
    return 25 * kMs;
  });
  EXPECT_NEAR(static_cast<double>(part(r, Part::kInput)), 20.0 * kMs, 0.1 * kMs);
  EXPECT_EQ(part(r, Part::kCopyInPinned), kMs - 10 * kUs);
  EXPECT_EQ(part(r, Part::kCompute), 4 * kMs);
}

TEST(AnalysisDivision, InputByPyTorchsRange) {
  const auto with = [](const char* range, std::uint64_t length) {
    RecordingBuilder b;
    const std::uint32_t k = b.kernel("k");
    return loop(b, [&](std::uint64_t t) {
      b.range(t + kMs, t + kMs + length, range);
      work(b, t + 20 * kMs, t + 20 * kMs + 10 * kUs, t + 25 * kMs, k);
      return 25 * kMs;
    });
  };
  const char* single = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
  const char* several = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";
  EXPECT_NEAR(static_cast<double>(part(with(single, 18 * kMs), Part::kLoading)), 20.0 * kMs,
              0.1 * kMs);
  EXPECT_NEAR(static_cast<double>(part(with(several, 18 * kMs), Part::kLoaderWorkers)), 20.0 * kMs,
              0.1 * kMs);
  // It ends early: what the host did for most of the time is not known.
  EXPECT_NEAR(static_cast<double>(part(with(single, 5 * kMs), Part::kHostAtStart)), 20.0 * kMs,
              0.1 * kMs);
  EXPECT_NEAR(static_cast<double>(part(with("enumerate(mine)", 18 * kMs), Part::kHostAtStart)),
              20.0 * kMs, 0.1 * kMs);
}

// The host waits in mid-step; the device is idle behind it.
ProcessReport held_up(std::uint32_t (*hold)(RecordingBuilder&, std::uint64_t, std::uint64_t)) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  return loop(b, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 2 * kMs, k);
    hold(b, t + 2 * kMs, t + 6 * kMs);
    work(b, t + 6 * kMs, t + 6 * kMs + 10 * kUs, t + 8 * kMs, k);
    return 8 * kMs;
  });
}

TEST(AnalysisDivision, CallsThatHoldTheHostUp) {
  const ProcessReport allocates =
      held_up([](RecordingBuilder& b, std::uint64_t from, std::uint64_t to) {
        return b.alloc(from, to, 1 << 20);
      });
  EXPECT_NEAR(static_cast<double>(part(allocates, Part::kAllocation)), 4.0 * kMs, 0.05 * kMs);
  const ProcessReport waits =
      held_up([](RecordingBuilder& b, std::uint64_t from, std::uint64_t to) {
        return b.sync(from - 2 * kMs + 100 * kUs, to);
      });
  EXPECT_NEAR(static_cast<double>(part(waits, Part::kSynchronisation)), 4.0 * kMs, 0.05 * kMs);
  const auto copy = [](std::uint64_t bytes) {
    return [bytes](RecordingBuilder& b, std::uint64_t from, std::uint64_t to) {
      const auto id = b.copy(from - 2 * kMs + 100 * kUs, to, bytes, CopyDirection::kDeviceToHost,
                             MemoryKind::kPageable, true);
      b.device_time(id, from, from + 50 * kUs);
      return id;
    };
  };
  static const auto large = copy(1 << 20), small = copy(4);
  const ProcessReport pageable =
      held_up([](RecordingBuilder& b, std::uint64_t f, std::uint64_t t) { return large(b, f, t); });
  EXPECT_NEAR(static_cast<double>(part(pageable, Part::kPageableCopies)), 3.95 * kMs, 0.05 * kMs);
  EXPECT_EQ(part(pageable, Part::kCopyOutPageable), 50 * kUs);
  const ProcessReport item =
      held_up([](RecordingBuilder& b, std::uint64_t f, std::uint64_t t) { return small(b, f, t); });
  EXPECT_NEAR(static_cast<double>(part(item, Part::kSynchronisation)), 3.95 * kMs, 0.05 * kMs);
}

TEST(AnalysisDivision, AsDataItIsExactAndHasTheMedianStep) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  std::uint64_t length = 10 * kMs;
  const ProcessReport r = loop(b, [&](std::uint64_t t) {
    work(b, t, t + 10 * kUs, t + 9 * kMs, k);
    return length += kMs;
  });
  SessionReport session;
  session.processes.push_back(r);
  const auto json = nlohmann::json::parse(render_json(session))["processes"][0]["division"];
  EXPECT_EQ(json["median_step"]["step"], 4);  // the lower of two
  EXPECT_EQ(json["median_step"]["wall_ns"], 15 * kMs);
  EXPECT_EQ(json["steps"].size(), 10u);
  std::uint64_t total = 0;
  for (const auto& row : json["parts"]) total += row["total_ns"].get<std::uint64_t>();
  EXPECT_EQ(total, json["wall_ns"].get<std::uint64_t>());
  for (const auto& step : json["steps"]) {
    std::uint64_t ns = 0;
    for (const auto& value : step["ns"]) ns += value.get<std::uint64_t>();
    EXPECT_EQ(ns, step["wall_ns"].get<std::uint64_t>());
  }
}

TEST(AnalysisDivision, WithoutDeviceTimesThereIsNone) {
  RecordingBuilder b;
  const std::uint32_t k = b.kernel("k");
  const ProcessReport r = loop(b, [&](std::uint64_t t) {
    b.launch(t + 5 * kMs, t + 5 * kMs + 10 * kUs, k);
    return 10 * kMs;
  });
  EXPECT_FALSE(r.division.known());
  SessionReport session;
  session.processes.push_back(r);
  EXPECT_TRUE(nlohmann::json::parse(render_json(session))["processes"][0]["division"].is_null());
  EXPECT_THAT(render_text(session, {}), Not(HasSubstr("where the time goes")));
}

}  // namespace
}  // namespace gpubusy::analysis
