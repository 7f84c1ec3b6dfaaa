// SPDX-License-Identifier: Apache-2.0
#include "runtime/pointer_map.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace gpubusy::runtime {
namespace {

const void* key(std::uintptr_t n) { return reinterpret_cast<const void*>(n); }

TEST(PointerMap, FindsWhatWasSet) {
  static PointerMap<10> map;
  EXPECT_EQ(map.find(key(16)), 0u);
  EXPECT_TRUE(map.set(key(16), 5));
  EXPECT_TRUE(map.set(nullptr, 7));  // the default stream's handle
  EXPECT_EQ(map.find(key(16)), 5u);
  EXPECT_EQ(map.find(nullptr), 7u);
  EXPECT_TRUE(map.set(key(16), 6));
  EXPECT_EQ(map.find(key(16)), 6u);
  EXPECT_TRUE(map.set(key(16), 0));
  EXPECT_EQ(map.find(key(16)), 0u);
}

TEST(PointerMap, RefusesWhenFullAndKeepsWhatItHas) {
  static PointerMap<6> map;
  std::size_t stored = 0;
  while (map.set(key(64 * (stored + 1)), stored + 1)) ++stored;
  EXPECT_EQ(stored, 48u);  // three quarters of 64
  for (std::size_t i = 0; i < stored; ++i) EXPECT_EQ(map.find(key(64 * (i + 1))), i + 1);
  EXPECT_EQ(map.find(key(64 * 1000)), 0u);
  // A place whose value was erased takes its key again.
  EXPECT_TRUE(map.set(key(64), 0));
  EXPECT_TRUE(map.set(key(64), 9));
}

TEST(PointerMap, PlacesOfErasedKeysServeNewOnes) {
  static PointerMap<6> map;
  for (std::uintptr_t i = 1; i <= 10000; ++i) {
    ASSERT_TRUE(map.set(key(i * 64), i)) << i;
    EXPECT_EQ(map.find(key(i * 64)), i);
    if (i > 20) {
      EXPECT_TRUE(map.set(key((i - 20) * 64), 0));
      EXPECT_EQ(map.find(key((i - 20) * 64)), 0u);
    }
  }
  EXPECT_TRUE(map.has_room());
  for (std::uintptr_t i = 9981; i <= 10000; ++i) EXPECT_EQ(map.find(key(i * 64)), i);
}

TEST(PointerMap, TellsWhenItIsFull) {
  static PointerMap<6> map;
  for (std::uintptr_t i = 1; i <= 48; ++i) {
    EXPECT_TRUE(map.has_room());
    EXPECT_TRUE(map.set(key(i * 64), i));
  }
  EXPECT_FALSE(map.has_room());
  EXPECT_FALSE(map.set(key(64 * 100), 1));
  map.for_each([](const void*, std::uint64_t& value) { value = value == 7 ? 0 : value; });
  EXPECT_TRUE(map.has_room());
  EXPECT_TRUE(map.set(key(64 * 100), 1));
  EXPECT_FALSE(map.has_room());
}

// A place goes to another key while readers look: they must never get that key's value.
TEST(PointerMap, ReadersOfAnErasedKeyDoNotSeeItsSuccessor) {
  static PointerMap<5> map;
  std::atomic<bool> stop{false}, wrong{false};
  std::thread reader([&] {
    while (!stop) {
      for (std::uintptr_t i = 1; i <= 64; ++i) {
        const std::uint64_t value = map.find(key(i * 64));
        if (value != 0 && value != i) wrong = true;
      }
    }
  });
  for (std::uintptr_t round = 0; round < 20000; ++round) {
    const std::uintptr_t i = round % 64 + 1;
    map.set(key(i * 64), i);
    map.set(key(((i + 59) % 64 + 1) * 64), 0);
  }
  stop = true;
  reader.join();
  EXPECT_FALSE(wrong);
}

TEST(PointerMap, ReadersSeeWholeValuesWhileWritersInsert) {
  static PointerMap<14> map;
  std::vector<std::thread> threads;
  std::atomic<bool> wrong{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &wrong] {
      for (std::uintptr_t i = 1; i < 2500; ++i) {
        if (!map.set(key(i * 64 + static_cast<std::uintptr_t>(t)), i)) wrong = true;
        const std::uint64_t other = map.find(key(i * 64 + static_cast<std::uintptr_t>(t ^ 1)));
        if (other != 0 && other != i) wrong = true;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_FALSE(wrong);
  for (std::uintptr_t i = 1; i < 2500; ++i) EXPECT_EQ(map.find(key(i * 64 + 3)), i);
}

TEST(PointerMap, ForEachMayEraseAndClearForgets) {
  static PointerMap<8> map;
  for (std::uintptr_t i = 1; i <= 10; ++i) map.set(key(i * 8), i);
  map.for_each([](const void*, std::uint64_t& value) {
    if (value % 2 == 0) value = 0;
  });
  for (std::uintptr_t i = 1; i <= 10; ++i) EXPECT_EQ(map.find(key(i * 8)), i % 2 == 0 ? 0 : i);
  map.clear_after_fork();
  EXPECT_EQ(map.find(key(8)), 0u);
  EXPECT_TRUE(map.set(key(8), 3));
  EXPECT_EQ(map.find(key(8)), 3u);
}

}  // namespace
}  // namespace gpubusy::runtime
