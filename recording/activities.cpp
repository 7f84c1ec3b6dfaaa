// SPDX-License-Identifier: Apache-2.0
#include "recording/activities.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>

namespace gpubusy::recording {
namespace {

// A runtime of its own inside a library (cuBLAS) is reported by CUPTI as the outer call; the hook
// saw the driver's call in it. Their times come from two clocks.
constexpr std::uint64_t kClockToleranceNs = 2'000;

bool asks_for_work(const Call& call) {
  switch (call.category) {
    case Category::kLaunch:
    case Category::kGraphLaunch:
    case Category::kCopy:
    case Category::kMemset: return call.result == 0 && (call.flags & kCallCaptured) == 0;
    default: return false;
  }
}

class Join {
 public:
  Join(Recording& recording, std::vector<Correlation> correlations,
       std::vector<ApiActivity> api_activities)
      : recording_(recording),
        threads_(recording),
        correlations_(std::move(correlations)),
        api_activities_(std::move(api_activities)) {}

  void run() {
    index_calls();
    map_correlations();
    const auto by_activity = [](const ApiActivity& a, const ApiActivity& b) {
      return a.activity < b.activity;
    };
    std::stable_sort(api_activities_.begin(), api_activities_.end(), by_activity);
    for (std::uint32_t i = 0; i < recording_.activities.size(); ++i) place(i);
    drop_double_times();
    for (Call& call : unhooked_) recording_.calls.push_back(call);
    recording_.unhooked_calls = unhooked_.size();
  }

 private:
  void index_calls() {
    for (std::uint32_t i = 0; i < recording_.calls.size(); ++i) {
      const Call& call = recording_.calls[i];
      call_index_.emplace(call.correlation, i);
      last_correlation_ = std::max(last_correlation_, call.correlation);
    }
  }

  void map_correlations() {
    for (const Correlation& c : correlations_) {
      call_of_.insert_or_assign(c.activity, c.call);
      const auto found = call_index_.find(c.call);
      if (found == call_index_.end()) continue;
      const Call& call = recording_.calls[found->second];
      mapped_.insert_or_assign(c.call, true);
      if (c.end_ns == 0) continue;
      std::uint64_t error = call.start_ns > c.start_ns ? call.start_ns - c.start_ns : 0;
      error = std::max(error, c.end_ns > call.end_ns ? c.end_ns - call.end_ns : 0);
      recording_.activity_clock_error_ns = std::max(recording_.activity_clock_error_ns, error);
    }
  }

  void place(std::uint32_t index) {
    const Activity& activity = recording_.activities[index];
    const ActivityKey key = activity_key(activity.epoch, activity.correlation);
    std::uint32_t call = 0;
    if (const auto found = call_of_.find(key); found != call_of_.end()) {
      call = found->second;
    } else if (const ApiActivity* api = api_activity(key)) {
      call = call_inside(*api);
      if (call == 0) call = add_call(*api, activity);
      mapped_.insert_or_assign(call, true);
      call_of_.emplace(key, call);
    } else {
      ++recording_.orphan_activities;
      return;
    }
    DeviceTime time{};
    time.start_ns = activity.start_ns;
    time.end_ns = activity.end_ns;
    time.correlation = call;
    time.uncertainty_ns = activity.uncertainty_ns;
    time.stream = activity.stream;
    time.graph_node = static_cast<std::uint32_t>(activity.graph_node);
    time.device = activity.device;
    time.source = TimeSource::kCupti;
    time.activity = index;
    recording_.device_times.push_back(time);
  }

  // A call that was made while CUPTI was switched on has been timed by events too.
  void drop_double_times() {
    std::unordered_map<std::uint32_t, bool> by_cupti;
    bool any_event = false;
    for (const DeviceTime& time : recording_.device_times) {
      if (time.source == TimeSource::kCupti) by_cupti.emplace(time.correlation, true);
      any_event = any_event || time.source == TimeSource::kEvents;
    }
    if (!any_event) return;
    std::erase_if(recording_.device_times, [&](const DeviceTime& time) {
      return time.source == TimeSource::kEvents && by_cupti.contains(time.correlation);
    });
  }

