// SPDX-License-Identifier: Apache-2.0
//
// The judged steps as a graph that can be run again with something changed: what each call waited
// for, and what each piece of device work waited for. docs/whatif.md has the rules in words.
// Times: ns; those called observed are CLOCK_MONOTONIC. Plain data: a changed model is a copy.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/steps.hpp"
#include "analysis/timeline.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis::whatif {

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// Work of these kinds is done one at a time on each device.
enum class Engine : std::uint8_t { kNone, kHostToDevice, kDeviceToHost };

// The device work of one call; the nodes of a graph are one piece.
struct Work {
  std::uint32_t stream = 0;  // index into Model::streams
  std::uint32_t after =
      kNone;  // index of a node whose work it was seen to wait for, besides its stream's
  std::uint64_t duration_ns = 0;
  std::uint64_t latency_ns = 0;  // from the call's begin to its own, on an idle device
  std::uint64_t gap_ns = 0;      // the device's own pause behind what it waited for
  Engine engine = Engine::kNone;
  bool ahead = false;  // asked for a step earlier, in a stream of its own
};

enum class Wait : std::uint8_t {
  kNone,
  kStream,  // until all work of `Node::stream` so far is done
  kDevice,  // … of all streams
  kEvent,   // … that the event `Node::event` stands for
  kOwn,     // until its own work is done
  kNode,    // until the work of the node `Node::waits_for` is done: a full queue
};

// A call, and the host's time in front of it.
struct Node {
  std::uint32_t call = 0;            // index into Recording::calls
  std::uint32_t before = kNone;      // the call, of any thread, that it came after
  std::uint32_t before_own = kNone;  // the last one of its own thread
  std::uint32_t step = 0;            // index into the steps
  std::uint64_t think_ns = 0;        // the host, from the end of `before` to this call
  std::uint64_t own_ns = 0;          // in the call, without waiting
  std::uint32_t waits_for = kNone;
  std::uint32_t stream = kNone;  // index into Model::streams
  std::uint32_t event =
      kNone;  // index of an event that is recorded, waited for, or given to a stream
  Wait wait = Wait::kNone;
  bool records_event = false;  // event: stands for the work of `stream` so far
  bool gates_stream = false;   // further work of `stream` comes after `event`
  bool has_work = false;
  bool loads = false;          // think_ns is the wait for, or the loading of, the step's input
  std::uint64_t aside_ns = 0;  // … but for this much of it, which workers do not take over
  Work work;
};

struct StreamInfo {
  std::uint32_t id = 0;  // of the recording
  std::int16_t device = 0;
  bool legacy = false;    // the legacy default stream
  bool blocking = false;  // … which waits for it, and is waited for by it
};

// A supply of batches: the n-th load may end no earlier than this allows.
struct Supply {
  bool active = false;
  std::uint64_t interval_ns = 0;  // from batch to batch
  std::uint64_t overhead_ns = 0;  // taking a batch that is ready
  std::uint32_t ahead = 0;        // batches that are made in advance, at most
};

struct Model {
  std::vector<Node> nodes;  // by observed begin
  std::vector<StreamInfo> streams;
  std::uint32_t events = 0;
  std::uint32_t steps = 0;
  // The call behind which each step ends, and how long after it.
  struct StepEnd {
    std::uint32_t node = kNone;
    std::uint64_t after_ns = 0;
  };
  std::vector<StepEnd> step_ends;
  std::uint64_t origin_ns = 0;         // observed begin of the first step
  std::uint64_t observed_mean_ns = 0;  // of a step, without the first
  Supply supply;
  std::uint64_t launch_own_ns = 0;  // median of a launch that does not wait
};

// An error where there are not two steps, or device times are missing for much of the work.
tl::expected<Model, std::string> build_model(const recording::Recording& recording,
                                             const Timeline& timeline,
                                             const std::vector<Step>& steps);

}  // namespace gpubusy::analysis::whatif
