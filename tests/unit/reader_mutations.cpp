// SPDX-License-Identifier: Apache-2.0
//
// Good recordings with damaged bytes: never a crash or a hang, and memory stays near the file's
// size.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "recording/reader.hpp"
#include "tests/support/memory_source.hpp"
#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::recording {
namespace {

TEST(ReaderMutations, DamagedFilesAreReadOrRefused) {
  std::mt19937_64 random(20'240'607);  // fixed: a failure must come back
  const std::vector<std::byte> files[] = {testing::golden().bytes(), testing::everything().bytes(),
                                          testing::ranges().bytes()};
  std::size_t read = 0, damaged = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::byte> bytes = files[random() % 3];
    const auto anywhere = [&] { return random() % bytes.size(); };
    // Most damage behind the header, which would refuse the file.
    const auto behind = [&] { return kHeaderSize + random() % (bytes.size() - kHeaderSize); };
    for (std::uint64_t n = 1 + random() % 16; n > 0; --n) {
      switch (random() % 5) {
        case 0: bytes[anywhere()] = static_cast<std::byte>(random()); break;
        case 1: bytes[behind()] ^= static_cast<std::byte>(1u << random() % 8); break;
        case 2: {
          const std::size_t at = behind() / 8 * 8;
          const std::uint64_t value = random() % 2 ? ~std::uint64_t{0} : random();
          std::memcpy(bytes.data() + at, &value, std::min<std::size_t>(8, bytes.size() - at));
          break;
        }
        case 3: {
          const std::size_t at = behind();
          std::memset(bytes.data() + at, 0,
                      std::min<std::size_t>(random() % 512, bytes.size() - at));
          break;
        }
        case 4: bytes.resize(std::max<std::size_t>(behind(), kHeaderSize + 1)); break;
      }
    }
    const auto r = read_source("mutated", testing::MemorySource(bytes.data(), bytes.size()));
    if (!r) continue;
    ++read;
    damaged += r->torn_blocks + r->bad_records + r->unknown_records > 0;
    ASSERT_LE(r->calls.size() * sizeof(CallRecord), bytes.size());
    for (const Call& call : r->calls) ASSERT_LE(call.start_ns, call.end_ns);
    for (const Range& range : r->ranges) {
      ASSERT_LE(range.start_ns, range.end_ns);
      ASSERT_TRUE(range.text == 0 || r->range_texts.contains(range.text));
    }
    for (const Window& window : r->windows) ASSERT_LE(window.begin_ns, window.end_ns);
  }
  EXPECT_GT(read, 2000u);     // the test must reach the blocks
  EXPECT_GT(damaged, 1000u);  // and damage must be seen
}

}  // namespace
}  // namespace gpubusy::recording
