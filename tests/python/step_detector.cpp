// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_detector.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace gpubusy::runtime {
namespace {

// A program's CUDA calls; time is the number of the call.
class Program {
 public:
  void outside(int launches = 3, std::uint32_t thread = 1) {
    for (int i = 0; i < launches; ++i) take(detector_.see(thread, nullptr, nullptr, ++now_));
  }
  // One call of step(): each has a frame of its own unless told.
  void step(std::uintptr_t optimizer, int launches = 4, std::uint32_t thread = 1,
            std::uintptr_t frame = 0) {
    const std::uintptr_t call = frame != 0 ? frame : 0x1000 + 8 * ++calls_;
    for (int i = 0; i < launches; ++i) {
      take(detector_.see(thread, reinterpret_cast<void*>(optimizer), reinterpret_cast<void*>(call),
                         ++now_));
    }
    ends.push_back(now_);
  }
  void finish() {
    for (StepEdges e = detector_.finish(); e.count != 0; e = detector_.finish()) take(e);
  }

  std::vector<std::uint64_t> edges;
  std::vector<std::uint64_t> ends;  // of the step() calls

 private:
  void take(const StepEdges& e) {
    for (int i = 0; i < e.count; ++i) {
      if (!edges.empty()) EXPECT_GE(e.time_ns[i], edges.back()) << "edges never fall";
      edges.push_back(e.time_ns[i]);
    }
  }

