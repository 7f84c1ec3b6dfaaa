// SPDX-License-Identifier: Apache-2.0
#include "runtime/cupti/clock.hpp"

#include "runtime/clock.hpp"

namespace gpubusy::runtime::cupti {
namespace {

constexpr int kRounds = 6;
// Two readings are off by some 30 ns against each other: closer together than this the rate of the
// clock would be worse than what is known already.
constexpr std::uint64_t kApartNs = 1'000'000;
// A clock in ns that keeps the rate of CLOCK_MONOTONIC: CLOCK_REALTIME but for a step.
constexpr std::int64_t kSameRateNs = 2'000;
constexpr std::uint64_t kIsRealtimeNs = 10'000'000;

std::uint64_t magnitude(std::int64_t value) noexcept {
  const std::uint64_t m = static_cast<std::uint64_t>(value < 0 ? -value : value);
  return m < 0xffffffffu ? m : 0xffffffffu;
}
std::uint32_t narrow(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(value < 0xffffffffu ? value : 0xffffffffu);
}

}  // namespace

void Clock::sample(const Activities& activities) noexcept {
  Sample best{};
  best.uncertainty_ns = ~std::uint32_t{0};
  for (int i = 0; i < kRounds; ++i) {
    std::uint64_t cupti = 0;
    const std::uint64_t before = now_ns();
    if (activities.timestamp(&cupti) != kSuccess) return;
    const std::uint64_t width = now_ns() - before;
    if (width / 2 >= best.uncertainty_ns) continue;
    best = {cupti, before + width / 2, static_cast<std::uint32_t>(width / 2), false};
  }
  if (best.uncertainty_ns == ~std::uint32_t{0}) return;
  best.is_realtime = magnitude(static_cast<std::int64_t>(best.cupti - unix_ns())) < kIsRealtimeNs;
  // The newest one only marks the present until it is far enough from the one before.
  if (count_ > 1 && samples_[count_ - 1].ns - samples_[count_ - 2].ns < kApartNs) --count_;
  if (count_ == kSamples) {
    // Of the older half every other one is enough.
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (i >= count_ / 2 || i % 2 == 0) samples_[kept++] = samples_[i];
    }
    count_ = kept;
  }
  samples_[count_++] = best;
}

Clock::Time Clock::convert(std::uint64_t cupti) const noexcept {
  if (count_ == 0) return {0, 0};
  std::size_t after = count_ - 1;  // most records are recent
  while (after > 1 && samples_[after - 1].cupti > cupti) --after;
  std::size_t before = after == 0 ? 0 : after - 1;
  const Sample& b = samples_[after];
  // Two readings close together tell nothing of the rate.
  while (before > 0 && b.ns - samples_[before].ns < kApartNs) --before;
  const Sample& a = samples_[before];
  const auto since = static_cast<std::int64_t>(cupti - a.cupti);
  const auto cupti_apart = static_cast<std::int64_t>(b.cupti - a.cupti);
  const auto ns_apart = static_cast<std::int64_t>(b.ns - a.ns);
  std::uint64_t uncertainty =
      a.uncertainty_ns > b.uncertainty_ns ? a.uncertainty_ns : b.uncertainty_ns;
  const std::int64_t difference = cupti_apart - ns_apart;
  const bool same_rate = difference < kSameRateNs && difference > -kSameRateNs;
  if (cupti_apart <= 0 || same_rate || (a.is_realtime && b.is_realtime)) {
    // Somebody set the system's time in between, and when is not known.
    if (!same_rate) uncertainty = magnitude(difference);
    return {a.ns + static_cast<std::uint64_t>(since), narrow(uncertainty)};
  }
  const double rate = static_cast<double>(ns_apart) / static_cast<double>(cupti_apart);
  const auto ns = static_cast<std::int64_t>(static_cast<double>(since) * rate);
  // Outside of the two readings their own errors grow with the distance.
  const std::int64_t outside = ns < 0 ? -ns : ns > ns_apart ? ns - ns_apart : 0;
  uncertainty += static_cast<std::uint64_t>(
      static_cast<double>(outside) * static_cast<double>(a.uncertainty_ns + b.uncertainty_ns) /
      static_cast<double>(ns_apart > 0 ? ns_apart : 1));
  return {a.ns + static_cast<std::uint64_t>(ns), narrow(uncertainty)};
}

}  // namespace gpubusy::runtime::cupti
