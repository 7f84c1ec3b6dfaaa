// SPDX-License-Identifier: Apache-2.0
#include "analysis/matrix_kernels.hpp"

#include <algorithm>
#include <array>

namespace gpubusy::analysis {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Parts of names of products in single precision:
//   ampere_sgemm_128x64_nn, volta_sgemm_…, gemmSN_…       cuBLAS; scudnn: cuDNN's own
//   cutlass_80_simt_sgemm_…, simt_sfprop_…, simt_fprop_…  CUTLASS without tensor cores
//   sm80_xmma_gemm_f32f32_f32f32_f32_…                    what is read, computed in, and written
//   implicit_convolve_sgemm, winogradForward…             cuDNN's older convolutions
constexpr std::array<std::string_view, 11> kSingle = {
    "sgemm",          "scudnn",     "gemmSN_",    "simt_sfprop", "simt_sdgrad",
    "simt_swgrad",    "simt_fprop", "simt_dgrad", "simt_wgrad",  "_f32f32_f32f32_f32_",
    "winogradForward"};
// What tells of tensor cores, or of another type, in a name that has one of those too.
constexpr std::array<std::string_view, 12> kOther = {"tensorop", "tf32",  "hmma",   "bf16",
                                                     "f16",      "s1688", "s16816", "s884",
                                                     "h884",     "_half", "__half", "fp16"};

}  // namespace

bool is_single_precision_product(std::string_view kernel) {
  const auto in_kernel = [&](std::string_view part) { return has(kernel, part); };
  return std::any_of(kSingle.begin(), kSingle.end(), in_kernel) &&
         std::none_of(kOther.begin(), kOther.end(), in_kernel);
}

bool has_tensor_cores(std::uint32_t compute_major, std::string_view device) {
  // Of compute capability 7.5, the GTX 16 series and its like have none.
  return compute_major >= 7 && !has(device, "GTX 16") && !has(device, "MX450");
}

}  // namespace gpubusy::analysis
