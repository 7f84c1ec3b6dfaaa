// SPDX-License-Identifier: Apache-2.0
//
// cuBLAS: handles, and matrix products as one kernel each. Nothing is computed.
#include <cublas_v2.h>

#include "simulator/faces/export.hpp"
#include "simulator/faces/library.hpp"

using namespace gpubusy::sim;

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
};

namespace {

constexpr int kVersion = CUBLAS_VERSION;

cublasStatus_t status_of(int driver_result) {
  return driver_result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t product(cublasHandle_t handle, long long m, long long n, long long k,
                       long long batch, cudaDataType type) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  const auto size = [](long long value) { return static_cast<std::uint64_t>(value); };
  return status_of(launch_product(cublas_library(), {size(m), size(n), size(k), size(batch), type},
                                  false, handle->stream));
}

// Vector operations: bound by memory.
cublasStatus_t vector_kernel(cublasHandle_t handle, const char* kernel, int n, double bytes) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Library::Launch launch;
  launch.kernel = kernel;
  launch.work.bytes = bytes;
  launch.grid.x = static_cast<std::uint32_t>(n / 256 + 1);
  launch.block.x = 128;
  return status_of(cublas_library().launch(launch, handle->stream));
}

// A result for the host is waited for.
template <class T>
cublasStatus_t reduction(cublasHandle_t handle, const char* kernel, int n, T* result) {
  const cublasStatus_t status = vector_kernel(handle, kernel, n, 2.0 * n * sizeof(T));
  if (status != CUBLAS_STATUS_SUCCESS || handle->pointer_mode != CUBLAS_POINTER_MODE_HOST) {
    return status;
  }
  LibraryScope scope;
  *result = T{};
  return status_of(cublas_library().driver().cuStreamSynchronize(handle->stream));
}

}  // namespace

#define SIM_CUBLAS SIM_EXPORT cublasStatus_t
#define SIM_HANDLE_OR_RETURN(handle) \
  if ((handle) == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED

SIM_CUBLAS cublasCreate_v2(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasDestroy_v2(cublasHandle_t handle) {
  SIM_HANDLE_OR_RETURN(handle);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  SIM_HANDLE_OR_RETURN(handle);
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  SIM_HANDLE_OR_RETURN(handle);
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasSetWorkspace_v2(cublasHandle_t handle, void*, size_t) {
  SIM_HANDLE_OR_RETURN(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  SIM_HANDLE_OR_RETURN(handle);
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  SIM_HANDLE_OR_RETURN(handle);
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  SIM_HANDLE_OR_RETURN(handle);
  handle->pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  SIM_HANDLE_OR_RETURN(handle);
  *mode = handle->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  SIM_HANDLE_OR_RETURN(handle);
  handle->atomics = mode;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
  SIM_HANDLE_OR_RETURN(handle);
  *mode = handle->atomics;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasSetSmCountTarget(cublasHandle_t handle, int) {
  SIM_HANDLE_OR_RETURN(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = kVersion;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLAS cublasGetProperty(libraryPropertyType type, int* value) {
  constexpr int kParts[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH};
  if (type < MAJOR_VERSION || type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
  *value = kParts[type];
  return CUBLAS_STATUS_SUCCESS;
}

SIM_EXPORT size_t cublasGetCudartVersion() { return CUDART_VERSION; }

SIM_EXPORT const char* cublasGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_EXECUTION_FAILED";
}

SIM_EXPORT const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not simulated"
                                                 : "the simulated library failed to launch";
}

// ---- products

#define SIM_GEMM(letter, T, type)                                                                 \
  SIM_CUBLAS cublas##letter##gemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, \
                                     int m, int n, int k, const T*, const T*, int, const T*, int, \
                                     const T*, T*, int) {                                         \
    return product(handle, m, n, k, 1, type);                                                     \
  }                                                                                               \
  SIM_CUBLAS cublas##letter##gemmStridedBatched(                                                  \
      cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const T*, \
      const T*, int, long long, const T*, int, long long, const T*, T*, int, long long,           \
      int batch) {                                                                                \
    return product(handle, m, n, k, batch, type);                                                 \
  }                                                                                               \
  SIM_CUBLAS cublas##letter##gemmBatched(                                                         \
      cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const T*, \
      const T* const[], int, const T* const[], int, const T*, T* const[], int, int batch) {       \
    return product(handle, m, n, k, batch, type);                                                 \
  }                                                                                               \
  SIM_CUBLAS cublas##letter##gemv_v2(cublasHandle_t handle, cublasOperation_t, int m, int n,      \
                                     const T*, const T*, int, const T*, int, const T*, T*, int) { \
    return product(handle, m, 1, n, 1, type);                                                     \
  }

SIM_GEMM(S, float, CUDA_R_32F)
SIM_GEMM(D, double, CUDA_R_64F)
SIM_GEMM(C, cuComplex, CUDA_C_32F)
SIM_GEMM(Z, cuDoubleComplex, CUDA_C_64F)
#undef SIM_GEMM

SIM_CUBLAS cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n,
                        int k, const void*, const void*, cudaDataType type, int, const void*,
                        cudaDataType, int, const void*, void*, cudaDataType, int,
                        cublasComputeType_t, cublasGemmAlgo_t) {
  return product(handle, m, n, k, 1, type);
}

SIM_CUBLAS cublasSgemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n,
                         int k, const float*, const void*, cudaDataType type, int, const void*,
                         cudaDataType, int, const float*, void*, cudaDataType, int) {
  return product(handle, m, n, k, 1, type);
}

SIM_CUBLAS cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t,
                                      int m, int n, int k, const void*, const void*,
                                      cudaDataType type, int, long long, const void*, cudaDataType,
                                      int, long long, const void*, void*, cudaDataType, int,
                                      long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return product(handle, m, n, k, batch, type);
}

SIM_CUBLAS cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m,
                               int n, int k, const void*, const void* const[], cudaDataType type,
                               int, const void* const[], cudaDataType, int, const void*,
                               void* const[], cudaDataType, int, int batch, cublasComputeType_t,
                               cublasGemmAlgo_t) {
  return product(handle, m, n, k, batch, type);
}

// ---- vectors

SIM_CUBLAS cublasSdot_v2(cublasHandle_t handle, int n, const float*, int, const float*, int,
                         float* result) {
  return reduction(handle, "void dot_kernel<float, 128, 0>", n, result);
}

SIM_CUBLAS cublasDdot_v2(cublasHandle_t handle, int n, const double*, int, const double*, int,
                         double* result) {
  return reduction(handle, "void dot_kernel<double, 128, 0>", n, result);
}

SIM_CUBLAS cublasDotEx(cublasHandle_t handle, int n, const void*, cudaDataType, int, const void*,
                       cudaDataType, int, void* result, cudaDataType result_type, cudaDataType) {
  if (result_type == CUDA_R_32F) {
    return reduction(handle, "void dot_kernel<float, 128, 0>", n, static_cast<float*>(result));
  }
  return reduction(handle, "void dot_kernel<half, 128, 0>", n, static_cast<short*>(result));
}

SIM_CUBLAS cublasSaxpy_v2(cublasHandle_t handle, int n, const float*, const float*, int, float*,
                          int) {
  return vector_kernel(handle, "void axpy_kernel_val<float, float>", n, 12.0 * n);
}

SIM_CUBLAS cublasSscal_v2(cublasHandle_t handle, int n, const float*, float*, int) {
  return vector_kernel(handle, "void scal_kernel_val<float, float>", n, 8.0 * n);
}
