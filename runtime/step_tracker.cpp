// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_tracker.hpp"

#include <pthread.h>

#include <atomic>

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

// ---- kernel:GLOB
constexpr std::uint64_t kNoMatch = 1, kMatch = 2;
constinit PointerMap<14> g_matches;

bool matches_pattern(const void* function, recording::Layer layer) noexcept {
  std::uint64_t known = g_matches.find(function);
  if (known == 0) {
    const char* name = kernel_name(function, layer);
    known = name != nullptr && config::glob_match(configuration().step_pattern, name) ? kMatch
                                                                                      : kNoMatch;
    g_matches.set(function, known);
  }
  return known == kMatch;
}

}  // namespace

bool launch_is_plain(const void* function) noexcept {
  switch (kind()) {
    case config::StepKind::kOptimizer: return g_classifier.may_skip(function);
    case config::StepKind::kKernel: return g_matches.find(function) == kNoMatch;
    case config::StepKind::kCall:
    case config::StepKind::kNone: break;
  }
  return true;
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
    case config::StepKind::kKernel:
      if (function != nullptr && matches_pattern(function, layer)) {
        step_edge(end_ns, recording::StepSource::kKernel);
      }
      break;
    case config::StepKind::kCall:
      if (api == g_step_api.load(std::memory_order_relaxed)) {
        step_edge(end_ns, recording::StepSource::kCall);
      }
      break;
    case config::StepKind::kNone: break;
  }
}

void steps_thread_ended(std::uint32_t thread_id) noexcept {
  if (kind() != config::StepKind::kOptimizer || !t_local.in_step) return;
  pthread_mutex_lock(&g_detector_mutex);
  const StepEdges edges = g_detector.thread_ended(thread_id);
  pthread_mutex_unlock(&g_detector_mutex);
  t_local.in_step = false;
  move_on(edges);
}

void finish_steps() noexcept {
  if (kind() != config::StepKind::kOptimizer) return;
  for (;;) {
    if (pthread_mutex_trylock(&g_detector_mutex) != 0) return;  // exit() inside a signal handler
    const StepEdges edges = g_detector.finish();
    pthread_mutex_unlock(&g_detector_mutex);
    if (edges.count == 0) return;
    move_on(edges);
  }
}

void set_up_steps() noexcept {
  g_kind.store(configuration().step_kind, std::memory_order_relaxed);
}

void forget_steps_after_fork() noexcept {
  g_matches.clear_after_fork();
  g_classifier.reset();
  g_detector_mutex = PTHREAD_MUTEX_INITIALIZER;
  g_detector.reset();
}

}  // namespace gpubusy::runtime
