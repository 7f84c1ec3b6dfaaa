// SPDX-License-Identifier: Apache-2.0
//
// Kernels that multiply matrices or convolve in single precision on the ordinary units of a GPU, by
// the names that cuBLAS, cuDNN and CUTLASS give them. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpubusy::analysis {

// Demangled or not. Names that are not known are no such kernels.
bool is_single_precision_product(std::string_view kernel);

// Whether a device has units for products of half precision (tensor cores). 0: not known, and then
// no.
bool has_tensor_cores(std::uint32_t compute_major, std::string_view device);

}  // namespace gpubusy::analysis
