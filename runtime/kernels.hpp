// SPDX-License-Identifier: Apache-2.0
//
// Kernel functions: from a host stub address or a driver handle to a Kernel definition with its
// (mangled) name.
#pragma once

#include <cstdint>

#include "recording/format.hpp"

namespace gpubusy::runtime {

// From __cudaRegisterFunction: called tens of thousands of times while libtorch_cuda is loaded,
// long before the first CUDA call. Keeps the pointer to the name, which lives as long as the
// module.
void register_kernel(void* module, const void* host_function, const char* name) noexcept;
// From __cudaUnregisterFatBinary: its addresses may be used again by another library.
void unregister_module(void* module) noexcept;
// Driver modules or libraries were unloaded: handles may be used again.
void forget_driver_kernels() noexcept;

// Id for the recording, defined at first sight. `layer` says what `function` is.
std::uint32_t kernel_id(const void* function, recording::Layer layer) noexcept;
// The name as registered or as the driver tells it; nullptr where it cannot be found.
const char* kernel_name(const void* function, recording::Layer layer) noexcept;

// The same for a name that CUPTI gives, whose address may serve another name later.
std::uint32_t kernel_id_by_name(const char* name) noexcept;

// Does the kernel's name match GPUBUSY_STEP=kernel:…? Kept with the kernel, and forgotten with it.
// kUnnamed: nothing knows its name; a registration may come later.
enum class StepMatch : std::uint8_t { kUnknown, kUnnamed, kNo, kYes };
StepMatch known_step_match(const void* function) noexcept;
void remember_step_match(const void* function, StepMatch match) noexcept;

void prepare_kernels_for_fork() noexcept;
void release_kernels_after_fork(bool in_child) noexcept;

}  // namespace gpubusy::runtime
