// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/clock.hpp"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <cmath>

#include "runtime/clock.hpp"

namespace gpubusy::runtime::cupti {
namespace {

// A clock of CUPTI's: a multiple of CLOCK_MONOTONIC, or CLOCK_REALTIME.
double g_rate = 0;
std::int64_t g_step = 0;

std::uint64_t cupti_time(std::uint64_t ns) {
  return static_cast<std::uint64_t>(static_cast<double>(ns) * g_rate);
}
Result read_clock(std::uint64_t* out) {
  *out = g_rate == 0 ? unix_ns() + static_cast<std::uint64_t>(g_step) : cupti_time(now_ns());
  return kSuccess;
}

Library library() {
  Library l{};
  l.timestamp = read_clock;
  return l;
}

std::int64_t error(const Clock& clock, std::uint64_t cupti, std::uint64_t ns) {
  return static_cast<std::int64_t>(clock.convert(cupti).ns - ns);
}

TEST(CuptiClock, TimeOfDayIsConvertedFromOneReading) {
  g_rate = 0;
  Clock clock;
  const Library l = library();
  EXPECT_FALSE(clock.ready());
  clock.restart(1);
  clock.sample({l, nullptr});
  ASSERT_TRUE(clock.ready());
  const std::uint64_t ns = now_ns(), unix = unix_ns();
  // Both readings take some tens of ns, more where the thread is interrupted between them.
  EXPECT_LT(std::abs(error(clock, unix, ns)), 20'000);
  EXPECT_LT(std::abs(error(clock, unix + 5'000'000'000, ns + 5'000'000'000)), 20'000);
  EXPECT_LT(std::abs(error(clock, unix - 5'000'000'000, ns - 5'000'000'000)), 20'000);
}

TEST(CuptiClock, AnyRateIsInterpolated) {
  for (const double rate : {2.4, 1e-3}) {
    g_rate = rate;
    Clock clock;
    const Library l = library();
    clock.restart(1);
    const std::uint64_t before = now_ns();
    clock.sample({l, nullptr});
    for (int i = 0; i < 3; ++i) {
      usleep(10'000);
      clock.sample({l, nullptr});
    }
    const std::uint64_t middle = before + 15'000'000;
    const auto resolution = static_cast<std::int64_t>(1 / rate);
    EXPECT_LT(std::abs(error(clock, cupti_time(middle), middle)), 20'000 + 2 * resolution) << rate;
  }
}

TEST(CuptiClock, ManyReadingsKeepTheFirst) {
  g_rate = 2;
  Clock clock;
  const Library l = library();
  clock.restart(1);
  clock.sample({l, nullptr});
  const std::uint64_t early = now_ns();
  for (int i = 0; i < 300; ++i) {
    usleep(1'100);
    clock.sample({l, nullptr});
  }
  EXPECT_LT(std::abs(error(clock, cupti_time(early), early)), 20'000);
}

TEST(CuptiClock, AStepOfTheSystemsTimeIsSaid) {
  g_rate = 0;
  g_step = 0;
  Clock clock;
  const Library l = library();
  clock.restart(1);
  clock.sample({l, nullptr});
  usleep(2'000);
  const std::uint64_t ns = now_ns(), unix = unix_ns();
  usleep(2'000);
  g_step = 5'000'000;  // 5 ms ahead
  clock.sample({l, nullptr});
  g_step = 0;
  const Clock::Time time = clock.convert(unix);
  EXPECT_LT(std::abs(static_cast<std::int64_t>(time.ns - ns)), 20'000);
  EXPECT_GT(time.uncertainty_ns, 4'000'000u);
}

}  // namespace
}  // namespace gpubusy::runtime::cupti
