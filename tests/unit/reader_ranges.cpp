// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/recording_builder.hpp"
#include "tests/support/scenarios.hpp"

namespace gpubusy::recording {
namespace {

using testing::RecordingBuilder;

constexpr std::uint64_t kStart = RecordingBuilder::kStart;

TEST(ReaderRanges, FieldsAndOrder) {
  RecordingBuilder b(77);
  const std::uint32_t domain = b.range_text("domain"), category = b.range_text("category");
  b.range(kStart + 20, kStart + 30, "beside",
          {.thread = 78,
           .domain = domain,
           .category = 5,
           .category_name = category,
           .colour = 0xff00ff00,
           .kind = RangeKind::kStartEnd,
           .payload_type = RangePayload::kInt32,
           .payload = 9,
           .flags = kRangeColour});
  b.range(kStart + 10, kStart + 12, "short");
  b.range(kStart + 10, kStart + 40, "beside");
  const Recording r = b.read();
  ASSERT_EQ(r.ranges.size(), 3u);
  EXPECT_EQ(r.ranges[0].end_ns, kStart + 40);  // the outer one first
  EXPECT_EQ(r.ranges[1].end_ns, kStart + 12);
  const Range& last = r.ranges[2];
  EXPECT_EQ(r.ranges[0].text, last.text);  // one text, twice beside its range
  EXPECT_EQ(r.range_texts.at(last.text), "beside");
  EXPECT_EQ(r.range_texts.at(last.domain), "domain");
  EXPECT_EQ(r.range_texts.at(last.category_name), "category");
  EXPECT_EQ(last.thread_id, 78u);
  EXPECT_EQ(last.category, 5u);
  EXPECT_EQ(last.colour, 0xff00ff00);
  EXPECT_EQ(last.kind, RangeKind::kStartEnd);
  EXPECT_EQ(last.payload_type, RangePayload::kInt32);
  EXPECT_EQ(last.payload, 9u);
  EXPECT_EQ(r.bad_records + r.unknown_records, 0u);
}

TEST(ReaderRanges, OpenAndEndedAreOne) {
  RecordingBuilder b;
  b.range(kStart, kStart + 10, "a", {.id = 1, .flags = kRangeOpen});
  b.range(kStart, kStart + 20, "a", {.id = 1, .flags = kRangeOpen});  // of a second window
  b.range(kStart, kStart + 30, "a", {.id = 1});
  b.range(kStart, kStart + 5, "b", {.id = 2, .flags = kRangeOpen});  // never ended
  b.range(kStart, kStart + 5, "c");
  b.range(kStart, kStart + 5, "c");
  const Recording r = b.read();
  ASSERT_EQ(r.ranges.size(), 4u);
  EXPECT_EQ(r.ranges[0].end_ns, kStart + 30);
  EXPECT_EQ(r.ranges[0].flags, 0);
  EXPECT_EQ(r.ranges[1].flags, kRangeOpen);
}

TEST(ReaderRanges, DamageIsCounted) {
  RecordingBuilder b;
  b.range(kStart + 5, kStart, "ends before it begins");
  b.range(kStart, kStart + 5, "kind", {.kind = static_cast<RangeKind>(9)});
  b.range(kStart, kStart + 5, "payload", {.payload_type = static_cast<RangePayload>(99)});
  b.range(kStart, kStart + 5, 42u, {.domain = 43});  // texts that are not there
  b.raw(RecordType::kRange, 0, "short");
  b.raw(RecordType::kRangeText, 1, "short");
  const Recording r = b.read();
  ASSERT_EQ(r.ranges.size(), 1u);
  EXPECT_EQ(r.ranges[0].text, 0u);
  EXPECT_EQ(r.ranges[0].domain, 0u);
  EXPECT_EQ(r.bad_records, 3u + 2 + 2);
}

TEST(ReaderRanges, TheProgramsNameOfAThreadStays) {
  const Recording r = testing::ranges().read();
  EXPECT_EQ(r.threads.at(6162).name, "loader \xe6\x97\xa5");
}

}  // namespace
}  // namespace gpubusy::recording
