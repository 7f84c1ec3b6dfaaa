// SPDX-License-Identifier: Apache-2.0
//
// Is the calling thread inside the step() of a torch optimizer?
//
// torch wraps `step` of every torch.optim.Optimizer subclass, the program's own included, when the
// first object of the class is made (Optimizer._patch_step_function, 1.13: _hook_for_profile). The
// wrapper's code is named `wrapper` and comes from torch/optim/optimizer.py. zero_grad, schedulers
// (their wrapper comes from lr_scheduler.py), swa_utils and GradScaler's own kernels run outside of
// it; closures given to step() run inside.
//
// Not seen: a step that torch.compile traced into the caller's graph (the wrapper is inlined and no
// frame of it exists at run time), a step replayed from a CUDA graph, a C++ optimizer, optimizers
// that are not torch.optim.Optimizer, and frames more than kDeepest above the call.
#pragma once

#include <cstdint>

namespace gpubusy::runtime::python {

struct OptimizerCall {
  // The address of the optimizer object: an identity, never dereferenced. nullptr where it could
  // not be read.
  const void* optimizer = nullptr;
  // Identity of this call of step() while it lasts; another call may get the same value later.
  const void* frame = nullptr;
  explicit operator bool() const noexcept { return frame != nullptr; }
};

inline constexpr int kDeepestOptimizerFrame = 256;

// The outermost optimizer step that the calling thread is in (optimizers wrap optimizers, and
// subclasses call super().step()). Empty where there is none or Python stacks are off. Reads memory
// only; nothing is cached, so nothing goes stale. Thread-safe.
OptimizerCall current_optimizer_call() noexcept;

// For a frame (python::Frame::frame) that is_optimizer_wrapper(its code) holds for.
OptimizerCall optimizer_call_of_frame(const void* frame) noexcept;

// The test for one code object (PyCodeObject) that is alive. Python must be kReady.
bool is_optimizer_wrapper(const void* code) noexcept;

}  // namespace gpubusy::runtime::python
