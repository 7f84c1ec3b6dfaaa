// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_tracker.hpp"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "runtime/driver.hpp"
#include "runtime/kernels.hpp"
#include "runtime/launch_classifier.hpp"
#include "runtime/pointer_map.hpp"
#include "runtime/python_presence.hpp"
#include "runtime/step_detector.hpp"

namespace gpubusy::runtime {
namespace {

constinit std::atomic<config::StepKind> g_kind{config::StepKind::kNone};
config::StepKind kind() noexcept { return g_kind.load(std::memory_order_relaxed); }

// ---- optimizer
constinit LaunchClassifier g_classifier;
constinit StepDetector g_detector;
constinit pthread_mutex_t g_detector_mutex = PTHREAD_MUTEX_INITIALIZER;

std::uint32_t own_thread_id() noexcept {
  const ThreadState* thread = thread_state();
  return thread == nullptr ? 0 : thread->thread_id;
}

void move_on(const StepEdges& edges) noexcept {
  for (int i = 0; i < edges.count; ++i) {
    g_classifier.step_ended();
    step_edge(edges.time_ns[i], recording::StepSource::kOptimizer);
  }
}

// ---- optimizer steps in graphs
constinit PointerMap<10> g_step_graphs;  // graphs, and what was made executable of them
constinit thread_local bool t_captured_step = false;

// ---- kernel:GLOB
StepMatch match(const void* function, recording::Layer layer) noexcept {
  StepMatch known = known_step_match(function);
  if (known != StepMatch::kUnknown) return known;
  const char* name = kernel_name(function, layer);
  if (name == nullptr) {
    known = StepMatch::kUnnamed;
    if (driver() == nullptr) return known;  // could not be asked yet
  } else {
    known =
        config::glob_match(configuration().step_pattern, name) ? StepMatch::kYes : StepMatch::kNo;
  }
  remember_step_match(function, known);
  return known;
}

// ---- calls inside a call
struct Nested {
  std::uint32_t calls;    // of the step's function
  std::uint32_t kernels;  // launches whose names match
};
constinit thread_local Nested t_nested = {};

}  // namespace

bool launch_is_plain(const void* function) noexcept {
  switch (kind()) {
    case config::StepKind::kOptimizer: return g_classifier.may_skip(function);
    case config::StepKind::kKernel: {
      const StepMatch known = known_step_match(function);
      return known == StepMatch::kNo || known == StepMatch::kUnnamed;
    }
    case config::StepKind::kCall:
    case config::StepKind::kNvtx:
    case config::StepKind::kNone: break;
  }
  return true;
}

bool graph_is_plain(const void* graph_exec) noexcept {
  return g_step_graphs.is_empty() || g_step_graphs.find(graph_exec) == 0;
}

python::OptimizerCall look_for_optimizer(const void* function) noexcept {
  if (kind() != config::StepKind::kOptimizer) return {};
  // Calls that are not launches only matter as the first behind a step.
  if (function == nullptr && !t_local.in_step) return {};
  if (!python_may_be_here()) return {};
  return python::current_optimizer_call();
}

void steps_before_call(const void* function, const python::OptimizerCall& optimizer) noexcept {
  if (kind() != config::StepKind::kOptimizer) return;
  const bool inside = static_cast<bool>(optimizer);
  if (function != nullptr) g_classifier.saw(function, inside);
  if (!inside && !t_local.in_step) return;
  if (function == nullptr && !t_local.in_step) return;  // a step begins with its first launch
  const std::uint32_t thread = own_thread_id();
  pthread_mutex_lock(&g_detector_mutex);
  const StepEdges edges = g_detector.before(thread, optimizer.optimizer, optimizer.frame);
  pthread_mutex_unlock(&g_detector_mutex);
  t_local.in_step = inside;
  move_on(edges);
}

void steps_after_call(std::uint32_t api, const void* function, recording::Layer layer,
                      std::uint64_t end_ns) noexcept {
  switch (kind()) {
    case config::StepKind::kOptimizer:
      if (function != nullptr && t_local.in_step) {
        const std::uint32_t thread = own_thread_id();
        pthread_mutex_lock(&g_detector_mutex);
        g_detector.after_launch(thread, end_ns);
        pthread_mutex_unlock(&g_detector_mutex);
      }
      break;
    case config::StepKind::kKernel: {
      const StepMatch own = function == nullptr ? StepMatch::kUnnamed : match(function, layer);
      // Where the name is known it counts, else what the driver was asked to launch for it.
      const bool ended = own == StepMatch::kUnnamed ? t_nested.kernels > 0 : own == StepMatch::kYes;
      if (ended) step_edge(end_ns, recording::StepSource::kKernel);
      break;
    }
    case config::StepKind::kCall: {
      std::uint32_t ended = t_nested.calls;
      if (api == g_step_api.load(std::memory_order_relaxed)) ++ended;
      for (; ended > 0; --ended) step_edge(end_ns, recording::StepSource::kCall);
      break;
    }
    case config::StepKind::kNvtx:  // runtime/ranges
    case config::StepKind::kNone: break;
  }
}

void steps_saw_captured_call() noexcept {
  if (kind() == config::StepKind::kOptimizer && t_local.in_step) t_captured_step = true;
}

void steps_saw_capture_end(const void* graph) noexcept {
  const bool step = std::exchange(t_captured_step, false);
  if (graph == nullptr || (!step && g_step_graphs.is_empty())) return;
  // A graph's handle may be that of an earlier one.
  g_step_graphs.set(graph, step ? 1 : 0);
}

void steps_saw_instantiation(const void* graph_exec, const void* graph) noexcept {
  if (g_step_graphs.is_empty()) return;
  g_step_graphs.set(graph_exec, g_step_graphs.find(graph));
}

void steps_forget_graph(const void* graph_exec) noexcept {
  if (!g_step_graphs.is_empty()) g_step_graphs.set(graph_exec, 0);
}

void steps_after_graph(const void* graph_exec, std::uint64_t end_ns) noexcept {
  if (graph_is_plain(graph_exec)) return;
  const std::uint32_t thread = own_thread_id();
  pthread_mutex_lock(&g_detector_mutex);
  g_detector.see(thread, graph_exec, graph_exec, end_ns);
  const StepEdges edges = g_detector.thread_ended(thread);
  pthread_mutex_unlock(&g_detector_mutex);
  move_on(edges);
}

void step_saw_nested_call(std::uint32_t api, const void* function) noexcept {
  if (kind() == config::StepKind::kCall) {
    if (api == g_step_api.load(std::memory_order_relaxed)) ++t_nested.calls;
  } else if (kind() == config::StepKind::kKernel && function != nullptr) {
    if (match(function, api_info(api).layer) == StepMatch::kYes) ++t_nested.kernels;
  }
}

void steps_forget_nested_calls() noexcept { t_nested = {}; }

void steps_thread_ended(std::uint32_t thread_id) noexcept {
  if (kind() != config::StepKind::kOptimizer || !t_local.in_step) return;
  pthread_mutex_lock(&g_detector_mutex);
  const StepEdges edges = g_detector.thread_ended(thread_id);
  pthread_mutex_unlock(&g_detector_mutex);
  t_local.in_step = false;
  move_on(edges);
}

int finish_steps(std::uint64_t (&times_ns)[2]) noexcept {
  if (kind() != config::StepKind::kOptimizer) return 0;
  if (pthread_mutex_trylock(&g_detector_mutex) != 0) return 0;  // exit() inside a signal handler
  const StepEdges edges = g_detector.finish();
  pthread_mutex_unlock(&g_detector_mutex);
  for (int i = 0; i < edges.count; ++i) times_ns[i] = edges.time_ns[i];
  return edges.count;
}

void set_up_steps() noexcept { g_kind.store(configuration().step_kind, std::memory_order_relaxed); }

void forget_steps_after_fork() noexcept {
  t_nested = {};
  g_classifier.reset();
  g_step_graphs.clear_after_fork();
  g_detector_mutex = PTHREAD_MUTEX_INITIALIZER;
  g_detector.reset();
}

}  // namespace gpubusy::runtime
