// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "config/schedule.hpp"

namespace gpubusy::config {
namespace {

using Windows = std::vector<std::pair<int, int>>;

Windows windows_of(const Schedule& schedule, int steps) {
  Windows windows;
  bool open = false;
  for (int step = 0; step < steps; ++step) {
    const Action action = action_at(schedule, static_cast<std::uint64_t>(step));
    if (records(action)) {
      if (!open) windows.push_back({step, -1});
      open = action != Action::kRecordAndSave;
      if (!open) windows.back().second = step;
    }
  }
  return windows;
}

TEST(Schedule, ActiveOnlyCoversEveryStep) {
  const Windows w = windows_of({.active = 5, .repeat = 0}, 100);
  ASSERT_EQ(w.size(), 20u);
  EXPECT_EQ(w.front(), std::make_pair(0, 4));
  EXPECT_EQ(w.back(), std::make_pair(95, 99));
}

TEST(Schedule, WarmupIsLeftOut) {
  const Windows w = windows_of({.warmup = 1, .active = 10, .repeat = 0}, 100);
  ASSERT_EQ(w.size(), 9u);
  EXPECT_EQ(w.front(), std::make_pair(1, 10));
  EXPECT_EQ(w.back(), std::make_pair(89, 98));
}

TEST(Schedule, SkipWaitRepeat) {
  const Windows w =
      windows_of({.skip_first = 2, .wait = 1, .warmup = 1, .active = 3, .repeat = 2}, 100);
  EXPECT_EQ(w, (Windows{{4, 6}, {9, 11}}));
}

TEST(Schedule, SkipFirstWaitEntersBehindTheWait) {
  const Windows w = windows_of(
      {.skip_first = 1, .skip_first_wait = 1, .wait = 4, .warmup = 1, .active = 2, .repeat = 2},
      50);
  EXPECT_EQ(w, (Windows{{2, 3}, {9, 10}}));
}

}  // namespace
}  // namespace gpubusy::config