  StepDetector detector_;
  std::uint64_t now_ = 0;
  std::uintptr_t calls_ = 0;
};

TEST(StepDetector, OneOptimizer) {
  Program p;
  for (int i = 0; i < 100; ++i) {
    p.outside();
    p.step(1);
  }
  EXPECT_EQ(p.edges.size(), 99u) << "the last is not known to have ended";
  p.finish();
  EXPECT_EQ(p.edges, p.ends);
  p.finish();
  EXPECT_EQ(p.edges.size(), 100u);
}

TEST(StepDetector, GradientAccumulationIsOneStep) {
  Program p;
  for (int i = 0; i < 40; ++i) {
    p.outside(50);
    if (i % 4 == 3) p.step(1);
  }
  p.finish();
  EXPECT_EQ(p.edges.size(), 10u);
}

TEST(StepDetector, TheSameFrameAddressIsAnotherCallAfterACallOutside) {
  Program p;
  for (int i = 0; i < 10; ++i) {
    p.step(1, 2, 1, 0x4000);
    p.outside(1);
  }
  p.finish();
  EXPECT_EQ(p.edges.size(), 10u);
}

TEST(StepDetector, AnotherFrameIsAnotherCall) {
  Program p;
  for (int i = 0; i < 10; ++i) p.step(1);
  p.finish();
  EXPECT_EQ(p.edges, p.ends);
}

TEST(StepDetector, StepWithoutLaunchesIsNone) {
  StepDetector d;
  EXPECT_EQ(d.before(1, &d, &d).count, 0);
  EXPECT_TRUE(d.inside(1));
  EXPECT_EQ(d.before(1, nullptr, nullptr).count, 0);
  EXPECT_EQ(d.finish().count, 0);
  EXPECT_EQ(d.steps(), 0u);
}

TEST(StepDetector, BackwardOnAnotherThreadInsideAClosureEndsNothing) {
  Program p;
  for (int i = 0; i < 10; ++i) {
    const std::uintptr_t frame = 0x9000;
    p.step(1, 5, 1, frame);  // forward in the closure
    p.outside(20, 2);        // autograd's thread
    p.step(1, 5, 1, frame);  // the update
    p.ends.erase(p.ends.end() - 2);
    p.outside(1, 1);
  }
  p.finish();
  EXPECT_EQ(p.edges, p.ends);
}

TEST(StepDetector, GanEdgesAreTheGeneratorsFromTheSecondIterationOn) {
  Program p;
  for (int i = 0; i < 20; ++i) {
    p.outside();
    p.step(1);
    p.outside();
    p.step(2);
  }
  p.finish();
  ASSERT_EQ(p.edges.size(), 20u);
  EXPECT_EQ(p.edges[0], p.ends[0]);
  for (unsigned i = 1; i < 20; ++i) EXPECT_EQ(p.edges[i], p.ends[2 * i + 1]) << i;
}

TEST(StepDetector, TwoOptimizersBackToBack) {
  Program p;
  for (int i = 0; i < 20; ++i) {
    p.outside();
    p.step(1);
    p.step(2);
  }
  p.finish();
  EXPECT_EQ(p.edges.size(), 20u);
  EXPECT_EQ(p.edges.back(), p.ends.back());
}

TEST(StepDetector, CriticFiveTimesPerGenerator) {
  for (const int phase : {0, 1, 4}) {
    Program p;
    int critic = 0;
    for (int i = 0; i < 100; ++i) {
      p.outside();
      p.step(1);
      ++critic;
      if (i % 5 == phase) {
        p.outside();
        p.step(2);
      }
    }
    p.outside();
    p.finish();
    EXPECT_EQ(p.edges.size(), 100u) << phase;
  }
}

TEST(StepDetector, SkippedStepsOfTheLeader) {
  Program p;
  for (int i = 0; i < 100; ++i) {
    p.outside();
    p.step(1);
    p.outside();
    if (i != 30 && i != 31 && i != 60) p.step(2);
  }
  p.finish();
  EXPECT_EQ(p.edges.size(), 100u);
}

TEST(StepDetector, AnOptimizerThatIsNeverCalledAgain) {
  Program p;
  for (int i = 0; i < 50; ++i) {
    p.outside();
    p.step(1);
    p.outside();
    p.step(2);
  }
  for (int i = 0; i < 50; ++i) {
    p.outside();
    p.step(1);
  }
  for (int i = 0; i < 50; ++i) {
    p.outside();
    p.step(3);
  }
  p.outside();
  p.finish();
  EXPECT_EQ(p.edges.size(), 150u);
}

TEST(StepDetector, OneOptimizerPerParameterInBackward) {
  for (const std::uintptr_t parameters : {3u, 300u, 700u}) {
    Program p;
    for (int i = 0; i < 30; ++i) {
      p.outside(5);
      for (std::uintptr_t o = 1; o <= parameters; ++o) {
        p.outside(1, 2);
        p.step(o, 1, 2);
      }
      p.outside(1, 2);
    }
    p.finish();
    EXPECT_EQ(p.edges.size(), 30u) << parameters;
  }
}

TEST(StepDetector, TwoThreadsTrainOneModelEach) {
  Program p;
  for (int i = 0; i < 30; ++i) {
    p.step(1, 2, 1);
    p.step(2, 2, 2);
    p.outside(2, 1);
    p.outside(2, 2);
  }
  p.finish();
  EXPECT_EQ(p.edges.size(), 30u);
}

TEST(StepDetector, ThreadsInAnyOrderCountAsTheLeader) {
  std::mt19937 random(5);
  for (int n = 0; n < 50; ++n) {
    Program p;
    unsigned left[3] = {200, 200, 200};
    while (left[0] + left[1] + left[2] > 0) {
      const unsigned t = random() % 3;
      if (left[t] == 0) continue;
      --left[t];
      p.outside(1, t);
      p.step(1 + t, 2, t);
    }
    for (const unsigned t : {0u, 1u, 2u}) p.outside(1, t);
    p.finish();
    EXPECT_GE(p.edges.size(), 190u);
    EXPECT_LE(p.edges.size(), 245u) << "the others end later";
  }
}

TEST(StepDetector, TrainingMovesToAnotherThread) {
  Program p;
  for (std::uint32_t t = 1; t <= 5; ++t) {
    for (int i = 0; i < 20; ++i) {
      p.outside(3, t);
      p.step(t, 2, t);
    }
    p.outside(1, t);
  }
  p.finish();
  EXPECT_EQ(p.edges.size(), 100u);
}

TEST(StepDetector, AnyProgramCountsTheMostCalls) {
  // Random programs: never more edges than calls, and never fewer than the most called optimizer
  // has (but for one iteration under way at the end).
  std::mt19937 random(7);
  for (int n = 0; n < 300; ++n) {
    Program p;
    const unsigned optimizers = 1 + random() % 4;
    std::vector<unsigned> calls(optimizers, 0);
    for (int i = 0; i < 60; ++i) {
      p.outside();
      const unsigned o = random() % optimizers;
      p.step(1 + o);
      ++calls[o];
    }
    p.outside();
    p.finish();
    unsigned most = 0;
    for (const unsigned c : calls) most = std::max(most, c);
    EXPECT_LE(p.edges.size(), 60u);
    EXPECT_GE(p.edges.size() + 1, most);
  }
}

}  // namespace
}  // namespace gpubusy::runtime
