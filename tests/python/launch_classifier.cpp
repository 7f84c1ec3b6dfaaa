// SPDX-License-Identifier: Apache-2.0
#include "runtime/launch_classifier.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "runtime/step_detector.hpp"

namespace gpubusy::runtime {
namespace {

const void* kernel(unsigned n) { return reinterpret_cast<const void*>(0x7f0000001000ull + 64 * n); }

// What the injected library does at each launch between windows.
class Runtime {
 public:
  void launch(const void* function, bool inside) {
    ++launches;
    ++now_;
    if (!in_step_ && classifier->may_skip(function)) return;
    ++looks;
    classifier->saw(function, inside);
    const void* call = inside ? this : nullptr;
    const StepEdges edges = detector_.see(1, call, call, now_);
    in_step_ = inside;
    steps += edges.count;
    for (int i = 0; i < edges.count; ++i) classifier->step_ended();
  }
  void run(unsigned first, unsigned count, bool inside) {
    for (unsigned i = 0; i < count; ++i) launch(kernel(first + i), inside);
  }

  std::unique_ptr<LaunchClassifier> classifier = std::make_unique<LaunchClassifier>();
  int launches = 0, looks = 0, steps = 0;

 private:
  StepDetector detector_;
  bool in_step_ = false;
  std::uint64_t now_ = 0;
};

TEST(LaunchClassifier, KernelsOfTheirOwn) {
  Runtime r;
  for (int i = 0; i < 1000; ++i) {
    r.run(0, 100, false);
    r.run(200, 3, true);
  }
  r.run(0, 1, false);
  EXPECT_EQ(r.steps, 1000);
  EXPECT_LT(r.looks, r.launches / 10) << "few launches are looked at";
}

TEST(LaunchClassifier, SharedKernels) {
  Runtime r;
  for (int i = 0; i < 1000; ++i) {
    r.run(0, 100, false);
    r.run(90, 20, true);  // ten of them are launched outside too
  }
  r.run(0, 1, false);
  EXPECT_EQ(r.steps, 1000);
}

TEST(LaunchClassifier, OnlySharedKernels) {
  Runtime r;
  for (int i = 0; i < 1000; ++i) {
    r.run(0, 100, false);
    for (int k = 0; k < 50; ++k) r.run(7, 1, true);
  }
  r.run(0, 1, false);
  EXPECT_EQ(r.steps, 1000);
}

TEST(LaunchClassifier, FirstStepsSkipped) {
  Runtime r;
  for (int i = 0; i < 200; ++i) {
    r.run(0, 100, false);
    if (i >= 5) r.run(50, 10, true);
  }
  r.run(0, 1, false);
  EXPECT_EQ(r.steps, 195);
}

TEST(LaunchClassifier, NeverKernelsOfALaterOptimizer) {
  // A second phase whose optimizer launches only kernels that were known as `never`.
  for (const unsigned launched : {1u, 10u, 160u}) {
    Runtime r;
    for (int i = 0; i < 500; ++i) {
      r.run(0, 100, false);
      r.run(200, 3, true);
    }
    r.run(0, 100, false);
    EXPECT_EQ(r.steps, 500);
    for (int i = 0; i < 500; ++i) {
      r.run(0, 100, false);
      for (unsigned k = 0; k < launched; ++k) r.run(5, 1, true);
    }
    r.run(0, 100, false);
    EXPECT_GE(r.steps, launched >= 160 ? 998 : 1000 - 130) << launched;
    EXPECT_LE(r.steps, 1000);
  }
}

TEST(LaunchClassifier, LongEvaluationAndBack) {
  Runtime r;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (int i = 0; i < 200; ++i) {
      r.run(0, 100, false);
      r.run(95, 10, true);
    }
    const int looks = r.looks, launches = r.launches;
    for (int i = 0; i < 3000; ++i) r.run(0, 60, false);
    EXPECT_LT(r.looks - looks, (r.launches - launches) / 3);
  }
  r.run(0, 1, false);
  EXPECT_EQ(r.steps, 1000);
}

TEST(LaunchClassifier, InferenceGetsCheap) {
  Runtime r;
  for (int i = 0; i < 5000; ++i) r.run(0, 100, false);
  EXPECT_EQ(r.steps, 0);
  EXPECT_LT(r.looks, r.launches / 8);
}

TEST(LaunchClassifier, ManyKernels) {
  Runtime r;
  for (int i = 0; i < 50; ++i) {
    r.run(0, 3000, false);
    r.run(5000, 3, true);
  }
  r.run(0, 1, false);
  EXPECT_EQ(r.steps, 50);
}

TEST(LaunchClassifier, Threads) {
  auto c = std::make_unique<LaunchClassifier>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20000; ++i) {
        const void* k = kernel(static_cast<unsigned>((i * 7 + t) % 50));
        if (!c->may_skip(k)) c->saw(k, i % 50 == 0 && t == 0);
        if (i % 500 == 0) c->step_ended();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace gpubusy::runtime
