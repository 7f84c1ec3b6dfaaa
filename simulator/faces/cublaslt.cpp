// SPDX-License-Identifier: Apache-2.0
//
// cublasLt: descriptors keep what a product's sizes follow from.
#include <cublasLt.h>

#include <cstring>

#include "simulator/faces/export.hpp"
#include "simulator/faces/library.hpp"

using namespace gpubusy::sim;

namespace {

struct Product {
  cublasOperation_t transposes_a = CUBLAS_OP_N;
};
struct Layout {
  std::uint64_t rows = 0, columns = 0;
  cudaDataType type = CUDA_R_32F;
  int batch = 1;
};

Product* product_of(cublasLtMatmulDesc_t handle) { return reinterpret_cast<Product*>(handle); }
Layout* layout_of(cublasLtMatrixLayout_t handle) { return reinterpret_cast<Layout*>(handle); }

}  // namespace

#define SIM_CUBLASLT SIM_EXPORT cublasStatus_t

SIM_CUBLASLT cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_EXPORT size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
SIM_EXPORT size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }
SIM_EXPORT const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
SIM_EXPORT const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "the functionality is not simulated";
}

SIM_CUBLASLT cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t,
                                      cudaDataType_t) {
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  delete product_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                            cublasLtMatmulDescAttributes_t attribute,
                                            const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA && bytes >= sizeof(cublasOperation_t)) {
    memcpy(&product_of(handle)->transposes_a, value, sizeof(cublasOperation_t));
  }
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type,
                                        uint64_t rows, uint64_t columns, int64_t) {
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{rows, columns, type, 1});
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete layout_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                              cublasLtMatrixLayoutAttribute_t attribute,
                                              const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes >= sizeof(int)) {
    memcpy(&layout_of(handle)->batch, value, sizeof(int));
  }
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                  cublasLtMatmulPreferenceAttributes_t, const void*,
                                                  size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                            cublasLtMatmulPreference_t, int requested,
                                            cublasLtMatmulHeuristicResult_t* results,
                                            int* returned) {
  *returned = requested > 0 ? 1 : 0;
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

SIM_CUBLASLT cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void*,
                            const void*, cublasLtMatrixLayout_t a, const void*,
                            cublasLtMatrixLayout_t, const void*, const void*,
                            cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t d,
                            const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const Layout& left = *layout_of(a);
  const Layout& result = *layout_of(d);
  const std::uint64_t k =
      product_of(product)->transposes_a == CUBLAS_OP_N ? left.columns : left.rows;
  const int launched = launch_product(
      cublaslt_library(),
      {result.rows, result.columns, k, static_cast<std::uint64_t>(result.batch), left.type}, true,
      stream);
  return launched == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
