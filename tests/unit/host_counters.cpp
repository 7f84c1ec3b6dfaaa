// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "host/counters.hpp"

namespace gpubusy::host {
namespace {

// As kernels of both versions wrote them.
TEST(HostCounters, Throttling) {
  Throttling t;
  ASSERT_TRUE(parse_throttling(
      "usage_usec 914013\nuser_usec 600000\nsystem_usec 314013\nnr_periods 12\nnr_throttled 11\n"
      "throttled_usec 784758\nnr_bursts 0\nburst_usec 0\n",
      t));
  EXPECT_EQ(t.periods, 12u);
  EXPECT_EQ(t.throttled_periods, 11u);
  EXPECT_EQ(t.throttled_ns, 784'758'000u);
  ASSERT_TRUE(parse_throttling("nr_periods 12\nnr_throttled 11\nthrottled_time 784758719\n", t));
  EXPECT_EQ(t.throttled_ns, 784'758'719u);
  // The root of version 2, and groups without the controller, do not tell.
  for (const char* none : {"", "usage_usec 5\nuser_usec 3\n", "nr_periods 1\nnr_throttled 1\n",
                           "nr_periods\nnr_throttled 1\nthrottled_usec 5\n", "nr_periods x"}) {
    EXPECT_FALSE(parse_throttling(none, t)) << none;
    EXPECT_EQ(t.throttled_ns, 784'758'719u) << none;
  }
  ASSERT_TRUE(
      parse_throttling("nr_periods 1\nnr_throttled 1\nthrottled_usec 18446744073709551615\n", t));
  EXPECT_EQ(t.throttled_ns, std::numeric_limits<std::uint64_t>::max());
}

TEST(HostCounters, MemoryEvents) {
  MemoryEvents e;
  ASSERT_TRUE(parse_memory_events("low 0\nhigh 3\nmax 8\noom 1\noom_kill 2\n", e));
  EXPECT_EQ(e.high, 3u);
  EXPECT_EQ(e.max, 8u);
  EXPECT_EQ(e.oom_kills, 2u);
  ASSERT_TRUE(parse_memory_events("low 0\nhigh 0\nmax 1\noom 0\n", e));
  EXPECT_EQ(e.oom_kills, 0u);
  EXPECT_FALSE(parse_memory_events("low 0\n", e));
}

TEST(HostCounters, PressureTotals) {
  Pressure p;
  ASSERT_TRUE(
      parse_pressure("some avg10=2.08 avg60=0.79 avg300=2.52 total=14905952784\n"
                     "full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n",
                     p));
  EXPECT_EQ(p.some_ns, 14'905'952'784'000u);
  EXPECT_TRUE(p.has_full);
  EXPECT_EQ(p.full_ns, 17'000u);
  ASSERT_TRUE(parse_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=5", p));
  EXPECT_FALSE(p.has_full);
  for (const char* bad : {"", "some", "some total=", "some total=x", "some avg10=1\nfull total=4",
                          "something total=4", "full total=4"}) {
    EXPECT_FALSE(parse_pressure(bad, p)) << bad;
  }
}

TEST(HostCounters, Swap) {
  Swapping s;
  ASSERT_TRUE(parse_swapping("pgpgin 1\npswpin 120\npswpout 3000\npgalloc_dma 4\n", s));
  EXPECT_EQ(s.pages_in, 120u);
  EXPECT_EQ(s.pages_out, 3000u);
  EXPECT_FALSE(parse_swapping("pswpin 120\n", s));
  std::uint64_t bytes = 0;
  ASSERT_TRUE(parse_swapped("\t     12 kB", bytes));
  EXPECT_EQ(bytes, 12u * 1024);
  EXPECT_FALSE(parse_swapped("", bytes));  // kernel threads have none
}

// Whatever the texts hold: no more is read than there is, and what is refused changes nothing.
TEST(HostCounters, AnyBytes) {
  std::mt19937 random(11);
  const std::string words[] = {"nr_periods",
                               "nr_throttled",
                               "throttled_usec",
                               "some",
                               "full",
                               "total=",
                               "pswpin",
                               "pswpout",
                               "high",
                               "max",
                               "oom_kill",
                               "VmSwap:",
                               " ",
                               "\n",
                               "\t",
                               "99999999999999999999999",
                               "12",
                               "-3",
                               "0x7",
                               "\xff",
                               "="};
  int understood = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (unsigned n = random() % 24; n > 0; --n) text += words[random() % std::size(words)];
    Throttling t{1, 2, 3};
    Pressure p{4, 5, true};
    MemoryEvents e{6, 7, 8};
    Swapping s{9, 10};
    std::uint64_t bytes = 11;
    const bool told[] = {parse_throttling(text.c_str(), t), parse_pressure(text.c_str(), p),
                         parse_memory_events(text.c_str(), e), parse_swapping(text.c_str(), s),
                         parse_swapped(text.c_str(), bytes)};
    if (!told[0]) {
      EXPECT_EQ(t.periods + t.throttled_periods + t.throttled_ns, 6u);
    }
    if (!told[1]) {
      EXPECT_EQ(p.some_ns + p.full_ns, 9u);
    }
    if (!told[2]) {
      EXPECT_EQ(e.high + e.max + e.oom_kills, 21u);
    }
    if (!told[3]) {
      EXPECT_EQ(s.pages_in + s.pages_out, 19u);
    }
    if (!told[4]) {
      EXPECT_EQ(bytes, 11u);
    }
    for (const bool one : told) understood += one;
  }
  EXPECT_GT(understood, 0);
}

}  // namespace
}  // namespace gpubusy::host
