// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/recording_builder.hpp"

namespace gpubusy::recording {
namespace {

using testing::RecordingBuilder;

HostRecord offer() {
  HostRecord r{};
  r.header.value = kHostTellsQuota | kHostTellsMemory;
  r.memory_bytes = 64ull << 30;
  r.swap_bytes = 1u << 30;
  r.cpu_quota_us = 150'000;
  r.cpu_period_us = 100'000;
  r.online_processors = 16;
  r.usable_processors = 8;
  r.page_bytes = 4096;
  return r;
}

TEST(ReaderHost, Offer) {
  RecordingBuilder b(77);
  EXPECT_FALSE(b.read().host_offer.known);
  b.host_offer(offer());
  const Recording r = b.read();
  const HostOffer& h = r.host_offer;
  ASSERT_TRUE(h.known);
  EXPECT_EQ(h.flags, kHostTellsQuota | kHostTellsMemory);
  EXPECT_EQ(h.memory_bytes, 64ull << 30);
  EXPECT_EQ(h.swap_bytes, 1u << 30);
  EXPECT_EQ(h.memory_limit_bytes, 0u);
  EXPECT_EQ(h.cpu_quota_us, 150'000u);
  EXPECT_EQ(h.cpu_period_us, 100'000u);
  EXPECT_EQ(h.online_processors, 16u);
  EXPECT_EQ(h.usable_processors, 8u);
  EXPECT_EQ(h.page_bytes, 4096u);
  EXPECT_DOUBLE_EQ(h.effective_processors(), 1.5);
  EXPECT_EQ(r.bad_records + r.unknown_records, 0u);
}

TEST(ReaderHost, WhatAProcessCanUse) {
  HostOffer h;
  EXPECT_EQ(h.effective_processors(), 0);  // not known
  h.usable_processors = 2;
  EXPECT_EQ(h.effective_processors(), 2);
  h.cpu_quota_us = 400'000;
  h.cpu_period_us = 100'000;
  EXPECT_EQ(h.effective_processors(), 2);
  h.usable_processors = 0;
  EXPECT_EQ(h.effective_processors(), 4);
}

TEST(ReaderHost, AQuotaOfNoPeriodIsDamage) {
  RecordingBuilder b(77);
  HostRecord r = offer();
  r.cpu_period_us = 0;
  b.host_offer(r);
  const Recording read = b.read();
  EXPECT_FALSE(read.host_offer.known);
  EXPECT_EQ(read.bad_records, 1u);
}

// ---- counters

TEST(ReaderHost, CountersByTheirBits) {
  RecordingBuilder b(77);
  b.host_counts(
      RecordingBuilder::kStart + 20,
      {{HostCounter::kUserNs, 5}, {HostCounter::kThrottledNs, 7}, {HostCounter::kSwappedBytes, 9}},
      {HostSource::kGroup, HostSource::kRefused, HostSource::kMachine}, 81);
  b.host_edge(RecordingBuilder::kStart + 10, 4, {{HostCounter::kThreadMajorFaults, 3}});
  const Recording r = b.read();
  ASSERT_EQ(r.host_counts.size(), 2u);
  const HostCounts &edge = r.host_counts[0], &beside = r.host_counts[1];  // by time
  EXPECT_EQ(edge.moment, HostMoment::kEdge);
  EXPECT_EQ(edge.step, 4u);
  EXPECT_EQ(edge.thread_id, 77u);
  EXPECT_EQ(edge.at(HostCounter::kThreadMajorFaults), 3u);
  EXPECT_EQ(edge.at(HostCounter::kUserNs), std::nullopt);
  EXPECT_EQ(beside.moment, HostMoment::kHelper);
  EXPECT_EQ(beside.thread_id, 81u);
  EXPECT_EQ(beside.at(HostCounter::kUserNs), 5u);
  EXPECT_EQ(beside.at(HostCounter::kThrottledNs), 7u);
  EXPECT_EQ(beside.at(HostCounter::kSwappedBytes), 9u);
  EXPECT_EQ(beside.at(HostCounter::kQuotaPeriods), std::nullopt);
  EXPECT_EQ(beside.sources[1], HostSource::kRefused);
  EXPECT_EQ(r.bad_records + r.unknown_records, 0u);
}

TEST(ReaderHost, CountersOfALaunchingThread) {
  RecordingBuilder b(77);
  b.host_thread(RecordingBuilder::kStart, 82,
                {{HostCounter::kThreadWaitedNs, 5}, {HostCounter::kThreadSinceNs, 6}});
  const Recording r = b.read();
  ASSERT_EQ(r.host_counts.size(), 1u);
  EXPECT_EQ(r.host_counts[0].moment, HostMoment::kThread);
  EXPECT_EQ(r.host_counts[0].thread_id, 82u);
  EXPECT_EQ(r.host_counts[0].at(HostCounter::kThreadWaitedNs), 5u);
  EXPECT_EQ(r.host_counts[0].at(HostCounter::kThreadRanNs), std::nullopt);
  EXPECT_EQ(r.bad_records, 0u);
}

// A newer version may count more.
TEST(ReaderHost, BitsThatAreNotKnownYet) {
  RecordingBuilder b(77);
  b.host_counts(RecordingBuilder::kStart, {{HostCounter::kUserNs, 5}, {HostCounter{60}, 6}});
  const Recording r = b.read();
  ASSERT_EQ(r.host_counts.size(), 1u);
  EXPECT_EQ(r.host_counts[0].at(HostCounter::kUserNs), 5u);
  EXPECT_EQ(r.host_counts[0].at(HostCounter{60}), 6u);
}

TEST(ReaderHost, FewerValuesThanBitsAreDamage) {
  RecordingBuilder b(77);
  HostCountersRecord record{};
  record.time_ns = RecordingBuilder::kStart;
  record.known = ~std::uint64_t{0};
  const auto* body = reinterpret_cast<const char*>(&record) + sizeof record.header;
  b.raw(RecordType::kHostCounters, 0, {body, sizeof record - sizeof record.header});
  b.raw(RecordType::kHostCounters, 7, {body, sizeof record - sizeof record.header});
  const Recording r = b.read();
  EXPECT_TRUE(r.host_counts.empty());
  EXPECT_EQ(r.bad_records, 2u);
}

}  // namespace
}  // namespace gpubusy::recording
