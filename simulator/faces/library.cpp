// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/library.hpp"

#include <library_types.h>

#include <algorithm>

namespace gpubusy::sim {
namespace {

struct TypeInfo {
  double bytes;
  double rate_share;  // of the half precision rate
  double operations;  // real multiply-adds for one of this type
  const char* kernel;
};

// Names of kernels that the real cuBLAS uses on this architecture.
TypeInfo type_info(int type) {
  switch (type) {
    case CUDA_R_64F:
      return {8, 1.0 / 8, 1,
              "sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_stage3_"
              "warpsize2x2x1_tensor8x8x4_kernel"};
    case CUDA_C_64F:
      return {16, 1.0 / 8, 4,
              "void cutlass::Kernel2<cutlass_80_tensorop_z884gemm_64x64_16x3_nn_align1>"};
    case CUDA_C_32F: return {8, 1.0 / 2, 4, "ampere_cgemm_64x64_nn"};
    case CUDA_R_16F:
      return {2, 1, 1,
              "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_"
              "warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"};
    case CUDA_R_16BF:
      return {2, 1, 1,
              "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_"
              "warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"};
    case CUDA_R_8I: return {1, 2, 1, "sm90_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize128x128x128"};
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return {1, 2, 1, "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128"};
    default:
      return {4, 1.0 / 2, 1,
              "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_"
              "warpsize2x2x1_tensor16x8x8_kernel"};
  }
}

}  // namespace

Library& cublas_library() {
  static auto* library = new Library;
  return *library;
}
Library& cublaslt_library() {
  static auto* library = new Library;
  return *library;
}
Library& cudnn_library() {
  static auto* library = new Library;
  return *library;
}

const DriverTable& Library::driver() {
  std::call_once(once_, [this] { driver_.resolve(false); });
  return driver_;
}

CUfunction Library::find(const char* name) {
  std::lock_guard lock(lock_);
  CUfunction& function = kernels_[name];
  if (function == nullptr) {
    const DriverTable& d = driver();
    if (handle_ == nullptr) {
      d.cuLibraryLoadData(&handle_, kLibraryImage, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }
    CUkernel kernel = nullptr;
    if (d.cuLibraryGetKernel(&kernel, handle_, name) != CUDA_SUCCESS) return nullptr;
    function = reinterpret_cast<CUfunction>(kernel);
  }
  return function;
}

int Library::launch(const Launch& what, CUstream stream) {
  LibraryScope scope;
  const CUfunction function = find(what.kernel);
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  Work work = what.work;
  void* arguments[] = {&work};
  if (!what.extended) {
    return driver().cuLaunchKernel(function, what.grid.x, what.grid.y, what.grid.z, what.block.x,
                                   what.block.y, what.block.z, what.shared_bytes, stream, arguments,
                                   nullptr);
  }
  CUlaunchConfig config{};
  config.gridDimX = what.grid.x;
  config.gridDimY = what.grid.y;
  config.gridDimZ = what.grid.z;
  config.blockDimX = what.block.x;
  config.blockDimY = what.block.y;
  config.blockDimZ = what.block.z;
  config.sharedMemBytes = what.shared_bytes;
  config.hStream = stream;
  return driver().cuLaunchKernelEx(&config, function, arguments, nullptr);
}

int launch_product(Library& library, const MatrixProduct& p, bool extended, CUstream stream) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return CUDA_SUCCESS;
  const TypeInfo type = type_info(p.type);
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n),
             k = static_cast<double>(p.k), batch = static_cast<double>(p.batch);
  constexpr std::uint64_t kTile = 128;
  Library::Launch launch;
  launch.kernel =
      p.n == 1 ? "void gemv2T_kernel_val<int, int, float, float, float, float>" : type.kernel;
  launch.work.flops = 2 * m * n * k * batch * type.operations;
  launch.work.bytes = (m * n + m * k + n * k) * batch * type.bytes;
  launch.work.rate_share = type.rate_share;
  launch.grid.x = static_cast<std::uint32_t>((p.m + kTile - 1) / kTile);
  launch.grid.y =
      static_cast<std::uint32_t>(std::min<std::uint64_t>((p.n + kTile - 1) / kTile, 65535));
  launch.grid.z = static_cast<std::uint32_t>(std::min<std::uint64_t>(p.batch, 65535));
  launch.block.x = extended ? 384 : 256;
  launch.shared_bytes = 96 * 1024;
  launch.extended = extended;
  return library.launch(launch, stream);
}

}  // namespace gpubusy::sim
