// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_clock.hpp"

#include <time.h>

#include <algorithm>

#include "simulator/core/clock.hpp"
#include "simulator/core/simulation.hpp"

namespace gpubusy::sim::cupti {
namespace {

// Two readings are off by some 50 ns against each other, so the rate between moments this far apart
// is right to 50 ppm, and nothing is converted far outside of them.
constexpr std::uint64_t kMomentsApartNs = 1'000'000;
constexpr std::size_t kMaxMoments = 1024;
constexpr int kTries = 8;

std::uint64_t realtime_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace

std::uint64_t RecordClock::now() const noexcept {
  const ClientClock clock = client_clock();
  return clock != nullptr ? clock() : realtime_ns();
}

RecordClock::Moment RecordClock::read() const noexcept {
  // The narrowest of some, since the thread may be interrupted between the two clocks.
  Moment best;
  std::uint64_t best_width = ~std::uint64_t{0};
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = now_ns();
    const std::uint64_t recorded = now();
    const std::uint64_t width = now_ns() - before;
    if (width >= best_width) continue;
    best_width = width;
    best = {before + width / 2, recorded};
  }
  return best;
}

void RecordClock::forget() noexcept { moments_.clear(); }

std::uint64_t RecordClock::earliest_next_ns() const noexcept {
  if (client_clock() == nullptr || moments_.size() != 1) return 0;
  return moments_[0].simulated_ns + kMomentsApartNs;
}

void RecordClock::add(Moment moment) {
  const ClientClock clock = client_clock();
  if (clock != of_moments_) moments_.clear();
  of_moments_ = clock;
  if (clock == nullptr) {
    // Both clocks run alike, so readings differ by noise only, unless somebody sets the time.
    const auto offset = [](const Moment& m) {
      return static_cast<std::int64_t>(m.recorded - m.simulated_ns);
    };
    constexpr std::int64_t kNoiseNs = 500;
    if (moments_.empty() || std::abs(offset(moment) - offset(moments_[0])) > kNoiseNs) {
      moments_.assign(1, moment);
    }
    return;
  }
  if (moments_.size() > 1 &&
      moment.simulated_ns < moments_[moments_.size() - 2].simulated_ns + kMomentsApartNs) {
    // The last one only marks the present.
    if (moment.simulated_ns > moments_.back().simulated_ns) moments_.back() = moment;
    return;
  }
  if (!moments_.empty() && moment.simulated_ns <= moments_.back().simulated_ns) return;
  moments_.push_back(moment);
  if (moments_.size() < kMaxMoments) return;
  // Of the older half every other one is enough: interpolation stays as good.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    if (i >= moments_.size() / 2 || i % 2 == 0) moments_[kept++] = moments_[i];
  }
  moments_.resize(kept);
}

std::uint64_t RecordClock::convert(std::uint64_t simulated_ns) const noexcept {
  if (moments_.empty()) return simulated_ns;
  if (moments_.size() == 1) return moments_[0].recorded + (simulated_ns - moments_[0].simulated_ns);
  auto after =
      std::upper_bound(moments_.begin(), moments_.end(), simulated_ns,
                       [](std::uint64_t time, const Moment& m) { return time < m.simulated_ns; });
  if (after == moments_.begin()) ++after;
  if (after == moments_.end()) --after;
  const Moment& a = *(after - 1);
  const Moment& b = *after;
  const double rate = static_cast<double>(b.recorded - a.recorded) /
                      static_cast<double>(b.simulated_ns - a.simulated_ns);
  const auto since = static_cast<double>(static_cast<std::int64_t>(simulated_ns - a.simulated_ns));
  return a.recorded + static_cast<std::uint64_t>(static_cast<std::int64_t>(since * rate));
}

void DeviceClockError::start(std::uint64_t now_ns) noexcept {
  std::uint64_t none = 0;
  start_ns_.compare_exchange_strong(none, now_ns);
}

std::uint64_t DeviceClockError::apply(std::uint64_t time_ns) const noexcept {
  const Parameters& p = simulation().parameters;
  if (p.cupti_clock_offset_us == 0 && p.cupti_clock_drift_ppm == 0 && p.cupti_clock_jump_us == 0) {
    return time_ns;
  }
  const auto elapsed = static_cast<double>(static_cast<std::int64_t>(time_ns - start_ns_.load()));
  double error = p.cupti_clock_offset_us * 1e3 + elapsed * p.cupti_clock_drift_ppm * 1e-6;
  if (elapsed >= p.cupti_clock_jump_s * 1e9) error += p.cupti_clock_jump_us * 1e3;
  return time_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(error));
}

}  // namespace gpubusy::sim::cupti