  const ApiActivity* api_activity(ActivityKey activity) const {
    const auto found =
        std::partition_point(api_activities_.begin(), api_activities_.end(),
                             [activity](const ApiActivity& a) { return a.activity < activity; });
    return found != api_activities_.end() && found->activity == activity ? &*found : nullptr;
  }

  // The call that a hook saw inside the one that CUPTI saw; 0: none.
  std::uint32_t call_inside(const ApiActivity& api) const {
    const std::uint32_t thread = threads_.find(api.thread);
    const std::vector<Call>& calls = recording_.calls;
    const std::uint64_t from =
        api.start_ns > kClockToleranceNs ? api.start_ns - kClockToleranceNs : 0;
    auto call = std::partition_point(calls.begin(), calls.end(),
                                     [from](const Call& c) { return c.start_ns < from; });
    for (; call != calls.end() && call->start_ns <= api.end_ns; ++call) {
      if (call->thread_id != thread || call->end_ns > api.end_ns + kClockToleranceNs) continue;
      if (asks_for_work(*call) && !mapped_.contains(call->correlation)) return call->correlation;
    }
    return 0;
  }

  std::uint32_t add_call(const ApiActivity& api, const Activity& activity) {
    Call call;
    std::memset(static_cast<void*>(&call), 0, sizeof call);
    call.start_ns = api.start_ns;
    call.end_ns = api.end_ns;
    call.correlation = ++last_correlation_;
    const std::uint32_t thread = threads_.find(api.thread);
    call.thread_id = thread != 0 ? thread : api.thread;
    call.stream = activity.stream;
    call.result = api.result;
    call.api = api.api;
    call.flags = kCallUnhooked | kCallTimed;
    call.device = activity.device;
    if (activity.graph != 0) {
      call.category = Category::kGraphLaunch;
    } else if (activity.kind == ActivityKind::kKernel) {
      const KernelActivityPayload& k = activity.kernel;
      call.category = Category::kLaunch;
      call.launch = {k.kernel,
                     {k.grid_x, k.grid_y, k.grid_z},
                     {k.block_x, k.block_y, k.block_z},
                     k.dynamic_shared_bytes};
    } else if (activity.kind == ActivityKind::kCopy) {
      const CopyActivityPayload& c = activity.copy;
      call.category = Category::kCopy;
      call.copy = {c.bytes,
                   0,
                   0,
                   c.direction,
                   c.source_kind,
                   c.destination_kind,
                   c.asynchronous,
                   c.source_device,
                   c.destination_device};
    } else {
      call.category = Category::kMemset;
      call.memset.bytes = activity.memset.bytes;
      call.memset.pattern = activity.memset.pattern;
    }
    unhooked_.push_back(call);
    return call.correlation;
  }

  Recording& recording_;
  const ThreadNames threads_;
  std::vector<Correlation> correlations_;
  std::vector<ApiActivity> api_activities_;                      // by activity
  std::unordered_map<std::uint32_t, std::uint32_t> call_index_;  // correlation -> index
  std::unordered_map<ActivityKey, std::uint32_t> call_of_;       // CUPTI's correlation -> ours
  std::unordered_map<std::uint32_t, bool> mapped_;               // calls that CUPTI saw
  std::vector<Call> unhooked_;
  std::uint32_t last_correlation_ = 0;
};

}  // namespace

ThreadNames::ThreadNames(const Recording& recording) {
  for (const auto& [id, known] : recording.threads) {
    ids_.emplace(id, id);  // where the program chose gettid()
    ids_.insert_or_assign(static_cast<std::uint32_t>(known.pthread), id);
  }
}

std::uint32_t ThreadNames::find(std::uint32_t thread) const {
  const auto found = ids_.find(thread);
  return found == ids_.end() ? 0 : found->second;
}

void join_activities(Recording& recording, std::vector<Correlation> correlations,
                     std::vector<ApiActivity> api_activities) {
  if (recording.activities.empty() && correlations.empty()) return;
  Join(recording, std::move(correlations), std::move(api_activities)).run();
}

}  // namespace gpubusy::recording
