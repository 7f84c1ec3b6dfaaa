// SPDX-License-Identifier: Apache-2.0
//
// What NVTX calls in the library that NVTX_INJECTION64_PATH names, when a library that uses NVTX
// makes its first call. 0: no tool, every NVTX function of that library does nothing from then on.
#include "runtime/nvtx.hpp"
#include "preload/api.hpp"
#include "runtime/keep_errno.hpp"

extern "C" [[gnu::visibility("default")]] int InitializeInjectionNvtx2(
    gpubusy::runtime::nvtx::GetExportTable* get_table) {
  const gpubusy::runtime::KeepErrno keep;
  gpubusy::preload::ensure_started();
  return gpubusy::runtime::nvtx::attach(get_table) ? 1 : 0;
}
